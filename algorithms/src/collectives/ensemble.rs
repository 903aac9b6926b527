//! All workers of a job in one thread, step after step: for reducing files, and for tests.

use std::sync::Arc;

use super::routine::{fits, seed};
use super::{Method, RoutineError, Shape, Structure};
use crate::residual::{Collection, Committed, Lent, Residual};
use crate::schedule::{Cost, Execution, ExecutionError, Lockstep, Memory, Program, Proof, Run, check};
use crate::{Element, Layers, Rank, Reduction};

/// The workers of a job, with their residuals and what they have learnt.
#[derive(Debug)]
pub struct Ensemble<T: Element = f32> {
    method: Method,
    reduction: Reduction<T>,
    shape: Shape,
    structure: Structure,
    /// The programs of the next step, by rank.
    pub programs: Vec<Arc<Program>>,
    /// What the next step costs at most.
    pub cost: Cost,
    /// By rank.
    pub residuals: Vec<Residual<T>>,
    /// Which version of its residual each worker was lent last.
    versions: Vec<u64>,
    /// What each worker has learnt, by rank.
    pub memories: Vec<Memory>,
}

impl<T: Element> Ensemble<T> {
    /// Workers before their first step, with gradients of so many entries or of these layers.
    ///
    /// # Errors
    /// As [`Method::shape`], and schedules that the checker refuses.
    pub fn new(method: Method, workers: u32, layers: impl Into<Layers>) -> Result<Self, RoutineError> {
        let shape = method.shape(workers, layers)?;
        let memory = method.memory(&shape);
        Self::after(method, shape, vec![memory; workers as usize])
    }

    /// Workers that have learnt something, with residuals of zero.
    ///
    /// # Errors
    /// What another method has learnt, and schedules that the checker refuses.
    pub fn after(method: Method, shape: Shape, memories: Vec<Memory>) -> Result<Self, RoutineError> {
        memories.iter().try_for_each(|memory| fits(method, &shape, memory))?;
        let memory = memories.first().cloned().unwrap_or_default();
        let proof = check(method.schedules_after(&shape, &memory))?;
        let programs = programs(&proof);
        Ok(Self {
            structure: method.collective().structure(&shape, &memory),
            residuals: programs
                .iter()
                .map(|program| program.schedule())
                .map(|s| Residual::new(s.partition.clone(), s.quotas()).corrected(method.correction()))
                .collect(),
            programs,
            cost: proof.cost,
            versions: vec![0; memories.len()],
            memories,
            method,
            reduction: Reduction::Sum,
            shape,
        })
    }

    /// What the schedules are made for.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Reduces by something else than the sum.
    #[must_use]
    pub fn reducing(self, reduction: Reduction<T>) -> Self {
        Self { reduction, ..self }
    }

    /// Starts the step of one worker, whose residual has taken its gradient in.
    ///
    /// # Errors
    /// As [`Execution::reducing`].
    pub fn begin(&mut self, rank: usize) -> Result<Execution<T>, ExecutionError> {
        let Lent { version, accumulator, candidates } = self.residuals[rank].begin();
        self.versions[rank] = version;
        let memory = &self.memories[rank];
        Execution::new(self.programs[rank].clone(), accumulator, candidates)
            .with(Arc::new(memory.clone()), seed(0, memory.steps))
            .reducing(self.reduction)
    }

    /// Commits a step of all workers, learns from it, and prepares the next one.
    ///
    /// # Errors
    /// Schedules that the checker refuses, and a step that was not [begun](Self::begin).
    ///
    /// # Panics
    /// If the workers have learnt different things where they must agree: the law that every method is tested for.
    pub fn commit(
        &mut self,
        step: Lockstep<T>,
        collection: Collection,
    ) -> Result<Vec<Committed<T>>, RoutineError> {
        let collective = self.method.collective();
        let mut committed = Vec::with_capacity(step.runs.len());
        let workers = self.residuals.iter_mut().zip(&self.versions).zip(&mut self.memories);
        for (Run { finished, .. }, ((residual, &version), memory)) in step.runs.into_iter().zip(workers) {
            memory.steps += 1;
            self.method.learn(&self.shape, &self.structure, memory, &finished.observed());
            committed.push(residual.commit(version, finished, collection)?);
        }
        for memory in &self.memories {
            let bits = |memory: &Memory| memory.agreed.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(memory), bits(&self.memories[0]), "all workers learn the same");
        }
        let memory = self.memories.first().cloned().unwrap_or_default();
        let structure = collective.structure(&self.shape, &memory);
        if structure != self.structure {
            let proof = check(self.method.schedules_after(&self.shape, &memory))?;
            self.programs = programs(&proof);
            for (residual, program) in self.residuals.iter_mut().zip(&self.programs) {
                let schedule = program.schedule();
                residual.recut(schedule.partition.clone(), schedule.quotas());
            }
            (self.cost, self.structure) = (proof.cost, structure);
        }
        Ok(committed)
    }
}

/// The programs of all ranks.
fn programs(proof: &Proof) -> Vec<Arc<Program>> {
    (0..proof.workers()).map(|rank| Arc::new(proof.program(Rank(rank)))).collect()
}
