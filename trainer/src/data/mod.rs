//! What to train on: text and images, read with checks, as batches of tensors.

mod cifar;
mod clicks;
mod fresh;
mod fresh_digits;
mod mnist;
mod order;
mod sampled;
mod source;
mod synthetic;
mod text;

pub use fresh::Fresh;
pub use order::Order;
pub use source::Source;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use candle_core::{Device, Tensor};
use sha2::{Digest, Sha256};

use crate::error::TrainerError;
use crate::parameters::hexadecimal;

/// What a model gets to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// Numbers of characters; the classes are the next characters.
    Characters,
    /// Images of one shape.
    Images(ImageShape),
    /// Categories: the number of a row for each field, of one table with the rows of all fields.
    Categories {
        /// Fields of an example.
        fields: usize,
        /// Rows of the table.
        rows: usize,
    },
}

impl fmt::Display for Input {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Characters => formatter.write_str("text"),
            Input::Images(shape) => write!(formatter, "images of {} × {}", shape.height, shape.width),
            Input::Categories { fields, .. } => write!(formatter, "categories in {fields} fields"),
        }
    }
}

/// Rows, columns and channels of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageShape {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// One for grey, three for colour.
    pub channels: usize,
}

impl ImageShape {
    /// Numbers per image.
    pub fn values(&self) -> usize {
        self.height * self.width * self.channels
    }
}

/// Examples to train on and examples held out.
#[derive(Debug)]
pub struct Dataset {
    /// What the model gets to see.
    pub input: Input,
    /// How many different answers there are.
    pub classes: usize,
    /// Examples to train on.
    pub train: Examples,
    /// Examples to evaluate on.
    pub held_out: Examples,
}

impl Dataset {
    /// SHA-256 over all examples, to check whether two workers or two runs have the same data.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for examples in [&self.train, &self.held_out] {
            match examples {
                Examples::Windows { characters, .. } => {
                    characters.iter().for_each(|character| hash.update(character.to_le_bytes()));
                }
                Examples::Images { pixels, labels, .. } => {
                    hash.update(pixels);
                    hash.update(labels);
                }
                Examples::Fresh(fresh) => fresh.fingerprint(&mut hash),
            }
            hash.update([0xff]);
        }
        hexadecimal(&hash.finalize())
    }
}

/// Examples, kept small in memory and made into tensors batch by batch.
#[derive(Debug)]
pub enum Examples {
    /// A text cut into windows that follow one another.
    Windows {
        /// The number of each character.
        characters: Vec<u32>,
        /// Characters predicted per window.
        length: usize,
        /// Whether each epoch cuts at another place.
        shifting: bool,
    },
    /// Images as bytes, in the order row, column, channel.
    Images {
        /// The pixels of all images.
        pixels: Vec<u8>,
        /// One class per image.
        labels: Vec<u8>,
        /// The shape of each.
        shape: ImageShape,
    },
    /// Examples that are made when they are asked for, others in every epoch.
    Fresh(Fresh),
}

/// Inputs, and the class expected for each row of the model's logits.
pub struct Batch {
    /// What the model gets to see.
    pub input: Tensor,
    /// What it should answer.
    pub targets: Vec<u32>,
}

impl Examples {
    /// How many examples there are.
    pub fn len(&self) -> usize {
        match self {
            // A window needs one more character, the last target; a shift costs at most one window less one.
            Examples::Windows { characters, length, shifting: true } => {
                characters.len().saturating_sub(*length) / length
            }
            Examples::Windows { characters, length, .. } => characters.len().saturating_sub(1) / length,
            Examples::Images { labels, .. } => labels.len(),
            Examples::Fresh(fresh) => fresh.count(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The examples with these numbers, on a device; text is cut where this epoch cuts it.
    pub fn batch(&self, numbers: &[u32], epoch: u64, device: &Device) -> candle_core::Result<Batch> {
        match self {
            Examples::Windows { characters, length, shifting } => {
                // Multiples of an odd constant near length·0.618 spread the cuts of successive epochs.
                let golden = (*length as u64 * 618 / 1000) | 1;
                let shift = if *shifting { (epoch * golden) as usize % length } else { 0 };
                let window = |&number: &u32| &characters[shift + number as usize * length..][..=*length];
                windows(&numbers.iter().map(window).collect::<Vec<_>>(), *length, device)
            }
            Examples::Images { pixels, labels, shape } => {
                let size = shape.values();
                let chosen = numbers.iter().flat_map(|&number| &pixels[number as usize * size..][..size]);
                let targets = numbers.iter().map(|&number| u32::from(labels[number as usize])).collect();
                images(chosen, targets, *shape, device)
            }
            Examples::Fresh(fresh) => fresh.batch(numbers, epoch, device),
        }
    }
}

/// Texts of one character more than are predicted, time-major: (steps, sequences).
fn windows(texts: &[&[u32]], length: usize, device: &Device) -> candle_core::Result<Batch> {
    let at = |step: usize| texts.iter().map(move |text| text[step]);
    let input = (0..length).flat_map(at).collect::<Vec<u32>>();
    let targets = (1..=length).flat_map(at).collect();
    Ok(Batch { input: Tensor::from_vec(input, (length, texts.len()), device)?, targets })
}

/// Bytes become numbers from −2 to 2, so that typical pictures have a standard deviation near one.
fn images<'a>(
    pixels: impl Iterator<Item = &'a u8>,
    targets: Vec<u32>,
    shape: ImageShape,
    device: &Device,
) -> candle_core::Result<Batch> {
    let input: Vec<f32> = pixels.map(|&byte| f32::from(byte) * (4.0 / 255.0) - 2.0).collect();
    let shape = (targets.len(), shape.height, shape.width, shape.channels);
    Ok(Batch { input: Tensor::from_vec(input, shape, device)?, targets })
}

/// The largest data file that is read: VGG's ImageNet does not come this way.
const LARGEST_FILE: u64 = 2 << 30;

/// Reads a whole file of at most [`LARGEST_FILE`] bytes.
fn read_file(path: &Path, expected: &str, advice: &'static str) -> Result<Vec<u8>, TrainerError> {
    let refuse =
        |found: String| TrainerError::Data { path: path.into(), expected: expected.into(), found, advice };
    let file = File::open(path).map_err(|error| refuse(reason(&error)))?;
    let mut content = Vec::new();
    file.take(LARGEST_FILE + 1).read_to_end(&mut content).map_err(|error| refuse(reason(&error)))?;
    if content.len() as u64 > LARGEST_FILE {
        return Err(refuse(format!("more than {} GiB", LARGEST_FILE >> 30)));
    }
    Ok(content)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".into(),
        _ => format!("an error: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_one_another_and_shift_by_epoch() {
        let examples = Examples::Windows { characters: (0..50).collect(), length: 4, shifting: true };
        assert_eq!(examples.len(), 11);
        let batch = examples.batch(&[0, 10], 0, &Device::Cpu).unwrap();
        assert_eq!(batch.input.to_vec2::<u32>().unwrap()[1], [1, 41]);
        assert_eq!(batch.targets[..4], [1, 41, 2, 42]);
        let starts: std::collections::BTreeSet<u32> = (0..4)
            .map(|epoch| {
                examples.batch(&[10], epoch, &Device::Cpu).unwrap().input.to_vec2::<u32>().unwrap()[0][0]
            })
            .collect();
        assert_eq!(starts.len(), 4);
        assert!(starts.iter().all(|&start| start < 44));
    }
}
