//! Replicas survive a restart bit by bit.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use super::Replica;
use super::carrier::TRUTH;
use crate::checkpoint::{self, State};
use crate::failure::{Error, Failure};
use crate::gradients::together;

/// What a checkpoint calls the parameters of the next pass, where they are not the true values.
const PARAMETERS: &str = "parameters";

/// Its names of the trainer's own values begin with this.
const TRAINER: &str = "trainer.";

impl Replica {
    /// Writes the parameters, residuals, velocities, the step, and what the synchrony carries from step to step, as safetensors: beside, then
    /// renamed, so that `path` holds a whole checkpoint or the one before. An exchange in the background is waited for, and its result saved
    /// unchanged: it is applied when it would have been, so that a run with checkpoints has the same bits as one without.
    ///
    /// # Errors
    /// A file that cannot be written, a call in the middle of a pass, or a job that has failed.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.save_with(path, &[], &[])
    }

    /// The same with values and words of the trainer's own, by name, as [`Gradients::save_with`](crate::Gradients::save_with) takes them: such as the
    /// running averages of layers.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn save_with(
        &mut self,
        path: impl AsRef<Path>,
        values: &[(&str, &[f32])],
        words: &[(&str, String)],
    ) -> Result<(), Error> {
        let path = path.as_ref();
        self.between_passes("save()")?;
        let mut state = State {
            step: self.step,
            rank: self.session.rank.0,
            workers: self.session.workers,
            run: self.run.clone(),
            method: self.kind(),
            ..State::default()
        };
        self.carrier.save(&mut state)?;
        self.driver.save(&mut state);
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        let is_true = |truth: &Vec<f32>| truth.iter().zip(&self.parameters).all(same);
        if !state.values.get(TRUTH).is_some_and(is_true) {
            state.values.insert(PARAMETERS.into(), self.parameters.clone());
        }
        state.keep(TRAINER, values, words);
        checkpoint::save(path, &state)?;
        self.since = Instant::now();
        Ok(())
    }

    /// Resumes from what [`save`](Self::save) wrote, bit by bit. All ranks call it together, each with its own file, and resume only if all
    /// files are of one step of one run.
    ///
    /// # Errors
    /// A file that is missing, damaged, or of another rank, world size, method, synchrony or layout, here or at another rank; files that do not
    /// belong together. Nothing changes then, on any rank.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.load_with(path, &mut [], &[]).map(drop)
    }

    /// The same with what [`save_with`](Self::save_with) put into the file, as [`Gradients::load_with`](crate::Gradients::load_with) gives it back.
    ///
    /// # Errors
    /// As [`load`](Self::load); a name that the file does not have, with another number of values, or with other words.
    pub fn load_with(
        &mut self,
        path: impl AsRef<Path>,
        values: &mut [(&str, &mut [f32])],
        words: &[(&str, String)],
    ) -> Result<BTreeMap<String, String>, Error> {
        let path = path.as_ref();
        let own = self.between_passes("load()").and_then(|()| {
            let state = self.read(path, words)?;
            state.expect_values(path, TRAINER, values)?;
            Ok(state)
        });
        let mut state = together(&self.session, own, self.session.workers)?;
        // The others continue now, so a rank that cannot ends the job.
        self.go_on_from(&mut state).map_err(|error| match error {
            Error::Failed(_) => error,
            error => {
                let (rank, step) = (self.session.rank.0, Some(state.step));
                self.session.fail(Failure { rank, step, reason: error.to_string() })
            }
        })?;
        state.give_back(TRAINER, values);
        Ok(state.words)
    }

    fn read(&self, path: &Path, words: &[(&str, String)]) -> Result<State, Error> {
        let state = checkpoint::load(path)?;
        state.expect(path, "rank", state.rank, self.session.rank.0)?;
        state.expect(path, "world size", state.workers, self.session.workers)?;
        state.expect_words(path, words)?;
        state.expect(path, "method", &state.method, &self.kind())?;
        self.carrier.expects(path, &state)?;
        Ok(state)
    }

    /// What servers have is theirs, and newer than what this rank has saved.
    fn go_on_from(&mut self, state: &mut State) -> Result<(), Error> {
        self.carrier.load(state)?;
        if let Some((step, values)) = self.carrier.kept()? {
            self.driver.load(state)?;
            state.step = self.driver.begin(step, &values);
            state.values.insert(PARAMETERS.into(), values);
        } else {
            self.driver.load(state)?;
        }
        let differs = state.values.contains_key(PARAMETERS);
        let parameters = state.values_of(if differs { PARAMETERS } else { TRUTH }, self.parameters.len())?;
        self.parameters.copy_from_slice(parameters);
        self.step = state.step;
        self.run.clone_from(&state.run);
        self.since = Instant::now();
        Ok(())
    }

    /// Begins with what servers have.
    pub(super) fn go_on_from_servers(&mut self) -> Result<(), Error> {
        if let Some((step, values)) = self.carrier.kept()? {
            self.step = self.driver.begin(step, &values);
            self.parameters = values;
        }
        Ok(())
    }

    /// What a checkpoint names.
    fn kind(&self) -> String {
        format!("{} under {}", self.options.method, self.options.synchrony.name())
    }

    /// Which run this is, in 32 hexadecimal digits: chosen at random when a job begins, the same on all ranks, and kept when a job resumes
    /// from a checkpoint.
    pub fn run(&self) -> &str {
        &self.run
    }
}
