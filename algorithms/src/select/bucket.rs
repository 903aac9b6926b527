//! The largest entries of every bucket.

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::sweep::scan_with;
use super::top::Cut;
use super::{Entries, Simd};
use crate::Element;

/// Columns into which a bucket is laid out, to find a threshold that enough of its entries reach.
const COLUMNS: usize = 64;

/// Appends to `kept` the `k` non-zero entries of largest magnitude of every `bucket` consecutive values, indices ascending,
/// the lower index first among equal magnitudes; fewer of a bucket that has not so many. The last bucket may be shorter.
///
/// This is the selection of SparCML (Renggli et al. 2019, §6.1), there 2 to 16 of every 512: local, so that one pass over
/// memory is enough, and so that no part of a layer is left out.
///
/// # Panics
/// If `bucket` is 0, or if an index would not fit into u32.
pub fn bucketed<T: Element>(values: &[T], bucket: usize, k: usize, kept: &mut Entries<T>) {
    bucketed_with(Simd::current(), values, bucket, k, kept);
}

/// [`bucketed`] with the instructions named.
pub(super) fn bucketed_with<T: Element>(
    simd: Simd,
    values: &[T],
    bucket: usize,
    k: usize,
    kept: &mut Entries<T>,
) {
    assert!(bucket > 0, "a bucket has at least one entry");
    assert!(values.len() as u64 <= 1 << 32, "an index would not fit into u32");
    assert!(simd <= Simd::best(), "this processor lacks {simd:?}");
    if k == 0 {
        return;
    }
    let (mut found, mut sizes) = (Entries::default(), Vec::new());
    for (number, values) in values.chunks(bucket).enumerate() {
        let first = (number * bucket) as u32;
        let threshold = match simd {
            // SAFETY: the processor has AVX2, or more: asserted above.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 | Simd::Avx512 => unsafe { avx2::reached_by(values, k) },
            _ => reached_by(values, k),
        };
        found.clear();
        scan_with(simd, values, threshold, first, &mut found);
        keep_largest(&found, k, &mut sizes, kept);
    }
}

/// A threshold that at least `k` of the values reach, and rarely many more; 0 if `k` is too large to estimate it.
///
/// Every column has its largest magnitude, and at least `k` entries reach the `k`-th largest of those.
#[inline(always)]
pub(super) fn reached_by<T: Element>(values: &[T], k: usize) -> T {
    if k > COLUMNS / 2 || values.len() < 2 * COLUMNS {
        return T::ZERO;
    }
    let mut largest = [T::Magnitude::default(); COLUMNS];
    let (rows, rest) = values.as_chunks::<COLUMNS>();
    for row in rows {
        for (largest, value) in largest.iter_mut().zip(row) {
            *largest = value.magnitude().max(*largest);
        }
    }
    for (largest, value) in largest.iter_mut().zip(rest) {
        *largest = value.magnitude().max(*largest);
    }
    let (_, &mut reached, _) = largest.select_nth_unstable(COLUMNS - k);
    T::from_magnitude(reached)
}

/// Appends the `k` largest of the entries found. `sizes` is memory to work in.
fn keep_largest<T: Element>(
    found: &Entries<T>,
    k: usize,
    sizes: &mut Vec<T::Magnitude>,
    kept: &mut Entries<T>,
) {
    if found.len() <= k {
        kept.indices.extend_from_slice(&found.indices);
        kept.values.extend_from_slice(&found.values);
        return;
    }
    sizes.clear();
    sizes.extend(found.values.iter().map(|value| value.magnitude()));
    let (_, &mut last, larger) = sizes.select_nth_unstable(found.len() - k);
    let larger = larger.iter().filter(|&&size| size > last).count();
    let mut cut = Cut { magnitude: last, ties: k - larger };
    // Which of them are kept cannot be predicted, so every one is written, and the next one over it if it goes.
    let mut next = kept.len();
    kept.indices.resize(next + found.len(), 0);
    kept.values.resize(next + found.len(), T::ZERO);
    for (index, value) in found.iter() {
        (kept.indices[next], kept.values[next]) = (index, value);
        next += usize::from(cut.keeps(value.magnitude()));
    }
    kept.indices.truncate(next);
    kept.values.truncate(next);
}
