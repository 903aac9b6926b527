//! The sparse vector in flight: merging, splitting, and its forms on the wire.

mod coding;
mod dense;
mod entries;
mod qsgd;
pub mod wire;

pub use coding::{Coding, Rounded, UnknownCoding};
pub use dense::{Dense, floats};
pub(crate) use dense::{add_floats, first_non_finite};
pub use entries::Entries;

use crate::Element;

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
        match self {
            Bag::Sparse(entries) => entries.len(),
            Bag::Dense(values) => values.iter().filter(|v| *v != T::ZERO).count(),
        }
    }

    /// The non-zero entries as (index in the block, value), ascending.
    pub fn iter(&self) -> Box<dyn Iterator<Item = (u32, T)> + '_> {
        match self {
            Bag::Sparse(entries) => Box::new(entries.iter()),
            Bag::Dense(values) => Box::new((0..).zip(values.iter()).filter(|(_, v)| *v != T::ZERO)),
        }
    }

    /// The non-zero entries by themselves.
    pub fn into_entries(self) -> Entries<T> {
        match self {
            Bag::Sparse(entries) => entries,
            Bag::Dense(_) => self.iter().collect(),
        }
    }

    /// Sparse entries of a block of `len` entries, turned dense where COO would be larger
    /// (an index and a value for each entry against a value for all: SparCML's δ).
    pub fn smaller(entries: Entries<T>, len: usize) -> Self {
        let (sparse, dense) = (entries.len() * (size_of::<u32>() + T::WIDTH), len * T::WIDTH);
        if sparse > dense { Bag::Dense(entries.to_dense(len).into()) } else { Bag::Sparse(entries) }
    }

    /// self + other, value by value: the bits do not depend on which side is sparse.
    pub fn add(self, other: Self, len: usize) -> Self {
        match (self, other) {
            (Bag::Sparse(a), Bag::Sparse(b)) => Bag::smaller(a.merge(&b), len),
            (Bag::Dense(sum), other) | (other, Bag::Dense(sum)) => {
                let mut sum = sum.to_vec();
                match other {
                    Bag::Sparse(other) => other.iter().for_each(|(i, v)| sum[i as usize] += v),
                    Bag::Dense(other) => sum.iter_mut().zip(other.iter()).for_each(|(a, b)| *a += b),
                }
                Bag::Dense(sum.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn sparse(len: usize) -> impl Strategy<Value = Vec<f32>> {
        proptest::collection::vec(
            prop_oneof![3 => Just(0.0f32), 1 => -4.0f32..4.0, 1 => Just(1.5f32), 1 => Just(-1.5f32)],
            len,
        )
    }

    proptest! {
        #[test]
        fn adding_bags_is_adding_vectors(a in sparse(40), b in sparse(40), forms in 0..4) {
            let bag = |v: &[f32], dense: bool| {
                if dense { Bag::Dense(v.to_vec().into()) } else { Bag::Sparse(Entries::from_dense(v)) }
            };
            let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
            let ours = bag(&a, forms & 1 > 0).add(bag(&b, forms & 2 > 0), 40);
            prop_assert_eq!(ours.nonzeros(), sum.iter().filter(|v| **v != 0.0).count());
            prop_assert_eq!(ours.into_entries(), Entries::from_dense(&sum));
        }
    }
}
