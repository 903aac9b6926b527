//! The optimiser of a worker.
//!
//! The update is the same on every worker, and so is everything made from it here: the parameters stay bit-identical
//! without ever being exchanged.

use candle_core::{DType, Result as Computed, Tensor, Var};

mod adam;

pub use adam::Adam;

use crate::dct::Dct;
use crate::error::TrainerError;
use crate::parameters::{Parameter, Parameters};
use gleaner_algorithms::synchrony::{LateSgd, Sgd};
use gleaner_runtime::Update;

use adam::Decays;

/// How parameters follow the mean gradients.
#[derive(Clone, Debug, PartialEq)]
pub enum Descent {
    /// Stochastic gradient descent, with momentum if it has some.
    Sgd(Sgd),
    /// The same for updates whose entries have waited in residuals.
    LateSgd(LateSgd),
    /// See there.
    Adam(Adam),
}

impl Descent {
    /// What it keeps of each parameter, as checkpoints name it.
    fn kept(&self) -> &'static [&'static str] {
        match self {
            Descent::Sgd(_) => &["velocity"],
            Descent::LateSgd(_) => &["velocity", "steps waited"],
            Descent::Adam(_) => &["velocity", "second moment"],
        }
    }

    /// The same where updates hold gradients that are multiplied by the rate already, for which steps are taken with rate 1.
    fn of_steps(self, rate: f32) -> Self {
        match self {
            Descent::Sgd(sgd) => Descent::Sgd(Sgd { weight_decay: sgd.weight_decay * rate, ..sgd }),
            Descent::LateSgd(late) => {
                let weight_decay = late.sgd().weight_decay * rate;
                Descent::LateSgd(late.weight_decay(weight_decay))
            }
            // It divides by the size of gradients, so nothing would be left of a factor.
            adam => adam,
        }
    }
}

/// The learning rate of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// The update holds gradients.
    Of(f32),
    /// The update holds gradients that were multiplied by the rates of their own steps, of which this is the present one.
    Within(f32),
}

/// How an update becomes the gradient that the descent follows.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The transform of the gradients that were exchanged, which is taken back; of parameters in main memory that are no embeddings.
    pub dct: Option<Dct>,
    /// Whether only signs are followed, as in Signum (Bernstein, Wang, Azizzadenesheli and Anandkumar, ICML 2018).
    pub signs: bool,
}

impl Reading {
    fn value(&self, value: f32) -> f32 {
        if self.signs && value != 0.0 { value.signum() } else { value }
    }

    fn apply(&self, gradient: &mut [f32], is_embedding: bool) {
        if let Some(dct) = self.dct.as_ref().filter(|_| !is_embedding) {
            dct.inverse(gradient);
        }
        if self.signs {
            gradient.iter_mut().for_each(|value| *value = self.value(*value));
        }
    }
}

/// What the descent keeps of the parameters, where these are.
pub struct Optimizer {
    descent: Descent,
    reading: Reading,
    decays: Decays,
    kept: Kept,
}

/// One list or tensor per parameter, in the parameters' order, for each that the descent keeps.
enum Kept {
    Host {
        values: Vec<Vec<Vec<f32>>>,
        /// The mean gradient of one parameter, zeros where nothing was delivered.
        gradient: Vec<f32>,
    },
    Device {
        tensors: Vec<Vec<Tensor>>,
        /// The shares of late entries, if the descent has them.
        shares: Option<Tensor>,
    },
}

impl Optimizer {
    /// Begins at rest.
    ///
    /// # Errors
    /// A device without enough memory.
    pub fn new(parameters: &Parameters, descent: Descent, reading: Reading) -> Result<Self, TrainerError> {
        let is_host = |parameter: &Parameter| parameter.variable().device().is_cpu();
        let kept = if parameters.list.iter().all(is_host) {
            let zeros = || parameters.list.iter().map(|parameter| vec![0.0; parameter.count()]).collect();
            Kept::Host { values: descent.kept().iter().map(|_| zeros()).collect(), gradient: Vec::new() }
        } else {
            let zeros = |_| parameters.list.iter().map(|p| p.variable().zeros_like()).collect();
            let tensors = descent.kept().iter().map(zeros).collect::<Computed<_>>()?;
            let device = parameters.list.first().map(|parameter| parameter.variable().device());
            let shares = match (&descent, device) {
                (Descent::LateSgd(late), Some(device)) => Some(Tensor::new(late.shares(), device)?),
                _ => None,
            };
            Kept::Device { tensors, shares }
        };
        Ok(Optimizer { descent, reading, decays: Decays::default(), kept })
    }

    /// What the descent keeps of these parameters, its own: the values of each in row-major order.
    ///
    /// # Errors
    /// What has failed on a device.
    pub fn state(&self, parameters: &Parameters) -> Result<State, TrainerError> {
        let values: Vec<Vec<f32>> = match &self.kept {
            Kept::Host { values, .. } => values.concat(),
            Kept::Device { tensors, .. } => {
                let of = |tensor: &Tensor| tensor.flatten_all()?.to_vec1();
                tensors.iter().flatten().map(of).collect::<Computed<_>>()?
            }
        };
        let list = &parameters.list;
        let names = |kind: &'static str| list.iter().map(move |p| format!("{kind}/{}", p.name));
        Ok(self.descent.kept().iter().copied().flat_map(names).zip(values).collect())
    }

    /// Goes on from this, as [`state`](Self::state) gives it, after this many updates.
    ///
    /// # Errors
    /// What has failed on a device.
    pub fn restore(&mut self, state: State, updates: u64) -> Result<(), TrainerError> {
        self.decays = Decays::after(updates, &self.descent);
        let state = state.into_iter().map(|(_, values)| values);
        match &mut self.kept {
            Kept::Host { values, .. } => {
                values.iter_mut().flatten().zip(state).for_each(|(kept, values)| *kept = values);
            }
            Kept::Device { tensors, .. } => {
                for (tensor, values) in tensors.iter_mut().flatten().zip(state) {
                    *tensor = Tensor::from_vec(values, tensor.shape(), tensor.device())?;
                }
            }
        }
        Ok(())
    }

    /// A step with the mean gradient times a factor. What is enqueued on a device for it is over when this returns.
    ///
    /// # Errors
    /// An update of other parameters, or what has failed on a device.
    pub fn apply(
        &mut self,
        update: &Update,
        parameters: &mut Parameters,
        rate: Rate,
        factor: f32,
    ) -> Result<(), TrainerError> {
        let (descent, rate) = match rate {
            Rate::Of(rate) => (self.descent.clone(), rate),
            Rate::Within(rate) => (self.descent.clone().of_steps(rate), 1.0),
        };
        self.decays.advance(&descent);
        let (decays, reading) = (self.decays, &self.reading);
        match &mut self.kept {
            Kept::Host { values: kept, gradient } => {
                for (number, parameter) in parameters.list.iter_mut().enumerate() {
                    if parameter.is_embedding() && is_plain(&descent) {
                        let entries = update.sparse(&parameter.name)?;
                        parameter.update(|values| {
                            entries.iter().for_each(|(i, mean)| {
                                values[i as usize] -= rate * reading.value(factor * mean)
                            });
                        })?;
                        continue;
                    }
                    gradient.clear();
                    gradient.resize(parameter.count(), 0.0);
                    update.add_to(&parameter.name, gradient, factor)?;
                    reading.apply(gradient, parameter.is_embedding());
                    let mut kept = kept.iter_mut().map(|kept| &mut kept[number][..]);
                    let (Some(first), second) = (kept.next(), kept.next()) else { continue };
                    parameter.update(|values| match (&descent, second) {
                        (Descent::Adam(adam), Some(second)) => {
                            adam.step(values, [first, second], gradient, rate, decays);
                        }
                        (Descent::LateSgd(late), Some(waited)) => {
                            late.step(values, first, waited, gradient, rate);
                        }
                        (Descent::Sgd(sgd), _) => sgd.step(values, first, gradient, rate),
                        // They keep both.
                        (Descent::Adam(_) | Descent::LateSgd(_), None) => {}
                    })?;
                }
            }
            Kept::Device { tensors: kept, shares } => {
                for (number, parameter) in parameters.list.iter().enumerate() {
                    let mean = mean(update, parameter, factor)?;
                    let gradient = if reading.signs { mean.sign()? } else { mean };
                    let of_parameter = kept.iter().map(|kept| &kept[number]).chain(&*shares);
                    let of_parameter: Vec<Tensor> = of_parameter.cloned().collect();
                    let next = step(&descent, parameter.variable(), &of_parameter, &gradient, rate, decays)?;
                    kept.iter_mut().zip(next).for_each(|(kept, next)| kept[number] = next);
                }
                if let Some(parameter) = parameters.list.first() {
                    parameter.variable().device().synchronize()?;
                }
            }
        }
        Ok(())
    }
}

/// Values by name, such as `velocity/output.weight`.
pub type State = Vec<(String, Vec<f32>)>;

/// Whether nothing changes where the gradient is zero.
fn is_plain(descent: &Descent) -> bool {
    matches!(descent, Descent::Sgd(Sgd { momentum: 0.0, weight_decay: 0.0, .. }))
}

/// The norm of an update, the mean over the workers, over all parameters: the same bits on every worker.
///
/// # Errors
/// An update of other parameters.
pub fn norm(update: &Update, parameters: &Parameters) -> Result<f64, TrainerError> {
    let mut sum = 0.0;
    for parameter in &parameters.list {
        let entries = update.sparse(&parameter.name)?;
        sum += entries.values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
    }
    Ok(sum.sqrt())
}

/// What [`Update::add_to`] adds to zeros, on the parameter's device.
#[cfg(feature = "cuda")]
fn mean(update: &Update, parameter: &Parameter, factor: f32) -> Result<Tensor, TrainerError> {
    let mean = parameter.variable().zeros_like()?;
    update.add_to_device(&parameter.name, &gleaner_candle::device_slice(&mean)?, factor)?;
    Ok(mean)
}

#[cfg(not(feature = "cuda"))]
fn mean(_update: &Update, _parameter: &Parameter, _factor: f32) -> Result<Tensor, TrainerError> {
    Err(candle_core::Error::NotCompiledWithCudaSupport.into())
}

/// A step on a device, with the same roundings as in main memory: candle's `affine` would round products and sums together. Takes what is
/// kept of the parameter, and behind it the shares of late entries, and gives what is kept next.
fn step(
    descent: &Descent,
    parameter: &Var,
    kept: &[Tensor],
    gradient: &Tensor,
    rate: f32,
    decays: Decays,
) -> Computed<Vec<Tensor>> {
    match (descent, kept) {
        (Descent::Sgd(sgd), [velocity, ..]) => {
            let decay = times(parameter, sgd.weight_decay)?;
            let velocity = ((times(velocity, sgd.momentum)? + gradient)? + &decay)?;
            let ahead = match sgd.nesterov {
                true => ((gradient + decay)? + times(&velocity, sgd.momentum)?)?,
                false => velocity.clone(),
            };
            parameter.set(&(parameter.as_tensor() - times(&ahead, rate)?)?.detach())?;
            Ok(vec![velocity.detach()])
        }
        (Descent::LateSgd(late), [velocity, waited, shares]) => {
            let Sgd { momentum, weight_decay, nesterov } = late.sgd();
            let longest = late.shares().len() - 1;
            let number = waited.minimum(longest as f64)?.to_dtype(DType::U32)?.flatten_all()?;
            let share = shares.index_select(&number, 0)?.reshape(parameter.shape())?;
            let absent = gradient.eq(0.0_f32)?.to_dtype(DType::F32)?;
            let waited = ((waited + 1.0)? * absent)?;
            let decay = times(parameter, weight_decay)?;
            let timely = (&share * gradient)?;
            let velocity = ((times(velocity, momentum)? + &timely)? + &decay)?;
            let ahead = match nesterov {
                true => ((timely + decay)? + times(&velocity, momentum)?)?,
                false => velocity.clone(),
            };
            let overdue = (times(&(share.ones_like()? - share)?, late.rest())? * gradient)?;
            parameter.set(&(parameter.as_tensor() - times(&(ahead + overdue)?, rate)?)?.detach())?;
            Ok(vec![velocity.detach(), waited.detach()])
        }
        (Descent::Adam(adam), [first, second]) => {
            adam.step_there(parameter, [first, second], gradient, rate, decays)
        }
        _ => candle_core::bail!("the optimiser keeps {} tensors of a parameter", kept.len()),
    }
}

fn times(tensor: &Tensor, factor: f32) -> Computed<Tensor> {
    tensor.broadcast_mul(&Tensor::new(factor, tensor.device())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use gleaner_statistics::random::Generator;

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
                let kept =
                    step(&Descent::Sgd(sgd), &variable, &[velocity], &gradient, 0.3, Decays::default());
                velocity = kept.unwrap().remove(0);
            }
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            let of = |tensor: &Tensor| bits(&tensor.to_vec1().unwrap());
            assert!(of(&variable) == bits(&parameters) && of(&velocity) == bits(&velocities), "{nesterov}");
        }
    }

    #[test]
    fn late_entries_step_tensors_as_they_do_slices() {
        let mut generator = Generator::new(3, "steps", 0);
        let mut values = |share: f32| {
            let mut value = || generator.symmetric();
            (0..999).map(|_| if value().abs() < share { value() } else { 0.0 }).collect::<Vec<f32>>()
        };
        for nesterov in [false, true] {
            let late = LateSgd::new(Sgd { momentum: 0.9, weight_decay: 1e-3, nesterov });
            let (mut parameters, mut kept) = (values(1.0), [values(1.0), vec![0.0; 999]]);
            let variable = Var::from_slice(&parameters, 999, &Device::Cpu).unwrap();
            let mut tensors: Vec<Tensor> =
                kept.iter().map(|kept| Tensor::from_slice(kept, 999, &Device::Cpu).unwrap()).collect();
            for _ in 0..50 {
                let gradient = values(0.1);
                let [velocity, waited] = &mut kept;
                late.step(&mut parameters, velocity, waited, &gradient, 0.3);
                let gradient = Tensor::from_vec(gradient, 999, &Device::Cpu).unwrap();
                let descent = Descent::LateSgd(late.clone());
                tensors.push(Tensor::new(late.shares(), &Device::Cpu).unwrap());
                tensors = step(&descent, &variable, &tensors, &gradient, 0.3, Decays::default()).unwrap();
            }
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            let of = |tensor: &Tensor| bits(&tensor.to_vec1().unwrap());
            assert!(of(&variable) == bits(&parameters), "{nesterov}");
            assert!(tensors.iter().zip(&kept).all(|(tensor, kept)| of(tensor) == bits(kept)), "{nesterov}");
            assert!(kept[1].iter().any(|&waited| waited > 20.0));
        }
    }

    #[test]
    fn adam_steps_alike_on_tensors_and_slices_and_after_a_restart() {
        let mut generator = Generator::new(2, "steps", 0);
        let mut values = || (0..99).map(|_| generator.symmetric()).collect::<Vec<f32>>();
        let adam = Adam { weight_decay: 0.01, ..Adam::default() };
        let (mut parameters, mut kept) = (values(), [vec![0.0; 99], vec![0.0; 99]]);
        let variable = Var::from_slice(&parameters, 99, &Device::Cpu).unwrap();
        let mut tensors = vec![variable.zeros_like().unwrap(), variable.zeros_like().unwrap()];
        let mut decays = Decays::default();
        for updates in 0..5 {
            let gradient = values();
            assert_eq!(decays, Decays::after(updates, &Descent::Adam(adam)));
            decays.advance(&Descent::Adam(adam));
            let [first, second] = &mut kept;
            adam.step(&mut parameters, [first, second], &gradient, 0.1, decays);
            let gradient = Tensor::from_vec(gradient, 99, &Device::Cpu).unwrap();
            tensors = step(&Descent::Adam(adam), &variable, &tensors, &gradient, 0.1, decays).unwrap();
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
        let of = |tensor: &Tensor| bits(&tensor.to_vec1().unwrap());
        assert!(of(&variable) == bits(&parameters));
        assert!(of(&tensors[0]) == bits(&kept[0]) && of(&tensors[1]) == bits(&kept[1]));
    }
}
