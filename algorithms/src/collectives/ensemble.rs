//! All workers of a job in one thread, step after step: for reducing files, and for tests.

use super::{Method, Prepared, Routine, RoutineError, Shape};
use crate::device::DeviceError;
use crate::residual::{Collection, Committed, Lent, Residual};
use crate::schedule::{Cost, Execution, ExecutionError, Lockstep, Memory, Run};
use crate::{Element, Layers, Partition, Rank, Reduction};

/// The workers of a job: what a job runs on each of its ranks, and what none of them has to prove twice.
#[derive(Debug)]
pub struct Ensemble<T: Element = f32> {
    /// By rank.
    routines: Vec<Routine>,
    reduction: Reduction<T>,
    /// By rank.
    pub residuals: Vec<Residual<T>>,
    /// Which version of its residual each worker was lent last.
    versions: Vec<u64>,
}

impl<T: Element> Ensemble<T> {
    /// Workers before their first step, with gradients of this many entries or of these layers.
    ///
    /// # Errors
    /// As [`Routine::new`].
    pub fn new(method: Method, workers: u32, layers: impl Into<Layers>) -> Result<Self, RoutineError> {
        Self::with(&method, workers, &layers.into(), |partition, quotas| {
            Residual::new(partition, quotas).corrected(method.correction())
        })
    }

    /// The same with gradients of n entries that are sparse already: residuals of entries alone.
    ///
    /// # Errors
    /// As [`Method::for_sparse`] and [`Routine::new`].
    pub fn sparse(method: &Method, workers: u32, n: usize) -> Result<Self, RoutineError> {
        Self::with(&method.for_sparse(workers, n)?, workers, &n.into(), Residual::sparse)
    }

    fn with(
        method: &Method,
        workers: u32,
        layers: &Layers,
        residual: impl Fn(Partition, Vec<Option<u32>>) -> Residual<T>,
    ) -> Result<Self, RoutineError> {
        let routines = Routine::all(method, workers, layers)?;
        let schedules = routines.iter().map(|routine| routine.prepared().program.schedule());
        let residuals =
            schedules.map(|schedule| residual(schedule.partition.clone(), schedule.quotas())).collect();
        Ok(Self { versions: vec![0; routines.len()], residuals, routines, reduction: Reduction::Sum })
    }

    /// Reduces by something else than the sum.
    #[must_use]
    pub fn reducing(self, reduction: Reduction<T>) -> Self {
        Self { reduction, ..self }
    }

    /// By what values are reduced.
    pub(crate) fn reduction(&self) -> &Reduction<T> {
        &self.reduction
    }

    /// What the schedules of the next step are made for.
    pub fn shape(&self) -> &Shape {
        self.routines[0].shape()
    }

    /// How the gradient is cut in the next step.
    pub fn partition(&self) -> &Partition {
        &self.routines[0].prepared().program.schedule().partition
    }

    /// What the next step costs at most.
    pub fn cost(&self) -> Cost {
        self.routines[0].prepared().cost
    }

    /// The schedules of the next step, by rank.
    pub fn prepared(&self) -> impl ExactSizeIterator<Item = &Prepared> {
        self.routines.iter().map(Routine::prepared)
    }

    /// What each worker has learnt, by rank.
    pub fn memories(&self) -> Vec<Memory> {
        self.routines.iter().map(|routine| routine.memory().clone()).collect()
    }

    /// Goes on from what each worker had learnt, by rank.
    ///
    /// # Errors
    /// As [`Routine::restore`].
    pub fn restore(&mut self, memories: Vec<Memory>) -> Result<(), RoutineError> {
        for ((routine, residual), memory) in self.routines.iter_mut().zip(&mut self.residuals).zip(memories) {
            if routine.restore(memory)? {
                recut(residual, routine)?;
            }
        }
        Ok(())
    }

    /// Starts the step of one worker, whose residual has taken its gradient in.
    ///
    /// # Errors
    /// As [`Execution::reducing`].
    pub fn begin(&mut self, rank: usize) -> Result<Execution<T>, ExecutionError> {
        let Lent { version, accumulator, candidates } = self.residuals[rank].begin()?;
        self.versions[rank] = version;
        self.routines[rank].begin(accumulator, candidates).reducing(self.reduction)
    }

    /// Commits a step of all workers, learns from it, and prepares the next one.
    ///
    /// # Errors
    /// Schedules that the checker refuses, a step that was not [begun](Self::begin), and workers that have learnt different
    /// things where they must agree.
    pub fn commit(
        &mut self,
        step: Lockstep<T>,
        collection: Collection,
    ) -> Result<Vec<Committed<T>>, RoutineError> {
        let mut committed = Vec::with_capacity(step.runs.len());
        let workers = self.residuals.iter_mut().zip(&self.versions).zip(&mut self.routines);
        for (Run { finished, .. }, ((residual, &version), routine)) in step.runs.into_iter().zip(workers) {
            let changed = routine.learn(&finished)?;
            committed.push(residual.commit(version, finished, collection)?);
            if changed {
                recut(residual, routine)?;
            }
        }
        let bits =
            |routine: &Routine| -> Vec<u64> { routine.memory().agreed.iter().map(|v| v.to_bits()).collect() };
        match self.routines.iter().position(|routine| bits(routine) != bits(&self.routines[0])) {
            Some(rank) => Err(RoutineError::Disagree { rank: Rank(rank as u32) }),
            None => Ok(committed),
        }
    }
}

/// Goes over to the schedule of the next step.
fn recut<T: Element>(residual: &mut Residual<T>, routine: &Routine) -> Result<(), DeviceError> {
    let schedule = routine.prepared().program.schedule();
    residual.recut(schedule.partition.clone(), schedule.quotas())
}
