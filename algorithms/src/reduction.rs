//! How the workers' values become one: their sum, unless something else is asked for.
//!
//! A reduction is associative and commutative and has a neutral element, as which absent entries read. Rounding makes
//! sums and products associative only nearly, so their order is fixed by the schedule; commutative they are bit by bit.
//!
//! Only a sum has a residual: what a worker did not send of a maximum cannot be sent later. Hence every other reduction
//! goes with schedules that keep every entry as it is.

use crate::Element;
use crate::bag::Entries;
use crate::element::{Wide, values};

/// How values at the same index are combined. All values are finite.
#[derive(Clone, Copy, Debug, Default)]
pub enum Reduction<T = f32> {
    /// The sum. Absent entries are −0, which adds nothing to any value, not even to a zero's sign; values that cancel are +0,
    /// an entry like any other.
    #[default]
    Sum,
    /// The greatest; +0 is greater than −0.
    Max,
    /// The least; −0 is less than +0.
    Min,
    /// The product.
    Product,
    /// One of the user's own.
    Custom {
        /// Its name, for messages: workers that reduce together must give the same.
        name: &'static str,
        /// combine(neutral, x) must have the bits of x, for every finite x. Finite, so that it may travel.
        neutral: T,
        /// Must be associative, must be commutative bit by bit, and must depend on nothing but its arguments.
        combine: fn(T, T) -> T,
    },
}

impl<T: Element> Reduction<T> {
    /// The name: sum, max, min, product, or the user's.
    pub fn name(&self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::Product => "product",
            Reduction::Custom { name, .. } => name,
        }
    }

    /// Whether what is left out now may be added later: true for the sum alone. All others need schedules that keep every
    /// entry exactly.
    pub fn has_residual(&self) -> bool {
        matches!(self, Reduction::Sum)
    }

    /// What an absent entry reads as: −0, the least finite value, the greatest, 1, or the user's.
    pub fn neutral(&self) -> T {
        match *self {
            Reduction::Sum => -T::ZERO,
            Reduction::Max => T::LEAST,
            Reduction::Min => T::GREATEST,
            Reduction::Product => T::ONE,
            Reduction::Custom { neutral, .. } => neutral,
        }
    }

    /// Two values as one. Finite values may give an infinite sum or product.
    #[inline(always)]
    pub fn combine(&self, a: T, b: T) -> T {
        let (wide_a, wide_b) = (a.widen(), b.widen());
        match self {
            Reduction::Sum => T::narrow(wide_a + wide_b),
            Reduction::Max => T::narrow(wide_a.greater(wide_b)),
            Reduction::Min => T::narrow(wide_a.lesser(wide_b)),
            Reduction::Product => T::narrow(wide_a * wide_b),
            Reduction::Custom { combine, .. } => combine(a, b),
        }
    }

    /// Combines each value of `into` with the one at the same place in `with`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn combine_slices(&self, into: &mut [T], with: &[T]) {
        if cfg!(target_endian = "little") {
            self.combine_bytes(bytemuck::cast_slice_mut(into), bytemuck::cast_slice(with));
        } else {
            assert_eq!(into.len(), with.len(), "every value has one to be combined with");
            into.iter_mut().zip(with).for_each(|(a, &b)| *a = self.combine(*a, b));
        }
    }

    /// [`combine_slices`](Self::combine_slices) for little-endian bytes, as they come from the wire: in the memory they
    /// came in, whatever its alignment.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn combine_bytes(&self, into: &mut [u8], with: &[u8]) {
        assert_eq!(into.len(), with.len(), "every value has one to be combined with");
        match *self {
            Reduction::Sum => T::combine_all(into, with, |a, b| a + b),
            Reduction::Max => T::combine_all(into, with, Wide::greater),
            Reduction::Min => T::combine_all(into, with, Wide::lesser),
            Reduction::Product => T::combine_all(into, with, |a, b| a * b),
            Reduction::Custom { combine, .. } => {
                for (into, with) in into.chunks_exact_mut(T::WIDTH).zip(values(with)) {
                    into.copy_from_slice(combine(T::from_le(into), with).to_le().as_ref());
                }
            }
        }
    }

    /// Combines the values of `into` with the entries at their indices.
    ///
    /// # Panics
    /// If an index is not below the length of `into`.
    pub fn combine_entries(&self, into: &mut [T], entries: &Entries<T>) {
        for (index, value) in entries.iter() {
            let place = &mut into[index as usize];
            *place = self.combine(*place, value);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
