//! Text, as a sequence of characters. The last tenth is held out.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use super::fresh::{FRESH, Fresh};
use super::sampled::Sampled;
use super::{Dataset, Examples, Input, TrainerError};

/// Characters predicted per window.
const WINDOW: usize = 64;

/// Windows of made text that are held out.
const HELD_OUT: usize = 512;

/// The project's README and book as they stood once: fixed, so that figures of one version compare with those of another.
const DOCUMENTATION: &str = include_str!("../../data/documentation.txt");

/// The text that is inside the program.
pub fn documentation() -> Result<Dataset, TrainerError> {
    dataset(Path::new("the documentation inside this program"), DOCUMENTATION)
}

/// Text with the statistics of that, new in every step.
pub fn sampled(seed: u64) -> Result<Dataset, TrainerError> {
    let (vocabulary, characters) = numbered(DOCUMENTATION);
    let maker = Rc::new(Sampled::new(&characters, WINDOW));
    let examples = |seed, part, count| Examples::Fresh(Fresh::new(maker.clone(), seed, part, count));
    let (train, held_out) = (examples(seed, "fresh text", FRESH), examples(0, "held-out text", HELD_OUT));
    Ok(Dataset { input: Input::Characters, classes: vocabulary, train, held_out })
}

/// How many different characters there are, and the number of each character of the text.
fn numbered(text: &str) -> (usize, Vec<u32>) {
    let vocabulary: Vec<char> = text.chars().collect::<BTreeSet<char>>().into_iter().collect();
    // Every character of the text is in the sorted vocabulary, so the search always finds it.
    let number = |character| vocabulary.binary_search(&character).unwrap_or_default() as u32;
    (vocabulary.len(), text.chars().map(number).collect())
}

/// A text file in UTF-8.
pub fn load(path: &Path) -> Result<Dataset, TrainerError> {
    let content = super::read_file(path, "a text file in UTF-8", "give its path as --data text:FILE")?;
    let text = std::str::from_utf8(&content).map_err(|error| TrainerError::Data {
        path: path.into(),
        expected: "text in UTF-8".into(),
        found: format!("other bytes at offset {}", error.valid_up_to()),
        advice: "convert the file, for example with iconv",
    })?;
    dataset(path, text)
}

fn dataset(path: &Path, text: &str) -> Result<Dataset, TrainerError> {
    let (classes, characters) = numbered(text);
    let (train, held_out) = characters.split_at(characters.len() - characters.len() / 10);
    let train = Examples::Windows { characters: train.to_vec(), length: WINDOW, shifting: true };
    let held_out = Examples::Windows { characters: held_out.to_vec(), length: WINDOW, shifting: false };
    if held_out.is_empty() {
        return Err(TrainerError::Data {
            path: path.into(),
            expected: format!(
                "at least {} characters, of which the last tenth is held out",
                10 * (WINDOW + 1)
            ),
            found: match characters.len() {
                0 => "no text at all".into(),
                count => format!("{count}"),
            },
            advice: "bring more text with --data text:FILE",
        });
    }
    Ok(Dataset { input: Input::Characters, classes, train, held_out })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(content: &[u8]) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("text.txt");
        std::fs::write(&path, content).unwrap();
        load(&path).unwrap_err().to_string()
    }

    /// Every edit of it would change the losses in the book.
    #[test]
    fn the_documentation_stays_as_it_was() {
        assert_eq!(DOCUMENTATION.len(), 678_141);
    }

    #[test]
    fn the_last_tenth_is_held_out() {
        let text = "Ähren lesen. ".repeat(100);
        let dataset = dataset(Path::new("test"), &text).unwrap();
        assert_eq!(dataset.classes, 9);
        let Examples::Windows { characters, .. } = &dataset.held_out else { panic!("text has windows") };
        assert_eq!(characters.len(), 130);
        assert_eq!((dataset.train.len(), dataset.held_out.len()), ((1170 - 64) / 64, 2));
    }

    #[test]
    fn what_is_no_text_is_refused_with_a_reason() {
        assert!(refusal(b"").contains("found no text at all"));
        assert!(refusal(b"too short").contains("at least 650 characters"));
        assert!(refusal(&[b'a', 0xff, b'b']).contains("other bytes at offset 1"));
        let missing = load(Path::new("/nowhere/text.txt")).unwrap_err().to_string();
        assert!(missing.contains("no such file") && missing.contains("text:FILE"), "{missing}");
    }
}
