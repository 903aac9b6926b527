//! Local steps: a worker trains by itself for some steps, and then exchanges the difference that they made (post-local SGD, Lin et
//! al., ICLR 2020; with an outer Nesterov step, DiLoCo, Douillard et al., 2023).
//!
//! The difference goes the way of a gradient, so that what a sparse method does not deliver waits in the residual for the next
//! exchange. All workers continue from the same values, and each keeps the velocities of its own steps.

use std::time::Duration;

use gleaner_algorithms::synchrony::{self, Sgd, Stage};

use super::carrier::{Carrier, TRUTH, Turn};
use super::{Driver, Pass, Stepped};
use crate::checkpoint::{CheckpointError, State, lacks};
use crate::failure::Error;

/// What a checkpoint calls the velocities of a worker's own steps, and the exchanges that are over with what the last step was if
/// it was none.
const INNER: &str = "own velocities";
const EXCHANGES: &str = "exchanges";

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

    fn save(&self, state: &mut State) {
        state.values.insert(TRUTH.into(), self.base.clone());
        state.values.insert(INNER.into(), self.velocities.clone());
        let last = self.last.map(|Turn { step, pass: Pass { rate, samples, loss }, computing }| {
            [step as f64, rate.into(), samples as f64, loss.into(), computing.as_secs_f64()]
        });
        let last = last.into_iter().flatten();
        state.numbers.insert(EXCHANGES.into(), [self.exchanges as f64].into_iter().chain(last).collect());
    }

    fn load(&mut self, state: &State) -> Result<(), CheckpointError> {
        let entries = self.base.len();
        let (base, velocities) = (state.values_of(TRUTH, entries)?, state.values_of(INNER, entries)?);
        let (exchanges, last) = match *state.numbers_of(EXCHANGES)? {
            [exchanges] => (exchanges, None),
            [exchanges, step, rate, samples, loss, computing] => {
                let pass = Pass { rate: rate as f32, samples: samples as u64, loss: loss as f32 };
                let computing = Duration::try_from_secs_f64(computing).unwrap_or_default();
                (exchanges, Some(Turn { step: step as u64, pass, computing }))
            }
            _ => return Err(lacks(EXCHANGES)),
        };
        self.base.copy_from_slice(base);
        self.velocities.copy_from_slice(velocities);
        (self.exchanges, self.last) = (exchanges as u64, last);
        Ok(())
    }

    fn begin(&mut self, exchanges: u64, values: &[f32]) -> u64 {
        self.base.copy_from_slice(values);
        (self.exchanges, self.last) = (exchanges, None);
        let Self { local: synchrony::Local { steps, after, .. }, .. } = *self;
        exchanges.min(after) + exchanges.saturating_sub(after) * steps
    }
}
