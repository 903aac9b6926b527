//! How the gradients of a step become common parameters.

mod overlapped;
mod replicated;
mod units;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use candle_core::Tensor;
use gleaner_runtime::{Session, StepTimes, Stepped};

use super::error::TrainResult;
use super::settings::Settings;
use super::summary::Account;
use gleaner_trainer::parameters::Parameters;

use overlapped::Overlapped;
use replicated::Replicated;

/// What a training run asks of it. In a step: [`watch`](Self::watch), the forward pass, [`backward`](Self::backward),
/// [`end_step`](Self::end_step).
pub trait Exchange {
    /// Before the forward pass.
    fn watch(&mut self, _parameters: &Parameters) -> TrainResult<()> {
        Ok(())
    }

    /// Runs the backward pass of a step with this learning rate and hands the gradients over. `keeps`: what is selected from is kept for [`selected`](Self::selected).
    fn backward(&mut self, loss: &Tensor, parameters: &Parameters, rate: f32, keeps: bool)
    -> TrainResult<()>;

    /// What this worker selects from in the present step, where that is kept.
    fn selected(&self) -> Option<Vec<f32>> {
        None
    }

    /// Exchanges, and brings the parameters to where the next pass begins.
    fn end_step(&mut self, parameters: &mut Parameters, pass: Passed) -> TrainResult<Ended>;

    /// After the last step: the parameters have the same bits on all workers.
    fn flush(&mut self, _parameters: &mut Parameters) -> TrainResult<()> {
        Ok(())
    }

    fn bytes_received(&self) -> u64;

    /// What is known of it at the end of a run.
    fn account(&self) -> Account;

    /// Writes a checkpoint: what is kept of gradients, the parameters and what the optimiser keeps, where servers do not have them, running
    /// averages, and these words.
    fn save(&mut self, path: &Path, parameters: &Parameters, words: &[(&str, String)]) -> TrainResult<()>;

    /// Goes on from one that has these words, and gives all its words. All workers call it together.
    fn load(
        &mut self,
        path: &Path,
        parameters: &mut Parameters,
        words: &[(&str, String)],
    ) -> TrainResult<Words>;

    /// The step that comes next by what servers have kept, where they do.
    fn kept(&self) -> Option<u64> {
        None
    }
}

/// What a checkpoint says of its run, by name.
pub type Words = BTreeMap<String, String>;

/// What a checkpoint calls the running averages.
const BUFFERS: &str = "buffers";

/// This worker's part of the samples.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Samples of each of its passes.
    pub samples: u64,
    /// By how much more than the mean worker's they count, if batches differ.
    pub weight: Option<f64>,
    /// Steps of an epoch.
    pub epoch: u64,
}

/// A pass that is over.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    pub step: u64,
    pub rate: f32,
    /// The loss of its batch.
    pub loss: f32,
}

#[derive(Debug)]
pub struct Ended {
    /// When the update was there.
    pub came: Instant,
    /// What its exchange took.
    pub times: StepTimes,
    /// Its other results.
    pub stepped: Stepped,
}

/// Agrees with all ranks on the parameters and on how they change. `example` gives the loss of an example whose model uses the parameters
/// as they are watched.
pub fn exchange<'s>(
    session: &'s Session,
    settings: &'s Settings,
    parameters: &mut Parameters,
    share: Share,
    example: impl FnOnce() -> TrainResult<Tensor>,
) -> TrainResult<Box<dyn Exchange + 's>> {
    match settings.is_overlapped(session) {
        true => Ok(Box::new(Overlapped::new(session, settings, parameters, share, example)?)),
        false => Ok(Box::new(Replicated::new(session, settings, parameters, share)?)),
    }
}
