//! The optimiser of a worker.
//!
//! The update is the same on every worker, and so is everything made from it here: the parameters stay bit-identical
//! without ever being exchanged.

use candle_core::{Device, Result as Computed, Tensor, Var};

use crate::error::TrainerError;
use crate::parameters::{Parameter, Parameters};
use gleaner_algorithms::synchrony::Sgd;
use gleaner_runtime::Update;

/// Velocities, one per entry of the parameters, where these are.
pub struct Optimizer {
    sgd: Sgd,
    velocities: Velocities,
}

/// One list or tensor per parameter, in the parameters' order.
enum Velocities {
    Host {
        velocities: Vec<Vec<f32>>,
        /// The mean gradient of one parameter, zeros where nothing was delivered.
        gradient: Vec<f32>,
    },
    Device(Vec<Tensor>),
}

impl Optimizer {
    /// Begins at rest.
    ///
    /// # Errors
    /// A device without enough memory.
    pub fn new(parameters: &Parameters, sgd: Sgd) -> Result<Self, TrainerError> {
        let is_host = |parameter: &Parameter| parameter.variable().device().is_cpu();
        let velocities = if parameters.list.iter().all(is_host) {
            let velocities = parameters.list.iter().map(|parameter| vec![0.0; parameter.count()]).collect();
            Velocities::Host { velocities, gradient: Vec::new() }
        } else {
            let zeros = parameters.list.iter().map(|parameter| parameter.variable().zeros_like());
            Velocities::Device(zeros.collect::<Computed<_>>()?)
        };
        Ok(Optimizer { sgd, velocities })
    }

    /// Of each parameter the velocities, in row-major order.
    ///
    /// # Errors
    /// What has failed on a device.
    pub fn velocities(&self) -> Result<Vec<Vec<f32>>, TrainerError> {
        match &self.velocities {
            Velocities::Host { velocities, .. } => Ok(velocities.clone()),
            Velocities::Device(tensors) => {
                let values = tensors.iter().map(|tensor| tensor.flatten_all()?.to_vec1());
                Ok(values.collect::<Computed<_>>()?)
            }
        }
    }

    /// Goes on from these, as [`velocities`](Self::velocities) gives them.
    ///
    /// # Errors
    /// What has failed on a device.
    pub fn set_velocities(&mut self, values: Vec<Vec<f32>>) -> Result<(), TrainerError> {
        match &mut self.velocities {
            Velocities::Host { velocities, .. } => *velocities = values,
            Velocities::Device(tensors) => {
                for (tensor, values) in tensors.iter_mut().zip(values) {
                    *tensor = Tensor::from_vec(values, tensor.shape(), tensor.device())?;
                }
            }
        }
        Ok(())
    }

    /// A step with the mean gradient. What is enqueued on a device for it is over when this returns.
    ///
    /// # Errors
    /// An update of other parameters, or what has failed on a device.
    pub fn apply(
        &mut self,
        update: &Update,
        parameters: &mut Parameters,
        learning_rate: f32,
    ) -> Result<(), TrainerError> {
        match &mut self.velocities {
            Velocities::Host { velocities, gradient } => {
                for (parameter, velocities) in parameters.list.iter_mut().zip(velocities) {
                    gradient.clear();
                    gradient.resize(velocities.len(), 0.0);
                    update.add_to(&parameter.name, gradient, 1.0)?;
                    let sgd = self.sgd;
                    parameter.update(|values| sgd.step(values, velocities, gradient, learning_rate))?;
                }
            }
            Velocities::Device(velocities) => {
                for (parameter, velocity) in parameters.list.iter().zip(velocities) {
                    let gradient = mean(update, parameter)?;
                    *velocity = step(self.sgd, parameter.variable(), velocity, &gradient, learning_rate)?;
                }
                if let Some(parameter) = parameters.list.first() {
                    parameter.variable().device().synchronize()?;
                }
            }
        }
        Ok(())
    }
}

/// What [`Update::add_to`] adds to zeros, on the parameter's device.
#[cfg(feature = "cuda")]
fn mean(update: &Update, parameter: &Parameter) -> Result<Tensor, TrainerError> {
    let mean = parameter.variable().zeros_like()?;
    update.add_to_device(&parameter.name, &gleaner_candle::device_slice(&mean)?, 1.0)?;
    Ok(mean)
}

#[cfg(not(feature = "cuda"))]
fn mean(_update: &Update, _parameter: &Parameter) -> Result<Tensor, TrainerError> {
    Err(candle_core::Error::NotCompiledWithCudaSupport.into())
}

/// [`Sgd::step`] on a device, with the same roundings: candle's `affine` would round products and sums together. Gives the next velocity.
fn step(sgd: Sgd, parameter: &Var, velocity: &Tensor, gradient: &Tensor, rate: f32) -> Computed<Tensor> {
    let times = |tensor: &Tensor, factor: f32| tensor.broadcast_mul(&scalar(factor, tensor.device())?);
    let decay = times(parameter, sgd.weight_decay)?;
    let velocity = ((times(velocity, sgd.momentum)? + gradient)? + &decay)?;
    let ahead = match sgd.nesterov {
        true => ((gradient + decay)? + times(&velocity, sgd.momentum)?)?,
        false => velocity.clone(),
    };
    parameter.set(&(parameter.as_tensor() - times(&ahead, rate)?)?.detach())?;
    Ok(velocity.detach())
}

fn scalar(value: f32, device: &Device) -> Computed<Tensor> {
    Tensor::new(value, device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Generator;

    #[test]
    fn tensors_step_as_slices_do_to_the_last_bit() {
        let mut generator = Generator::new(1, "steps", 0);
        let mut values = || (0..999).map(|_| generator.symmetric()).collect::<Vec<f32>>();
        for nesterov in [false, true] {
            let sgd = Sgd { momentum: 0.9, weight_decay: 1e-3, nesterov };
            let (mut parameters, mut velocities) = (values(), values());
            let variable = Var::from_slice(&parameters, 999, &Device::Cpu).unwrap();
            let mut velocity = Tensor::from_slice(&velocities, 999, &Device::Cpu).unwrap();
            for _ in 0..5 {
                let gradient = values();
                sgd.step(&mut parameters, &mut velocities, &gradient, 0.3);
                let gradient = Tensor::from_vec(gradient, 999, &Device::Cpu).unwrap();
                velocity = step(sgd, &variable, &velocity, &gradient, 0.3).unwrap();
            }
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            let of = |tensor: &Tensor| bits(&tensor.to_vec1().unwrap());
            assert!(of(&variable) == bits(&parameters) && of(&velocity) == bits(&velocities), "{nesterov}");
        }
    }
}
