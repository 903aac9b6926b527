//! Examples that are made when they are asked for: no step sees one of an earlier step, so the training loss is a held-out loss.

use std::fmt;
use std::rc::Rc;

use candle_core::{Device, Result};
use sha2::{Digest, Sha256};

use super::Batch;
use gleaner_statistics::random::Generator;

/// Examples of an epoch to train on. The next epoch has others.
pub const FRESH: usize = 1 << 16;

/// Makes examples, each from random numbers of its own.
pub trait Maker: fmt::Debug {
    /// Adds to a hash what decides the examples beside those numbers.
    fn fingerprint(&self, hash: &mut Sha256);

    /// As many examples as there are generators.
    ///
    /// # Errors
    /// What fails on the device.
    fn batch(&self, generators: Vec<Generator>, device: &Device) -> Result<Batch>;
}

/// Examples of one maker.
#[derive(Clone, Debug)]
pub struct Fresh {
    maker: Rc<dyn Maker>,
    seed: u64,
    part: &'static str,
    count: usize,
}

impl Fresh {
    /// So many examples an epoch, from a seed. `part` distinguishes examples to train on from those that are held out.
    pub fn new(maker: Rc<dyn Maker>, seed: u64, part: &'static str, count: usize) -> Self {
        Self { maker, seed, part, count }
    }

    /// Examples of an epoch.
    pub fn count(&self) -> usize {
        self.count
    }

    pub(super) fn fingerprint(&self, hash: &mut Sha256) {
        self.maker.fingerprint(hash);
        hash.update(self.part);
        hash.update((self.count as u64).to_le_bytes());
        hash.update(self.seed.to_le_bytes());
    }

    pub(super) fn batch(&self, numbers: &[u32], epoch: u64, device: &Device) -> Result<Batch> {
        let number = |&number: &u32| epoch * self.count as u64 + u64::from(number);
        let generator = |at| Generator::new(self.seed, self.part, at);
        self.maker.batch(numbers.iter().map(number).map(generator).collect(), device)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use crate::data::{Batch, Dataset, Input, Source};

    const ALL: [Source; 3] = [Source::FreshText, Source::FreshDigits, Source::FreshClicks];

    fn bytes(batch: &Batch) -> (Vec<u8>, Vec<u32>) {
        let values = batch.input.to_dtype(candle_core::DType::F32).and_then(|input| input.flatten_all());
        let values: Vec<f32> = values.unwrap().to_vec1().unwrap();
        (values.iter().flat_map(|value| value.to_le_bytes()).collect(), batch.targets.clone())
    }

    fn batch(dataset: &Dataset, numbers: &[u32], epoch: u64) -> (Vec<u8>, Vec<u32>) {
        bytes(&dataset.train.batch(numbers, epoch, &Device::Cpu).unwrap())
    }

    #[test]
    fn an_example_is_the_same_whenever_it_is_made_and_another_in_the_next_epoch() {
        for source in ALL {
            let dataset = source.load(1).unwrap();
            assert_eq!(batch(&dataset, &[3, 9], 2), batch(&source.load(1).unwrap(), &[3, 9], 2), "{source}");
            for other in [batch(&dataset, &[3, 9], 3), batch(&dataset, &[3, 8], 2)] {
                assert_ne!(batch(&dataset, &[3, 9], 2), other, "{source}");
            }
            assert_ne!(batch(&dataset, &[3, 9], 2), batch(&source.load(2).unwrap(), &[3, 9], 2), "{source}");
        }
    }

    /// What is held out is the same for every seed, and is no part of the training.
    #[test]
    fn held_out_examples_do_not_depend_on_the_seed() {
        for source in ALL {
            let [one, two] = [1, 2].map(|seed| source.load(seed).unwrap());
            let held_out = |of: &Dataset| bytes(&of.held_out.batch(&[0, 1], 0, &Device::Cpu).unwrap());
            assert_eq!(held_out(&one), held_out(&two), "{source}");
            assert_ne!(held_out(&one), batch(&source.load(0).unwrap(), &[0, 1], 0), "{source}");
            assert_ne!(one.fingerprint(), two.fingerprint(), "{source}");
        }
    }

    #[test]
    fn categories_are_rows_of_their_field() {
        let dataset = Source::FreshClicks.load(1).unwrap();
        let Input::Categories { fields, rows } = dataset.input else { panic!("clicks have categories") };
        let numbers: Vec<u32> = (0..200).collect();
        let batch = dataset.train.batch(&numbers, 0, &Device::Cpu).unwrap();
        let of_field = rows / fields;
        for example in batch.input.to_vec2::<u32>().unwrap() {
            assert!((0..fields).all(|field| example[field] as usize / of_field == field), "{example:?}");
        }
        let clicks = batch.targets.iter().filter(|&&target| target == 1).count();
        assert!((60..140).contains(&clicks), "{clicks} of 200");
    }
}
