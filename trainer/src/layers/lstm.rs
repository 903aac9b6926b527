//! A long short-term memory layer (Hochreiter and Schmidhuber, 1997; with a forget gate) over a whole sequence.
//!
//! The input's part of all four gates comes in for the whole sequence, from one matrix product. One step then needs one
//! product with the recurrent weights. The backward pass through time is derived by hand: on candle's tape every step
//! would be some twenty small operations, and each slice of the sequence would cost a gradient of the whole.

use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor};

/// Runs the layer from a state of zeros.
///
/// `projected` is (steps, sequences, 4·hidden), the input times its weights plus the bias, with the gates in the order
/// input, forget, candidate, output; `recurrent` is (hidden, 4·hidden). The result is (steps, sequences, hidden).
pub fn lstm(projected: &Tensor, recurrent: &Tensor) -> Result<Tensor> {
    let (steps, sequences, gates) = projected.dims3()?;
    let hidden = recurrent.dim(0)?;
    if gates != 4 * hidden || recurrent.dim(1)? != gates {
        candle_core::bail!("expected gates (_, _, {0}) and recurrent weights ({hidden}, {0})", 4 * hidden);
    }
    if !projected.device().is_cpu() {
        return super::composed::lstm(projected, recurrent);
    }
    let projected = projected.contiguous()?;
    let record =
        super::with_values(&projected, |values| Record::new(values, recurrent, [steps, sequences, hidden]))??;
    projected.apply_op2(recurrent, record)
}

/// What the forward pass computed and the backward pass needs.
struct Record {
    /// Steps, sequences, hidden.
    dimensions: [usize; 3],
    /// The four gates after their activation functions: (steps, sequences, 4·hidden).
    gates: Vec<f32>,
    /// The cells: (steps, sequences, hidden).
    cells: Vec<f32>,
    /// The output: (steps, sequences, hidden).
    outputs: Vec<f32>,
}

impl Record {
    fn new(projected: &[f32], recurrent: &Tensor, dimensions: [usize; 3]) -> Result<Self> {
        let [steps, sequences, hidden] = dimensions;
        let recurrent = recurrent.detach();
        let state = sequences * hidden;
        let mut gates = projected.to_vec();
        let mut cells = vec![0.0; steps * state];
        let mut outputs = vec![0.0; steps * state];
        for step in 0..steps {
            let gates = &mut gates[step * 4 * state..][..4 * state];
            let (earlier_cells, cells) = cells.split_at_mut(step * state);
            let (earlier_outputs, outputs) = outputs.split_at_mut(step * state);
            let before = step.checked_sub(1).map(|before| before * state);
            if let Some(before) = before {
                let previous =
                    Tensor::from_slice(&earlier_outputs[before..], (sequences, hidden), &Device::Cpu)?;
                add(gates, &previous.matmul(&recurrent)?)?;
            }
            let previous_cells = before.map(|before| &earlier_cells[before..]);
            for sequence in 0..sequences {
                let range = sequence * hidden..(sequence + 1) * hidden;
                let previous = previous_cells.map(|cells| &cells[range.clone()]);
                activate(
                    &mut gates[4 * range.start..4 * range.end],
                    previous,
                    &mut cells[range.clone()],
                    &mut outputs[range],
                );
            }
        }
        Ok(Record { dimensions, gates, cells, outputs })
    }

    /// The gradient of the gates before their activation functions, for the whole sequence.
    fn gate_gradients(&self, recurrent: &Tensor, output_gradients: &[f32]) -> Result<Vec<f32>> {
        let [steps, sequences, hidden] = self.dimensions;
        let transposed = recurrent.detach().t()?;
        let state = sequences * hidden;
        let mut gate_gradients = vec![0.0; 4 * steps * state];
        let mut cell_gradient = vec![0.0; state];
        let mut output_gradient = vec![0.0; state];
        for step in (0..steps).rev() {
            output_gradient
                .iter_mut()
                .zip(&output_gradients[step * state..])
                .for_each(|(sum, value)| *sum += value);
            let gradients = &mut gate_gradients[step * 4 * state..][..4 * state];
            for sequence in 0..sequences {
                let start = step * state + sequence * hidden;
                let gates = &self.gates[4 * start..][..4 * hidden];
                let gradients = &mut gradients[4 * sequence * hidden..][..4 * hidden];
                let (input, rest) = gates.split_at(hidden);
                let (forget, rest) = rest.split_at(hidden);
                let (candidate, output) = rest.split_at(hidden);
                for unit in 0..hidden {
                    let (i, f, g, o) = (input[unit], forget[unit], candidate[unit], output[unit]);
                    let squashed = tanh(self.cells[start + unit]);
                    let previous = if step == 0 { 0.0 } else { self.cells[start - state + unit] };
                    let of_output = output_gradient[sequence * hidden + unit];
                    let of_cell =
                        cell_gradient[sequence * hidden + unit] + of_output * o * (1.0 - squashed * squashed);
                    gradients[unit] = of_cell * g * i * (1.0 - i);
                    gradients[hidden + unit] = of_cell * previous * f * (1.0 - f);
                    gradients[2 * hidden + unit] = of_cell * i * (1.0 - g * g);
                    gradients[3 * hidden + unit] = of_output * squashed * o * (1.0 - o);
                    cell_gradient[sequence * hidden + unit] = of_cell * f;
                }
            }
            let gradients = Tensor::from_slice(gradients, (sequences, 4 * hidden), &Device::Cpu)?;
            super::with_values(&gradients.matmul(&transposed)?, |values| {
                output_gradient.copy_from_slice(values)
            })?;
        }
        Ok(gate_gradients)
    }
}

/// One sequence's step: from the gates' sums to the gates, the cells and the output.
fn activate(gates: &mut [f32], previous_cells: Option<&[f32]>, cells: &mut [f32], outputs: &mut [f32]) {
    let hidden = cells.len();
    let (input, rest) = gates.split_at_mut(hidden);
    let (forget, rest) = rest.split_at_mut(hidden);
    let (candidate, output) = rest.split_at_mut(hidden);
    for gate in [&mut *input, &mut *forget, &mut *output] {
        gate.iter_mut().for_each(|sum| *sum = sigmoid(*sum));
    }
    candidate.iter_mut().for_each(|sum| *sum = tanh(*sum));
    for unit in 0..hidden {
        let previous = previous_cells.map_or(0.0, |cells| cells[unit]);
        cells[unit] = forget[unit] * previous + input[unit] * candidate[unit];
        outputs[unit] = output[unit] * tanh(cells[unit]);
    }
}

fn sigmoid(x: f32) -> f32 {
    0.5 + 0.5 * tanh(0.5 * x)
}

/// The hyperbolic tangent as a quotient of polynomials (the coefficients of Eigen's `ptanh`), within 4e-7.
///
/// The loops above become vector instructions with it; a call into the mathematics library for each of the hundred
/// thousands of gates of a step takes longer than the matrix products.
fn tanh(x: f32) -> f32 {
    const ODD: [f32; 7] = [
        -2.760_768_5e-16,
        2.000_188e-13,
        -8.604_672e-11,
        5.122_297_1e-8,
        1.485_722_4e-5,
        6.372_619_3e-4,
        4.893_525e-3,
    ];
    const EVEN: [f32; 4] = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3];
    let x = x.clamp(-7.905_311, 7.905_311);
    let square = x * x;
    let polynomial =
        |coefficients: &[f32]| coefficients.iter().fold(0.0, |sum, coefficient| sum * square + coefficient);
    x * polynomial(&ODD) / polynomial(&EVEN)
}

fn add(sums: &mut [f32], values: &Tensor) -> Result<()> {
    super::with_values(values, |values| sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value))
}

impl CustomOp2 for Record {
    fn name(&self) -> &'static str {
        "long short-term memory"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let [steps, sequences, hidden] = self.dimensions;
        Ok((CpuStorage::F32(self.outputs.clone()), (steps, sequences, hidden).into()))
    }

    fn bwd(
        &self,
        projected: &Tensor,
        recurrent: &Tensor,
        _outputs: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [steps, sequences, hidden] = self.dimensions;
        let gates = super::with_values(gradient, |gradient| self.gate_gradients(recurrent, gradient))??;
        // The recurrent weights met the outputs of every step but the last, so one product over time gives their gradient.
        let rows = (steps - 1) * sequences;
        let earlier = Tensor::from_slice(&self.outputs[..rows * hidden], (rows, hidden), &Device::Cpu)?;
        let later = Tensor::from_slice(&gates[4 * sequences * hidden..], (rows, 4 * hidden), &Device::Cpu)?;
        let recurrent_gradient = earlier.t()?.matmul(&later)?;
        Ok((Some(Tensor::from_vec(gates, projected.shape(), &Device::Cpu)?), Some(recurrent_gradient)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::gradient_check::{assert_gradients, random};
    use super::*;

    #[test]
    fn gradients_match_differences() {
        let (projected, recurrent) = (random(1, &[4, 2, 12]), random(2, &[3, 12]));
        assert_gradients(&[projected.clone(), recurrent.clone()], 1e-2, 1e-2, || {
            lstm(&projected, &recurrent)
        });
    }

    #[test]
    fn the_quotient_is_the_hyperbolic_tangent() {
        for step in -2000..=2000 {
            let x = step as f32 / 100.0;
            assert!((tanh(x) - x.tanh()).abs() < 4e-7, "{x}: {} instead of {}", tanh(x), x.tanh());
        }
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn follows_its_equations() {
        let (projected, recurrent) = (random(3, &[2, 1, 4]), random(4, &[1, 4]));
        let found: Vec<f32> = lstm(&projected, &recurrent).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let x: Vec<f32> = projected.flatten_all().unwrap().to_vec1().unwrap();
        let w: Vec<f32> = recurrent.flatten_all().unwrap().to_vec1().unwrap();
        let logistic = |x: f32| 1.0 / (1.0 + (-x).exp());
        let (mut cell, mut output) = (0.0, 0.0);
        for step in 0..2 {
            let sum = |gate: usize| x[4 * step + gate] + w[gate] * output;
            cell = logistic(sum(1)) * cell + logistic(sum(0)) * sum(2).tanh();
            output = logistic(sum(3)) * f32::tanh(cell);
            assert!((found[step] - output).abs() < 1e-6, "step {step}: {} and {output}", found[step]);
        }
    }
}
