//! Images of digits, rendered from a font with random rotations, shears, stretches and noise.

use std::rc::Rc;

use candle_core::{Device, Result};
use sha2::{Digest, Sha256};

use super::fresh::{FRESH, Fresh, Maker};
use super::{Batch, Dataset, Examples, ImageShape, Input, images};
use gleaner_statistics::random::Generator;

/// Five bits for each row of a digit.
const FONT: [[u8; 7]; 10] = [
    [0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e],
    [0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e],
    [0x0e, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1f],
    [0x1f, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0e],
    [0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02],
    [0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e],
    [0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e],
    [0x1f, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08],
    [0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e],
    [0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c],
];
const SHAPE: ImageShape = ImageShape { height: 28, width: 28, channels: 1 };
const HELD_OUT: usize = 8192;
/// Grey of paper, how much lighter ink is, and how far noise moves a pixel.
const PAPER: f32 = 73.0;
const INK: f32 = 75.0;
const NOISE: f32 = 73.0;
/// The tangent of half of the largest turn, 25 degrees.
const HALF_TURN: f32 = 0.2217;

/// Makes images of digits.
#[derive(Debug)]
struct Digits;

/// Digits that are new in every step.
pub fn make(seed: u64) -> Dataset {
    let examples = |seed, part, count| Examples::Fresh(Fresh::new(Rc::new(Digits), seed, part, count));
    Dataset {
        input: Input::Images(SHAPE),
        classes: FONT.len(),
        train: examples(seed, "fresh digits", FRESH),
        held_out: examples(0, "held-out digits", HELD_OUT),
    }
}

/// Whether there is ink at a place of the digit, in cells from its middle.
fn has_ink(digit: &[u8; 7], x: f32, y: f32) -> bool {
    let (column, row) = ((x + 2.5).floor(), (y + 3.5).floor());
    let is_inside = (0.0..5.0).contains(&column) && (0.0..7.0).contains(&row);
    is_inside && digit[row as usize] >> (4 - column as usize) & 1 == 1
}

/// One image, after its digit.
fn draw(generator: &mut Generator, digit: u32) -> Vec<u8> {
    let digit = &FONT[digit as usize];
    // Sine and cosine by their half tangent: the same bits on every machine.
    let half = HALF_TURN * generator.symmetric();
    let (sine, cosine) = (2.0 * half / (1.0 + half * half), (1.0 - half * half) / (1.0 + half * half));
    let shear = 0.2 * generator.symmetric();
    let mut cells_per_pixel = || 0.465 + 0.115 * generator.symmetric();
    let (across, down) = (cells_per_pixel(), cells_per_pixel());
    let (right, below) = (4.0 * generator.symmetric(), 4.0 * generator.symmetric());
    let (xx, xy) = (across * (cosine + shear * sine), across * (sine - shear * cosine));
    let (yx, yy) = (-down * sine, down * cosine);
    let middle = (SHAPE.height as f32 - 1.0) / 2.0;
    let mut pixels = Vec::with_capacity(SHAPE.values());
    for row in 0..SHAPE.height {
        let y = row as f32 - middle - below;
        for column in 0..SHAPE.width {
            let x = column as f32 - middle - right;
            let ink = if has_ink(digit, xx * x + xy * y, yx * x + yy * y) { INK } else { 0.0 };
            // The cast saturates at 0 and 255.
            pixels.push((PAPER + ink + NOISE * generator.symmetric()) as u8);
        }
    }
    pixels
}

impl Maker for Digits {
    fn fingerprint(&self, hash: &mut Sha256) {
        hash.update(FONT.concat());
    }

    fn batch(&self, generators: Vec<Generator>, device: &Device) -> Result<Batch> {
        let (mut pixels, mut targets) = (Vec::new(), Vec::new());
        for mut generator in generators {
            let digit = generator.below(FONT.len() as u32);
            pixels.extend(draw(&mut generator, digit));
            targets.push(digit);
        }
        images(pixels.iter(), targets, SHAPE, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_digit_has_its_ink_in_every_image() {
        for digit in 0..10 {
            for number in 0..50 {
                let pixels = draw(&mut Generator::new(1, "test", number), digit);
                // Paper reaches up to 133, and ink begins at 123.
                let light = pixels.iter().filter(|&&pixel| pixel > 134).count();
                assert!((15..250).contains(&light), "digit {digit}, image {number}: {light}");
            }
        }
    }
}
