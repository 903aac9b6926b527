//! The optimiser of a worker.
//!
//! The update is the same on every worker, and so is everything made from it here: the parameters stay bit-identical
//! without ever being exchanged.

use crate::error::TrainerError;
use crate::parameters::Parameters;
use gleaner_algorithms::synchrony::Sgd;
use gleaner_runtime::Update;

/// Velocities, one per entry of the parameters.
pub struct Optimizer {
    sgd: Sgd,
    /// One list per parameter, in the parameters' order.
    pub velocities: Vec<Vec<f32>>,
    /// The mean gradient of one parameter, zeros where nothing was delivered.
    gradient: Vec<f32>,
}

impl Optimizer {
    /// Begins at rest.
    pub fn new(parameters: &Parameters, sgd: Sgd) -> Self {
        let velocities =
            parameters.list.iter().map(|parameter| vec![0.0; parameter.values().len()]).collect();
        Optimizer { sgd, velocities, gradient: Vec::new() }
    }

    /// A step with the mean gradient.
    pub fn apply(
        &mut self,
        update: &Update,
        parameters: &mut Parameters,
        learning_rate: f32,
    ) -> Result<(), TrainerError> {
        for (parameter, velocities) in parameters.list.iter_mut().zip(&mut self.velocities) {
            self.gradient.clear();
            self.gradient.resize(velocities.len(), 0.0);
            update.add_to(&parameter.name, &mut self.gradient, 1.0)?;
            let (sgd, gradient) = (self.sgd, &self.gradient);
            parameter.update(|values| sgd.step(values, velocities, gradient, learning_rate))?;
        }
        Ok(())
    }
}
