//! OSP (Chen et al., ICPP 2023): important units are waited for, and the others travel during the next pass.
//!
//! The parameters of a unit that is under way are a prediction: its true values with this worker's own gradient in place of
//! the global one (LGP). The true values take its place before the next update, when the pass that used it is over.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use gleaner_algorithms::synchrony::osp::Lgp;
use gleaner_algorithms::synchrony::{Osp, Sgd, Stage};

use super::carrier::{Carrier, Finished, TRUTH, Turn};
use super::{Driver, Stepped};
use crate::checkpoint::{CheckpointError, State, lacks};
use crate::failure::Error;
use crate::session::Inner;

/// What a checkpoint calls the rate and the units of the background, and what LGP has learnt.
const BACKGROUND: &str = "background";
const LGP: [&str; 2] = ["lgp velocities", "lgp averages"];

/// See the module.
pub(super) struct TwoStages {
    session: Arc<Inner>,
    units: Vec<Range<usize>>,
    lgp: Lgp,
    /// The true values received so far.
    truth: Vec<f32>,
    /// The units that are being exchanged in the background, and the rate of its step.
    background: Vec<usize>,
    rate: f32,
    /// That step, and when it was started, unless that was before a checkpoint.
    since: Option<(u64, Instant)>,
}

impl TwoStages {
    pub(super) fn new(
        session: &Arc<Inner>,
        osp: &Osp,
        sgd: Sgd,
        units: Vec<Range<usize>>,
        initial: &[f32],
    ) -> Self {
        let lgp = Lgp::new(osp.lgp, sgd, initial.len());
        let (session, truth, background) = (session.clone(), initial.to_vec(), Vec::new());
        Self { session, units, lgp, truth, background, rate: 0.0, since: None }
    }

    /// Completes the exchange in the background.
    fn complete(&mut self, carrier: &mut dyn Carrier, parameters: &mut [f32]) -> Result<Finished, Error> {
        if self.background.is_empty() {
            return Ok(Finished::default());
        }
        let finished = carrier.finish(Stage::Background, parameters)?;
        if let Some((step, since)) = self.since.take() {
            let during = since..since + finished.under_way;
            self.session.recorder.background(step, "in-computation synchronisation", during);
        }
        let units = std::mem::take(&mut self.background);
        self.learn(&units, parameters, self.rate, &finished);
        Ok(finished)
    }

    /// The true values of some units have arrived.
    fn learn(&mut self, units: &[usize], parameters: &[f32], rate: f32, finished: &Finished) {
        for range in units.iter().map(|&unit| self.units[unit].clone()) {
            let (before, after) = (&mut self.truth[range.clone()], &parameters[range.clone()]);
            // A step that was left out changed nothing, velocities included.
            if finished.skipped.is_none() {
                self.lgp.learn(range.start, before, after, rate);
            }
            before.copy_from_slice(after);
        }
    }
}

impl Driver for TwoStages {
    fn step(
        &mut self,
        carrier: &mut dyn Carrier,
        gradient: &mut [f32],
        parameters: &mut [f32],
        turn: &Turn,
    ) -> Result<Stepped, Error> {
        let began = Instant::now();
        let came = self.complete(carrier, parameters)?;
        self.session.recorder.program(
            turn.step,
            "end of the in-computation synchronisation",
            began..Instant::now(),
        );
        let is_background = carrier.split(turn)?;
        let (background, routine): (Vec<usize>, Vec<usize>) =
            (0..self.units.len()).partition(|&unit| is_background[unit]);
        let mut finished = Finished::default();
        if !routine.is_empty() {
            let began = Instant::now();
            carrier.start(Stage::Routine, &routine, gradient, turn)?;
            finished = carrier.finish(Stage::Routine, parameters)?;
            self.session.recorder.program(turn.step, "routine synchronisation", began..Instant::now());
            self.learn(&routine, parameters, turn.pass.rate, &finished);
        }
        let mut deferred = 0;
        if !background.is_empty() {
            carrier.start(Stage::Background, &background, gradient, turn)?;
            self.since = Some((turn.step, Instant::now()));
            for range in background.iter().map(|&unit| self.units[unit].clone()) {
                deferred += range.len() as u64;
                let own = &gradient[range.clone()];
                // Of a step that is left out nothing is predicted.
                if own.iter().all(|value| value.is_finite()) {
                    self.lgp.predict(range.start, &mut parameters[range], own, turn.pass.rate);
                }
            }
        }
        (self.background, self.rate) = (background, turn.pass.rate);
        let stepped = Stepped {
            background: came.under_way,
            entries: came.entries,
            skipped: came.skipped,
            deferred,
            budget: carrier.budget(),
            ..Stepped::default()
        };
        Ok(stepped.routine(finished))
    }

    fn flush(
        &mut self,
        carrier: &mut dyn Carrier,
        _room: &mut [f32],
        parameters: &mut [f32],
    ) -> Result<(), Error> {
        self.complete(carrier, parameters)?;
        carrier.flush(parameters)?;
        self.truth.copy_from_slice(parameters);
        Ok(())
    }

    fn save(&self, state: &mut State) {
        state.values.insert(TRUTH.into(), self.truth.clone());
        for (name, values) in LGP.into_iter().zip(self.lgp.memory()) {
            state.values.insert(name.into(), values.to_vec());
        }
        let units = self.background.iter().map(|&unit| unit as f64);
        state.numbers.insert(BACKGROUND.into(), [f64::from(self.rate)].into_iter().chain(units).collect());
    }

    fn load(&mut self, state: &State) -> Result<(), CheckpointError> {
        let truth = state.values_of(TRUTH, self.truth.len())?;
        let lengths = self.lgp.memory().map(<[f32]>::len);
        let memory = [state.values_of(LGP[0], lengths[0])?, state.values_of(LGP[1], lengths[1])?];
        let Some((rate, units)) = state.numbers_of(BACKGROUND)?.split_first() else {
            return Err(lacks(BACKGROUND));
        };
        let background: Vec<usize> = units.iter().map(|&unit| unit as usize).collect();
        if background.iter().any(|&unit| unit >= self.units.len()) || !self.lgp.remember(memory) {
            return Err(lacks(BACKGROUND));
        }
        self.truth.copy_from_slice(truth);
        (self.background, self.rate, self.since) = (background, *rate as f32, None);
        Ok(())
    }

    fn begin(&mut self, exchanges: u64, values: &[f32]) -> u64 {
        self.truth.copy_from_slice(values);
        self.background.clear();
        exchanges
    }
}
