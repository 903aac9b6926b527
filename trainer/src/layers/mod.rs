//! The layers that candle lacks, or computes slowly on a CPU.
//!
//! Images are kept as (image, row, column, channel), so that a convolution is one matrix product over gathered patches
//! and a channel's values lie side by side. Each layer computes its result first and then records it on candle's tape as
//! one operation with a hand-derived backward pass; the tests compare that pass with finite differences. Tensors on a device go through
//! candle's own operations.

mod batch_norm;
mod composed;
mod convolution;
mod cross_entropy;
mod lstm;
mod pooling;

pub use batch_norm::BatchNorm;
pub use convolution::patches;
pub use cross_entropy::{correct_predictions, cross_entropy};
pub use lstm::lstm;
pub use pooling::max_pool;

use gleaner_candle::with_values;

use candle_core::{CpuStorage, Error, Layout, Result};

/// Whether a forward pass is part of training or of an evaluation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Normalise by the statistics of the batch, and let the running averages follow them.
    Training,
    /// Normalise by the running averages.
    Evaluation,
}

/// The values of a contiguous tensor in main memory.
fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => Err(Error::RequiresContiguous { op: "a layer of the trainer" }.bt()),
    }
}

#[cfg(test)]
mod gradient_check {
    use super::*;
    use candle_core::{Device, Tensor, Var};

    /// Compares candle's gradient of `function` with central differences, entry by entry.
    pub fn assert_gradients(
        inputs: &[Var],
        step: f32,
        tolerance: f32,
        function: impl Fn() -> Result<Tensor>,
    ) {
        let weights = {
            let result = function().unwrap();
            let count = result.elem_count();
            let mut generator = gleaner_statistics::random::Generator::new(3, "gradient check", 0);
            let values: Vec<f32> = (0..count).map(|_| generator.symmetric()).collect();
            Tensor::from_vec(values, result.shape(), &Device::Cpu).unwrap()
        };
        let objective = || (function().unwrap() * &weights).unwrap().sum_all().unwrap();
        let gradients = objective().backward().unwrap();
        for (number, input) in inputs.iter().enumerate() {
            let analytic: Vec<f32> = gradients.get(input).unwrap().flatten_all().unwrap().to_vec1().unwrap();
            let original: Vec<f32> = input.flatten_all().unwrap().to_vec1().unwrap();
            for entry in 0..original.len() {
                let at = |offset: f32| {
                    let mut moved = original.clone();
                    moved[entry] += offset;
                    input.set(&Tensor::from_vec(moved, input.shape(), &Device::Cpu).unwrap()).unwrap();
                    objective().to_scalar::<f32>().unwrap()
                };
                let numeric = (at(step) - at(-step)) / (2.0 * step);
                assert!(
                    (numeric - analytic[entry]).abs() <= tolerance * (1.0 + numeric.abs()),
                    "input {number}, entry {entry}: {} by backward, {numeric} by differences",
                    analytic[entry]
                );
            }
            input.set(&Tensor::from_vec(original, input.shape(), &Device::Cpu).unwrap()).unwrap();
        }
    }

    /// A variable with uniform values in -1..1.
    pub fn random(seed: u64, shape: &[usize]) -> Var {
        let mut generator = gleaner_statistics::random::Generator::new(seed, "random variable", 0);
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| generator.symmetric()).collect();
        Var::from_vec(values, shape, &Device::Cpu).unwrap()
    }
}
