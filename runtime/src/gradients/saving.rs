//! Checkpoints of what gradients have not delivered yet.

use std::path::Path;

use gleaner_algorithms::Method;

use super::Gradients;
use crate::checkpoint::{self, CheckpointError, State};
use crate::failure::Error;

/// Between the names of methods in a checkpoint.
const BETWEEN: &str = " | ";

impl Gradients {
    /// Writes residuals, the algorithm's state and the step as safetensors: beside, then renamed, so that `path`
    /// holds a whole checkpoint or the one before. Call it between steps.
    ///
    /// # Errors
    /// A file that cannot be written, or a call in the middle of a step.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        self.between_steps()?;
        let residuals =
            self.layout.parameters.iter().map(|p| {
                (p.name.clone(), self.groups[p.group].group.residual.read(p.offset..p.offset + p.len))
            });
        let velocities = self.layout.parameters.iter().filter_map(|p| {
            let velocity = self.groups[p.group].group.residual.velocity(p.offset..p.offset + p.len)?;
            Some((p.name.clone(), velocity.to_vec()))
        });
        let state = State {
            step: self.step,
            skipped: self.skipped,
            rank: self.session.post.rank.0,
            workers: self.session.post.workers,
            method: self.method_names(),
            residuals: residuals.collect(),
            velocities: velocities.collect(),
            thresholds: self.groups.iter().map(|g| g.group.residual.thresholds().to_vec()).collect(),
            memories: self.groups.iter().map(|g| g.group.routine.memory().clone()).collect(),
        };
        Ok(checkpoint::save(path, &state)?)
    }

    /// Goes on from what [`save`](Self::save) wrote, bit by bit. All ranks must load checkpoints of the same step.
    ///
    /// # Errors
    /// A file that is missing, damaged, or of another rank, world size, method or layout.
    pub fn load(&mut self, path: &Path) -> Result<(), Error> {
        self.between_steps()?;
        let mut state = checkpoint::load(path)?;
        let (rank, workers) = (self.session.post.rank.0, self.session.post.workers);
        state.expect(path, "rank", state.rank, rank)?;
        state.expect(path, "world size", state.workers, workers)?;
        self.resume(&state.method)?;
        state.expect(path, "method", &state.method, &self.method_names())?;
        state.expect(path, "number of parameters", state.residuals.len(), self.layout.parameters.len())?;
        for p in &self.layout.parameters {
            let len = state.residuals.get(&p.name).map(Vec::len);
            state.expect(path, &format!("length of '{}'", p.name), Found(len), Found(Some(p.len)))?;
            let moves = self.groups[p.group].group.residual.velocity(0..0).is_some();
            let (found, expected) = (state.velocities.get(&p.name).map(Vec::len), moves.then_some(p.len));
            state.expect(path, &format!("velocity of '{}'", p.name), Found(found), Found(expected))?;
        }
        for p in &self.layout.parameters {
            if let Some(residual) = state.residuals.remove(&p.name) {
                self.groups[p.group].group.residual.restore(p.offset, &residual);
            }
            if let Some(velocity) = state.velocities.remove(&p.name) {
                self.groups[p.group].group.residual.restore_velocity(p.offset, &velocity);
            }
        }
        for (gathering, thresholds) in self.groups.iter_mut().zip(state.thresholds) {
            // Another grouping has other blocks: it predicts afresh, which costs time and changes nothing.
            let residual = &mut gathering.group.residual;
            if thresholds.len() == residual.partition().blocks() {
                residual.restore_thresholds(thresholds);
            }
        }
        for (gathering, memory) in self.groups.iter_mut().zip(state.memories) {
            if gathering.group.routine.restore(memory)? {
                gathering.group.change(&self.session.post);
            }
        }
        (self.step, self.skipped) = (state.step, state.skipped);
        Ok(())
    }

    /// A checkpoint is of a whole step: not of one that is under way, nor of one that failed.
    fn between_steps(&self) -> Result<(), Error> {
        self.alive()?;
        if self.given > 0 { Err(CheckpointError::MidStep.into()) } else { Ok(()) }
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

    /// Goes over to the methods that a checkpoint names, as far as they are candidates. All ranks call it together.
    fn resume(&mut self, names: &str) -> Result<(), Error> {
        let Some(auto) = &mut self.auto else { return Ok(()) };
        let names: Vec<&str> = names.split(BETWEEN).collect();
        let mut changed = Vec::new();
        for number in 0..self.groups.len() {
            let name = if names.len() == 1 { names.first() } else { names.get(number) };
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
