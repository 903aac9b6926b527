//! A multi-layer perceptron.

use candle_core::{Result, Tensor};

use super::{Linear, Model};
use crate::data::ImageShape;
use crate::layers::Mode;
use crate::parameters::{Builder, Weight};

const HIDDEN: [usize; 2] = [256, 128];

/// Two hidden layers with rectifiers, over the pixels in one row.
pub struct Perceptron {
    hidden: Vec<(Weight, Weight)>,
    output: Linear,
}

impl Perceptron {
    /// A perceptron for images of this shape.
    pub fn new(builder: &mut Builder, shape: ImageShape, classes: usize) -> Result<Self> {
        let mut inputs = shape.values();
        let mut hidden = Vec::new();
        for (number, outputs) in HIDDEN.into_iter().enumerate() {
            let weight =
                builder.rectifier_weights(&format!("hidden{}.weight", number + 1), inputs, outputs)?;
            hidden.push((weight, builder.constant(&format!("hidden{}.bias", number + 1), &[outputs], 0.0)?));
            inputs = outputs;
        }
        Ok(Perceptron { hidden, output: Linear::new(builder, "output", inputs, classes)? })
    }
}

impl Model for Perceptron {
    fn forward(&self, images: &Tensor, _mode: Mode) -> Result<Tensor> {
        let mut values = images.flatten_from(1)?;
        for (weight, bias) in &self.hidden {
            values = values.matmul(&weight.tensor())?.broadcast_add(&bias.tensor())?.relu()?;
        }
        self.output.forward(&values)
    }
}
