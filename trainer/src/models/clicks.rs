//! A model of clicks: an embedding of each category, and a perceptron over those of all fields.

use candle_core::{Result, Tensor};

use super::{Linear, Model};
use crate::layers::Mode;
use crate::parameters::{Builder, Embedding};

const WIDTH: usize = 16;
const HIDDEN: [usize; 2] = [128, 64];

/// One table with the rows of all fields, two hidden layers, linear layer. A step touches the rows of its examples alone.
pub struct ClickModel {
    rows: Embedding,
    hidden: Vec<Linear>,
    output: Linear,
}

impl ClickModel {
    /// A model of this many fields, with this many rows together.
    pub fn new(builder: &mut Builder, fields: usize, rows: usize, classes: usize) -> Result<Self> {
        let embedding = builder.embedding("categories", rows, WIDTH, 0.1)?;
        let (mut inputs, mut hidden) = (fields * WIDTH, Vec::new());
        for (number, outputs) in HIDDEN.into_iter().enumerate() {
            hidden.push(Linear::new(builder, &format!("hidden{}", number + 1), inputs, outputs)?);
            inputs = outputs;
        }
        Ok(Self { rows: embedding, hidden, output: Linear::new(builder, "output", inputs, classes)? })
    }
}

impl Model for ClickModel {
    fn forward(&self, categories: &Tensor, _mode: Mode) -> Result<Tensor> {
        let examples = categories.dim(0)?;
        let mut values = self.rows.select(&categories.flatten_all()?)?.reshape((examples, ()))?;
        for layer in &self.hidden {
            values = layer.forward(&values)?.relu()?;
        }
        self.output.forward(&values)
    }
}
