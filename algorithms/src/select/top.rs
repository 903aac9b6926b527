//! Exact top-k by magnitude.

use super::narrow::narrow;
use super::sweep::scan_with;
use super::{Entries, Simd, estimate_threshold, magnitude, portable};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// Splits entries into the `k` of largest magnitude and the others: appends them to `kept` and to `dropped`, each in the
/// order given. Among equal magnitudes the first come first, which is the lower index where indices ascend. Zeros are
/// never kept, so `kept` may grow by fewer than `k`; NaN is larger than infinity.
///
/// Returns the smallest magnitude kept, 0 if nothing was. O(entries), whatever they are.
///
/// # Panics
/// If `indices` and `values` differ in length.
pub fn top_k(indices: &[u32], values: &[f32], k: usize, kept: &mut Entries, dropped: &mut Entries) -> f32 {
    top_k_with(Simd::current(), indices, values, k, kept, dropped)
}

/// [`top_k`] with the instructions named.
pub(super) fn top_k_with(
    simd: Simd,
    indices: &[u32],
    values: &[f32],
    k: usize,
    kept: &mut Entries,
    dropped: &mut Entries,
) -> f32 {
    assert_eq!(indices.len(), values.len(), "every entry has one index and one value");
    assert!(simd <= Simd::best(), "this processor lacks {simd:?}");
    let cut = cut(simd, values, k);
    let mut rest = cut;
    let split = match simd {
        // SAFETY: the processor has these instructions, and the slices are equally long: both asserted above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { avx512::split(&mut rest, indices, values, kept, dropped) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { avx2::split(&mut rest, indices, values, kept, dropped) },
        _ => 0,
    };
    portable::split(&mut rest, &indices[split..], &values[split..], kept, dropped);
    cut.smallest_kept(values)
}

/// The `k` non-zero entries of largest magnitude in `values`, indices ascending, the lower index first among equal
/// magnitudes; fewer if there are not so many. Needs no prediction: it samples a threshold, scans, and lowers the threshold
/// until enough entries reach it.
///
/// # Panics
/// If an index would not fit into u32.
pub fn top_k_dense(values: &[f32], k: usize) -> Entries {
    top_k_dense_with(Simd::current(), values, k)
}

/// [`top_k_dense`] with the instructions named.
pub(super) fn top_k_dense_with(simd: Simd, values: &[f32], k: usize) -> Entries {
    let mut kept = Entries::default();
    if k == 0 {
        return kept;
    }
    let mut found = Entries::default();
    for threshold in [estimate_threshold(values, k), estimate_threshold(values, k.saturating_mul(4)), 0.0] {
        found.clear();
        scan_with(simd, values, threshold, 0, &mut found);
        if found.len() >= k || threshold == 0.0 {
            break;
        }
    }
    let mut dropped = Entries::default();
    top_k_with(simd, &found.indices, &found.values, k, &mut kept, &mut dropped);
    kept
}

/// Where a top-k cuts: larger magnitudes are kept, and of those equal to it the first few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The magnitude of the last one kept, as bits.
    pub(super) magnitude: u32,
    /// How many entries of exactly that magnitude are kept.
    pub(super) ties: usize,
}

/// Where the top `k` of `values` cuts. The processor must have the instructions named.
fn cut(simd: Simd, values: &[f32], k: usize) -> Cut {
    // Nothing is larger than every magnitude; everything but zero is larger than 0.
    const NOTHING: Cut = Cut { magnitude: u32::MAX >> 1, ties: 0 };
    const NON_ZERO: Cut = Cut { magnitude: 0, ties: 0 };
    if k == 0 {
        return NOTHING;
    }
    if k >= values.len() {
        return NON_ZERO;
    }
    let (mut survivors, above) = match simd {
        // SAFETY: the processor has AVX2, or more: asserted by the caller.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 | Simd::Avx512 => unsafe { avx2::narrow(values, k) },
        _ => narrow(values, k),
    };
    let (larger, &mut last, _) = survivors.select_nth_unstable_by(k - above - 1, |a, b| b.cmp(a));
    if last == 0 {
        return NON_ZERO;
    }
    Cut { magnitude: last, ties: k - above - larger.iter().filter(|&&size| size > last).count() }
}

impl Cut {
    /// The smallest magnitude that this cut keeps of `values`, 0 if it keeps none.
    fn smallest_kept(self, values: &[f32]) -> f32 {
        if self.ties > 0 {
            return f32::from_bits(self.magnitude);
        }
        let kept = values.iter().map(|&value| magnitude(value)).filter(|&size| size > self.magnitude);
        f32::from_bits(kept.min().unwrap_or(0))
    }
}
