//! Exact top-k by magnitude.

use std::any::Any;

use super::narrow::narrow;
use super::sweep::{scan_from, scan_with};
use super::{Entries, Simd, estimate_threshold, limit, portable};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::Element;
use crate::element::Magnitude;

/// Splits entries into the `k` of largest magnitude and the others: appends them to `kept` and to `dropped`, if that is
/// wanted, each in the order given. Among equal magnitudes the first come first, which is the lower index where indices ascend. Zeros
/// come last, and NaN is larger than infinity.
///
/// Returns the smallest magnitude kept, 0 if nothing was. O(entries), whatever they are.
///
/// # Panics
/// If `indices` and `values` differ in length.
pub fn top_k<T: Element>(
    indices: &[u32],
    values: &[T],
    k: usize,
    kept: &mut Entries<T>,
    dropped: Option<&mut Entries<T>>,
) -> T {
    top_k_with(Simd::current(), indices, values, k, kept, dropped)
}

/// [`top_k`] with the instructions named.
pub(super) fn top_k_with<T: Element>(
    simd: Simd,
    indices: &[u32],
    values: &[T],
    k: usize,
    kept: &mut Entries<T>,
    dropped: Option<&mut Entries<T>>,
) -> T {
    assert_eq!(indices.len(), values.len(), "every entry has one index and one value");
    assert!(simd <= Simd::best(), "this processor lacks {simd:?}");
    let cut = cut(simd, values, k);
    let mut rest = cut;
    let mut dropped = dropped;
    let split = split_vectors(simd, &mut rest, indices, values, kept, dropped.as_deref_mut());
    portable::split(&mut rest, &indices[split..], &values[split..], kept, dropped);
    cut.smallest_kept(values)
}

/// Splits whole vectors, if there is a kernel for the type; returns how many entries that were. The processor must have the
/// instructions named, and the slices be equally long.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
fn split_vectors<T: Element>(
    simd: Simd,
    rest: &mut Cut<T::Magnitude>,
    indices: &[u32],
    values: &[T],
    kept: &mut Entries<T>,
    dropped: Option<&mut Entries<T>>,
) -> usize {
    let [rest, kept]: [&mut dyn Any; 2] = [rest, kept];
    let (Some(rest), Some(kept)) = (rest.downcast_mut::<Cut<i32>>(), kept.downcast_mut::<Entries>()) else {
        return 0;
    };
    let dropped = dropped.and_then(|dropped| (dropped as &mut dyn Any).downcast_mut::<Entries>());
    // So T is f32, and this cast changes nothing.
    let values: &[f32] = bytemuck::cast_slice(values);
    match simd {
        // SAFETY: the processor has these instructions, and the slices are equally long: the caller asserts both.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { avx512::split(rest, indices, values, kept, dropped) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { avx2::split(rest, indices, values, kept, dropped) },
        _ => 0,
    }
}

/// The `k` non-zero entries of largest magnitude in `values`, indices ascending, the lower index first among equal
/// magnitudes; fewer if there are not so many. Needs no prediction: one scan, and a few more where a sample misleads.
///
/// # Panics
/// If an index would not fit into u32.
pub fn top_k_dense<T: Element>(values: &[T], k: usize) -> Entries<T> {
    top_k_dense_with(Simd::current(), values, k)
}

/// [`top_k_dense`] with the instructions named.
pub(super) fn top_k_dense_with<T: Element>(simd: Simd, values: &[T], k: usize) -> Entries<T> {
    let (found, _) = candidates_with(simd, values, k);
    let mut kept = Entries::default();
    top_k_with(simd, &found.indices, &found.values, k, &mut kept, None);
    kept
}

/// Entries among which the `k` of largest magnitude are, indices ascending, and a magnitude: all that are larger are among
/// them, and of those that are equal to it the first, at least as many as belong to the `k` largest.
///
/// One scan finds them where a sample gives the threshold. Where it does not, because many magnitudes are equal or because
/// the sample misses what is large, a few more passes do, whatever the values are.
pub(crate) fn candidates<T: Element>(values: &[T], k: usize) -> (Entries<T>, T) {
    candidates_with(Simd::current(), values, k)
}

/// [`candidates`] with the instructions named.
fn candidates_with<T: Element>(simd: Simd, values: &[T], k: usize) -> (Entries<T>, T) {
    let (none, mut found) = (T::Magnitude::default(), Entries::default());
    let estimate = estimate_threshold(values, k);
    let estimated = estimate.magnitude();
    if estimated == none && k >= values.len() {
        scan_with(simd, values, estimate, 0, &mut found);
        return (found, estimate);
    }
    let too_many = !append_few(simd, values, estimated.max(T::Magnitude::ONE), k, &mut found);
    if !too_many && (found.len() >= k || estimated == none) {
        return (found, estimate);
    }
    found.clear();
    // Many magnitudes equal the estimate, or it is far off.
    let ties = too_many && append_few(simd, values, estimated + T::Magnitude::ONE, k, &mut found);
    let cut = if ties && found.len() <= k {
        Cut { magnitude: estimated, ties: k - found.len() }
    } else {
        let cut = cut(simd, values, k);
        found.clear();
        if cut.magnitude < T::Magnitude::MAX {
            scan_from(simd, values, cut.magnitude + T::Magnitude::ONE, 0, &mut found);
        }
        cut
    };
    let equal = (0u32..).zip(values).filter(|(_, value)| value.magnitude() == cut.magnitude);
    let equal: Entries<T> = equal.take(cut.ties).map(|(index, &value)| (index, value)).collect();
    (found.merge(&equal), T::from_magnitude(cut.magnitude))
}

/// What [`scan`](super::scan) finds, unless it is [too many](surplus) for the `k` largest.
pub(crate) fn scan_few<T: Element>(values: &[T], threshold: T, k: usize) -> Option<Entries<T>> {
    let mut found = Entries::default();
    append_few(Simd::current(), values, limit(threshold), k, &mut found).then_some(found)
}

/// Appends what is at least so large, which is not 0, unless it is [too many](surplus); then some of it. Returns whether it was all.
fn append_few<T: Element>(
    simd: Simd,
    values: &[T],
    limit: T::Magnitude,
    k: usize,
    found: &mut Entries<T>,
) -> bool {
    (0..).zip(values.chunks(STRIDE)).all(|(number, part)| {
        scan_from(simd, part, limit, number * STRIDE as u32, found);
        found.len() <= surplus(k, values.len())
    })
}

/// Entries after which candidates are counted.
pub(crate) const STRIDE: usize = 1 << 16;

/// More candidates than this for the `k` largest of `n` cost more than another look at all entries.
pub(crate) fn surplus(k: usize, n: usize) -> usize {
    8 * k + n / 64
}

/// Where a top-k cuts: larger magnitudes are kept, and of those equal to it the first few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut<M> {
    /// The magnitude of the last one kept.
    pub(super) magnitude: M,
    /// How many entries of exactly that magnitude are kept.
    pub(super) ties: usize,
}

/// Where the top `k` of `values` cuts. The processor must have the instructions named.
fn cut<T: Element>(simd: Simd, values: &[T], k: usize) -> Cut<T::Magnitude> {
    if k == 0 {
        // Nothing is larger than every magnitude.
        return Cut { magnitude: T::Magnitude::MAX, ties: 0 };
    }
    if k >= values.len() {
        return Cut { magnitude: T::Magnitude::default(), ties: values.len() };
    }
    let (mut survivors, above) = match simd {
        // SAFETY: the processor has AVX2, or more: asserted by the caller.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 | Simd::Avx512 => unsafe { avx2::narrow(values, k) },
        _ => narrow(values, k),
    };
    let (larger, &mut last, _) = survivors.select_nth_unstable_by(k - above - 1, |a, b| b.cmp(a));
    Cut { magnitude: last, ties: k - above - larger.iter().filter(|&&size| size > last).count() }
}

impl<M: Magnitude> Cut<M> {
    /// Whether the next entry, of this magnitude, is kept; takes off a tie that is.
    #[inline(always)]
    pub(super) fn keeps(&mut self, magnitude: M) -> bool {
        let tie = (magnitude == self.magnitude) & (self.ties > 0);
        self.ties -= usize::from(tie);
        (magnitude > self.magnitude) | tie
    }

    /// The smallest magnitude that this cut keeps of `values`, 0 if it keeps none.
    fn smallest_kept<T: Element<Magnitude = M>>(self, values: &[T]) -> T {
        if self.ties > 0 && self.magnitude > M::default() {
            return T::from_magnitude(self.magnitude);
        }
        let kept = values.iter().map(|value| value.magnitude());
        let kept = kept.filter(|&size| size > self.magnitude || self.ties > 0);
        T::from_magnitude(kept.min().unwrap_or_default())
    }
}
