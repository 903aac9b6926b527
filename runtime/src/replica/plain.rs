//! Steps whose update is waited for before the next pass: BSP over an all-reduce, and whatever servers decide by themselves.

use gleaner_algorithms::synchrony::Stage;

use super::carrier::{Carrier, Turn};
use super::{Driver, Stepped};
use crate::checkpoint::{CheckpointError, State};
use crate::failure::Error;

/// See the module.
pub(super) struct Plain {
    units: Vec<usize>,
}

impl Plain {
    pub(super) fn new(units: usize) -> Self {
        Self { units: (0..units).collect() }
    }
}

impl Driver for Plain {
    fn step(
        &mut self,
        carrier: &mut dyn Carrier,
        gradient: &mut [f32],
        parameters: &mut [f32],
        turn: &Turn,
    ) -> Result<Stepped, Error> {
        carrier.start(Stage::Routine, &self.units, gradient, turn)?;
        let finished = carrier.finish(Stage::Routine, parameters)?;
        Ok(Stepped::default().routine(finished))
    }

    fn flush(
        &mut self,
        carrier: &mut dyn Carrier,
        _room: &mut [f32],
        parameters: &mut [f32],
    ) -> Result<(), Error> {
        carrier.flush(parameters)
    }

    fn save(&self, _state: &mut State) {}

    fn load(&mut self, _state: &State) -> Result<(), CheckpointError> {
        Ok(())
    }

    fn begin(&mut self, exchanges: u64, _values: &[f32]) -> u64 {
        exchanges
    }
}
