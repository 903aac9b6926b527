//! Convolution by 3 × 3 windows, as a matrix product over gathered patches (im2col).
//!
//! candle's own backward pass of a convolution is a direct transposed convolution, many times slower than its matrix
//! product on a CPU. Here only the gathering is a new operation; the product and both of its gradients are candle's.

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};

use super::composed;

/// The side of the window; the padding is one, so that stride 1 keeps height and width.
const SIDE: usize = 3;
const PADDING: usize = 1;

/// Gathers the 3 × 3 windows of images (n, height, width, channels) as rows (n·height'·width', 9·channels), zeros outside.
///
/// Times a matrix (9·channels, outputs), this is the convolution.
pub fn patches(images: &Tensor, stride: usize) -> Result<Tensor> {
    let geometry = Geometry::new(images, stride)?;
    if !images.device().is_cpu() {
        return composed::patches(images, geometry);
    }
    images.contiguous()?.apply_op1(Gather(geometry))
}

/// Images, and how windows move over them.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    images: usize,
    height: usize,
    width: usize,
    channels: usize,
    stride: usize,
}

impl Geometry {
    pub(super) fn new(images: &Tensor, stride: usize) -> Result<Self> {
        let (images, height, width, channels) = images.dims4()?;
        Ok(Geometry { images, height, width, channels, stride })
    }

    fn output_side(&self, side: usize) -> usize {
        (side + 2 * PADDING - SIDE) / self.stride + 1
    }

    fn image_entries(&self) -> usize {
        self.images * self.height * self.width * self.channels
    }

    pub(super) fn patch_shape(&self) -> (usize, usize) {
        let rows = self.images * self.output_side(self.height) * self.output_side(self.width);
        (rows, SIDE * SIDE * self.channels)
    }

    /// For an image, as numbers of rows of channels: the pixel that each place of each window has, and for each place in a window, where
    /// the gathered rows have each pixel. A row that there is not has the largest number, for which candle gathers zeros.
    pub(super) fn rows(&self, device: &Device) -> Result<(Tensor, Vec<Tensor>)> {
        let one = Geometry { images: 1, ..*self };
        let windows = one.patch_shape().0;
        let mut gathered = vec![u32::MAX; windows * SIDE * SIDE];
        let mut uses = vec![vec![u32::MAX; self.height * self.width]; SIDE * SIDE];
        one.for_each_run(|image, patch| {
            let (pixel, row) = (image / self.channels, patch / self.channels);
            gathered[row] = pixel as u32;
            uses[row % (SIDE * SIDE)][pixel] = row as u32;
        });
        let on_device = |rows: Vec<u32>| Tensor::new(rows, device);
        Ok((on_device(gathered)?, uses.into_iter().map(on_device).collect::<Result<_>>()?))
    }

    /// Calls `visit(image entry, patch entry)` with the start of each run of channels that a patch shares with its image.
    fn for_each_run(&self, mut visit: impl FnMut(usize, usize)) {
        let mut patch = 0;
        for image in 0..self.images {
            for y in 0..self.output_side(self.height) {
                for x in 0..self.output_side(self.width) {
                    for window_y in 0..SIDE {
                        let row = (y * self.stride + window_y).wrapping_sub(PADDING);
                        for window_x in 0..SIDE {
                            let column = (x * self.stride + window_x).wrapping_sub(PADDING);
                            if row < self.height && column < self.width {
                                visit(
                                    ((image * self.height + row) * self.width + column) * self.channels,
                                    patch,
                                );
                            }
                            patch += self.channels;
                        }
                    }
                }
            }
        }
    }
}

struct Gather(Geometry);

impl CustomOp1 for Gather {
    fn name(&self) -> &'static str {
        "patches"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let images = super::slice(storage, layout)?;
        let (rows, columns) = self.0.patch_shape();
        let channels = self.0.channels;
        let mut patches = vec![0.0; rows * columns];
        self.0.for_each_run(|image, patch| {
            patches[patch..patch + channels].copy_from_slice(&images[image..image + channels]);
        });
        Ok((CpuStorage::F32(patches), (rows, columns).into()))
    }

    fn bwd(&self, _images: &Tensor, _patches: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(gradient.contiguous()?.apply_op1_no_bwd(&Scatter(self.0))?))
    }
}

/// The transpose of [`Gather`]: adds each patch onto its place in the image.
struct Scatter(Geometry);

impl CustomOp1 for Scatter {
    fn name(&self) -> &'static str {
        "patches, backward"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let patches = super::slice(storage, layout)?;
        let channels = self.0.channels;
        let mut images = vec![0.0; self.0.image_entries()];
        self.0.for_each_run(|image, patch| {
            for (sum, value) in
                images[image..image + channels].iter_mut().zip(&patches[patch..patch + channels])
            {
                *sum += value;
            }
        });
        let Geometry { images: count, height, width, channels, .. } = self.0;
        Ok((CpuStorage::F32(images), (count, height, width, channels).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::gradient_check::{assert_gradients, random};
    use super::*;

    /// candle's own convolution, in its own order of dimensions.
    fn reference(images: &Tensor, kernel: &Tensor, stride: usize) -> Tensor {
        let channels = images.dim(3).unwrap();
        let outputs = kernel.dim(1).unwrap();
        let kernel = kernel.reshape((3, 3, channels, outputs)).unwrap().permute((3, 2, 0, 1)).unwrap();
        let images = images.permute((0, 3, 1, 2)).unwrap().contiguous().unwrap();
        let result = images.conv2d(&kernel.contiguous().unwrap(), 1, stride, 1, 1).unwrap();
        result.permute((0, 2, 3, 1)).unwrap().contiguous().unwrap()
    }

    #[test]
    fn equals_candles_convolution() {
        for stride in [1, 2] {
            let images = random(1, &[2, 6, 4, 3]);
            let kernel = random(2, &[27, 5]);
            let expected = reference(&images, &kernel, stride);
            let found = patches(&images, stride).unwrap().matmul(&kernel).unwrap();
            let difference = (found.flatten_all().unwrap() - expected.flatten_all().unwrap()).unwrap();
            let largest: f32 = difference.abs().unwrap().max(0).unwrap().to_scalar().unwrap();
            assert!(largest < 1e-5, "stride {stride}: {largest}");
        }
    }

    #[test]
    fn gradients_match_differences() {
        for stride in [1, 2] {
            let images = random(1, &[2, 4, 4, 2]);
            let kernel = random(2, &[18, 3]);
            assert_gradients(&[images.clone(), kernel.clone()], 1e-2, 1e-2, || {
                patches(&images, stride)?.matmul(&kernel)
            });
        }
    }
}
