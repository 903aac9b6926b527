//! What to train on: text and images, read with checks, as batches of tensors.

mod cifar;
mod mnist;
mod order;
mod synthetic;
mod text;

pub use order::Order;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use candle_core::{Device, Tensor};
use sha2::{Digest, Sha256};

use crate::error::TrainerError;
use crate::parameters::hexadecimal;

/// Where the data come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// An earlier text of the project's documentation, which is inside the program.
    Documentation,
    /// A text file, as characters.
    Text(PathBuf),
    /// A directory with the four MNIST files.
    Mnist(PathBuf),
    /// A directory with the binary version of CIFAR-10.
    Cifar10(PathBuf),
    /// A directory with the binary version of CIFAR-100.
    Cifar100(PathBuf),
    /// Images of ten classes made from the seed.
    Synthetic,
}

impl Source {
    /// Reads or makes the data.
    pub fn load(&self, seed: u64) -> Result<Dataset, TrainerError> {
        match self {
            Source::Documentation => text::documentation(),
            Source::Text(path) => text::load(path),
            Source::Mnist(directory) => mnist::load(directory),
            Source::Cifar10(directory) => cifar::load_10(directory),
            Source::Cifar100(directory) => cifar::load_100(directory),
            Source::Synthetic => Ok(synthetic::make(seed)),
        }
    }
}

impl FromStr for Source {
    type Err = TrainerError;

    fn from_str(argument: &str) -> Result<Self, TrainerError> {
        let (kind, path) = argument.split_once(':').unwrap_or((argument, ""));
        match (kind, path) {
            ("text", "") if argument == "text" => Ok(Source::Documentation),
            ("synthetic", "") if argument == "synthetic" => Ok(Source::Synthetic),
            (_, "") => Err(TrainerError::UnknownData { found: argument.to_string() }),
            ("text", path) => Ok(Source::Text(path.into())),
            ("mnist", path) => Ok(Source::Mnist(path.into())),
            ("cifar10", path) => Ok(Source::Cifar10(path.into())),
            ("cifar100", path) => Ok(Source::Cifar100(path.into())),
            _ => Err(TrainerError::UnknownData { found: argument.to_string() }),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Documentation => formatter.write_str("text"),
            Source::Text(path) => write!(formatter, "text:{}", path.display()),
            Source::Mnist(path) => write!(formatter, "mnist:{}", path.display()),
            Source::Cifar10(path) => write!(formatter, "cifar10:{}", path.display()),
            Source::Cifar100(path) => write!(formatter, "cifar100:{}", path.display()),
            Source::Synthetic => formatter.write_str("synthetic"),
        }
    }
}

/// What a model gets to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// Numbers of characters; the classes are the next characters.
    Characters,
    /// Images of one shape.
    Images(ImageShape),
}

impl fmt::Display for Input {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Characters => formatter.write_str("text"),
            Input::Images(shape) => write!(formatter, "images of {} × {}", shape.height, shape.width),
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
    /// SHA-256 over all examples, to tell whether two workers or two runs have the same data.
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
                windows(characters, *length, shift, numbers, device)
            }
            Examples::Images { pixels, labels, shape } => images(pixels, labels, *shape, numbers, device),
        }
    }
}

/// Time-major: (steps, sequences).
fn windows(
    characters: &[u32],
    length: usize,
    shift: usize,
    numbers: &[u32],
    device: &Device,
) -> candle_core::Result<Batch> {
    let mut input = Vec::with_capacity(length * numbers.len());
    let mut targets = Vec::with_capacity(length * numbers.len());
    for step in 0..length {
        for &number in numbers {
            let at = shift + number as usize * length + step;
            input.push(characters[at]);
            targets.push(characters[at + 1]);
        }
    }
    Ok(Batch { input: Tensor::from_vec(input, (length, numbers.len()), device)?, targets })
}

/// Bytes become numbers from −2 to 2, so that typical pictures have a standard deviation near one.
fn images(
    pixels: &[u8],
    labels: &[u8],
    shape: ImageShape,
    numbers: &[u32],
    device: &Device,
) -> candle_core::Result<Batch> {
    let size = shape.values();
    let chosen = numbers.iter().flat_map(|&number| &pixels[number as usize * size..][..size]);
    let input: Vec<f32> = chosen.map(|&byte| f32::from(byte) * (4.0 / 255.0) - 2.0).collect();
    let shape = (numbers.len(), shape.height, shape.width, shape.channels);
    let targets = numbers.iter().map(|&number| u32::from(labels[number as usize])).collect();
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
    fn sources_are_written_as_they_are_read() {
        for argument in ["text", "text:a/b.txt", "mnist:x", "cifar10:x", "cifar100:x", "synthetic"] {
            assert_eq!(argument.parse::<Source>().unwrap().to_string(), argument);
        }
        for argument in ["", "texts", "mnist", "mnist:", "text:", "synthetic:3", "imagenet:x"] {
            let refusal = argument.parse::<Source>().unwrap_err().to_string();
            assert!(refusal.contains("expected text, text:FILE"), "{refusal}");
        }
    }

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
