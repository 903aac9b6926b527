//! How much of a step's gradients its update delivers, measured by squares.

use gleaner_runtime::{Error, Update};
use gleaner_statistics::random;

use super::gradient::Gradient;
use super::measure::PARAMETER;

/// At most so many positions are looked at: making all of a rank's takes about 8 ms on a Xeon's core.
const MOST: usize = 1 << 20;

/// With G the sum of all ranks' gradients of one step: the share of ΣG² at the entries that an update delivers.
///
/// A gradient of more than 2²⁰ entries is cut into at most 2²⁰ stretches of equal length, and one position of each is
/// looked at, sampled once: positions of one stretch are alike, since all entries have the same distribution.
pub struct Mass {
    seed: u64,
    workers: usize,
    positions: Vec<usize>,
    /// G at these positions.
    sums: Vec<f64>,
    /// Room for an update.
    update: Vec<f32>,
}

impl Mass {
    /// For gradients of n entries that are made from this seed.
    pub fn new(seed: u64, workers: usize, n: usize) -> Self {
        let stretch = n.div_ceil(MOST).max(1);
        let sampled = |start: usize| start + random::at(0, start as u64) as usize % stretch.min(n - start);
        let positions: Vec<usize> = (0..n).step_by(stretch).map(sampled).collect();
        Self { seed, workers, sums: vec![0.0; positions.len()], positions, update: vec![0.0; n] }
    }

    /// Makes the gradients of this step once more, those of all ranks.
    pub fn begin(&mut self, step: u64) {
        self.sums.fill(0.0);
        for rank in 0..self.workers {
            let gradient = Gradient::of(self.seed, rank as u64, step);
            for (sum, &position) in self.sums.iter_mut().zip(&self.positions) {
                *sum += f64::from(gradient.at(position));
            }
        }
    }

    /// The share that this update delivers, from 0 to 1; 1 where there is nothing to deliver.
    pub fn share(&mut self, update: &Update) -> Result<f64, Error> {
        self.update.fill(0.0);
        // Scaled back to the sum, so that nothing is rounded to zero.
        update.add_to(PARAMETER, &mut self.update, self.workers as f32)?;
        let (mut delivered, mut all) = (0.0, 0.0);
        for (sum, &position) in self.sums.iter().zip(&self.positions) {
            all += sum * sum;
            if self.update[position] != 0.0 {
                delivered += sum * sum;
            }
        }
        Ok(if all > 0.0 { delivered / all } else { 1.0 })
    }
}

#[cfg(test)]
mod tests {
    use gleaner_algorithms::Method;
    use gleaner_runtime::{Layout, Session};

    use super::*;

    /// G, entry by entry.
    fn sum(seed: u64, workers: u64, n: usize, step: u64) -> Vec<f64> {
        let mut sum = vec![0.0; n];
        for rank in 0..workers {
            let mut gradient = vec![0.0; n];
            Gradient::of(seed, rank, step).fill(&mut gradient);
            sum.iter_mut().zip(gradient).for_each(|(sum, entry)| *sum += f64::from(entry));
        }
        sum
    }

    /// The share of the k largest squares.
    fn largest(sum: &[f64], k: usize) -> f64 {
        let mut squares: Vec<f64> = sum.iter().map(|g| g * g).collect();
        squares.sort_by(|a, b| b.total_cmp(a));
        squares[..k].iter().sum::<f64>() / squares.iter().sum::<f64>()
    }

    /// What a job of one worker delivers in its first step, where no residual is: the k largest entries.
    fn of_one_worker(seed: u64, n: usize, k: usize) -> f64 {
        let session = Session::join().unwrap();
        let layout = Layout::new().parameter(PARAMETER, n);
        let mut gradients = session.gradients(&layout, Method::spardl().k(k)).unwrap();
        let mut gradient = vec![0.0; n];
        Gradient::of(seed, 0, 0).fill(&mut gradient);
        gradients.ready(PARAMETER, &gradient).unwrap();
        let mut mass = Mass::new(seed, 1, n);
        mass.begin(0);
        mass.share(&gradients.wait().unwrap()).unwrap()
    }

    #[test]
    fn sums_are_those_of_all_ranks_where_they_are_looked_at() {
        for (workers, n) in [(1, 10), (3, 1000), (5, MOST + 1), (2, 3 * MOST - 7)] {
            let mut mass = Mass::new(7, workers, n);
            mass.begin(2);
            let sum = sum(7, workers as u64, n, 2);
            assert!(mass.positions.is_sorted_by(|a, b| a < b) && mass.positions.iter().all(|&p| p < n));
            assert!((n.min(MOST / 2)..=n.min(MOST)).contains(&mass.positions.len()), "{n} entries");
            assert!(mass.positions.iter().zip(&mass.sums).all(|(&p, &g)| sum[p] == g));
        }
    }

    #[test]
    fn the_share_is_that_of_the_delivered_entries() {
        for (seed, n, k) in [(1, 1000, 1), (2, 1000, 10), (3, 5000, 500), (4, 777, 777)] {
            let (share, expected) = (of_one_worker(seed, n, k), largest(&sum(seed, 1, n, 0), k));
            assert!((share - expected).abs() < 1e-9, "{share}, but {expected} of {k} among {n}");
        }
        assert_eq!(of_one_worker(1, 0, 0), 1.0);
    }

    #[test]
    fn a_sample_tells_the_share_of_the_whole_within_a_hundredth() {
        let n = 4 * MOST + 3;
        for share in [1000, 100, 10] {
            let (sampled, whole) = (of_one_worker(5, n, n / share), largest(&sum(5, 1, n, 0), n / share));
            assert!((sampled - whole).abs() < 0.01, "1 in {share}: {sampled} of the sample, {whole} of all");
        }
    }
}
