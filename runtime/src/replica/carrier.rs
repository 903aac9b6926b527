//! What carries gradients to the place where the optimiser is, and the parameters back.

use std::path::Path;
use std::time::Duration;

use gleaner_algorithms::synchrony::Stage;

use super::Pass;
use crate::checkpoint::{CheckpointError, State};
use crate::failure::Error;
use crate::update::Skipped;
use crate::waits::Awaited;

/// What a checkpoint calls the true values. A carrier that has them saves them, and so does a driver; they are the same.
pub(crate) const TRUTH: &str = "true values";

/// A step as a carrier sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Its number, from 0.
    pub(crate) step: u64,
    /// What the trainer says of its pass.
    pub(crate) pass: Pass,
    /// How long the pass took.
    pub(crate) computing: Duration,
}

/// What is known of a stage that is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finished {
    /// How long it travelled.
    pub(crate) under_way: Duration,
    /// Entries of the update that are not zero, where the update is known.
    pub(crate) entries: u64,
    /// The rank that it waited for, where the carrier knows.
    pub(crate) awaited: Awaited,
    /// Why some of it was left out, on all ranks alike.
    pub(crate) skipped: Option<Skipped>,
}

/// Brings gradients to the optimiser: over an all-reduce, after which every worker has one, or over parameter servers.
///
/// Units are numbered in the order of the layout's groups. In one step every unit is started once, in one of the two stages. What
/// was started in a stage is finished before the next is started there.
pub(crate) trait Carrier: Send {
    /// Sends this worker's gradient of some units in a stage of a step, and does not wait. `gradient` is flat, of all units.
    fn start(&mut self, stage: Stage, units: &[usize], gradient: &[f32], turn: &Turn) -> Result<(), Error>;

    /// Waits for what was started last in this stage, and writes the true values of its units as they are then into `parameters`.
    /// An error leaves `parameters` as they were.
    fn finish(&mut self, stage: Stage, parameters: &mut [f32]) -> Result<Finished, Error>;

    /// Which units this step pushes in the background (OSP's gradient importance bitmap); none elsewhere. Called once a step, when
    /// the background of the step before is finished.
    fn split(&mut self, turn: &Turn) -> Result<Vec<bool>, Error>;

    /// S(G^u) and U_max in entries, as the last [`split`](Self::split) had them; nothing elsewhere than under OSP.
    fn budget(&self) -> Option<(u64, u64)> {
        None
    }

    /// Completes all exchanges under way, in both stages, and writes the true values of all units into `parameters`: what every worker has
    /// that calls it after the same steps. All workers call it together.
    fn flush(&mut self, parameters: &mut [f32]) -> Result<(), Error>;

    /// Adds what it carries from step to step, between two steps. An exchange in the background is waited for, and its result kept
    /// unchanged: it is applied when it would have been.
    fn save(&mut self, state: &mut State) -> Result<(), Error>;

    /// Whether a state is one of this carrier's. Nothing changes.
    fn expects(&self, path: &Path, state: &State) -> Result<(), CheckpointError>;

    /// Resumes from a state that it expects. All workers call it together.
    fn load(&mut self, state: &State) -> Result<(), Error>;

    /// The step that comes next and the true values, where they are kept elsewhere than on the ranks.
    fn kept(&mut self) -> Result<Option<(u64, Vec<f32>)>, Error> {
        Ok(None)
    }
}
