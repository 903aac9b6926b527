//! A character language model.

use candle_core::{Result, Tensor};

use super::{Linear, Model};
use crate::layers::{self, Mode};
use crate::parameters::{Builder, Weight};

const EMBEDDING: usize = 32;
const HIDDEN: usize = 128;

/// Predicts each next character: embedding, one LSTM layer, linear layer.
pub struct CharacterModel {
    embedding: Weight,
    input: Weight,
    recurrent: Weight,
    bias: Weight,
    output: Linear,
}

impl CharacterModel {
    /// A model of texts with this many different characters.
    pub fn new(builder: &mut Builder, characters: usize) -> Result<Self> {
        let bound = 1.0 / (HIDDEN as f32).sqrt();
        Ok(CharacterModel {
            embedding: builder.uniform("embedding", &[characters, EMBEDDING], 1.0)?,
            input: builder.uniform("lstm.input", &[EMBEDDING, 4 * HIDDEN], bound)?,
            recurrent: builder.uniform("lstm.recurrent", &[HIDDEN, 4 * HIDDEN], bound)?,
            // A forget gate that begins open lets gradients through from the first step on.
            bias: builder.declare("lstm.bias", &[4 * HIDDEN], forget_gates_open())?,
            output: Linear::new(builder, "output", HIDDEN, characters)?,
        })
    }
}

fn forget_gates_open() -> Vec<f32> {
    (0..4 * HIDDEN).map(|entry| if (HIDDEN..2 * HIDDEN).contains(&entry) { 1.0 } else { 0.0 }).collect()
}

impl Model for CharacterModel {
    fn forward(&self, characters: &Tensor, _mode: Mode) -> Result<Tensor> {
        let (steps, sequences) = characters.dims2()?;
        let embedded = self.embedding.tensor().index_select(&characters.flatten_all()?, 0)?;
        let projected = embedded.matmul(&self.input.tensor())?.broadcast_add(&self.bias.tensor())?;
        let hidden =
            layers::lstm(&projected.reshape((steps, sequences, 4 * HIDDEN))?, &self.recurrent.tensor())?;
        self.output.forward(&hidden.reshape((steps * sequences, HIDDEN))?)
    }
}
