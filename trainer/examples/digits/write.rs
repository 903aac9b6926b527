//! The four files.

use std::error::Error;
use std::fs;
use std::path::Path;

use candle_core::Device;
use gleaner_trainer::data::{Examples, Source};

/// Writes so many images to train on, those of the seed 1 and the first epoch, and so many held-out ones.
pub fn write(folder: &Path, train: u32, held_out: u32) -> Result<(), Box<dyn Error>> {
    let dataset = Source::FreshDigits.load(1)?;
    fs::create_dir_all(folder)?;
    part(folder, "train", &dataset.train, train)?;
    part(folder, "t10k", &dataset.held_out, held_out)
}

fn part(folder: &Path, name: &str, examples: &Examples, count: u32) -> Result<(), Box<dyn Error>> {
    let batch = examples.batch(&(0..count).collect::<Vec<_>>(), 0, &Device::Cpu)?;
    let (_, height, width, _) = batch.input.dims4()?;
    let values: Vec<f32> = batch.input.flatten_all()?.to_vec1()?;
    // A batch has pixels from −2 to 2.
    let pixels = values.iter().map(|value| ((value + 2.0) * (255.0 / 4.0)).round() as u8);
    let header = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let mut images = header(&[0x0803, count, height as u32, width as u32]);
    images.extend(pixels);
    let mut labels = header(&[0x0801, count]);
    labels.extend(batch.targets.iter().map(|&target| target as u8));
    fs::write(folder.join(format!("{name}-images-idx3-ubyte")), images)?;
    fs::write(folder.join(format!("{name}-labels-idx1-ubyte")), labels)?;
    Ok(())
}
