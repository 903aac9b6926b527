//! A step of all workers in this process.

use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::residual::{AccumulateError, Collection};
use gleaner_algorithms::schedule::{self, Run};
use gleaner_algorithms::{Block, Partition, Rank};

use super::npy::Vector;
use crate::report::CommandError;

/// The result of a step of all workers.
pub struct Reduced {
    partition: Partition,
    workers: usize,
    /// The sum over all workers, block by block.
    pub update: Vec<Bag>,
    /// Entries that the busiest worker received.
    pub entries_received: u64,
    /// Payload bytes that the busiest worker received.
    pub bytes_received: u64,
    /// The sum of the magnitudes that were dropped and not collected, over all workers.
    pub lost: f64,
}

/// Reads the files into the accumulators, without a copy in between.
pub fn accumulate(
    ensemble: &mut Ensemble,
    gradients: &[Vector],
    before: Option<&[Vector]>,
) -> Result<(), CommandError> {
    for (r, (residual, gradient)) in ensemble.residuals.iter_mut().zip(gradients).enumerate() {
        let sum = |error: AccumulateError| -> CommandError {
            let path = gradient.path.display();
            format!("{} ({path}): {error}; expected finite sums", Rank(r as u32)).into()
        };
        if let Some(before) = before {
            before[r]
                .pieces(|first, values| residual.restore(first, values).map_err(|error| sum(error.into())))?;
        }
        gradient.pieces(|first, values| residual.accumulate(first, values).map_err(sum))?;
    }
    Ok(())
}

/// Runs it, and leaves the new residuals.
pub fn all_reduce(ensemble: &mut Ensemble, collection: Collection) -> Result<Reduced, CommandError> {
    let (partition, workers) = (ensemble.partition().clone(), ensemble.residuals.len());
    let executions: Result<Vec<_>, _> = (0..workers).map(|rank| ensemble.begin(rank)).collect();
    let step = schedule::lockstep(executions?).map_err(|error| format!("the all-reduce failed: {error}"))?;
    let largest = |count: fn(&Run) -> u64| step.runs.iter().map(count).max().unwrap_or(0);
    let mut reduced = Reduced {
        partition,
        workers,
        update: Vec::new(),
        entries_received: largest(|run| run.finished.entries_received),
        bytes_received: largest(|run| run.bytes_received),
        lost: 0.0,
    };
    for (r, committed) in ensemble.commit(step, collection)?.into_iter().enumerate() {
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

impl Reduced {
    /// The sum divided by the number of workers, block by block.
    pub fn mean(&self) -> impl Iterator<Item = f32> {
        self.update.iter().enumerate().flat_map(move |(block, bag)| {
            let mut values = vec![0.0; self.partition.block_len(Block(block as u32))];
            bag.iter().for_each(|(i, sum)| values[i as usize] = sum / self.workers as f32);
            values
        })
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
