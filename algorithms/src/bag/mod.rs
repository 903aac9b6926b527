//! The sparse vector in flight: merging, splitting, and its forms on the wire.

mod coding;
mod dense;
mod entries;
mod marks;
mod merge;
mod qsgd;
pub mod wire;

pub use coding::{Coding, Rounded, UnknownCoding};
pub use dense::{Dense, floats};
pub use entries::Entries;
pub(crate) use marks::Marks;

use std::borrow::Cow;

use crate::{Element, Reduction};

/// Whether a value of a dense block is an entry. Where a sum has none stands −0: it adds nothing to any value, and no values
/// that cancel leave it.
pub(crate) fn is_entry<T: Element>(value: T) -> bool {
    value.bits() != (-T::ZERO).bits()
}

/// The values of one block on their way: sparse, or dense once that is smaller.
#[derive(Clone, Debug, PartialEq)]
pub enum Bag<T: Element = f32> {
    /// Sorted indices within the block, and the values there.
    Sparse(Entries<T>),
    /// One value for every entry of the block.
    Dense(Dense<T>),
}

impl<T: Element> Bag<T> {
    /// A bag that holds nothing.
    pub fn empty() -> Self {
        Bag::Sparse(Entries::default())
    }

    /// The number of values that are not zero.
    pub fn nonzeros(&self) -> usize {
        self.magnitudes().count()
    }

    /// The entries as (index in the block, value), ascending: of dense values all but −0, which stands where a sum has none.
    pub fn iter(&self) -> Box<dyn Iterator<Item = (u32, T)> + '_> {
        match self {
            Bag::Sparse(entries) => Box::new(entries.iter()),
            Bag::Dense(values) => Box::new(values.entries()),
        }
    }

    /// The indices of the entries, ascending.
    pub(crate) fn indices(&self) -> Cow<'_, [u32]> {
        match self {
            Bag::Sparse(entries) => Cow::Borrowed(&entries.indices),
            Bag::Dense(values) => values.entries().map(|(index, _)| index).collect(),
        }
    }

    /// The magnitudes that are not zero's.
    pub(crate) fn magnitudes(&self) -> impl Iterator<Item = T::Magnitude> + '_ {
        let (sparse, dense) = match self {
            Bag::Sparse(entries) => (Some(entries.values.iter().copied()), None),
            Bag::Dense(values) => (None, Some(values.iter())),
        };
        let values = sparse.into_iter().flatten().chain(dense.into_iter().flatten());
        values.map(Element::magnitude).filter(|magnitude| *magnitude != T::Magnitude::default())
    }

    /// The index of the first value that is NaN or infinite.
    pub(crate) fn first_non_finite(&self) -> Option<usize> {
        let finite = |values: &[T]| values.iter().all(|v| v.is_finite());
        match self {
            Bag::Sparse(entries) if finite(&entries.values) => None,
            Bag::Sparse(entries) => {
                let position = entries.values.iter().position(|v| !v.is_finite())?;
                Some(entries.indices[position] as usize)
            }
            Bag::Dense(values) => values.iter().position(|v| !v.is_finite()),
        }
    }

    /// The [entries](Self::iter) by themselves.
    pub fn into_entries(self) -> Entries<T> {
        match self {
            Bag::Sparse(entries) => entries,
            Bag::Dense(values) => values.entries().collect(),
        }
    }

    /// Sparse entries of a block of `len` entries, turned dense where COO would be larger
    /// (an index and a value for each entry against a value for all: SparCML's δ).
    pub fn smaller(entries: Entries<T>, len: usize) -> Self {
        Self::smaller_with(entries, len, &Reduction::Sum)
    }

    /// [`smaller`](Self::smaller), with the neutral element of `reduction` where there is no entry.
    pub fn smaller_with(entries: Entries<T>, len: usize, reduction: &Reduction<T>) -> Self {
        if Self::is_dense_with(entries.len(), len) {
            Bag::Dense(entries.to_dense_with(len, reduction.neutral()).into())
        } else {
            Bag::Sparse(entries)
        }
    }

    /// Whether a block of `len` entries turns dense where so many of them are there.
    pub(crate) fn is_dense_with(count: usize, len: usize) -> bool {
        count * (size_of::<u32>() + T::WIDTH) > len * T::WIDTH
    }

    /// self + other, value by value: the bits do not depend on which side is sparse.
    pub fn add(self, other: Self, len: usize) -> Self {
        self.combine(other, len, &Reduction::Sum)
    }

    /// Two bags of a block of `len` entries as one, each absent entry read as the neutral element: the bits do not depend
    /// on which side is sparse.
    pub fn combine(self, other: Self, len: usize, reduction: &Reduction<T>) -> Self {
        match (self, other) {
            (Bag::Sparse(a), Bag::Sparse(b)) => {
                Bag::smaller_with(a.merge_with(&b, reduction), len, reduction)
            }
            (Bag::Dense(values), Bag::Sparse(entries)) | (Bag::Sparse(entries), Bag::Dense(values)) => {
                let mut values = values.to_vec();
                reduction.combine_entries(&mut values, &entries);
                Bag::Dense(values.into())
            }
            (Bag::Dense(a), Bag::Dense(b)) => {
                let mut values = a.into_bytes();
                let mut rest = &mut values[..];
                for piece in b.pieces() {
                    let (here, after) = rest.split_at_mut(piece.len());
                    reduction.combine_bytes(here, piece);
                    rest = after;
                }
                let mut both = Dense::default();
                both.push(values.freeze());
                Bag::Dense(both)
            }
        }
    }

    /// The sum of many bags of a block of `len` entries, in a fixed order: ((0 + 1) + (2 + 3)) + …
    pub fn sum_of(bags: Vec<Self>, len: usize) -> Self {
        Self::reduce(bags, len, &Reduction::Sum)
    }

    /// Many bags of a block of `len` entries as one, in the order of [`sum_of`](Self::sum_of).
    pub fn reduce(bags: Vec<Self>, len: usize, reduction: &Reduction<T>) -> Self {
        if bags.iter().all(|bag| matches!(bag, Bag::Sparse(_))) {
            let sets: Vec<Entries<T>> = bags.into_iter().map(Bag::into_entries).collect();
            return Bag::smaller_with(Entries::reduce(&sets, reduction), len, reduction);
        }
        in_pairs(bags, |a, b| a.combine(b, len, reduction)).unwrap_or_else(Self::empty)
    }
}

/// Combines neighbours until one is left: a tree as low as can be, whose shape depends on nothing but the number.
fn in_pairs<B>(mut level: Vec<B>, pair: impl Fn(B, B) -> B) -> Option<B> {
    while level.len() > 1 {
        let mut rest = level.into_iter();
        let next = || {
            let first = rest.next()?;
            Some(match rest.next() {
                Some(second) => pair(first, second),
                None => first,
            })
        };
        level = std::iter::from_fn(next).collect();
    }
    level.pop()
}

#[cfg(test)]
mod tests;
