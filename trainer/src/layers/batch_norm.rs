//! Batch normalisation (Ioffe and Szegedy, ICML 2015).
//!
//! In training a channel is normalised by the mean and the variance of this batch, and both depend on every input: that
//! is in the backward pass. In evaluation the running averages take their place.

use std::cell::RefCell;
use std::rc::Rc;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use super::{Mode, composed};
use crate::parameters::{Builder, Weight};

/// Keeps the variance away from zero.
const EPSILON: f32 = 1e-5;
/// The share of a new batch in the running averages.
const NEW_SHARE: f32 = 0.1;

/// Scale and shift per channel after normalisation, with running averages for evaluation.
pub struct BatchNorm {
    scale: Weight,
    shift: Weight,
    running_mean: Rc<RefCell<Tensor>>,
    running_variance: Rc<RefCell<Tensor>>,
}

impl BatchNorm {
    /// Declares the two parameters and the two running averages of a layer of `channels`.
    pub fn new(builder: &mut Builder, name: &str, channels: usize) -> Result<Self> {
        Ok(BatchNorm {
            scale: builder.constant(&format!("{name}.weight"), &[channels], 1.0)?,
            shift: builder.constant(&format!("{name}.bias"), &[channels], 0.0)?,
            running_mean: builder.buffer(&format!("{name}.running_mean"), vec![0.0; channels])?,
            running_variance: builder.buffer(&format!("{name}.running_var"), vec![1.0; channels])?,
        })
    }

    /// Normalises a tensor whose last dimension is the channel.
    pub fn forward(&self, input: &Tensor, mode: Mode) -> Result<Tensor> {
        let input = input.contiguous()?;
        if !input.device().is_cpu() {
            return self.forward_composed(&input, mode);
        }
        let channels = self.running_mean.borrow().elem_count();
        if mode == Mode::Evaluation {
            let mean = self.running_mean.borrow().to_vec1()?;
            let variance: Vec<f32> = self.running_variance.borrow().to_vec1()?;
            let inverse_deviation = variance.iter().map(|&variance| inverse_root(variance)).collect();
            return self.apply(&input, mean, inverse_deviation, mode);
        }
        let (mean, variance) = super::with_values(&input, |values| mean_and_variance(values, channels))?;
        let count = (input.elem_count() / channels) as f32;
        let follow = |running: &RefCell<Tensor>, new: &[f32], factor: f32| -> Result<()> {
            let mut values: Vec<f32> = running.borrow().to_vec1()?;
            for (running, &new) in values.iter_mut().zip(new) {
                *running += NEW_SHARE * (new * factor - *running);
            }
            *running.borrow_mut() = Tensor::from_vec(values, channels, input.device())?;
            Ok(())
        };
        follow(&self.running_mean, &mean, 1.0)?;
        follow(&self.running_variance, &variance, count / (count - 1.0).max(1.0))?;
        let inverse_deviation = variance.iter().map(|&variance| inverse_root(variance)).collect();
        self.apply(&input, mean, inverse_deviation, mode)
    }

    /// The same with candle's operations.
    fn forward_composed(&self, input: &Tensor, mode: Mode) -> Result<Tensor> {
        let (mean, variance) = match mode {
            Mode::Training => {
                let (mean, variance, count) = composed::mean_and_variance(input)?;
                let follow = |running: &RefCell<Tensor>, new: &Tensor, factor: f64| -> Result<()> {
                    let mut running = running.borrow_mut();
                    let moved = ((new.affine(factor, 0.0)? - &*running)? * f64::from(NEW_SHARE))?;
                    *running = (&*running + moved)?;
                    Ok(())
                };
                follow(&self.running_mean, &mean, 1.0)?;
                follow(&self.running_variance, &variance, count / (count - 1.0).max(1.0))?;
                (mean, variance)
            }
            Mode::Evaluation => (self.running_mean.borrow().clone(), self.running_variance.borrow().clone()),
        };
        let inverse_deviation = (variance + f64::from(EPSILON))?.sqrt()?.recip()?;
        composed::normalise(
            input,
            [&self.scale.tensor(), &self.shift.tensor()],
            &mean,
            &inverse_deviation,
            mode,
        )
    }

    fn apply(
        &self,
        input: &Tensor,
        mean: Vec<f32>,
        inverse_deviation: Vec<f32>,
        mode: Mode,
    ) -> Result<Tensor> {
        input.apply_op3(
            &self.scale.tensor(),
            &self.shift.tensor(),
            Normalise { mean, inverse_deviation, mode },
        )
    }
}

fn inverse_root(variance: f32) -> f32 {
    1.0 / (variance + EPSILON).sqrt()
}

/// Mean and (biased) variance of each channel, in two passes, so that a large mean costs no precision.
fn mean_and_variance(values: &[f32], channels: usize) -> (Vec<f32>, Vec<f32>) {
    let count = (values.len() / channels) as f32;
    let mut mean = vec![0.0; channels];
    for row in values.chunks_exact(channels) {
        mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    mean.iter_mut().for_each(|sum| *sum /= count);
    let mut variance = vec![0.0; channels];
    for row in values.chunks_exact(channels) {
        for ((sum, value), mean) in variance.iter_mut().zip(row).zip(&mean) {
            *sum += (value - mean) * (value - mean);
        }
    }
    variance.iter_mut().for_each(|sum| *sum /= count);
    (mean, variance)
}

struct Normalise {
    mean: Vec<f32>,
    inverse_deviation: Vec<f32>,
    mode: Mode,
}

impl CustomOp3 for Normalise {
    fn name(&self) -> &'static str {
        "batch normalisation"
    }

    fn cpu_fwd(
        &self,
        input: &CpuStorage,
        input_layout: &Layout,
        scale: &CpuStorage,
        scale_layout: &Layout,
        shift: &CpuStorage,
        shift_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let input = super::slice(input, input_layout)?;
        let scale = super::slice(scale, scale_layout)?;
        let shift = super::slice(shift, shift_layout)?;
        let factor: Vec<f32> =
            scale.iter().zip(&self.inverse_deviation).map(|(scale, inverse)| scale * inverse).collect();
        let offset: Vec<f32> = shift
            .iter()
            .zip(&self.mean)
            .zip(&factor)
            .map(|((shift, mean), factor)| shift - mean * factor)
            .collect();
        let mut output = Vec::with_capacity(input.len());
        for row in input.chunks_exact(factor.len()) {
            output.extend(
                row.iter().zip(&factor).zip(&offset).map(|((value, factor), offset)| value * factor + offset),
            );
        }
        Ok((CpuStorage::F32(output), input_layout.shape().clone()))
    }

    /// With x̂ the normalised input and g the gradient of the result, per channel over `count` rows:
    /// ∂scale = Σ g·x̂, ∂shift = Σ g, and in training ∂input = scale/deviation · (g − (∂shift + x̂·∂scale)/count).
    fn bwd(
        &self,
        input: &Tensor,
        scale: &Tensor,
        _shift: &Tensor,
        _result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let channels = self.mean.len();
        let count = (input.elem_count() / channels) as f32;
        let (mut scale_gradient, mut shift_gradient) = (vec![0.0; channels], vec![0.0; channels]);
        let mut input_gradient = Vec::with_capacity(input.elem_count());
        let scale_values: Vec<f32> = scale.to_vec1()?;
        let gradient = gradient.contiguous()?;
        super::with_values(input, |input| {
            super::with_values(&gradient, |gradient| {
                for (row, gradient) in input.chunks_exact(channels).zip(gradient.chunks_exact(channels)) {
                    for channel in 0..channels {
                        let normalised =
                            (row[channel] - self.mean[channel]) * self.inverse_deviation[channel];
                        scale_gradient[channel] += gradient[channel] * normalised;
                        shift_gradient[channel] += gradient[channel];
                    }
                }
                let statistics = if self.mode == Mode::Training { 1.0 / count } else { 0.0 };
                for (row, gradient) in input.chunks_exact(channels).zip(gradient.chunks_exact(channels)) {
                    input_gradient.extend((0..channels).map(|channel| {
                        let normalised =
                            (row[channel] - self.mean[channel]) * self.inverse_deviation[channel];
                        let through_statistics =
                            shift_gradient[channel] + normalised * scale_gradient[channel];
                        scale_values[channel]
                            * self.inverse_deviation[channel]
                            * (gradient[channel] - through_statistics * statistics)
                    }));
                }
            })
        })??;
        let device = input.device();
        Ok((
            Some(Tensor::from_vec(input_gradient, input.shape(), device)?),
            Some(Tensor::from_vec(scale_gradient, channels, device)?),
            Some(Tensor::from_vec(shift_gradient, channels, device)?),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::gradient_check::{assert_gradients, random};
    use super::*;
    use candle_core::{DType, Device};

    fn layer(scale: Tensor, shift: Tensor) -> BatchNorm {
        let channels = scale.elem_count();
        BatchNorm {
            scale: scale.into(),
            shift: shift.into(),
            running_mean: Rc::new(RefCell::new(Tensor::zeros(channels, DType::F32, &Device::Cpu).unwrap())),
            running_variance: Rc::new(RefCell::new(
                Tensor::ones(channels, DType::F32, &Device::Cpu).unwrap(),
            )),
        }
    }

    #[test]
    fn training_normalises_by_the_batch_and_moves_the_averages() {
        let input = random(1, &[64, 3]);
        let ones = Tensor::ones(3, DType::F32, input.device()).unwrap();
        let layer = layer(ones.clone(), ones.zeros_like().unwrap());
        let output = layer.forward(&input, Mode::Training).unwrap();
        let (mean, variance) =
            super::super::with_values(&output, |values| mean_and_variance(values, 3)).unwrap();
        for channel in 0..3 {
            assert!(mean[channel].abs() < 1e-5, "{mean:?}");
            assert!((variance[channel] - 1.0).abs() < 1e-3, "{variance:?}");
        }
        let (mean, variance) =
            super::super::with_values(&input, |values| mean_and_variance(values, 3)).unwrap();
        for channel in 0..3 {
            let running = |values: &RefCell<Tensor>| values.borrow().to_vec1::<f32>().unwrap()[channel];
            let expected = 0.1 * mean[channel];
            assert!((running(&layer.running_mean) - expected).abs() < 1e-6);
            let expected = 0.9 + 0.1 * variance[channel] * 64.0 / 63.0;
            assert!((running(&layer.running_variance) - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn gradients_match_differences_in_both_modes() {
        let (input, scale, shift) = (random(1, &[2, 3, 2, 3]), random(2, &[3]), random(3, &[3]));
        for mode in [Mode::Training, Mode::Evaluation] {
            assert_gradients(&[input.clone(), scale.clone(), shift.clone()], 1e-2, 1e-2, || {
                layer(scale.as_tensor().clone(), shift.as_tensor().clone()).forward(&input, mode)
            });
        }
    }

    #[test]
    fn composed_of_candles_operations_it_is_the_same() {
        let (input, scale, shift) = (random(1, &[2, 3, 2, 3]), random(2, &[3]), random(3, &[3]));
        let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for mode in [Mode::Training, Mode::Evaluation] {
            let new = || layer(scale.as_tensor().clone(), shift.as_tensor().clone());
            let (ours, composed) = (new(), new());
            let pairs = [
                (ours.forward(&input, mode).unwrap(), composed.forward_composed(&input, mode).unwrap()),
                (ours.running_mean.borrow().clone(), composed.running_mean.borrow().clone()),
                (ours.running_variance.borrow().clone(), composed.running_variance.borrow().clone()),
            ];
            for (ours, composed) in &pairs {
                assert_eq!(ours.shape(), composed.shape());
                let composed = values(composed);
                let far = values(ours).into_iter().zip(&composed).map(|(a, b)| (a - b).abs());
                assert!(far.fold(0.0, f32::max) < 1e-5, "{mode:?}: {ours} and {composed:?}");
            }
            assert_gradients(&[input.clone(), scale.clone(), shift.clone()], 1e-2, 1e-2, || {
                new().forward_composed(&input, mode)
            });
        }
    }
}
