//! A small convolutional network.

use candle_core::{Result, Tensor};

use super::{Linear, Model};
use crate::data::ImageShape;
use crate::layers::{Mode, max_pool, patches};
use crate::parameters::{Builder, Weight};

const CHANNELS: [usize; 2] = [16, 32];
const HIDDEN: usize = 128;

/// Two convolutions of 3 × 3, each with a rectifier and a 2 × 2 maximum, and two linear layers.
pub struct ConvolutionalNetwork {
    convolutions: Vec<(Weight, Weight)>,
    hidden: (Weight, Weight),
    output: Linear,
}

impl ConvolutionalNetwork {
    /// A network for images whose height and width are multiples of 4.
    pub fn new(builder: &mut Builder, shape: ImageShape, classes: usize) -> Result<Self> {
        let mut layer = |name: String, inputs, outputs| {
            let weight = builder.rectifier_weights(&format!("{name}.weight"), inputs, outputs)?;
            Ok::<_, candle_core::Error>((weight, builder.constant(&format!("{name}.bias"), &[outputs], 0.0)?))
        };
        let (mut inputs, mut convolutions) = (shape.channels, Vec::new());
        for (number, outputs) in CHANNELS.into_iter().enumerate() {
            convolutions.push(layer(format!("convolution{}", number + 1), 9 * inputs, outputs)?);
            inputs = outputs;
        }
        let pixels = (shape.height / 4) * (shape.width / 4);
        let hidden = layer("hidden".into(), pixels * inputs, HIDDEN)?;
        Ok(Self { convolutions, hidden, output: Linear::new(builder, "output", HIDDEN, classes)? })
    }
}

impl Model for ConvolutionalNetwork {
    fn forward(&self, images: &Tensor, _mode: Mode) -> Result<Tensor> {
        let rectified = |inputs: &Tensor, (weight, bias): &(Weight, Weight)| {
            inputs.matmul(&weight.tensor())?.broadcast_add(&bias.tensor())?.relu()
        };
        let mut values = images.clone();
        for convolution in &self.convolutions {
            let (count, height, width, _) = values.dims4()?;
            let sums = rectified(&patches(&values, 1)?, convolution)?;
            values = max_pool(&sums.reshape((count, height, width, ()))?)?;
        }
        self.output.forward(&rectified(&values.flatten_from(1)?, &self.hidden)?)
    }
}
