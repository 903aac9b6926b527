//! Which worker trains on which examples, in which order.
//!
//! Every epoch has its own order of all examples, the same on every worker, and a worker takes every P-th of it. So the
//! shards are disjoint, cover the data, and change from epoch to epoch; the step alone says where a run stands.

use crate::train::error::TrainError;
use crate::train::random::Generator;

/// One worker's walk through the training examples.
pub struct Order {
    seed: u64,
    examples: usize,
    rank: usize,
    workers: usize,
    batch: usize,
    /// The epoch whose shard is at hand.
    current: Option<(u64, Vec<u32>)>,
}

impl Order {
    /// Refuses data with less than one batch per worker.
    pub fn new(
        seed: u64,
        examples: usize,
        rank: usize,
        workers: usize,
        batch: usize,
    ) -> Result<Self, TrainError> {
        if examples / workers < batch {
            return Err(TrainError::TooFewExamples { examples, workers, batch });
        }
        Ok(Order { seed, examples, rank, workers, batch, current: None })
    }

    /// How many batches each worker has in an epoch; the few examples left over differ from epoch to epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        (self.examples / self.workers / self.batch) as u64
    }

    /// The epoch of a step, and the examples of this worker's batch.
    pub fn batch(&mut self, step: u64) -> (u64, &[u32]) {
        let epoch = step / self.batches_per_epoch();
        let start = (step % self.batches_per_epoch()) as usize * self.batch;
        if self.current.as_ref().is_none_or(|(at_hand, _)| *at_hand != epoch) {
            self.current = None;
        }
        let (seed, examples, rank, workers) = (self.seed, self.examples, self.rank, self.workers);
        let (_, shard) =
            self.current.get_or_insert_with(|| (epoch, shard(seed, epoch, examples, rank, workers)));
        (epoch, &shard[start..start + self.batch])
    }
}

/// One worker's examples in one epoch, in order.
fn shard(seed: u64, epoch: u64, examples: usize, rank: usize, workers: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..examples as u32).collect();
    Generator::new(seed, "order", epoch).shuffle(&mut order);
    order.into_iter().skip(rank).step_by(workers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_disjoint_cover_the_data_and_change_by_epoch() {
        for workers in [1, 3, 4, 7] {
            let epoch = |epoch| -> Vec<Vec<u32>> {
                (0..workers).map(|rank| shard(9, epoch, 101, rank, workers)).collect()
            };
            for shards in [epoch(0), epoch(1)] {
                let mut all: Vec<u32> = shards.concat();
                all.sort_unstable();
                assert_eq!(all, (0..101).collect::<Vec<u32>>(), "{workers} workers");
            }
            assert_ne!(epoch(0), epoch(1));
            assert_eq!(epoch(2), epoch(2));
        }
    }

    #[test]
    fn batches_walk_through_the_shard_and_into_the_next_epoch() {
        let mut order = Order::new(1, 20, 1, 2, 3).unwrap();
        assert_eq!(order.batches_per_epoch(), 3);
        let mut seen: Vec<u32> = (0..3).flat_map(|step| order.batch(step).1.to_vec()).collect();
        assert_eq!(seen, shard(1, 0, 20, 1, 2)[..9]);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 9);
        let (epoch, batch) = order.batch(4);
        assert_eq!((epoch, batch), (1, &shard(1, 1, 20, 1, 2)[3..6]));
        // A step back, as after resuming, gives the same again.
        assert_eq!(order.batch(0).1, &shard(1, 0, 20, 1, 2)[..3]);
    }

    #[test]
    fn too_few_examples_are_refused() {
        let refusal = Order::new(1, 20, 0, 4, 6).err().unwrap().to_string();
        assert!(refusal.contains("20 examples") && refusal.contains("4 workers"), "{refusal}");
    }
}
