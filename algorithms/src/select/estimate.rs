//! Thresholds before the entries are seen: from a sample, or from the step before.

use crate::Element;

/// One entry of this many is sampled, as long as that is within [`SAMPLES`].
const SPACING: usize = 32;
/// Entries sampled: enough for an estimate, and few, since each costs one access to memory.
const SAMPLES: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 15;

/// A threshold that at least `k` of the entries reach by all likelihood, and not many more: read off a sample of at
/// most 32,768 entries, and lowered by three standard deviations of what the sample can err by. The same slice gives the same
/// threshold, always. 0 if `k` is not below the length, or if a non-zero threshold would be too high; infinity if `k` is 0.
///
/// It is a guess: a caller that needs `k` entries counts what reached it.
pub fn estimate_threshold<T: Element>(values: &[T], k: usize) -> T {
    estimate(values.len(), k, || sample(values))
}

/// The same of values that lie elsewhere: `gather` gives those at some indices.
pub(crate) fn estimate_from<T: Element, E>(
    len: usize,
    k: usize,
    gather: impl FnOnce(&[u32]) -> Result<Vec<T>, E>,
) -> Result<T, E> {
    if k == 0 || k >= len {
        return Ok(estimate(len, k, Vec::new));
    }
    let sampled = gather(&places(len).collect::<Vec<u32>>())?;
    Ok(estimate(len, k, || sampled.iter().map(|value| value.magnitude()).collect()))
}

fn estimate<T: Element>(len: usize, k: usize, sample: impl FnOnce() -> Vec<T::Magnitude>) -> T {
    if k == 0 {
        return T::from_magnitude(T::INFINITE);
    }
    if k >= len {
        return T::ZERO;
    }
    let mut sample = sample();
    let expected = k as f64 * sample.len() as f64 / len as f64;
    let guarded = if sample.len() == len { k } else { (expected + 3.0 * expected.sqrt()) as usize + 2 };
    if guarded > sample.len() {
        return T::ZERO;
    }
    let from_below = sample.len() - guarded;
    let (_, &mut reached, _) = sample.select_nth_unstable(from_below);
    T::from_magnitude(reached.min(T::INFINITE))
}

/// Magnitudes of entries spread evenly over the slice, see [`places`].
pub(crate) fn sample<T: Element>(values: &[T]) -> Vec<T::Magnitude> {
    places(values.len()).map(|place| values[place as usize].magnitude()).collect()
}

/// Which entries of so many are sampled: one from each of 2^m equal parts, at a place that a hash of the part's number chooses, so that
/// no period in the data is met in step. All of them, of a few. Places ascend.
pub(crate) fn places(len: usize) -> impl Iterator<Item = u32> {
    let parts = (len / SPACING).clamp(*SAMPLES.start(), *SAMPLES.end()).next_power_of_two();
    let all = len <= parts;
    let (len, shift) = (len as u64, parts.ilog2());
    let bound = move |part: u64| (part * len) >> shift;
    (0..if all { len } else { parts as u64 }).map(move |part| {
        // Multiplying by 2^64 / golden ratio, then taking high bits: Knuth's multiplicative hash.
        let hash = (part + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let place = bound(part) + ((hash * (bound(part + 1) - bound(part))) >> 32);
        if all { part as u32 } else { place as u32 }
    })
}

/// How many entries the next step's threshold aims at, as a multiple of k: what may go wrong between two steps.
const AIM: f64 = 2.0;

/// The threshold that about 2`k` entries will reach in the next step if it resembles this one, in which `reached` entries
/// reached `threshold` and [`top_k`](super::top_k) kept the `k` largest of them, down to `smallest`.
///
/// Between the two thresholds the count is taken as a power of the magnitude. That matters once residuals have built up:
/// entries cluster just below what is sent, and a fixed share of `smallest` would let many times `k` pass. The result is
/// between 0.5 and 0.98 of `smallest`; 0.8 of it where this step gives no estimate (no more than `k` reached it).
pub fn predict_threshold<T: Element>(threshold: T, reached: usize, smallest: T, k: usize) -> T {
    let surplus = (reached as f64 / k as f64).ln();
    let span = (smallest.to_f64() / threshold.to_f64()).ln();
    // count ∝ magnitude^(-surplus / span), so AIM × k are reached at AIM^(-span / surplus) of `smallest`.
    let share = if surplus > 0.0 && surplus.is_finite() && span > 0.0 && span.is_finite() {
        (-AIM.ln() * span / surplus).exp().clamp(0.5, 0.98)
    } else {
        0.8
    };
    T::from_f64(share * smallest.to_f64())
}
