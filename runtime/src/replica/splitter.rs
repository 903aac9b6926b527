//! Which units go to the background over an all-reduce. Every rank gets the same result, from the same bits: the importance of a unit
//! follows from the true values and the global gradient, and what is measured is agreed on at the end of each epoch.

use std::sync::Arc;
use std::time::Duration;

use gleaner_algorithms::forecast::{Model, Network};
use gleaner_algorithms::synchrony::Osp;
use gleaner_algorithms::synchrony::osp::{self, Budget, Tuning};
use gleaner_algorithms::{Method, Sparsity};
use gleaner_statistics::median;

use super::carrier::Turn;
use crate::checkpoint::{CheckpointError, State, lacks};
use crate::failure::Error;
use crate::notes::Purpose;
use crate::probe::{self, Probed};
use crate::session::Inner;

/// Steps that are measured before U_max is taken from the first epoch on.
const MEASURED: u64 = 4;

/// What a checkpoint calls what was reported in the current epoch, and the importance of each unit.
const EPOCH: &str = "epoch";
const IMPORTANCES: &str = "importances";

/// See the module.
pub(super) struct Splitter {
    session: Arc<Inner>,
    osp: Osp,
    method: Method,
    /// Entries of each unit, and their importance.
    entries: Vec<usize>,
    pub(super) importances: Vec<f64>,
    /// Steps of an epoch.
    epoch: u64,
    /// What the network is like; not asked for where the share is fixed.
    probed: Option<Probed>,
    measured: Measured,
}

/// What is carried from step to step beside the importances.
#[derive(Clone, Debug, Default, PartialEq)]
struct Measured {
    tuning: Tuning,
    /// The entries whose exchange takes no longer than a pass.
    allowed: usize,
    /// Of this epoch: the sum of the losses of its samples, the samples, and what its passes took, in seconds.
    loss: f64,
    samples: f64,
    passes: Vec<f64>,
}

impl Splitter {
    /// All ranks call it together.
    pub(super) fn new(
        session: &Arc<Inner>,
        osp: Osp,
        method: &Method,
        entries: Vec<usize>,
        epoch: u64,
    ) -> Result<Self, Error> {
        let probed = match osp.budget {
            Budget::Share(_) => None,
            Budget::Tuned | Budget::Bound => Some(probe::probe(session, entries.iter().sum())?),
        };
        let (session, method) = (session.clone(), method.clone());
        let importances = vec![0.0; entries.len()];
        Ok(Self { session, osp, method, entries, importances, epoch, probed, measured: Measured::default() })
    }

    /// Which units this step pushes in the background.
    pub(super) fn split(&mut self, turn: &Turn) -> Result<Vec<bool>, Error> {
        let is_first = self.osp.budget == Budget::Bound && turn.step == MEASURED;
        let ends = turn.step > 0 && turn.step.is_multiple_of(self.epoch);
        if ends || is_first && self.epoch > MEASURED {
            self.agree(ends)?;
        }
        if self.probed.is_some() {
            self.measured.loss += f64::from(turn.pass.loss) * turn.pass.samples as f64;
            self.measured.samples += turn.pass.samples as f64;
            self.measured.passes.push(turn.computing.as_secs_f64());
        }
        Ok(osp::split(&self.importances, &self.entries, self.budget()))
    }

    /// S(G^u), in entries.
    pub(super) fn budget(&self) -> usize {
        self.osp.entries(self.model(), self.measured.allowed, &self.measured.tuning)
    }

    /// U_max, in entries.
    pub(super) fn most(&self) -> usize {
        match self.osp.budget {
            Budget::Share(_) => self.budget(),
            Budget::Tuned | Budget::Bound => self.osp.most(self.model(), self.measured.allowed),
        }
    }

    /// Adds what it carries from step to step.
    pub(super) fn save(&self, state: &mut State) {
        let Measured { tuning, allowed, loss, samples, passes } = &self.measured;
        let numbers = tuning.numbers().into_iter().chain([*allowed as f64, *loss, *samples]);
        state.numbers.insert(EPOCH.into(), numbers.chain(passes.iter().copied()).collect());
        state.numbers.insert(IMPORTANCES.into(), self.importances.clone());
    }

    /// Resumes from that.
    pub(super) fn load(&mut self, state: &State) -> Result<(), CheckpointError> {
        let [first, share, allowed, loss, samples, ref passes @ ..] = *state.numbers_of(EPOCH)? else {
            return Err(lacks(EPOCH));
        };
        let importances = state.numbers_of(IMPORTANCES)?;
        if importances.len() != self.importances.len() {
            return Err(lacks(IMPORTANCES));
        }
        self.importances.copy_from_slice(importances);
        let (tuning, passes) = (Tuning::of_numbers([first, share]), passes.to_vec());
        self.measured = Measured { tuning, allowed: allowed as usize, loss, samples, passes };
        Ok(())
    }

    fn model(&self) -> usize {
        self.entries.iter().sum()
    }

    /// All ranks exchange what they have measured, and conclude the same from it.
    fn agree(&mut self, ends: bool) -> Result<(), Error> {
        let Some(probed) = self.probed else { return Ok(()) };
        let own = [self.measured.loss, self.measured.samples, median(self.measured.passes.iter().copied())];
        let (mut loss, mut samples, mut pass) = (0.0, 0.0, 0.0f64);
        for numbers in probe::numbers(&self.session.gather(Purpose::Epoch, &probe::bytes(&own))?, own.len()) {
            // All wait for the slowest, so what travels may take as long as its pass.
            (loss, samples, pass) = (loss + numbers[0], samples + numbers[1], pass.max(numbers[2]));
        }
        if ends {
            self.measured.tuning.record(loss / samples);
            (self.measured.loss, self.measured.samples) = (0.0, 0.0);
        }
        self.measured.passes.clear();
        let pass = Duration::try_from_secs_f64(pass).unwrap_or_default();
        self.measured.allowed = self.allowed(&probed, pass)?;
        Ok(())
    }

    /// The most entries whose exchange takes no longer than a pass: equation 5 for this all-reduce, by what its schedule costs on the
    /// slowest links. What is lost on them is in their rates, as these were measured.
    fn allowed(&self, probed: &Probed, pass: Duration) -> Result<usize, Error> {
        let (n, workers) = (self.model(), self.session.workers);
        let density = match self.method.sparsity() {
            Sparsity::Density(density) => density,
            Sparsity::K(k) => k as f64 / n.max(1) as f64,
        };
        let method = self.method.clone().selecting(Sparsity::Density(density.min(1.0)));
        let network = Network { bytes_per_second: probed.slowest, ..probed.network };
        let model = Model::new(network, probed.speed, &method, n)?;
        let seconds = |entries: usize| match entries {
            0 => 0.0,
            _ => model.forecast(method.clone(), workers, entries).map_or(f64::INFINITY, |of| of.seconds),
        };
        Ok(osp::most(n, pass, seconds))
    }
}
