//! Images made from a seed: ten coarse patterns under noise.

use super::{Dataset, Examples, ImageShape, Input};
use gleaner_statistics::random::Generator;

pub const SHAPE: ImageShape = ImageShape { height: 32, width: 32, channels: 3 };
const CLASSES: u32 = 10;
pub const TRAIN: usize = 8192;
const HELD_OUT: usize = 1024;
/// A pattern consists of squares with this side.
const SQUARE: usize = 8;
/// How far a pattern and the noise move a pixel from grey.
const PATTERN: f32 = 6.0;
const NOISE: f32 = 100.0;

/// Each class has its own pattern of coloured squares; single images hardly show it under the noise.
pub fn make(seed: u64) -> Dataset {
    let mut generator = Generator::new(seed, "synthetic patterns", 0);
    let squares = (SHAPE.height / SQUARE) * (SHAPE.width / SQUARE) * SHAPE.channels;
    let patterns: Vec<Vec<f32>> = (0..CLASSES)
        .map(|_| (0..squares).map(|_| PATTERN * generator.symmetric().signum()).collect())
        .collect();
    Dataset {
        input: Input::Images(SHAPE),
        classes: CLASSES as usize,
        train: examples(&patterns, TRAIN, Generator::new(seed, "synthetic images", 0)),
        held_out: examples(&patterns, HELD_OUT, Generator::new(seed, "synthetic images", 1)),
    }
}

fn examples(patterns: &[Vec<f32>], count: usize, mut generator: Generator) -> Examples {
    let mut pixels = Vec::with_capacity(count * SHAPE.values());
    let mut labels = Vec::with_capacity(count);
    for _ in 0..count {
        let label = generator.below(CLASSES);
        labels.push(label as u8);
        for row in 0..SHAPE.height {
            for column in 0..SHAPE.width {
                let square = (row / SQUARE) * (SHAPE.width / SQUARE) + column / SQUARE;
                for channel in 0..SHAPE.channels {
                    let pattern = patterns[label as usize][square * SHAPE.channels + channel];
                    // The cast saturates at 0 and 255.
                    pixels.push((128.0 + pattern + NOISE * generator.symmetric()) as u8);
                }
            }
        }
    }
    Examples::Images { pixels, labels, shape: SHAPE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_the_images() {
        let fingerprint = |seed| make(seed).fingerprint();
        assert_eq!(fingerprint(1), fingerprint(1));
        assert_ne!(fingerprint(1), fingerprint(2));
        let dataset = make(1);
        assert_eq!((dataset.train.len(), dataset.held_out.len()), (TRAIN, HELD_OUT));
    }
}
