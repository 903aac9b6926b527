//! k entries sampled at random (random-k: Stich et al.: Sparsified SGD with Memory, NeurIPS 2018). Every worker samples for
//! itself; where all are to sample the same, the method `random-k` does it.
//!
//! k entries, fewer only where zeros were sampled. It reads k values and no more. It captures a share of k/n of the gradient's
//! squares on average, where the largest entries capture most of them.

use gleaner_statistics::random::Generator;

use crate::Element;
use crate::bag::Entries;

pub(super) fn choose<T: Element>(values: &[T], k: usize, seed: u64) -> Entries<T> {
    let sampled = sampled(values.len(), k, seed);
    sampled.iter().map(|&i| (i, values[i as usize])).filter(|(_, v)| *v != T::ZERO).collect()
}

/// So many of `len` indices, ascending, each set of so many as likely as any other; equal seeds sample equal sets.
///
/// Floyd's algorithm (Bentley and Floyd: Programming pearls, a sample of brilliance, 1987), which takes one number for
/// each index, on a bitmap.
pub(crate) fn sampled(len: usize, count: usize, seed: u64) -> Vec<u32> {
    let count = count.min(len);
    let mut generator = Generator::seeded(seed);
    let mut taken = vec![0u64; len.div_ceil(64)];
    for last in len - count..len {
        let sampled = ((u128::from(generator.bits()) * (last as u128 + 1)) >> 64) as usize;
        let fresh = (taken[sampled / 64] >> (sampled % 64)) & 1 == 0;
        let index = if fresh { sampled } else { last };
        taken[index / 64] |= 1 << (index % 64);
    }
    let mut indices = Vec::with_capacity(count);
    for (word, mut bits) in (0u32..).zip(taken) {
        while bits != 0 {
            indices.push(64 * word + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
    indices
}
