//! Whether a user clicks, by categories: made from hidden weights of the categories and of pairs of them. Few categories are frequent
//! and most are rare, as words are.

use std::rc::Rc;

use candle_core::{Device, Result, Tensor};
use sha2::{Digest, Sha256};

use super::fresh::{FRESH, Fresh, Maker};
use super::{Batch, Dataset, Examples, Input};
use gleaner_statistics::random::Generator;

const FIELDS: usize = 8;
/// A field has 2¹³ − 1 categories: of rank r, with a frequency near 1/r.
const OCTAVES: u32 = 13;
const CATEGORIES: usize = (1 << OCTAVES) - 1;
const HELD_OUT: usize = 8192;
/// The hidden weights are the same for every seed of a training.
const HIDDEN: u64 = 1;

/// Makes examples.
#[derive(Debug)]
struct Clicks;

/// Categories with their clicks, new ones in every step.
pub fn make(seed: u64) -> Dataset {
    let examples = |seed, part, count| Examples::Fresh(Fresh::new(Rc::new(Clicks), seed, part, count));
    Dataset {
        input: Input::Categories { fields: FIELDS, rows: FIELDS * CATEGORIES },
        classes: 2,
        train: examples(seed, "fresh clicks", FRESH),
        held_out: examples(0, "held-out clicks", HELD_OUT),
    }
}

/// The rows of an example, and whether a user clicks.
fn example(generator: &mut Generator) -> (Vec<u32>, u32) {
    let (mut rows, mut score) = (Vec::with_capacity(FIELDS), 0.0);
    let mut before = None::<[f32; 2]>;
    for field in 0..FIELDS {
        // As many from every octave: frequencies fall with the rank.
        let octave = generator.below(OCTAVES);
        let row = (field * CATEGORIES) as u32 + (1 << octave) - 1 + generator.below(1 << octave);
        let mut hidden = Generator::new(HIDDEN, "hidden weights", u64::from(row));
        score += hidden.symmetric();
        let own = [hidden.symmetric(), hidden.symmetric()];
        match before.take() {
            Some(other) => score += own[0] * other[0] + own[1] * other[1],
            None => before = Some(own),
        }
        rows.push(row);
    }
    // A sigmoid with the same bits on every machine.
    let chance = score / (1.0 + score * score).sqrt();
    (rows, u32::from(generator.symmetric() < chance))
}

impl Maker for Clicks {
    fn fingerprint(&self, hash: &mut Sha256) {
        hash.update([FIELDS as u8, OCTAVES as u8, HIDDEN as u8]);
    }

    fn batch(&self, mut generators: Vec<Generator>, device: &Device) -> Result<Batch> {
        let (rows, targets): (Vec<Vec<u32>>, Vec<u32>) = generators.iter_mut().map(example).unzip();
        Ok(Batch { input: Tensor::from_vec(rows.concat(), (targets.len(), FIELDS), device)?, targets })
    }
}
