//! Two sorted runs of entries as one.
//!
//! First both are interleaved by index, whatever their values are; then neighbours of one index become one entry. Which of
//! two random indices is the lower cannot be predicted, so nothing here branches on it.

mod many;
mod portable;

#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
mod avx512;

use std::any::Any;

pub(super) use many::reduce;
use portable::{Merged, join};

use super::Entries;
use crate::select::Simd;
use crate::{Element, Reduction};

/// Entries that ascend: a part of some [`Entries`].
#[derive(Clone, Copy)]
pub(super) struct SortedRun<'a, T> {
    indices: &'a [u32],
    values: &'a [T],
}

impl<'a, T: Element> SortedRun<'a, T> {
    /// All of them.
    pub(super) fn of(entries: &'a Entries<T>) -> Self {
        Self { indices: &entries.indices, values: &entries.values }.before(entries.len())
    }

    /// Those before `end`. Lengths are equal from here on, as the compiler sees.
    fn before(self, end: usize) -> Self {
        Self { indices: &self.indices[..end], values: &self.values[..end] }
    }

    /// Those from `start` on.
    fn after(self, start: usize) -> Self {
        Self { indices: &self.indices[start..], values: &self.values[start..] }
    }

    /// Takes the first `count` entries away.
    fn take(&mut self, count: usize) -> Self {
        let first = self.before(count);
        *self = self.after(count);
        first
    }

    fn len(self) -> usize {
        self.indices.len()
    }
}

/// Where entries are written: as many indices as values.
#[derive(Default)]
struct Position<'a, T> {
    indices: &'a mut [u32],
    values: &'a mut [T],
}

impl<'a, T: Element> Position<'a, T> {
    /// Takes the first `count` places away.
    fn take(&mut self, count: usize) -> Self {
        let (indices, values) = (&mut self.indices, &mut self.values);
        let (indices, other_indices) = std::mem::take(indices).split_at_mut(count);
        let (values, other_values) = std::mem::take(values).split_at_mut(count);
        (self.indices, self.values) = (other_indices, other_values);
        Self { indices, values }
    }

    /// Copies a run to the first places, and takes them away.
    fn fill(&mut self, run: SortedRun<T>) {
        let here = self.take(run.len());
        here.indices.copy_from_slice(run.indices);
        here.values.copy_from_slice(run.values);
    }
}

/// Makes `out` hold the two runs as one, values at the same index combined. What it held before is forgotten; its memory is
/// used again, and is not cleared first if it is still counted in the lengths.
pub(super) fn merge<T: Element>(
    a: SortedRun<T>,
    b: SortedRun<T>,
    reduction: &Reduction<T>,
    out: &mut Entries<T>,
) {
    merge_on(Simd::current(), (a, b), reduction, out);
}

/// [`merge`] with the instructions named.
fn merge_on<T: Element>(
    simd: Simd,
    (a, b): (SortedRun<T>, SortedRun<T>),
    reduction: &Reduction<T>,
    out: &mut Entries<T>,
) {
    assert!(simd <= Simd::best(), "this processor lacks {simd:?}");
    let total = a.len() + b.len();
    out.indices.resize(total, 0);
    out.values.resize(total, T::ZERO);
    let mut place = Position { indices: &mut out.indices, values: &mut out.values };
    let (i, j) = match simd {
        // SAFETY: the processor has these instructions (asserted), values have 4 bytes, and all entries have places.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 if T::WIDTH == 4 => unsafe { avx512::interleave(a, b, &mut place) },
        _ => (0, 0),
    };
    place.take(i + j);
    portable::interleave(a.after(i), b.after(j), place);
    let kept = match *reduction {
        Reduction::Sum => {
            let start = add_neighbours(simd, out);
            join(out, start, |a, b| Reduction::Sum.combine(a, b))
        }
        Reduction::Max => join(out, Merged::default(), |a, b| Reduction::Max.combine(a, b)),
        Reduction::Min => join(out, Merged::default(), |a, b| Reduction::Min.combine(a, b)),
        Reduction::Product => join(out, Merged::default(), |a, b| Reduction::Product.combine(a, b)),
        Reduction::Custom { combine, .. } => join(out, Merged::default(), combine),
    };
    out.indices.truncate(kept);
    out.values.truncate(kept);
}

/// Adds as many neighbours as there is a kernel for: values of f32 have one.
fn add_neighbours<T: Element>(simd: Simd, out: &mut Entries<T>) -> Merged {
    match (simd, (out as &mut dyn Any).downcast_mut::<Entries>()) {
        // SAFETY: the processor has these instructions (asserted by the caller), and both were resized alike.
        #[cfg(target_arch = "x86_64")]
        (Simd::Avx512, Some(out)) => unsafe { avx512::add_neighbours(&mut out.indices, &mut out.values) },
        _ => Merged::default(),
    }
}
