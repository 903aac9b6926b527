//! Stochastic gradient descent with momentum.
//!
//! The update is the same on every worker, and so is everything made from it here: the parameters stay bit-identical
//! without ever being exchanged.

use super::error::TrainError;
use super::parameters::Parameters;
use gleaner_runtime::Update;

/// Velocities, one per entry of the parameters.
pub struct Optimizer {
    momentum: f32,
    weight_decay: f32,
    /// One list per parameter, in the parameters' order.
    pub velocities: Vec<Vec<f32>>,
    /// The mean gradient of one parameter, zeros where nothing was delivered.
    gradient: Vec<f32>,
}

impl Optimizer {
    /// Begins at rest.
    pub fn new(parameters: &Parameters, momentum: f32, weight_decay: f32) -> Self {
        let velocities =
            parameters.list.iter().map(|parameter| vec![0.0; parameter.values().len()]).collect();
        Optimizer { momentum, weight_decay, velocities, gradient: Vec::new() }
    }

    /// For every entry w with mean gradient g and velocity v: v ← momentum·v + g + decay·w, then w ← w − rate·v.
    pub fn apply(
        &mut self,
        update: &Update,
        parameters: &mut Parameters,
        learning_rate: f32,
    ) -> Result<(), TrainError> {
        for (parameter, velocities) in parameters.list.iter_mut().zip(&mut self.velocities) {
            self.gradient.clear();
            self.gradient.resize(velocities.len(), 0.0);
            update.add_to(&parameter.name, &mut self.gradient, 1.0)?;
            let (momentum, decay, gradient) = (self.momentum, self.weight_decay, &self.gradient);
            parameter.update(|values| {
                for ((value, velocity), gradient) in values.iter_mut().zip(velocities).zip(gradient) {
                    *velocity = momentum * *velocity + gradient + decay * *value;
                    *value -= learning_rate * *velocity;
                }
            })?;
        }
        Ok(())
    }
}
