//! Local steps: a worker goes on by itself for some steps, and then exchanges the difference that they made (post-local SGD, Lin et
//! al., ICLR 2020; with an outer Nesterov step, DiLoCo, Douillard et al., 2023).
//!
//! The difference goes the way of a gradient, so that what a sparse method does not deliver waits in the residual for the next
//! exchange. All workers go on from the same values, and each keeps the velocities of its own steps.

use gleaner_algorithms::synchrony::{self, Sgd, Stage};

use super::carrier::{Carrier, Turn};
use super::{Driver, Stepped};
use crate::failure::Error;

/// See the module.
pub(super) struct Local {
    local: synchrony::Local,
    /// Of a worker's own steps.
    inner: Sgd,
    velocities: Vec<f32>,
    units: Vec<usize>,
    /// The common values that the steps since the last exchange began with.
    base: Vec<f32>,
    exchanges: u64,
    /// The last step that was no exchange.
    last: Option<Turn>,
}

impl Local {
    /// The carrier has the [outer](synchrony::Local::outer) optimiser.
    pub(super) fn new(local: synchrony::Local, inner: Sgd, units: usize, initial: &[f32]) -> Self {
        let velocities = vec![0.0; initial.len()];
        let (units, base) = ((0..units).collect(), initial.to_vec());
        Self { local, inner, velocities, units, base, exchanges: 0, last: None }
    }

    /// Afterwards the parameters are the common ones. `room` has as many entries.
    fn exchange(
        &mut self,
        carrier: &mut dyn Carrier,
        room: &mut [f32],
        parameters: &mut [f32],
        turn: &Turn,
    ) -> Result<Stepped, Error> {
        for ((difference, base), value) in room.iter_mut().zip(&self.base).zip(&*parameters) {
            *difference = base - value;
        }
        let mut turn = Turn { step: self.exchanges, ..*turn };
        turn.pass.rate = self.local.rate;
        carrier.start(Stage::Routine, &self.units, room, &turn)?;
        let finished = carrier.finish(Stage::Routine, parameters)?;
        self.base.copy_from_slice(parameters);
        self.last = None;
        self.exchanges += 1;
        Ok(Stepped::default().routine(finished))
    }
}

impl Driver for Local {
    fn step(
        &mut self,
        carrier: &mut dyn Carrier,
        gradient: &mut [f32],
        parameters: &mut [f32],
        turn: &Turn,
    ) -> Result<Stepped, Error> {
        self.inner.step(parameters, &mut self.velocities, gradient, turn.pass.rate);
        if !self.local.exchanges(turn.step) {
            self.last = Some(*turn);
            return Ok(Stepped::default());
        }
        self.exchange(carrier, gradient, parameters, turn)
    }

    fn flush(
        &mut self,
        carrier: &mut dyn Carrier,
        room: &mut [f32],
        parameters: &mut [f32],
    ) -> Result<(), Error> {
        if let Some(turn) = self.last.take() {
            self.exchange(carrier, room, parameters, &turn)?;
        }
        carrier.flush(parameters)
    }
}
