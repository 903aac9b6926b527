//! VGG for CIFAR: the convolutions of Simonyan and Zisserman (ICLR 2015) with batch normalisation and one linear layer.
//!
//! Convolutions keep their bias. VGG-16 with ten classes has 14,728,266 parameters, VGG-19 with a hundred 20,086,692:
//! the models of SparDL's Table 2.

use candle_core::{Result, Tensor};

use super::{Linear, Model};
use crate::layers::{BatchNorm, Mode, max_pool, patches};
use crate::parameters::{Builder, Weight};

/// Channels of the convolutions, stage by stage; a stage ends with a maximum of 2 × 2.
type Stages = [&'static [usize]; 5];

pub const VGG_16: Stages = [&[64, 64], &[128, 128], &[256, 256, 256], &[512, 512, 512], &[512, 512, 512]];
pub const VGG_19: Stages =
    [&[64, 64], &[128, 128], &[256, 256, 256, 256], &[512, 512, 512, 512], &[512, 512, 512, 512]];

/// Five stages of convolutions, one linear layer.
pub struct Vgg {
    stages: Vec<Vec<Convolution>>,
    output: Linear,
}

struct Convolution {
    weight: Weight,
    bias: Weight,
    normalisation: BatchNorm,
}

impl Vgg {
    /// A network for images of 32 × 32 with so many channels.
    pub fn new(
        builder: &mut Builder,
        stages: &Stages,
        image_channels: usize,
        classes: usize,
    ) -> Result<Self> {
        let mut inputs = image_channels;
        let mut built = Vec::new();
        for (stage, channels) in stages.iter().enumerate() {
            let mut convolutions = Vec::new();
            for (number, &outputs) in channels.iter().enumerate() {
                let name = format!("stage{}.convolution{}", stage + 1, number + 1);
                convolutions.push(Convolution {
                    weight: builder.rectifier_weights(&format!("{name}.weight"), 9 * inputs, outputs)?,
                    bias: builder.constant(&format!("{name}.bias"), &[outputs], 0.0)?,
                    normalisation: BatchNorm::new(builder, &format!("{name}.normalisation"), outputs)?,
                });
                inputs = outputs;
            }
            built.push(convolutions);
        }
        Ok(Vgg { stages: built, output: Linear::new(builder, "output", inputs, classes)? })
    }
}

impl Model for Vgg {
    fn forward(&self, images: &Tensor, mode: Mode) -> Result<Tensor> {
        let mut values = images.clone();
        for stage in &self.stages {
            for convolution in stage {
                let (count, height, width, _) = values.dims4()?;
                let (weight, bias) = (convolution.weight.tensor(), convolution.bias.tensor());
                let sums = patches(&values, 1)?.matmul(&weight)?.broadcast_add(&bias)?;
                let normalised = convolution.normalisation.forward(&sums, mode)?;
                values = normalised.relu()?.reshape((count, height, width, ()))?;
            }
            values = max_pool(&values)?;
        }
        self.output.forward(&values.flatten_from(1)?)
    }
}
