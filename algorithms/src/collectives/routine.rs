//! A method at work on one gradient, on one worker.

use std::sync::Arc;

use super::{Method, MethodError, Shape, Structure};
use crate::residual::VersionError;
use crate::schedule::{Candidates, CheckError, Cost, Execution, Finished, Memory, Program, check};
use crate::{Element, Layers, Rank};

/// A schedule that was proved right, with what follows from that.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// This worker's program.
    pub program: Arc<Program>,
    /// What a step of it costs at most.
    pub cost: Cost,
}

/// A method that cannot run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RoutineError {
    /// A choice that cannot be.
    #[error(transparent)]
    Method(#[from] MethodError),
    /// Schedules that do not add up.
    #[error("the schedules of this method are wrong: {0}")]
    Check(#[from] CheckError),
    /// A step that cannot end.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// What was learnt elsewhere.
    #[error(
        "what was learnt is not of this method, or not of as many workers: it has {agreed} agreed numbers and {own} of its own"
    )]
    Memory {
        /// How many agreed numbers it has.
        agreed: usize,
        /// How many of this worker's own.
        own: usize,
    },
}

/// Whether a memory is one that this method has.
pub(super) fn fits(method: Method, shape: &Shape, memory: &Memory) -> Result<(), RoutineError> {
    let fresh = method.memory(shape);
    let (agreed, own) = (memory.agreed.len(), memory.own.len());
    match (fresh.agreed.len(), fresh.own.len()) == (agreed, own) {
        true => Ok(()),
        false => Err(RoutineError::Memory { agreed, own }),
    }
}

/// The schedules of one method on one worker, step after step, and what the method has learnt.
///
/// Most methods have one schedule for all steps. Where what was learnt changes the structure, the schedules of all
/// workers are made and proved right again; the last few structures are remembered.
#[derive(Clone, Debug)]
pub struct Routine {
    method: Method,
    layers: Layers,
    shape: Shape,
    rank: Rank,
    memory: Arc<Memory>,
    /// The present one is the last.
    structures: Vec<(Structure, Prepared)>,
    stream: u64,
}

/// Structures that are remembered besides one for each worker: a method may take turns among the workers, or among a few
/// programs.
const REMEMBERED: usize = 4;

impl Routine {
    /// A method before its first step, with a gradient of so many entries or of these layers. `stream` tells gradients apart that are exchanged side by side: it must be the
    /// same on all workers, and seeds the random numbers of rounding.
    ///
    /// # Errors
    /// As [`Method::shape`], and schedules that the checker refuses.
    pub fn new(
        method: Method,
        rank: Rank,
        workers: u32,
        layers: impl Into<Layers>,
        stream: u64,
    ) -> Result<Self, RoutineError> {
        let layers = layers.into();
        let shape = method.in_step(0, layers.entries())?.shape(workers, layers.clone())?;
        let memory = Arc::new(method.memory(&shape));
        let mut routine = Self { method, layers, shape, rank, memory, structures: Vec::new(), stream };
        routine.prepare()?;
        Ok(routine)
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// What the schedules of the next step are made for.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The schedule of the next step.
    pub fn prepared(&self) -> &Prepared {
        let Some((_, prepared)) = self.structures.last() else {
            unreachable!("a routine prepares its first step when it is made")
        };
        prepared
    }

    /// What was learnt.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Starts the next step on an accumulator with its candidates.
    pub fn begin<T: Element>(
        &self,
        accumulator: Arc<Vec<T>>,
        candidates: Vec<Candidates<T>>,
    ) -> Execution<T> {
        Execution::new(self.prepared().program.clone(), accumulator, candidates)
            .with(self.memory.clone(), seed(self.stream, self.memory.steps))
    }

    /// Learns from a finished step and prepares the next one. Says whether its schedule is another one than before.
    ///
    /// # Errors
    /// Schedules that the checker refuses.
    pub fn learn<T: Element>(&mut self, finished: &Finished<T>) -> Result<bool, RoutineError> {
        let Some((structure, _)) = self.structures.last() else { return Ok(false) };
        let memory = Arc::make_mut(&mut self.memory);
        memory.steps += 1;
        let learns = !(memory.agreed.is_empty() && memory.own.is_empty());
        if learns {
            self.method.learn(&self.shape, structure, memory, &finished.observed());
        }
        // The step after the warm-up is the first with what the method is set to.
        let warming = self.memory.steps <= self.method.correction().warm_up;
        let warmed_up = warming && self.take_density()?;
        if warmed_up {
            // What was learnt at another density says little.
            let steps = self.memory.steps;
            self.memory = Arc::new(Memory { steps, ..self.method.memory(&self.shape) });
        }
        if learns || warmed_up { self.prepare() } else { Ok(false) }
    }

    /// Goes over to the density of the next step. Says whether it is another one than before.
    fn take_density(&mut self) -> Result<bool, MethodError> {
        let method = self.method.in_step(self.memory.steps, self.layers.entries())?;
        let shape = method.shape(self.shape.workers, self.layers.clone())?;
        let other = shape != self.shape;
        if other {
            self.shape = shape;
            // Schedules of another density.
            self.structures.clear();
        }
        Ok(other)
    }

    /// Goes on from what was learnt before. Says whether the schedule is another one now.
    ///
    /// # Errors
    /// What another method has learnt, and schedules that the checker refuses.
    pub fn restore(&mut self, memory: Memory) -> Result<bool, RoutineError> {
        fits(self.method, &self.shape, &memory)?;
        self.memory = Arc::new(memory);
        self.take_density()?;
        self.prepare()
    }

    fn prepare(&mut self) -> Result<bool, RoutineError> {
        let structure = self.method.collective().structure(&self.shape, &self.memory);
        match self.structures.iter().position(|(known, _)| *known == structure) {
            Some(present) if present + 1 == self.structures.len() => return Ok(false),
            Some(known) => {
                let known = self.structures.remove(known);
                self.structures.push(known);
            }
            None => {
                let proof = check(self.method.schedules_after(&self.shape, &self.memory))?;
                let program = Arc::new(proof.program(self.rank));
                let prepared = Prepared { program, cost: proof.cost };
                if self.structures.len() == REMEMBERED + self.shape.workers as usize {
                    self.structures.remove(0);
                }
                self.structures.push((structure, prepared));
            }
        }
        Ok(true)
    }
}

/// The seed of a step's rounding.
pub(super) fn seed(stream: u64, step: u64) -> u64 {
    (stream ^ step.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
