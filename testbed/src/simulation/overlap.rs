//! How far the choices of workers lie in the same places: a model with two numbers, fitted to gradients.
//!
//! A share φ of a worker's k entries is chosen by all workers. The others are sampled at random, by each worker for itself, from a
//! share σ of all entries. So m workers together choose, in a block of `len` entries with S = σ · len,
//!
//! > φk + S · (1 − (1 − (1 − φ)k/S)^m)
//!
//! different entries.

use gleaner_algorithms::select;
use serde::Serialize;

use super::executed::Source;

/// The two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Overlap {
    /// φ: the share of a choice that all workers make, from 0 to 1.
    pub shared: f64,
    /// σ: the share of all entries that the others are sampled from, above 0 and at most 1.
    pub support: f64,
}

/// Workers whose gradients a model is fitted to where none were recorded.
const WORKERS: u32 = 8;

/// Entries of each of them.
const ENTRIES: usize = 1 << 17;

/// Steps whose gradients add up in residuals before the choice that is looked at.
const WARM_UP: u64 = 8;

impl Overlap {
    /// Different entries that so many workers choose together, k each, in a block of `len`.
    pub fn union(&self, workers: f64, k: f64, len: f64) -> f64 {
        let shared = self.shared * k;
        // The others come from at least as many as one worker chooses.
        let support = (self.support * len).max(k * (1.0 - self.shared)).min(len);
        if support <= 0.0 {
            return shared;
        }
        shared + support * (1.0 - (1.0 - (k - shared) / support).max(0.0).powf(workers))
    }

    /// The model that is nearest to these [unions](Self::unions) of a gradient of n entries. By least squares of the
    /// logarithms.
    pub fn fit(unions: &[u64], k: usize, n: usize) -> Self {
        let (k, n) = (k as f64, n as f64);
        let error = |overlap: &Self| -> f64 {
            let log = |(i, &entries): (usize, &u64)| {
                (overlap.union((i + 1) as f64, k, n) / entries.max(1) as f64).ln()
            };
            unions.iter().enumerate().map(|union| log(union).powi(2)).sum()
        };
        let (mut best, mut least) = (Self { shared: 0.0, support: 1.0 }, f64::INFINITY);
        let (mut low, mut high) = ((0.0, (k / n).min(1.0).ln()), (1.0, 0.0));
        // A grid, and finer ones around the best point: two numbers need nothing cleverer.
        for _ in 0..6 {
            let (widths, steps) = ((high.0 - low.0, high.1 - low.1), 24);
            for (i, j) in (0..=steps).flat_map(|i| (0..=steps).map(move |j| (i, j))) {
                let at = |low: f64, width: f64, i: i32| low + width * f64::from(i) / f64::from(steps);
                let overlap = Self { shared: at(low.0, widths.0, i), support: at(low.1, widths.1, j).exp() };
                let error = error(&overlap);
                if error < least {
                    (best, least) = (overlap, error);
                }
            }
            let around = |at: f64, width: f64, from: f64, to: f64| {
                ((at - width / 10.0).max(from), (at + width / 10.0).min(to))
            };
            let shared = around(best.shared, widths.0, 0.0, 1.0);
            let support = around(best.support.ln(), widths.1, (k / n).min(1.0).ln(), 0.0);
            (low, high) = ((shared.0, support.0), (shared.1, support.1));
        }
        best
    }

    /// How many different entries the first of these workers chooses, the first two together, and so on: each its k largest.
    pub fn unions(gradients: &[Vec<f32>], k: usize) -> Vec<u64> {
        let mut seen = vec![false; gradients.first().map_or(0, Vec::len)];
        let mut count = 0;
        let mut grow = |gradient: &Vec<f32>| {
            for index in select::top_k_dense(gradient, k).indices {
                count += u64::from(!std::mem::replace(&mut seen[index as usize], true));
            }
            count
        };
        gradients.iter().map(&mut grow).collect()
    }

    /// Fitted to a few steps of a source of gradients at a density: what was not chosen adds up, as in residuals.
    pub fn of_source(density: f64, source: Source<'_>) -> Self {
        let k = ((ENTRIES as f64 * density).round() as usize).clamp(1, ENTRIES);
        let mut gradient = vec![0.0; ENTRIES];
        let accumulated = |rank: u32| {
            let mut residual = vec![0.0f32; ENTRIES];
            for step in 0..=WARM_UP {
                source(rank, step, &mut gradient);
                residual.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += value);
                if step < WARM_UP {
                    let chosen = select::top_k_dense(&residual, k).indices;
                    chosen.iter().for_each(|&index| residual[index as usize] = 0.0);
                }
            }
            residual
        };
        Self::fit(&Self::unions(&(0..WORKERS).map(accumulated).collect::<Vec<_>>(), k), k, ENTRIES)
    }
}
