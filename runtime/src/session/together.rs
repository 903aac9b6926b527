//! Calls of all ranks beside the exchange of gradients: equal parameters at the start, means of numbers, shares of data, and the step
//! to go on from.

use std::collections::BTreeSet;
use std::ops::Range;

use super::Session;
use crate::failure::Error;

/// Values in a note: half of what a note may have.
const VALUES: usize = 1 << 17;

/// Steps in a note, the newest ones.
const STEPS: usize = 1 << 16;

impl Session {
    /// Gives every rank the values of rank 0, bit by bit, such as the parameters before the first step. It uses the notes of
    /// [`all_gather`](Self::all_gather), half a mebibyte at a time: call it once in a job, and not in each step.
    ///
    /// # Errors
    /// Ranks with another number of values, which are named; the job has failed.
    pub fn broadcast(&self, values: &mut [f32]) -> Result<(), Error> {
        let counts = self.all_gather(&(values.len() as u64).to_le_bytes())?;
        let count = |note: &Vec<u8>| <[u8; 8]>::try_from(&note[..]).map(u64::from_le_bytes).ok();
        let expected = values.len() as u64;
        if let Some((rank, found)) = counts
            .iter()
            .map(count)
            .enumerate()
            .find_map(|(rank, found)| Some((rank, found.filter(|f| *f != expected)?)))
        {
            return Err(self.give_up(&format_args!(
                "broadcast() of {expected} values, where rank {rank} has {found}; expected as many on every rank"
            )));
        }
        for part in values.chunks_mut(VALUES) {
            let own: Vec<u8> = match self.rank() {
                0 => part.iter().flat_map(|value| value.to_le_bytes()).collect(),
                _ => Vec::new(),
            };
            let notes = self.all_gather(&own)?;
            let (of_root, _) = notes.first().map_or((&[][..], &[][..]), |note| note.as_chunks::<4>());
            for (value, bytes) in part.iter_mut().zip(of_root) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        Ok(())
    }

    /// The mean of a number over the workers, the same bits on every rank, for example of a loss for a log.
    ///
    /// # Errors
    /// The job has failed.
    pub fn mean(&self, number: f64) -> Result<f64, Error> {
        let notes = self.all_gather(&number.to_le_bytes())?;
        // A worker without which the others go on has an empty note.
        let numbers = notes.iter().filter_map(|note| Some(f64::from_le_bytes(note[..].try_into().ok()?)));
        let (sum, count) = numbers.fold((0.0, 0u32), |(sum, count), number| (sum + number, count + 1));
        Ok(sum / f64::from(count.max(1)))
    }

    /// The range of n samples that are this worker's. The ranges of all workers are disjoint, cover all samples, and
    /// differ by one sample at most in length.
    pub fn shard(&self, n: usize) -> Range<usize> {
        share(n, self.rank(), self.world_size())
    }

    /// The newest step that is in the lists of all ranks, such as the steps of which each has a checkpoint; none if there is none. Of a
    /// longer list the newest 65,536 steps count.
    ///
    /// # Errors
    /// The job has failed.
    pub fn newest_common(&self, steps: &[u64]) -> Result<Option<u64>, Error> {
        let newest: BTreeSet<u64> = steps.iter().copied().collect();
        let own: Vec<u8> = newest.iter().rev().take(STEPS).flat_map(|step| step.to_le_bytes()).collect();
        let lists = self.all_gather(&own)?;
        let read = |note: &Vec<u8>| -> BTreeSet<u64> {
            note.as_chunks::<8>().0.iter().map(|step| u64::from_le_bytes(*step)).collect()
        };
        let common = lists.iter().map(read).reduce(|common, list| &common & &list);
        Ok(common.and_then(|common| common.last().copied()))
    }
}

/// The samples of a rank.
fn share(n: usize, rank: usize, workers: usize) -> Range<usize> {
    let (each, longer) = (n / workers, n % workers);
    let from = |rank: usize| rank * each + rank.min(longer);
    from(rank)..from(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_disjoint_and_complete() {
        for workers in 1..9 {
            for n in [0, 1, 7, 8, 100] {
                let shares: Vec<Range<usize>> = (0..workers).map(|rank| share(n, rank, workers)).collect();
                assert_eq!((shares[0].start, shares[workers - 1].end), (0, n));
                assert!(shares.windows(2).all(|two| two[0].end == two[1].start));
                assert!(shares.iter().all(|share| share.len().abs_diff(n / workers) <= 1));
            }
        }
    }
}
