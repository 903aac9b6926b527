//! Text with the statistics of another: each character follows the four before it as often as there (Shannon, 1948, §3).

use candle_core::{Device, Result};
use sha2::{Digest, Sha256};

use super::fresh::Maker;
use super::{Batch, windows};
use gleaner_statistics::random::Generator;

/// Characters that decide the next.
const CONTEXT: usize = 4;

/// A chain of characters.
#[derive(Debug)]
pub struct Sampled {
    /// The text, whose end is followed by its beginning.
    text: Vec<u32>,
    /// Of each place, the characters there as one number, and the one that follows them; in order.
    following: Vec<(u64, u32)>,
    /// Characters predicted in each example.
    length: usize,
}

impl Sampled {
    /// The chain of a text that is not empty.
    pub fn new(text: &[u32], length: usize) -> Self {
        let around = || text.iter().copied().cycle();
        let place = |at: usize| {
            let context: Vec<u32> = around().skip(at).take(CONTEXT + 1).collect();
            (key(&context[..CONTEXT]), context[CONTEXT])
        };
        let ends = text.len().saturating_sub(CONTEXT);
        let mut following: Vec<(u64, u32)> = text
            .windows(CONTEXT + 1)
            .map(|window| (key(&window[..CONTEXT]), window[CONTEXT]))
            .chain((ends..text.len()).map(place))
            .collect();
        following.sort_unstable();
        Self { text: text.to_vec(), following, length }
    }

    /// A text of one character more than are predicted.
    fn text(&self, generator: &mut Generator) -> Vec<u32> {
        let start = generator.below(self.text.len() as u32) as usize;
        let mut text: Vec<u32> =
            self.text.iter().copied().cycle().skip(start).take(CONTEXT.min(self.length)).collect();
        while text.len() <= self.length {
            let context = key(&text[text.len() - CONTEXT.min(text.len())..]);
            let first = self.following.partition_point(|(known, _)| *known < context);
            let count = self.following[first..].partition_point(|(known, _)| *known == context);
            text.push(self.following[first + generator.below(count as u32) as usize].1);
        }
        text
    }
}

/// Characters as one number. There are fewer than 2¹⁶ different ones in a text that is read.
fn key(characters: &[u32]) -> u64 {
    characters.iter().fold(0, |key, &character| key << 16 | u64::from(character))
}

impl Maker for Sampled {
    fn fingerprint(&self, hash: &mut Sha256) {
        self.text.iter().for_each(|character| hash.update(character.to_le_bytes()));
    }

    fn batch(&self, mut generators: Vec<Generator>, device: &Device) -> Result<Batch> {
        let texts: Vec<Vec<u32>> = generators.iter_mut().map(|generator| self.text(generator)).collect();
        windows(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>(), self.length, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_follows_what_it_follows_in_the_text() {
        // After "abcd" comes e twice as often as f.
        let text: Vec<u32> = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 5].into();
        let sampled = Sampled::new(&text, 40);
        let (mut e, mut f) = (0, 0);
        for number in 0..500 {
            let made = sampled.text(&mut Generator::new(1, "test", number));
            assert_eq!(made.len(), 41);
            for five in made.windows(5) {
                let found = (0..text.len())
                    .any(|at| (0..5).all(|place| text[(at + place) % text.len()] == five[place]));
                assert!(found, "{five:?}");
                if five[..4] == [0, 1, 2, 3] {
                    *(if five[4] == 4 { &mut e } else { &mut f }) += 1;
                }
            }
        }
        let share = f64::from(e) / f64::from(e + f);
        assert!((share - 2.0 / 3.0).abs() < 0.03, "{e} and {f}");
    }
}
