//! Maximum over 2 × 2 windows.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// The maximum of each 2 × 2 window of images (n, height, width, channels), whose height and width must be even.
///
/// The gradient goes to the first of equal maxima.
pub fn max_pool(images: &Tensor) -> Result<Tensor> {
    let (count, height, width, channels) = images.dims4()?;
    if height % 2 != 0 || width % 2 != 0 {
        candle_core::bail!("a 2 × 2 maximum needs an even height and width, found {height} × {width}");
    }
    if !images.device().is_cpu() {
        return super::composed::max_pool(images);
    }
    let images = images.contiguous()?;
    let shape = (count, height / 2, width / 2, channels);
    let (maxima, origins) = super::with_values(&images, |values| maxima(values, width, channels))?;
    images.apply_op1(MaxPool { maxima, origins, shape })
}

/// The maxima, and the entry of the images that each came from.
fn maxima(values: &[f32], width: usize, channels: usize) -> (Vec<f32>, Vec<u32>) {
    let row = width * channels;
    let (mut maxima, mut origins) =
        (Vec::with_capacity(values.len() / 4), Vec::with_capacity(values.len() / 4));
    for top in (0..values.len()).step_by(2 * row) {
        for left in (top..top + row).step_by(2 * channels) {
            for first in left..left + channels {
                let mut origin = first;
                for candidate in [first + channels, first + row, first + row + channels] {
                    if values[candidate] > values[origin] {
                        origin = candidate;
                    }
                }
                maxima.push(values[origin]);
                origins.push(origin as u32);
            }
        }
    }
    (maxima, origins)
}

struct MaxPool {
    maxima: Vec<f32>,
    origins: Vec<u32>,
    shape: (usize, usize, usize, usize),
}

impl CustomOp1 for MaxPool {
    fn name(&self) -> &'static str {
        "maximum of 2 × 2"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.maxima.clone()), self.shape.into()))
    }

    fn bwd(&self, images: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let mut spread = vec![0.0; images.elem_count()];
        super::with_values(gradient, |gradient| {
            for (&origin, &value) in self.origins.iter().zip(gradient) {
                spread[origin as usize] = value;
            }
        })?;
        Ok(Some(Tensor::from_vec(spread, images.shape(), images.device())?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::gradient_check::{assert_gradients, random};
    use super::*;

    #[test]
    fn equals_candles_pooling() {
        let images = random(1, &[2, 4, 6, 3]);
        let expected =
            images.permute((0, 3, 1, 2)).unwrap().max_pool2d(2).unwrap().permute((0, 2, 3, 1)).unwrap();
        let found = max_pool(&images).unwrap();
        let difference =
            (found - expected).unwrap().abs().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
        assert_eq!(difference, 0.0);
    }

    #[test]
    fn gradients_match_differences() {
        let images = random(2, &[1, 4, 4, 2]);
        assert_gradients(std::slice::from_ref(&images), 1e-3, 1e-2, || max_pool(&images));
    }
}
