//! A step of all workers in this process.

use std::ops::Range;

use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::collectives::{Ensemble, RoutineError};
use gleaner_algorithms::residual::AccumulateError;
use gleaner_algorithms::schedule::{self, Cost, Memory, Run};
use gleaner_algorithms::{Block, Method, Partition, Rank};

use super::npy::Vector;
use super::of_rank;
use crate::report::CommandError;

/// A step of all workers.
pub struct Step {
    method: Method,
    /// The workers.
    pub ensemble: Ensemble,
    /// What the step costs at most.
    pub cost: Cost,
    partition: Partition,
}

/// What it came to.
pub struct Reduced {
    /// The sum over all workers, block by block.
    pub update: Vec<Bag>,
    /// Entries that the busiest worker received.
    pub entries_received: u64,
    /// Payload bytes that the busiest worker received.
    pub bytes_received: u64,
    /// The sum of the magnitudes that were dropped and not collected, over all workers.
    pub lost: f64,
}

impl Step {
    /// Makes and checks the schedules, of workers that have learnt something or not.
    pub fn prepare(
        method: Method,
        workers: u32,
        n: usize,
        learnt: Option<Vec<Memory>>,
    ) -> Result<Self, RoutineError> {
        let mut ensemble = Ensemble::new(method.clone(), workers, n)?;
        if let Some(memories) = learnt {
            ensemble.restore(memories)?;
        }
        let (partition, cost) = (ensemble.partition().clone(), ensemble.cost());
        Ok(Self { method, ensemble, cost, partition })
    }

    /// Reads the files into the accumulators, without a copy in between.
    pub fn accumulate(
        &mut self,
        gradients: &[Vector],
        before: Option<&[Vector]>,
    ) -> Result<(), CommandError> {
        for (r, (residual, gradient)) in self.ensemble.residuals.iter_mut().zip(gradients).enumerate() {
            let sum = |error: AccumulateError| -> CommandError {
                let path = gradient.path().display();
                format!("{} ({path}): {error}; expected finite sums", Rank(r as u32)).into()
            };
            let located = |error: CommandError| match error.downcast() {
                Ok(error) => of_rank(r as u32, *error),
                Err(other) => other,
            };
            if let Some(before) = before {
                let restore = |first, values: &[f32]| {
                    residual.restore(first, values).map_err(|error| sum(error.into()))
                };
                before[r].pieces(restore).map_err(located)?;
            }
            gradient
                .pieces(|first, values| residual.accumulate(first, values).map_err(sum))
                .map_err(located)?;
        }
        Ok(())
    }

    /// Runs it, and leaves the new residuals.
    pub fn all_reduce(&mut self) -> Result<Reduced, CommandError> {
        let executions: Result<Vec<_>, _> =
            (0..self.ensemble.residuals.len()).map(|rank| self.ensemble.begin(rank)).collect();
        let step =
            schedule::lockstep(executions?).map_err(|error| format!("the all-reduce failed: {error}"))?;
        let largest = |count: fn(&Run) -> u64| step.runs.iter().map(count).max().unwrap_or(0);
        let mut reduced = Reduced {
            update: Vec::new(),
            entries_received: largest(|run| run.finished.entries_received),
            bytes_received: largest(|run| run.bytes_received),
            lost: 0.0,
        };
        let committed = self.ensemble.commit(step, self.method.collection())?;
        for (r, committed) in committed.into_iter().enumerate() {
            reduced.lost +=
                committed.lost.iter().flat_map(|l| &l.values).map(|v| f64::from(v.abs())).sum::<f64>();
            if r == 0 {
                reduced.update = committed.update;
            } else if !same_bits(&reduced.update, &committed.update) {
                return Err(format!(
                    "{} and rank 0 ended with different updates: this is a mistake in Gleaner, please report it",
                    Rank(r as u32)
                )
                .into());
            }
        }
        Ok(reduced)
    }

    /// The sum divided by the number of workers, block by block.
    pub fn mean<'a>(&'a self, reduced: &'a Reduced) -> impl Iterator<Item = f32> + 'a {
        let workers = self.ensemble.residuals.len() as f32;
        reduced.update.iter().enumerate().flat_map(move |(block, bag)| {
            let mut values = vec![0.0; self.partition.block_len(Block(block as u32))];
            bag.iter().for_each(|(i, sum)| values[i as usize] = sum / workers);
            values
        })
    }

    /// What it is a step of.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The positions of all entries.
    pub fn entries(&self) -> Range<usize> {
        0..self.partition.entries()
    }
}

fn same_bits(here: &[Bag], there: &[Bag]) -> bool {
    here.iter().zip(there).all(|(here, there)| match (here, there) {
        (Bag::Dense(here), Bag::Dense(there)) => {
            here.iter().zip(there.iter()).all(|(a, b)| a.to_bits() == b.to_bits())
        }
        _ => here.iter().map(|(i, v)| (i, v.to_bits())).eq(there.iter().map(|(i, v)| (i, v.to_bits()))),
    })
}
