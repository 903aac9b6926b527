//! Checkpoints of what gradients have not delivered yet.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use gleaner_algorithms::Method;
use gleaner_algorithms::density::AdaptiveDensity;
use gleaner_algorithms::device::DeviceError;
use gleaner_algorithms::schedule::Memory;
use serde::{Deserialize, Serialize};

use super::{Gradients, Parameter};
use crate::checkpoint::{self, CheckpointError, Found, Learnt, State};
use crate::failure::{Error, Failure};
use crate::notes::Purpose;
use crate::session::Inner;

/// The name of what a density that follows the share of the norm goes on from.
const DENSITY: &str = "density";

/// Between the names of methods in a checkpoint.
const BETWEEN: &str = " | ";

impl Gradients {
    /// Writes residuals, the algorithm's state and the step as safetensors: beside, then renamed, so that `path`
    /// holds a whole checkpoint or the one before. Call it between steps.
    ///
    /// # Errors
    /// A file that cannot be written, or a call in the middle of a step.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.save_with(path, &[], &[])
    }

    /// The same with values and words of the trainer's own in the same file, by name: the parameters, an optimiser's velocities; a seed. So a
    /// checkpoint never has the parameters of one step and the residuals of another.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn save_with(
        &self,
        path: impl AsRef<Path>,
        values: &[(&str, &[f32])],
        words: &[(&str, String)],
    ) -> Result<(), Error> {
        self.between_steps(CheckpointError::MidStep)?;
        let mut state = self.state()?;
        state.keep("", values, words);
        Ok(checkpoint::save(path.as_ref(), &state)?)
    }

    /// Goes on from what [`save`](Self::save) wrote, bit by bit. All ranks call it together, each with its own file, and go on
    /// only if all files are of one step of one run. The same parameters may be in other groups, which take over what was
    /// learnt of those with most entries in common.
    ///
    /// # Errors
    /// A file that is missing, damaged, or of another rank, world size, method or layout, here or at another rank; files that
    /// do not belong together. Nothing changes then, on any rank.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.load_with(path, &mut [], &[]).map(drop)
    }

    /// The same with the values that [`save_with`](Self::save_with) put into the file, which are copied to these slices, by name. Words that are
    /// given must be the same in the file. Gives all words of the file.
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
        let (rank, workers) = (self.session.rank.0, self.session.workers);
        let own = self.between_steps(CheckpointError::MidStep).and_then(|()| {
            let state = self.read(path, rank, workers, words)?;
            state.expect_values(path, "", values)?;
            Ok(state)
        });
        let state = together(&self.session, own, workers)?;
        self.take_over(path, &state)?;
        state.give_back("", values);
        Ok(state.words)
    }

    /// Goes on from what all ranks of a job saved in one step, also if there were more of them or fewer: the files are given
    /// in the order of the ranks. What rank r had not delivered goes to rank r mod P, with residual and velocity, and is added
    /// to what others leave there. With another number of workers, what the method has learnt is carried over as far as it can be. All ranks call it
    /// together. Each reads the files that are for it; one for which there is none reads the first.
    ///
    /// # Errors
    /// As [`load`](Self::load); no files.
    pub fn load_from(&mut self, paths: &[impl AsRef<Path>]) -> Result<(), Error> {
        let number = paths.len() as u32;
        let own = self.between_steps(CheckpointError::MidStep).and_then(|()| self.read_own(paths));
        let state = together(&self.session, own, number)?;
        let path = paths.get(self.session.rank.index()).unwrap_or(&paths[0]);
        self.take_over(path.as_ref(), &state)
    }

    /// This rank's share of what is in the files of all ranks.
    fn read_own(&self, paths: &[impl AsRef<Path>]) -> Result<State, Error> {
        let (rank, workers) = (self.session.rank.index(), self.session.workers as usize);
        let number = paths.len() as u32;
        let mut files = (rank..paths.len()).step_by(workers);
        let first = files.next();
        let path = paths.get(first.unwrap_or(0)).ok_or(CheckpointError::Nothing)?.as_ref();
        let mut state = self.read(path, first.unwrap_or(0) as u32, number, &[])?;
        if first.is_none() {
            for waiting in state.waiting.values_mut() {
                waiting.residual.fill(0.0);
                waiting.velocity.iter_mut().flatten().for_each(|value| *value = 0.0);
            }
        }
        for file in files {
            let path = paths[file].as_ref();
            let other = self.read(path, file as u32, number, &[])?;
            state.expect(path, "step", other.step, state.step)?;
            state.expect(path, "run", &other.run, &state.run)?;
            for (name, waiting) in &mut state.waiting {
                // Both have all parameters of the layout.
                other.waiting.get(name).into_iter().for_each(|other| waiting.add(other));
            }
        }
        Ok(state)
    }

    /// Goes on from a state, as all ranks do.
    fn take_over(&mut self, path: &Path, state: &State) -> Result<(), Error> {
        self.resume(state)?;
        self.expect_method(path, state)?;
        self.run.clone_from(&state.run);
        self.go_on_from(state).map_err(|error| self.cannot_follow(error))
    }

    /// The others go on now, so a rank that cannot ends the job.
    pub(super) fn cannot_follow(&mut self, error: Error) -> Error {
        if let Error::Failed(_) = error {
            return error;
        }
        self.abort(&error)
    }

    /// Which run this is, in 32 hexadecimal digits: chosen at random when a job begins, the same on all ranks, and kept when a job goes on
    /// from a checkpoint.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// What this rank has to go on from, by parameter and by group.
    pub(crate) fn state(&self) -> Result<State, DeviceError> {
        let parameters = self.layout.parameters.iter();
        let waiting = parameters.clone().map(|p| {
            let group = self.exchange.group(p.group);
            Ok((p.name.clone(), group.residual.waiting(p.offset..p.offset + p.waiting())?))
        });
        let waiting = waiting.collect::<Result<_, DeviceError>>()?;
        let groups = self.exchange.groups().enumerate().map(|(number, group)| Learnt {
            parameters: self.layout.names(number),
            thresholds: group.residual.thresholds().to_vec(),
            memory: group.routine.memory().clone(),
        });
        Ok(State {
            step: self.exchange.step,
            skipped: self.skipped,
            rank: self.session.rank.0,
            workers: self.session.workers,
            run: self.run.clone(),
            method: self.method_names(),
            waiting,
            groups: groups.collect(),
            numbers: self.density.iter().map(|density| (DENSITY.to_owned(), density.numbers())).collect(),
            weights: parameters.map(|p| p.name.clone()).zip(self.weights.iter().copied()).collect(),
            ..State::default()
        })
    }

    /// Goes on from a state that has all parameters of this layout, whatever their groups were.
    pub(super) fn go_on_from(&mut self, state: &State) -> Result<(), Error> {
        self.go_on_at(state, state.step, state.skipped)
    }

    /// The same in a step of its own, as where the state is of more than these gradients. So many of the steps were left out.
    pub(crate) fn go_on_at(&mut self, state: &State, step: u64, skipped: u64) -> Result<(), Error> {
        let steps = step.saturating_sub(skipped);
        for p in &self.layout.parameters {
            if let Some(waiting) = state.waiting.get(&p.name) {
                self.exchange.group(p.group).residual.set_waiting(p.offset, waiting)?;
            }
        }
        let weight = |p: &Parameter| state.weights.get(&p.name).copied();
        self.weights = self.layout.parameters.iter().map_while(weight).collect();
        self.density = self.density_of(state).or(self.density.take());
        self.aim()?;
        for (number, mut group) in self.exchange.groups().enumerate() {
            let names = self.layout.names(number);
            // Where each group has a method of its own, only the very same group is known to have had this one.
            let nearest = state.nearest(&names).filter(|was| self.auto.is_none() || was.parameters == names);
            let changed = match nearest {
                Some(learnt) => {
                    let memory = Memory { steps, ..learnt.memory.clone() };
                    group.routine.adopt(memory, state.workers, state.layers(learnt))?
                }
                None => {
                    // First to the density of this step, on which may depend what a method begins with.
                    let memory = group.routine.memory().clone();
                    let other = group.routine.restore(Memory { steps, ..memory })?;
                    let afresh = group.routine.method().memory(group.routine.shape());
                    group.routine.restore(Memory { steps, ..afresh })? || other
                }
            };
            if changed {
                group.change()?;
            }
            // Of other blocks it predicts afresh, which costs time and changes nothing.
            let blocks = group.residual.partition().blocks();
            let same = nearest.filter(|was| was.parameters == names && was.thresholds.len() == blocks);
            if let Some(Learnt { thresholds, .. }) = same {
                group.residual.restore_thresholds(thresholds.clone());
            }
        }
        self.skipped = skipped;
        self.exchange.resume(step)
    }

    /// The density of a state, if it follows the share of the norm, and the state has one.
    fn density_of(&self, state: &State) -> Option<AdaptiveDensity> {
        self.density.as_ref()?.restored(state.numbers.get(DENSITY)?)
    }

    /// Whether a state has as much of each of these parameters as there is here.
    pub(crate) fn expect_parameters(&self, path: &Path, state: &State) -> Result<(), CheckpointError> {
        for p in &self.layout.parameters {
            let waiting = state.waiting.get(&p.name);
            let len = waiting.map(|waiting| waiting.residual.len());
            state.expect(path, &format!("length of '{}'", p.name), Found(len), Found(Some(p.waiting())))?;
            let moves = self.exchange.group(p.group).residual.velocity(0..0).is_some();
            let found = waiting.and_then(|waiting| waiting.velocity.as_ref()).map(Vec::len);
            let velocity = format!("velocity of '{}'", p.name);
            state.expect(path, &velocity, Found(found), Found(moves.then_some(p.len)))?;
        }
        Ok(())
    }

    /// A checkpoint that has the parameters of this layout and these words, written by that rank of so many.
    fn read(&self, path: &Path, rank: u32, workers: u32, words: &[(&str, String)]) -> Result<State, Error> {
        let state = checkpoint::load(path)?;
        state.expect(path, "rank", state.rank, rank)?;
        state.expect(path, "world size", state.workers, workers)?;
        state.expect_words(path, words)?;
        if self.auto.is_none() {
            self.expect_method(path, &state)?;
        }
        state.expect(path, "number of parameters", state.waiting.len(), self.layout.parameters.len())?;
        self.expect_parameters(path, &state)?;
        if self.density.is_some() && self.density_of(&state).is_none() {
            let what = format!("its numbers of '{DENSITY}' are not those of a density");
            return Err(CheckpointError::Damaged { path: path.into(), what }.into());
        }
        Ok(state)
    }

    /// Once this has [resumed](Self::resume). Groups that were not there have no method to compare with.
    fn expect_method(&self, path: &Path, state: &State) -> Result<(), CheckpointError> {
        let groups = (0..self.gathering.len()).map(|number| self.layout.names(number));
        let known = groups.eq(state.groups.iter().map(|group| group.parameters.clone()));
        if self.auto.is_some() && !known {
            return Ok(());
        }
        state.expect(path, "method", &state.method, &self.method_names())
    }

    /// What a checkpoint names.
    fn method_names(&self) -> String {
        match &self.auto {
            None => super::sharing::named(&self.method),
            Some(_) => {
                let mut names: Vec<String> = self.methods().iter().map(Method::to_string).collect();
                // Groups that all run the same one name it once.
                if names.iter().all(|name| *name == names[0]) {
                    names.truncate(1);
                }
                names.join(BETWEEN)
            }
        }
    }

    /// Goes over to the methods of a state, as far as they are candidates. All ranks call it together.
    pub(super) fn resume(&mut self, state: &State) -> Result<(), Error> {
        let Some(auto) = &mut self.auto else { return Ok(()) };
        let names: Vec<&str> = state.method.split(BETWEEN).collect();
        let mut changed = Vec::new();
        for number in 0..self.gathering.len() {
            let was = if names.len() == 1 { Some(0) } else { state.carried_over(&self.layout.names(number)) };
            let name = was.and_then(|was| names.get(was));
            if name.is_some_and(|name| auto.resume(number, name)) {
                changed.push(number);
            }
        }
        self.change_methods(&changed)
    }
}

/// What this rank goes on from, once all ranks have said that they can, and from where.
pub(crate) fn together(session: &Inner, own: Result<State, Error>, number: u32) -> Result<State, Error> {
    let said: Restored = match &own {
        Ok(State { step, skipped, run, method, .. }) => {
            let (run, method) = (run.clone(), method.clone());
            Ok(Stand { step: *step, skipped: *skipped, workers: number, run, method })
        }
        Err(Error::Failed(_)) => return own,
        Err(error) => Err(error.to_string()),
    };
    let note = serde_json::to_vec(&said).unwrap_or_default();
    let notes = session.gather(Purpose::Load, &note)?;
    let own = own?;
    let mut first = None;
    for (rank, note) in (0..).zip(notes) {
        match serde_json::from_slice::<Restored>(&note) {
            Ok(Ok(stand)) => {
                let first = first.get_or_insert_with(|| (rank, stand.clone()));
                if first.1 != stand {
                    let (first, other) = ((first.0, first.1.to_string()), (rank, stand.to_string()));
                    return Err(CheckpointError::Apart { first, other }.into());
                }
            }
            Ok(Err(reason)) => return Err(CheckpointError::Refused { rank, reason }.into()),
            Err(_) => {
                let reason = "it violated the protocol: what it says of its checkpoint makes no sense".into();
                return Err(session.fail(Failure { rank, step: None, reason }));
            }
        }
    }
    Ok(own)
}

/// Where a checkpoint stands, or why there is none to go on from.
type Restored = Result<Stand, String>;

/// What must be the same of all ranks' checkpoints.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Stand {
    step: u64,
    skipped: u64,
    workers: u32,
    run: String,
    method: String,
}

impl fmt::Display for Stand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, skipped, workers, run, method } = self;
        write!(f, "step {step} ({skipped} skipped) of run {run} ({workers} workers, {method})")
    }
}
