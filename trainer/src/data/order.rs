//! Which worker trains on which examples, in which order.
//!
//! Every epoch has its own order of all examples, the same on every worker. Each step takes the next of them, and distributes them, one
//! to every worker in turn until each has its batch. So the shards are disjoint, cover the data, and change from epoch to epoch; a step has
//! the same examples however large each worker's batch is, and the step alone says where a run stands.

use crate::error::TrainerError;
use gleaner_statistics::random::Generator;

/// One worker's walk through the training examples.
pub struct Order {
    seed: u64,
    examples: usize,
    /// Examples of all workers in a step, and which of them are this worker's.
    together: usize,
    places: Vec<usize>,
    /// The epoch whose shard is at hand.
    current: Option<(u64, Vec<u32>)>,
}

impl Order {
    /// For a rank among workers with these batches. Refuses data with less than one batch per worker.
    pub fn new(seed: u64, examples: usize, rank: usize, batches: &[usize]) -> Result<Self, TrainerError> {
        let workers = batches.len();
        let together = batches.iter().fold(0, |sum: usize, batch| sum.saturating_add(*batch));
        if examples < together {
            let batch = together.div_ceil(workers);
            return Err(TrainerError::TooFewExamples { examples, workers, batch });
        }
        Ok(Order { seed, examples, together, places: places(rank, batches), current: None })
    }

    /// How many batches each worker has in an epoch; the few examples left over differ from epoch to epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        (self.examples / self.together) as u64
    }

    /// The epoch of a step, and the examples of this worker's batch.
    pub fn batch(&mut self, step: u64) -> (u64, &[u32]) {
        let (epoch, batch) = (step / self.batches_per_epoch(), self.places.len());
        let start = (step % self.batches_per_epoch()) as usize * batch;
        if self.current.as_ref().is_none_or(|(at_hand, _)| *at_hand != epoch) {
            self.current = None;
        }
        let (seed, examples, together, places) = (self.seed, self.examples, self.together, &self.places);
        let (_, shard) =
            self.current.get_or_insert_with(|| (epoch, shard(seed, epoch, examples, together, places)));
        (epoch, &shard[start..start + batch])
    }
}

/// Which of a step's examples are a rank's: in every round each worker gets one that has not enough.
fn places(rank: usize, batches: &[usize]) -> Vec<usize> {
    let rounds = 0..batches.iter().copied().max().unwrap_or(0);
    let sharded = rounds.flat_map(|round| (0..batches.len()).filter(move |&other| batches[other] > round));
    sharded.enumerate().filter(|(_, to)| *to == rank).map(|(place, _)| place).collect()
}

/// One worker's examples in one epoch, in order.
fn shard(seed: u64, epoch: u64, examples: usize, together: usize, places: &[usize]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..examples as u32).collect();
    Generator::new(seed, "order", epoch).shuffle(&mut order);
    order.chunks_exact(together).flat_map(|step| places.iter().map(|&place| step[place])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each worker gets in each step of an epoch.
    fn sharded(epoch: u64, examples: usize, batches: &[usize]) -> Vec<Vec<Vec<u32>>> {
        let of = |rank| {
            let mut order = Order::new(9, examples, rank, batches).unwrap();
            let steps = order.batches_per_epoch();
            let step = |step| {
                let (found, batch) = order.batch(epoch * steps + step);
                assert_eq!(found, epoch);
                batch.to_vec()
            };
            (0..steps).map(step).collect()
        };
        (0..batches.len()).map(of).collect()
    }

    #[test]
    fn shards_are_disjoint_cover_the_data_and_change_by_epoch() {
        for batches in [&[1][..], &[1, 1, 1], &[2, 1, 4], &[3, 3, 3, 3]] {
            let together: usize = batches.iter().sum();
            for epoch in 0..2 {
                let mut all = sharded(epoch, 101, batches).concat().concat();
                assert_eq!(all.len(), 101 / together * together);
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), 101 / together * together, "{batches:?}");
            }
            assert_ne!(sharded(0, 101, batches), sharded(1, 101, batches));
            assert_eq!(sharded(2, 101, batches), sharded(2, 101, batches));
        }
    }

    /// However they are distributed, a step has the same examples; each worker has its batch; and even batches are every P-th example.
    #[test]
    fn a_step_has_the_same_examples_however_they_are_distributed() {
        let even = sharded(1, 50, &[4, 4, 4]);
        let uneven = sharded(1, 50, &[7, 1, 4]);
        for step in 0..4 {
            let of = |sharded: &[Vec<Vec<u32>>]| {
                let mut all: Vec<u32> = sharded.iter().flat_map(|of_rank| of_rank[step].clone()).collect();
                all.sort_unstable();
                all
            };
            assert_eq!(of(&even), of(&uneven));
            assert_eq!([0, 1, 2].map(|rank| uneven[rank][step].len()), [7, 1, 4]);
        }
        let mut order: Vec<u32> = (0..50).collect();
        Generator::new(9, "order", 1).shuffle(&mut order);
        let second: Vec<u32> = order.into_iter().skip(1).step_by(3).take(16).collect();
        assert_eq!(even[1].concat(), second);
    }

    #[test]
    fn batches_walk_through_the_shard_and_into_the_next_epoch() {
        let mut order = Order::new(1, 20, 1, &[3, 3]).unwrap();
        assert_eq!(order.batches_per_epoch(), 3);
        let first: Vec<u32> = (0..3).flat_map(|step| order.batch(step).1.to_vec()).collect();
        let (epoch, batch) = order.batch(4);
        assert_eq!((epoch, batch.len()), (1, 3));
        // A step back, as after resuming, gives the same again.
        assert_eq!(order.batch(0).1, &first[..3]);
    }

    #[test]
    fn too_few_examples_are_refused() {
        let refusal = Order::new(1, 20, 0, &[6; 4]).err().unwrap().to_string();
        assert!(refusal.contains("20 examples") && refusal.contains("4 workers"), "{refusal}");
        assert!(Order::new(1, 20, 0, &[2, 18]).is_ok());
    }
}
