//! Thresholds before the entries are seen: from a sample, or from the step before.

use super::{INFINITE, magnitude};

/// Entries sampled, at most: each costs about one access to memory.
const SAMPLES: usize = 1 << 15;

/// A threshold that at least `k` of the entries reach by all likelihood, and not many more: read off a sample of 32,768
/// entries, and lowered by three standard deviations of what the sample can err by. The same slice gives the same
/// threshold, always. 0 if `k` is not below the length, or if a non-zero threshold would be too high; infinity if `k` is 0.
///
/// It is a guess: whoever needs `k` entries counts what reached it.
pub fn estimate_threshold(values: &[f32], k: usize) -> f32 {
    if k == 0 {
        return f32::INFINITY;
    }
    if k >= values.len() {
        return 0.0;
    }
    let mut sample = sample(values);
    let expected = k as f64 * sample.len() as f64 / values.len() as f64;
    let guarded =
        if sample.len() == values.len() { k } else { (expected + 3.0 * expected.sqrt()) as usize + 2 };
    if guarded > sample.len() {
        return 0.0;
    }
    let (_, &mut reached, _) = sample.select_nth_unstable_by(guarded - 1, |a, b| b.cmp(a));
    f32::from_bits(reached.min(INFINITE))
}

/// Magnitudes of entries spread evenly over the slice: one from each of [`SAMPLES`] equal parts, at a place that a hash of
/// the part's number chooses, so that no period in the data is met in step. All of them, of a short slice.
fn sample(values: &[f32]) -> Vec<u32> {
    if values.len() <= SAMPLES {
        return values.iter().map(|&value| magnitude(value)).collect();
    }
    let bound = |part: usize| (part as u64 * values.len() as u64 / SAMPLES as u64) as usize;
    (0..SAMPLES)
        .map(|part| {
            let (start, end) = (bound(part), bound(part + 1));
            // Multiplying by 2^64 / golden ratio, then taking high bits: Knuth's multiplicative hash.
            let hash = (part as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            magnitude(values[start + ((hash * (end - start) as u64) >> 32) as usize])
        })
        .collect()
}

/// How many entries the next step's threshold aims at, as a multiple of k: what may go wrong between two steps.
const AIM: f32 = 2.0;

/// The threshold that about 2`k` entries will reach in the next step if it resembles this one, in which `reached` entries
/// reached `threshold` and [`top_k`](super::top_k) kept the `k` largest of them, down to `smallest`.
///
/// Between the two thresholds the count is taken as a power of the magnitude. That matters once residuals have built up:
/// entries crowd just below what is sent, and a fixed share of `smallest` would let many times `k` pass. The result is
/// between 0.5 and 0.98 of `smallest`; 0.8 of it where this step tells nothing (no more than `k` reached it).
pub fn predict_threshold(threshold: f32, reached: usize, smallest: f32, k: usize) -> f32 {
    let surplus = (reached as f32 / k as f32).ln();
    let span = (smallest / threshold).ln();
    // count ∝ magnitude^(-surplus / span), so AIM × k are reached at AIM^(-span / surplus) of `smallest`.
    let share = if surplus > 0.0 && surplus.is_finite() && span > 0.0 && span.is_finite() {
        (-AIM.ln() * span / surplus).exp().clamp(0.5, 0.98)
    } else {
        0.8
    };
    share * smallest
}
