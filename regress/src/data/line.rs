//! One line of a LIBSVM file: `label index:value index:value …`, with indices from 1, ascending. What follows a `#` is a comment.

use super::Samples;

/// What is wrong with a line.
#[derive(Debug, PartialEq)]
pub(crate) struct Fault {
    /// The first byte of what is wrong, from 1.
    pub(crate) column: usize,
    /// What should stand there.
    pub(crate) expected: String,
    /// What stands there.
    pub(crate) found: String,
}

/// Whether a line has a sample: it is neither empty nor a comment.
pub(crate) fn has_sample(line: &[u8]) -> bool {
    line.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|&byte| byte != b'#')
}

/// Appends the sample of a line, and gives its highest index, counted from 1. Entries that are zero are not kept.
///
/// # Errors
/// A label or value that is no finite number, indices that are not ascending or beyond `most`.
pub(crate) fn parse(line: &[u8], most: u32, samples: &mut Samples) -> Result<u32, Fault> {
    let mut words = Words { line, at: 0 };
    let (at, word) = words.next().unwrap_or((0, b""));
    let label = finite(at, word, "a label that is a finite number")?;
    let mut before = 0;
    for (at, word) in words {
        let Some(colon) = word.iter().position(|&byte| byte == b':') else {
            return Err(fault(at, "index:value", word));
        };
        let index = index(at, &word[..colon])?;
        if index <= before {
            let expected = format!("an index above {before}, the one before it");
            return Err(fault(at, expected, &word[..colon]));
        }
        if index > most {
            let expected = format!("an index from 1 to the number of features, {most}");
            return Err(fault(at, expected, &word[..colon]));
        }
        before = index;
        let value = finite(at + colon + 1, &word[colon + 1..], "a value that is a finite number")?;
        if value != 0.0 {
            samples.push(index - 1, value);
        }
    }
    samples.end(label);
    Ok(before)
}

/// The words of a line up to a comment, each with where it starts.
struct Words<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Words<'a> {
    type Item = (usize, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.line[self.at..];
        let start = self.at + rest.iter().position(|byte| !byte.is_ascii_whitespace())?;
        let rest = &self.line[start..];
        if rest[0] == b'#' {
            return None;
        }
        let length = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        self.at = start + length;
        Some((start, &rest[..length]))
    }
}

fn fault(at: usize, expected: impl Into<String>, word: &[u8]) -> Fault {
    /// Bytes of a word that are shown.
    const SHOWN: usize = 40;
    let text = String::from_utf8_lossy(&word[..word.len().min(SHOWN)]).into_owned();
    let found = match word.len() {
        0 => "nothing".to_owned(),
        length if length > SHOWN => format!("\"{}…\"", text.escape_debug()),
        _ => format!("\"{}\"", text.escape_debug()),
    };
    Fault { column: at + 1, expected: expected.into(), found }
}

fn index(at: usize, word: &[u8]) -> Result<u32, Fault> {
    let digits = || fault(at, "an index, which is a whole number from 1 to 4294967295", word);
    if word.is_empty() || word.len() > 10 {
        return Err(digits());
    }
    let number = word
        .iter()
        .try_fold(0_u64, |number, byte| byte.is_ascii_digit().then(|| number * 10 + u64::from(byte - b'0')));
    number.and_then(|number| u32::try_from(number).ok()).filter(|&number| number > 0).ok_or_else(digits)
}

fn finite(at: usize, word: &[u8], expected: &str) -> Result<f32, Fault> {
    let number = short(word).or_else(|| std::str::from_utf8(word).ok()?.parse().ok());
    number.filter(|number: &f32| number.is_finite()).ok_or_else(|| fault(at, expected, word))
}

/// A decimal number with few digits, exactly rounded: below 2^24 and powers of ten up to 10^10 are exact in 32 bits, so that
/// one division rounds once (Clinger's fast path).
fn short(word: &[u8]) -> Option<f32> {
    const POWERS: [f32; 11] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10];
    let (is_negative, digits) = match word.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, word),
    };
    if digits.is_empty() || digits.len() > 12 || digits == b"." {
        return None;
    }
    let (mut mantissa, mut behind, mut point) = (0_u64, 0, false);
    for &byte in digits {
        match byte {
            b'0'..=b'9' => {
                mantissa = mantissa * 10 + u64::from(byte - b'0');
                behind += usize::from(point);
            }
            b'.' if !point => point = true,
            _ => return None,
        }
    }
    if mantissa >= 1 << 24 || behind >= POWERS.len() {
        return None;
    }
    let magnitude = mantissa as f32 / POWERS[behind];
    Some(if is_negative { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(line: &str, most: u32) -> Result<(Samples, u32), Fault> {
        let mut samples = Samples::default();
        parse(line.as_bytes(), most, &mut samples).map(|highest| (samples, highest))
    }

    #[test]
    fn a_line_is_a_label_and_entries() {
        let (samples, highest) = parsed("+1 1:0.5\t3:-2e-3  7:0 # 8:1", 9).unwrap();
        let row = samples.row(0);
        assert_eq!((row.label, row.indices, row.values), (1.0, &[0, 2][..], &[0.5, -2e-3][..]));
        // An entry that is zero is a feature all the same.
        assert_eq!(highest, 7);
        assert_eq!(parsed("-1\r\n", 9).unwrap().1, 0);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_column() {
        for (line, column, expected, found) in [
            ("x 1:1", 1, "a label", "\"x\""),
            ("nan 1:1", 1, "a finite number", "\"nan\""),
            ("1 5", 3, "index:value", "\"5\""),
            ("1 0:1", 3, "from 1", "\"0\""),
            ("1 -4:1", 3, "whole number", "\"-4\""),
            ("1 4294967296:1", 3, "4294967295", "\"4294967296\""),
            ("1 2:1 2:1", 7, "above 2", "\"2\""),
            ("1 2:1 1:1", 7, "above 2", "\"1\""),
            ("1 2:1 10:1", 7, "features, 9", "\"10\""),
            ("1 2:NaN", 5, "a finite number", "\"NaN\""),
            ("1 2:1e60", 5, "a finite number", "\"1e60\""),
            ("1 2:", 5, "a value", "nothing"),
            ("1 2:1,5", 5, "a value", "\"1,5\""),
            ("1 qid:3 2:1", 3, "an index", "\"qid\""),
        ] {
            let fault = parsed(line, 9).unwrap_err();
            assert_eq!((fault.column, fault.found.as_str()), (column, found), "{line}");
            assert!(fault.expected.contains(expected), "{line}: {}", fault.expected);
        }
    }

    proptest! {
        /// The short way rounds as the long one does.
        #[test]
        fn numbers_are_rounded_as_by_the_standard_library(word in "[+-]?[0-9]{0,8}(\\.[0-9]{0,9})?") {
            let long: Option<f32> = word.parse().ok();
            let found = finite(0, word.as_bytes(), "").ok();
            prop_assert_eq!(found.map(f32::to_bits), long.map(f32::to_bits), "{}", word);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(line in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse(&line, u32::MAX, &mut Samples::default());
        }
    }
}
