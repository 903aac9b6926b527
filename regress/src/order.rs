//! Which of its samples a worker takes in which step.
//!
//! In every step of an epoch each worker takes its next samples, as many as a batch has, until it has none left. The last batches are
//! smaller, and a worker that has none left takes part with nothing, so that every sample is taken once in an epoch.

use gleaner_statistics::random::Generator;

/// The walk of one worker through its samples, and how many all workers take.
pub(crate) struct Order {
    rank: usize,
    /// Samples of each worker.
    held: Vec<u64>,
    batch: usize,
    /// A seed, unless samples stay in the order of the file.
    seed: Option<u64>,
    numbers: Vec<u32>,
}

impl Order {
    /// For a worker among those that hold this many samples.
    pub(crate) fn new(rank: usize, held: Vec<u64>, batch: usize, seed: Option<u64>) -> Self {
        let numbers = (0..held[rank] as u32).collect();
        Self { rank, held, batch, seed, numbers }
    }

    /// Steps of an epoch.
    pub(crate) fn steps(&self) -> u64 {
        self.held.iter().map(|held| held.div_ceil(self.batch as u64)).max().unwrap_or(0)
    }

    /// Begins an epoch, with an order of its own.
    pub(crate) fn begin(&mut self, epoch: u64) {
        if let Some(seed) = self.seed {
            // Epochs of different workers have different orders, also where they hold as many samples.
            self.numbers.sort_unstable();
            Generator::new(seed, "order", epoch << 32 | self.rank as u64).shuffle(&mut self.numbers);
        }
    }

    /// This worker's samples of a step.
    pub(crate) fn batch(&self, step: u64) -> &[u32] {
        let at = |step: u64| (step as usize * self.batch).min(self.numbers.len());
        &self.numbers[at(step)..at(step + 1)]
    }

    /// How many samples all workers take in a step.
    pub(crate) fn together(&self, step: u64) -> u64 {
        let batch = self.batch as u64;
        self.held.iter().map(|held| held.saturating_sub(step * batch).min(batch)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_taken_once_in_an_epoch() {
        for seed in [None, Some(3)] {
            let held = vec![10, 3, 7];
            let mut orders: Vec<Order> = (0..3).map(|rank| Order::new(rank, held.clone(), 4, seed)).collect();
            for epoch in 0..2 {
                let mut taken = [vec![], vec![], vec![]];
                orders.iter_mut().for_each(|order| order.begin(epoch));
                for step in 0..orders[0].steps() {
                    let together: usize = orders.iter().map(|order| order.batch(step).len()).sum();
                    assert_eq!(orders[1].together(step), together as u64);
                    for (taken, order) in taken.iter_mut().zip(&orders) {
                        taken.extend_from_slice(order.batch(step));
                    }
                }
                for (mut taken, held) in taken.into_iter().zip(&held) {
                    assert_eq!(taken.is_sorted(), seed.is_none());
                    taken.sort_unstable();
                    assert_eq!(taken, (0..*held as u32).collect::<Vec<_>>());
                }
            }
            assert_eq!(orders[0].steps(), 3);
        }
    }
}
