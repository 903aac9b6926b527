//! The sum of the gradients of a batch, as sparse as its samples.
//!
//! Each thread takes a piece of the batch, and has a sum for each feature that this worker's samples have, to which it adds what the
//! samples contribute, in their order. The pieces are merged always in the same order: bits depend on the number of threads, never on
//! which of them is faster.

use std::thread;

use gleaner_algorithms::bag::Entries;

use crate::compact::{Compact, ones};
use crate::objective::Loss;
use crate::weights::Weights;

/// Computes gradients of batches, with memory that is kept from step to step.
pub(crate) struct Computer {
    loss: Loss,
    pieces: Vec<Piece>,
}

/// What one thread needs, and what it found.
struct Piece {
    /// By the number of the feature; zero between two steps.
    sums: Vec<f64>,
    /// A bit for each of them, set for the features of the piece.
    in_piece: Vec<u64>,
    loss: f64,
}

impl Computer {
    /// For a loss, this many threads, and samples of this many features.
    pub(crate) fn new(loss: Loss, threads: usize, features: usize) -> Self {
        let piece =
            || Piece { sums: vec![0.0; features], in_piece: vec![0; features.div_ceil(64)], loss: 0.0 };
        Self { loss, pieces: (0..threads.max(1)).map(|_| piece()).collect() }
    }

    /// The sum of the gradients of these samples, and of their losses. `signs` has each sample's y.
    pub(crate) fn gradient(
        &mut self,
        samples: &Compact,
        signs: &[f32],
        batch: &[u32],
        weights: &Weights<'_>,
    ) -> (Entries<f32>, f64) {
        let (loss, length) = (self.loss, batch.len().div_ceil(self.pieces.len()).max(1));
        let work = |piece: &mut Piece, batch: &[u32]| piece.work(loss, samples, signs, batch, weights);
        let mut parts = self.pieces.iter_mut().zip(batch.chunks(length));
        let sums: Vec<Entries<f32>> = thread::scope(|scope| {
            let first = parts.next();
            let spawned: Vec<_> =
                parts.map(|(piece, batch)| scope.spawn(move || work(piece, batch))).collect();
            let first = first.map(|(piece, batch)| work(piece, batch));
            let rest = spawned.into_iter().map(|thread| match thread.join() {
                Ok(sum) => sum,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            first.into_iter().chain(rest).collect()
        });
        let losses = self.pieces[..sums.len()].iter().map(|piece| piece.loss).sum();
        let sum = match sums.len() {
            1 => sums.into_iter().next().unwrap_or_default(),
            _ => Entries::sum_of(&sums),
        };
        (sum, losses)
    }
}

impl Piece {
    fn work(
        &mut self,
        loss: Loss,
        Compact { samples, features }: &Compact,
        signs: &[f32],
        batch: &[u32],
        weights: &Weights<'_>,
    ) -> Entries<f32> {
        let Self { sums, in_piece, loss: losses } = self;
        *losses = 0.0;
        for &number in batch {
            let row = samples.row(number as usize);
            let y = f64::from(signs[number as usize]);
            let terms = row.iter().map(|(place, value)| weights.unscaled(place as usize) * f64::from(value));
            let margin = weights.scale() * terms.sum::<f64>();
            *losses += loss.value(margin, y);
            let slope = loss.slope(margin, y) as f32;
            if slope != 0.0 {
                row.iter().for_each(|(place, value)| {
                    sums[place as usize] += f64::from(slope * value);
                    in_piece[place as usize / 64] |= 1 << (place % 64);
                });
            }
        }
        let mut entries = Entries::default();
        ones(in_piece, |place| {
            let sum = std::mem::take(&mut sums[place]) as f32;
            if sum != 0.0 {
                entries.push(features.all[place], sum);
            }
        });
        in_piece.fill(0);
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Samples, Shape};
    use crate::objective::Penalty;

    #[test]
    fn a_gradient_is_the_sum_of_those_of_the_samples() {
        let (mut samples, n) = (Samples::default(), 5000);
        (0..64).for_each(|number| Shape::Url.sample(1, number, n, &mut samples));
        let (labels, compact) = (samples.labels().to_vec(), Compact::of(samples.clone()));
        let mut weights = Weights::new(n, &compact.features, Penalty::default());
        let start: Entries<f32> = (0..n as u32).map(|i| (i, (i % 7) as f32 - 3.0)).collect();
        weights.step(&start, 8, 0.25);
        let batch: Vec<u32> = (3..50).collect();
        let all = weights.up_to_date();
        for loss in Loss::ALL {
            let mut dense = vec![0.0; n];
            let mut losses = 0.0;
            for &number in &batch {
                let row = samples.row(number as usize);
                let margin: f64 = row.iter().map(|(i, x)| f64::from(all[i as usize] * x)).sum();
                losses += loss.value(margin, f64::from(row.label));
                let slope = loss.slope(margin, f64::from(row.label));
                row.iter().for_each(|(i, x)| dense[i as usize] += slope * f64::from(x));
            }
            for threads in [1, 2, 3, 100] {
                let mut computer = Computer::new(loss, threads, compact.features.all.len());
                let (sum, found) = computer.gradient(&compact, &labels, &batch, &weights);
                assert!((found - losses).abs() < 1e-9 * losses, "{loss}: {found} {losses}");
                assert!(sum.indices.is_sorted_by(|a, b| a < b));
                for (found, expected) in sum.to_dense(n).into_iter().zip(&dense) {
                    assert!((f64::from(found) - expected).abs() < 1e-4, "{loss}");
                }
                // Memory that was used before makes no difference.
                assert_eq!(computer.gradient(&compact, &labels, &batch, &weights).0, sum);
            }
        }
        let mut computer = Computer::new(Loss::Hinge, 2, compact.features.all.len());
        let nothing = computer.gradient(&compact, &labels, &[], &weights);
        assert!(nothing.0.is_empty() && nothing.1 == 0.0);
    }
}
