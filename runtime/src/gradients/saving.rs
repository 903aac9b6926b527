//! Checkpoints of what gradients have not delivered yet.

use std::path::Path;

use gleaner_algorithms::Method;
use gleaner_algorithms::schedule::Memory;

use super::{Gathering, Gradients};
use crate::checkpoint::{self, CheckpointError, Learnt, State};
use crate::failure::Error;
use crate::notes::Purpose;

/// Between the names of methods in a checkpoint.
const BETWEEN: &str = " | ";

impl Gradients {
    /// Writes residuals, the algorithm's state and the step as safetensors: beside, then renamed, so that `path`
    /// holds a whole checkpoint or the one before. Call it between steps.
    ///
    /// # Errors
    /// A file that cannot be written, or a call in the middle of a step.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        self.between_steps(CheckpointError::MidStep)?;
        Ok(checkpoint::save(path, &self.state())?)
    }

    /// Goes on from what [`save`](Self::save) wrote, bit by bit. All ranks must load checkpoints of the same step. The same
    /// parameters may be in other groups; what was learnt of a group that is not there is forgotten.
    ///
    /// # Errors
    /// A file that is missing, damaged, or of another rank, world size, method or layout.
    pub fn load(&mut self, path: &Path) -> Result<(), Error> {
        self.between_steps(CheckpointError::MidStep)?;
        let state = self.read(path, self.session.post.rank.0, self.session.post.workers)?;
        self.resume(&state)?;
        self.expect_method(path, &state)?;
        self.go_on_from(state)
    }

    /// Goes on from what all ranks of a job saved in one step, also if there were more of them or fewer: the files are given
    /// in the order of the ranks. What rank r had not delivered goes to rank r mod P, with residual and velocity, and is added
    /// to what others leave there. With another number of workers, what the method has learnt is carried over as far as it can be. All ranks call it
    /// together. Each reads the files that are for it; one for which there is none reads the first.
    ///
    /// # Errors
    /// As [`load`](Self::load); files of another step than the others, also than those that other ranks have read.
    pub fn load_from(&mut self, paths: &[impl AsRef<Path>]) -> Result<(), Error> {
        self.between_steps(CheckpointError::MidStep)?;
        let (rank, workers) = (self.session.post.rank.index(), self.session.post.workers as usize);
        let number = paths.len() as u32;
        let mut files = (rank..paths.len()).step_by(workers);
        let first = files.next();
        let path = paths.get(first.unwrap_or(0)).ok_or(CheckpointError::Nothing)?.as_ref();
        let mut state = self.read(path, first.unwrap_or(0) as u32, number)?;
        if first.is_none() {
            for waiting in state.waiting.values_mut() {
                waiting.residual.fill(0.0);
                waiting.velocity.iter_mut().flatten().for_each(|value| *value = 0.0);
            }
        }
        for file in files {
            let path = paths[file].as_ref();
            let other = self.read(path, file as u32, number)?;
            state.expect(path, "step", other.step, state.step)?;
            for (name, waiting) in &mut state.waiting {
                // Both have all parameters of the layout.
                other.waiting.get(name).into_iter().for_each(|other| waiting.add(other));
            }
        }
        let lines = format!("step {} of {number} workers, {} skipped\n", state.step, state.skipped);
        self.session.agree(Purpose::Load, &lines)?;
        self.resume(&state)?;
        self.expect_method(path, &state)?;
        self.go_on_from(state)?;
        // Nobody sends before all have granted.
        self.session.gather(Purpose::Load, &[]).map(drop)
    }

    /// What this rank has to go on from, by parameter and by group.
    pub(super) fn state(&self) -> State {
        let waiting = self.layout.parameters.iter().map(|p| {
            let residual = &self.groups[p.group].group.residual;
            (p.name.clone(), residual.waiting(p.offset..p.offset + p.len))
        });
        let groups = self.groups.iter().enumerate().map(|(number, Gathering { group, .. })| Learnt {
            parameters: self.layout.names(number),
            thresholds: group.residual.thresholds().to_vec(),
            memory: group.routine.memory().clone(),
        });
        State {
            step: self.step,
            skipped: self.skipped,
            rank: self.session.post.rank.0,
            workers: self.session.post.workers,
            method: self.method_names(),
            waiting: waiting.collect(),
            groups: groups.collect(),
        }
    }

    /// Goes on from a state that has all parameters of this layout, whatever their groups were.
    pub(super) fn go_on_from(&mut self, state: State) -> Result<(), Error> {
        for p in &self.layout.parameters {
            if let Some(waiting) = state.waiting.get(&p.name) {
                self.groups[p.group].group.residual.set_waiting(p.offset, waiting);
            }
        }
        for (number, Gathering { group, .. }) in self.groups.iter_mut().enumerate() {
            let carried = state.carried_over(&self.layout.names(number)).map(|was| &state.groups[was]);
            let changed = match carried {
                Some(learnt) => group.routine.adopt(learnt.memory.clone(), state.workers)?,
                None => {
                    // First to the density of this step, on which may depend what a method begins with.
                    let steps = state.steps();
                    let other = group.routine.restore(Memory { steps, ..group.routine.memory().clone() })?;
                    let afresh = group.routine.method().memory(group.routine.shape());
                    group.routine.restore(Memory { steps, ..afresh })? || other
                }
            };
            if changed {
                group.change(&self.session.post);
            }
            // Of other blocks it predicts afresh, which costs time and changes nothing.
            let thresholds = carried.map(|learnt| &learnt.thresholds);
            let blocks = group.residual.partition().blocks();
            if let Some(thresholds) = thresholds.filter(|thresholds| thresholds.len() == blocks) {
                group.residual.restore_thresholds(thresholds.clone());
            }
        }
        (self.step, self.skipped) = (state.step, state.skipped);
        Ok(())
    }

    /// A checkpoint that has the parameters of this layout, written by that rank of so many.
    fn read(&self, path: &Path, rank: u32, workers: u32) -> Result<State, Error> {
        let state = checkpoint::load(path)?;
        state.expect(path, "rank", state.rank, rank)?;
        state.expect(path, "world size", state.workers, workers)?;
        if self.auto.is_none() {
            self.expect_method(path, &state)?;
        }
        state.expect(path, "number of parameters", state.waiting.len(), self.layout.parameters.len())?;
        for p in &self.layout.parameters {
            let waiting = state.waiting.get(&p.name);
            let len = waiting.map(|waiting| waiting.residual.len());
            state.expect(path, &format!("length of '{}'", p.name), Found(len), Found(Some(p.len)))?;
            let moves = self.groups[p.group].group.residual.velocity(0..0).is_some();
            let found = waiting.and_then(|waiting| waiting.velocity.as_ref()).map(Vec::len);
            let velocity = format!("velocity of '{}'", p.name);
            state.expect(path, &velocity, Found(found), Found(moves.then_some(p.len)))?;
        }
        Ok(state)
    }

    /// Once this has [resumed](Self::resume). Groups that were not there have no method to compare with.
    fn expect_method(&self, path: &Path, state: &State) -> Result<(), CheckpointError> {
        let groups = (0..self.groups.len()).map(|number| self.layout.names(number));
        let known = groups.eq(state.groups.iter().map(|group| group.parameters.clone()));
        if self.auto.is_some() && !known {
            return Ok(());
        }
        state.expect(path, "method", &state.method, &self.method_names())
    }

    /// What a checkpoint names.
    fn method_names(&self) -> String {
        match &self.auto {
            None => self.method.to_string(),
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
        for number in 0..self.groups.len() {
            let was = if names.len() == 1 { Some(0) } else { state.carried_over(&self.layout.names(number)) };
            let name = was.and_then(|was| names.get(was));
            if name.is_some_and(|name| auto.resume(number, name)) {
                changed.push(number);
            }
        }
        self.change_methods(&changed)
    }
}

/// An optional length in a message.
#[derive(PartialEq)]
struct Found(Option<usize>);

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(len) => write!(f, "{len}"),
            None => write!(f, "missing"),
        }
    }
}
