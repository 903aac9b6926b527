//! Bulk synchronous steps over an all-reduce, which begins while the backward pass goes on.

use std::path::Path;
use std::time::{Duration, Instant};

use candle_core::Tensor;
use gleaner_candle::{Expected, Overlap, PassTimes};
use gleaner_runtime::report::say;
use gleaner_runtime::{Awaited, Session};

use super::{Ended, Exchange, Passed, Share};
use crate::crew::{self, meanwhile};
use crate::train::error::TrainError;
use crate::train::settings::Settings;
use gleaner_trainer::optimizer::Optimizer;
use gleaner_trainer::parameters::Parameters;

/// See the module.
pub struct Overlapped<'s> {
    session: &'s Session,
    overlap: Overlap<'s>,
    optimizer: Optimizer,
    clip: Option<f32>,
    /// By how much more than the mean worker this one counts, if batches differ.
    weight: Option<f64>,
    merge: &'static str,
}

impl<'s> Overlapped<'s> {
    pub fn new(
        session: &'s Session,
        settings: &Settings,
        parameters: &Parameters,
        Share { weight, .. }: Share,
        example: impl FnOnce() -> Result<Tensor, TrainError>,
    ) -> Result<Self, TrainError> {
        let (rank, workers) = (session.rank(), session.world_size());
        let (method, merge) = (settings.method.clone(), settings.merge.clone());
        let mut overlap = Overlap::new(session, parameters.variables(), method, merge)?;
        // Now, and not with the first step: a run that is resumed loads its residuals into the groups that they come from.
        parameters.watch(&mut overlap)?;
        let loss = example()?;
        if rank == 0 && workers > 1 && settings.merge.needs_times() {
            let note = "measuring the network and the workers' speed for --merge".into();
            meanwhile(&crew::Progress { done: 0, of: settings.steps, note }, || overlap.arrange(&loss))?;
        } else {
            overlap.arrange(&loss)?;
        }
        parameters.unwatch();
        if let Some(option) = settings.needs_all.filter(|_| rank == 0) {
            say(format_args!(
                "gleaner: {option} needs the norm of the whole gradient, so all layers are exchanged together after the backward \
                 pass (--merge single)"
            ));
        }
        let optimizer = Optimizer::new(parameters, settings.sgd())?;
        Ok(Self { session, overlap, optimizer, clip: settings.clip, weight, merge: settings.merge.name() })
    }
}

impl Exchange for Overlapped<'_> {
    fn watch(&mut self, parameters: &Parameters) -> Result<(), TrainError> {
        if self.clip.is_none() {
            parameters.watch(&mut self.overlap)?;
        }
        Ok(())
    }

    /// Hands over each gradient as soon as the backward pass has finished it, or all after it where their norm is needed first.
    fn backward(&mut self, loss: &Tensor, parameters: &Parameters, keeps: bool) -> Result<(), TrainError> {
        self.overlap.gradients().keep_accumulated(keeps);
        // The gradient of so many times the loss is as many times as long, and so may its norm be.
        let weighted = self.weight.map(|weight| loss.affine(weight, 0.0)).transpose()?;
        let loss = weighted.as_ref().unwrap_or(loss);
        match self.clip.map(|largest| largest * self.weight.unwrap_or(1.0) as f32) {
            None => self.overlap.backward(loss)?,
            Some(largest) => {
                let mut gradient = loss.backward()?;
                parameters.clip(&mut gradient, largest)?;
                self.overlap.hand_over(&gradient)?;
            }
        }
        Ok(())
    }

    fn selected(&self) -> Option<Vec<f32>> {
        self.overlap.gradients().accumulated()
    }

    fn end_step(
        &mut self,
        parameters: &mut Parameters,
        Passed { step, rate, .. }: Passed,
    ) -> Result<Ended, TrainError> {
        let update = self.overlap.wait()?;
        let came = Instant::now();
        if update.skipped().is_none() {
            self.optimizer.apply(&update, parameters, rate)?;
            self.session.record(step, "apply", came..Instant::now());
        }
        Ok(Ended {
            came,
            times: self.overlap.gradients().times(),
            background: Duration::ZERO,
            entries: update.entries() as u64,
            deferred: 0,
            budget: None,
            awaited: Awaited::Unknown,
            skipped: update.skipped().cloned(),
        })
    }

    fn flush(&mut self, _parameters: &mut Parameters) -> Result<(), TrainError> {
        Ok(())
    }

    fn bytes_received(&self) -> u64 {
        self.overlap.gradients().bytes_received()
    }

    fn skipped(&self) -> u64 {
        self.overlap.gradients().skipped()
    }

    fn groups(&self) -> (String, usize) {
        (self.merge.into(), self.overlap.grouping().map_or(1, |grouping| grouping.groups()))
    }

    fn expected(&self) -> Option<Expected> {
        self.overlap.expected()
    }

    fn planned(&self) -> Option<Expected> {
        self.overlap.planned()
    }

    fn pass_times(&self) -> Option<PassTimes> {
        self.overlap.pass_times()
    }

    fn velocities(&self) -> Result<Option<Vec<Vec<f32>>>, TrainError> {
        Ok(Some(self.optimizer.velocities()?))
    }

    fn set_velocities(&mut self, velocities: Vec<Vec<f32>>) -> Result<(), TrainError> {
        Ok(self.optimizer.set_velocities(velocities)?)
    }

    fn stand(&self) -> (u64, String) {
        let gradients = self.overlap.gradients();
        (gradients.step(), gradients.run().to_owned())
    }

    fn save(&mut self, path: &Path) -> Result<(), TrainError> {
        Ok(self.overlap.gradients().save(path)?)
    }

    fn load(&mut self, path: &Path) -> Result<(), TrainError> {
        Ok(self.overlap.gradients().load(path)?)
    }
}
