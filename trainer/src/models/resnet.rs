//! ResNet-20 for CIFAR (He et al., CVPR 2016, §4.2).
//!
//! Convolutions have no bias, and a shortcut has no parameters: where a block halves the image and doubles the channels,
//! it takes every second pixel and pads the channels with zeros (the paper's option A). With three input channels and ten
//! classes that is 269,722 parameters.

use candle_core::{Result, Tensor};

use super::{Linear, Model};
use crate::layers::{BatchNorm, Mode, patches};
use crate::parameters::{Builder, Weight};

const STAGES: [usize; 3] = [16, 32, 64];
const BLOCKS_PER_STAGE: usize = 3;

/// One convolution, nine blocks of two, one linear layer.
pub struct ResNet20 {
    stem: NormalisedConvolution,
    blocks: Vec<Block>,
    output: Linear,
}

impl ResNet20 {
    /// A network for images with this many channels, height and width multiples of four.
    pub fn new(builder: &mut Builder, image_channels: usize, classes: usize) -> Result<Self> {
        let stem = NormalisedConvolution::new(builder, "stem", image_channels, STAGES[0], 1)?;
        let mut blocks = Vec::new();
        let mut inputs = STAGES[0];
        for (stage, outputs) in STAGES.into_iter().enumerate() {
            for block in 0..BLOCKS_PER_STAGE {
                let name = format!("stage{}.block{}", stage + 1, block + 1);
                blocks.push(Block::new(builder, &name, inputs, outputs)?);
                inputs = outputs;
            }
        }
        Ok(ResNet20 { stem, blocks, output: Linear::new(builder, "output", inputs, classes)? })
    }
}

impl Model for ResNet20 {
    fn forward(&self, images: &Tensor, mode: Mode) -> Result<Tensor> {
        let mut values = self.stem.forward(images, mode)?.relu()?;
        for block in &self.blocks {
            values = block.forward(&values, mode)?;
        }
        self.output.forward(&values.mean((1, 2))?)
    }
}

/// A convolution without bias, then batch normalisation.
struct NormalisedConvolution {
    weight: Weight,
    normalisation: BatchNorm,
    stride: usize,
}

impl NormalisedConvolution {
    fn new(builder: &mut Builder, name: &str, inputs: usize, outputs: usize, stride: usize) -> Result<Self> {
        Ok(NormalisedConvolution {
            weight: builder.rectifier_weights(&format!("{name}.convolution.weight"), 9 * inputs, outputs)?,
            normalisation: BatchNorm::new(builder, &format!("{name}.normalisation"), outputs)?,
            stride,
        })
    }

    fn forward(&self, images: &Tensor, mode: Mode) -> Result<Tensor> {
        let (count, height, width, _) = images.dims4()?;
        let values = patches(images, self.stride)?.matmul(&self.weight.tensor())?;
        let values = self.normalisation.forward(&values, mode)?;
        values.reshape((count, height / self.stride, width / self.stride, ()))
    }
}

struct Block {
    first: NormalisedConvolution,
    second: NormalisedConvolution,
    added_channels: usize,
}

impl Block {
    fn new(builder: &mut Builder, name: &str, inputs: usize, outputs: usize) -> Result<Self> {
        let stride = if inputs == outputs { 1 } else { 2 };
        Ok(Block {
            first: NormalisedConvolution::new(builder, &format!("{name}.1"), inputs, outputs, stride)?,
            second: NormalisedConvolution::new(builder, &format!("{name}.2"), outputs, outputs, 1)?,
            added_channels: outputs - inputs,
        })
    }

    fn forward(&self, images: &Tensor, mode: Mode) -> Result<Tensor> {
        let values = self.first.forward(images, mode)?.relu()?;
        let values = self.second.forward(&values, mode)?;
        (values + self.shortcut(images)?)?.relu()
    }

    fn shortcut(&self, images: &Tensor) -> Result<Tensor> {
        if self.added_channels == 0 {
            return Ok(images.clone());
        }
        let (count, height, width, channels) = images.dims4()?;
        let pairs = images.reshape(&[count, height / 2, 2, width / 2, 2, channels][..])?;
        let halved =
            pairs.narrow(2, 0, 1)?.narrow(4, 0, 1)?.reshape((count, height / 2, width / 2, channels))?;
        halved.pad_with_zeros(3, self.added_channels / 2, self.added_channels / 2)
    }
}
