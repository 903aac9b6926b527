//! A small transformer for text (Vaswani et al., NeurIPS 2017), with normalisation before each part as GPT-2 has it.

use candle_core::{D, Device, Result, Tensor};

use super::{Linear, Model};
use crate::layers::Mode;
use crate::parameters::{Builder, Weight};

const WIDTH: usize = 64;
const HEADS: usize = 4;
const BLOCKS: usize = 2;
/// The longest text: as many positions have an embedding.
const POSITIONS: usize = 64;
/// Stands in place of the score of a later character.
const NEVER: f32 = -1e9;

/// Predicts each next character: embeddings of characters and positions, two blocks of attention and a perceptron, linear layer.
pub struct Transformer {
    characters: Weight,
    positions: Weight,
    blocks: Vec<Block>,
    normalisation: Normalisation,
    output: Linear,
}

struct Block {
    before_attention: Normalisation,
    /// Queries, keys and values side by side.
    projections: Linear,
    attended: Linear,
    before_perceptron: Normalisation,
    hidden: Linear,
    outputs: Linear,
}

/// Mean 0 and variance 1 along the last dimension (Ba, Kiros and Hinton, 2016).
struct Normalisation {
    gain: Weight,
    bias: Weight,
}

impl Normalisation {
    fn new(builder: &mut Builder, name: &str) -> Result<Self> {
        Ok(Self {
            gain: builder.constant(&format!("{name}.gain"), &[WIDTH], 1.0)?,
            bias: builder.constant(&format!("{name}.bias"), &[WIDTH], 0.0)?,
        })
    }

    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        let centred = rows.broadcast_sub(&rows.mean_keepdim(D::Minus1)?)?;
        let deviation = (centred.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
        let normalised = centred.broadcast_div(&deviation)?;
        normalised.broadcast_mul(&self.gain.tensor())?.broadcast_add(&self.bias.tensor())
    }
}

impl Block {
    fn new(builder: &mut Builder, name: &str) -> Result<Self> {
        let mut linear =
            |part: &str, inputs, outputs| Linear::new(builder, &format!("{name}.{part}"), inputs, outputs);
        let (projections, attended) =
            (linear("projections", WIDTH, 3 * WIDTH)?, linear("attended", WIDTH, WIDTH)?);
        let (hidden, outputs) = (linear("hidden", WIDTH, 4 * WIDTH)?, linear("outputs", 4 * WIDTH, WIDTH)?);
        Ok(Self {
            before_attention: Normalisation::new(builder, &format!("{name}.before_attention"))?,
            projections,
            attended,
            before_perceptron: Normalisation::new(builder, &format!("{name}.before_perceptron"))?,
            hidden,
            outputs,
        })
    }

    /// Rows (sequences · steps, width), sequence by sequence.
    fn forward(&self, rows: &Tensor, sequences: usize, earlier: &Tensor) -> Result<Tensor> {
        let normalised = self.before_attention.forward(rows)?;
        let steps = rows.dim(0)? / sequences;
        let projected = self.projections.forward(&normalised)?;
        let heads = |part: usize| {
            let of_part = projected.narrow(1, part * WIDTH, WIDTH)?;
            of_part.reshape((sequences, steps, HEADS, WIDTH / HEADS))?.transpose(1, 2)?.contiguous()
        };
        let (queries, keys, values) = (heads(0)?, heads(1)?, heads(2)?);
        let scores = (queries.matmul(&keys.t()?.contiguous()?)? * (HEADS as f64 / WIDTH as f64).sqrt())?;
        let shares = softmax(&scores.broadcast_add(earlier)?)?;
        let together = shares.matmul(&values)?.transpose(1, 2)?.contiguous()?.reshape(((), WIDTH))?;
        let rows = (rows + self.attended.forward(&together)?)?;
        let hidden = self.hidden.forward(&self.before_perceptron.forward(&rows)?)?.relu()?;
        rows + self.outputs.forward(&hidden)?
    }
}

/// Along the last dimension.
fn softmax(scores: &Tensor) -> Result<Tensor> {
    let exponentials = scores.broadcast_sub(&scores.detach().max_keepdim(D::Minus1)?)?.exp()?;
    exponentials.broadcast_div(&exponentials.sum_keepdim(D::Minus1)?)
}

/// What is added to the scores of each character: nothing for itself and earlier ones.
fn earlier(steps: usize, device: &Device) -> Result<Tensor> {
    let score = |at: usize| if at % steps > at / steps { NEVER } else { 0.0 };
    Tensor::from_vec((0..steps * steps).map(score).collect(), (steps, steps), device)
}

impl Transformer {
    /// A model of texts with this many different characters.
    pub fn new(builder: &mut Builder, characters: usize) -> Result<Self> {
        let table = |builder: &mut Builder, name: &str, rows| builder.uniform(name, &[rows, WIDTH], 0.1);
        let (characters_table, positions) =
            (table(builder, "characters", characters)?, table(builder, "positions", POSITIONS)?);
        let blocks = (1..=BLOCKS).map(|number| Block::new(builder, &format!("block{number}")));
        Ok(Self {
            characters: characters_table,
            positions,
            blocks: blocks.collect::<Result<_>>()?,
            normalisation: Normalisation::new(builder, "normalisation")?,
            output: Linear::new(builder, "output", WIDTH, characters)?,
        })
    }
}

impl Model for Transformer {
    fn forward(&self, characters: &Tensor, _mode: Mode) -> Result<Tensor> {
        let (steps, sequences) = characters.dims2()?;
        let numbers = characters.t()?.contiguous()?.flatten_all()?;
        let embedded = self.characters.tensor().index_select(&numbers, 0)?;
        let positions = self.positions.tensor().narrow(0, 0, steps)?;
        let mut rows = embedded
            .reshape((sequences, steps, WIDTH))?
            .broadcast_add(&positions)?
            .reshape((sequences * steps, WIDTH))?;
        let earlier = earlier(steps, characters.device())?;
        for block in &self.blocks {
            rows = block.forward(&rows, sequences, &earlier)?;
        }
        let logits = self.output.forward(&self.normalisation.forward(&rows)?)?;
        // Step by step, as targets are.
        let classes = logits.dim(1)?;
        logits
            .reshape((sequences, steps, classes))?
            .transpose(0, 1)?
            .contiguous()?
            .reshape((sequences * steps, classes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prediction depends on the characters up to it, and on no other sequence.
    #[test]
    fn no_prediction_sees_a_later_character() {
        let model = Transformer::new(&mut Builder::new(1, &Device::Cpu), 9).unwrap();
        let logits = |characters: Vec<u32>| -> Vec<Vec<f32>> {
            let input = Tensor::from_vec(characters, (5, 2), &Device::Cpu).unwrap();
            model.forward(&input, Mode::Training).unwrap().to_vec2().unwrap()
        };
        let before = logits(vec![1, 2, 3, 4, 5, 6, 7, 8, 0, 1]);
        // The fourth character of the first sequence.
        let after = logits(vec![1, 2, 3, 4, 5, 6, 2, 8, 0, 1]);
        for (row, (before, after)) in before.iter().zip(&after).enumerate() {
            let is_later = row % 2 == 0 && row / 2 >= 3;
            assert_eq!(before != after, is_later, "row {row}");
        }
    }
}
