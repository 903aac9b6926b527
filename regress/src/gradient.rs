//! The sum of the gradients of a batch, as sparse as its samples.
//!
//! Each thread takes a piece of the batch, sorts what its samples contribute by feature and adds up what is of one feature, in the
//! order of the samples. Then the pieces are merged, always in the same order: bits depend on the number of threads, never on
//! which of them is faster.

use std::thread;

use gleaner_algorithms::bag::Entries;

use crate::data::Samples;
use crate::objective::Loss;
use crate::weights::Weights;

/// Computes gradients of batches, with memory that is kept from step to step.
pub(crate) struct Computer {
    loss: Loss,
    pieces: Vec<Piece>,
}

/// What one thread needs, and what it found.
#[derive(Default)]
struct Piece {
    /// A feature and the bits of a value, as one number.
    terms: Vec<u64>,
    sorted: Vec<u64>,
    loss: f64,
}

impl Computer {
    /// For a loss and so many threads.
    pub(crate) fn new(loss: Loss, threads: usize) -> Self {
        let pieces = (0..threads.max(1)).map(|_| Piece::default()).collect();
        Self { loss, pieces }
    }

    /// The sum of the gradients of these samples, and of their losses. `signs` has each sample's y.
    pub(crate) fn gradient(
        &mut self,
        samples: &Samples,
        signs: &[f32],
        batch: &[u32],
        weights: &Weights,
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
        samples: &Samples,
        signs: &[f32],
        batch: &[u32],
        weights: &Weights,
    ) -> Entries<f32> {
        self.terms.clear();
        self.loss = 0.0;
        for &number in batch {
            let row = samples.row(number as usize);
            let y = f64::from(signs[number as usize]);
            let margin = weights.margin(row.indices, row.values);
            self.loss += loss.value(margin, y);
            let slope = loss.slope(margin, y) as f32;
            if slope != 0.0 {
                let term = |(index, value): (u32, f32)| {
                    u64::from(index) << 32 | u64::from((slope * value).to_bits())
                };
                self.terms.extend(row.iter().map(term));
            }
        }
        sort(&mut self.terms, &mut self.sorted);
        sums(&self.terms)
    }
}

/// Bits of a digit, at most: as many counts stay in the nearest cache.
const DIGIT: u32 = 11;

/// Sorts by the upper 32 bits; what is equal there stays in order.
fn sort(terms: &mut Vec<u64>, other: &mut Vec<u64>) {
    let highest = terms.iter().fold(0, |most, term| most | term >> 32);
    let bits = u64::BITS - highest.leading_zeros();
    let passes = bits.div_ceil(DIGIT);
    other.resize(terms.len(), 0);
    for pass in 0..passes {
        let width = bits.div_ceil(passes);
        let digit = |term: u64| (term >> (32 + pass * width)) as usize & ((1 << width) - 1);
        let mut places = vec![0_usize; 1 << width];
        terms.iter().for_each(|&term| places[digit(term)] += 1);
        let mut next = 0;
        places.iter_mut().for_each(|place| next += std::mem::replace(place, next));
        for &term in terms.iter() {
            let place = &mut places[digit(term)];
            other[*place] = term;
            *place += 1;
        }
        std::mem::swap(terms, other);
    }
}

/// The sums of what is of one feature, without those that are zero.
fn sums(terms: &[u64]) -> Entries<f32> {
    let mut sums = Entries::default();
    let mut rest = terms;
    while let Some(&first) = rest.first() {
        let index = first >> 32;
        let mut sum = 0.0_f64;
        let mut length = 0;
        while let Some(&term) = rest.get(length)
            && term >> 32 == index
        {
            sum += f64::from(f32::from_bits(term as u32));
            length += 1;
        }
        rest = &rest[length..];
        if sum as f32 != 0.0 {
            sums.push(index as u32, sum as f32);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Shape;
    use crate::objective::Penalty;

    #[test]
    fn a_gradient_is_the_sum_of_those_of_the_samples() {
        let (mut samples, n) = (Samples::default(), 5000);
        (0..64).for_each(|number| Shape::Url.sample(1, number, n, &mut samples));
        let mut weights = Weights::new(n, Penalty::default());
        let start: Entries<f32> = (0..n as u32).map(|i| (i, (i % 7) as f32 - 3.0)).collect();
        weights.step(&start, 8, 0.25);
        let batch: Vec<u32> = (3..50).collect();
        for loss in Loss::ALL {
            let mut dense = vec![0.0; n];
            let mut losses = 0.0;
            for &number in &batch {
                let row = samples.row(number as usize);
                let margin: f64 = row.iter().map(|(i, x)| weights.get(i) * f64::from(x)).sum();
                losses += loss.value(margin, f64::from(row.label));
                let slope = loss.slope(margin, f64::from(row.label));
                row.iter().for_each(|(i, x)| dense[i as usize] += slope * f64::from(x));
            }
            for threads in [1, 2, 3, 100] {
                let mut computer = Computer::new(loss, threads);
                let (sum, found) = computer.gradient(&samples, samples.labels(), &batch, &weights);
                assert!((found - losses).abs() < 1e-9 * losses, "{loss}: {found} {losses}");
                assert!(sum.indices.is_sorted_by(|a, b| a < b));
                for (found, expected) in sum.to_dense(n).into_iter().zip(&dense) {
                    assert!((f64::from(found) - expected).abs() < 1e-4, "{loss}");
                }
                // Memory that was used before makes no difference.
                assert_eq!(computer.gradient(&samples, samples.labels(), &batch, &weights).0, sum);
            }
        }
        let nothing = Computer::new(Loss::Hinge, 2).gradient(&samples, samples.labels(), &[], &weights);
        assert!(nothing.0.is_empty() && nothing.1 == 0.0);
    }
}
