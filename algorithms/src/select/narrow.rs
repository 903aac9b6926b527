//! From many magnitudes to the few among which the k-th largest is.

use crate::Element;
use crate::element::Magnitude;

/// Bins of the histogram that narrows a selection down.
const BINS: usize = 2048;

/// Below so many, a histogram costs more than it saves.
const FEW: usize = 2 * BINS;

/// Some magnitudes of `values`, the `k`-th largest of all among them, and how many larger ones are not. Needs
/// 0 < `k` <= the length.
///
/// A histogram over the span of the magnitudes leaves one bin of them, a few in a thousand of what usually comes here: far
/// fewer to move than an nth-element over everything would. Where the bin is full, because one huge entry widens all
/// bins, another histogram divides it; a round divides the span by a thousand at least, so there are few.
#[inline(always)]
pub(super) fn narrow<T: Element>(values: &[T], k: usize) -> (Vec<T::Magnitude>, usize) {
    if values.len() < FEW {
        return (values.iter().map(|value| value.magnitude()).collect(), 0);
    }
    let (mut survivors, mut above) = fullest(values, |value| value.magnitude(), k);
    while survivors.len() >= FEW {
        let (fewer, larger) = fullest(&survivors, |magnitude| magnitude, k - above);
        if fewer.len() == survivors.len() {
            break;
        }
        (survivors, above) = (fewer, above + larger);
    }
    (survivors, above)
}

/// The sizes in the bin that the `k`-th largest is in, and how many are above it. Of equal ones only the first `k`.
#[inline(always)]
fn fullest<S: Copy, M: Magnitude>(values: &[S], size: impl Fn(S) -> M, k: usize) -> (Vec<M>, usize) {
    let (least, largest) = values.iter().fold((M::MAX, M::default()), |(least, largest), &value| {
        let size = size(value);
        (size.min(least), size.max(largest))
    });
    if least == largest {
        return (vec![least; k], 0);
    }
    let shift = (largest - least).bit_length().saturating_sub(BINS.ilog2());
    let bin = |value: S| ((size(value) - least) >> shift).low() % BINS as u32;

    // Two histograms in turns: neighbours that meet in a bin do not wait for each other.
    let mut counts = [[0_usize; BINS]; 2];
    let (pairs, odd) = values.as_chunks::<2>();
    for pair in pairs {
        counts[0][bin(pair[0]) as usize] += 1;
        counts[1][bin(pair[1]) as usize] += 1;
    }
    odd.iter().for_each(|&value| counts[0][bin(value) as usize] += 1);

    let mut above = 0;
    let mut chosen = BINS as u32 - 1;
    loop {
        let count = counts[0][chosen as usize] + counts[1][chosen as usize];
        if above + count >= k || chosen == 0 {
            let mut survivors = Vec::with_capacity(count);
            // Most groups have none, which is found without a branch for each entry.
            for group in values.chunks(32) {
                if group.iter().fold(false, |any, &value| any | (bin(value) == chosen)) {
                    let members = group.iter().filter(|&&value| bin(value) == chosen);
                    survivors.extend(members.map(|&value| size(value)));
                }
            }
            return (survivors, above);
        }
        above += count;
        chosen -= 1;
    }
}
