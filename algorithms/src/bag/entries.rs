//! Sorted indices and the values at them.

use super::Marks;
use super::merge::{SortedRun, merge, reduce};
use crate::{Block, Element, Partition, Reduction};

/// Some entries of a vector: strictly ascending indices, and one value for each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entries<T = f32> {
    /// Positions, strictly ascending.
    pub indices: Vec<u32>,
    /// Values, as many as indices.
    pub values: Vec<T>,
}

impl<T: Element> Entries<T> {
    /// Nothing, with room for `capacity` entries.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { indices: Vec::with_capacity(capacity), values: Vec::with_capacity(capacity) }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// Forgets all entries and keeps the memory.
    pub fn clear(&mut self) {
        self.indices.clear();
        self.values.clear();
    }

    /// Appends an entry, whose index must be above all others.
    pub fn push(&mut self, index: u32, value: T) {
        self.indices.push(index);
        self.values.push(value);
    }

    /// Makes room for `additional` more entries, at least.
    pub fn reserve(&mut self, additional: usize) {
        self.indices.reserve(additional);
        self.values.reserve(additional);
    }

    /// (index, value), ascending.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, T)> + '_ {
        self.indices.iter().copied().zip(self.values.iter().copied())
    }

    /// The non-zero entries of a vector.
    pub fn from_dense(values: &[T]) -> Self {
        values.iter().enumerate().filter(|(_, v)| **v != T::ZERO).map(|(i, &v)| (i as u32, v)).collect()
    }

    /// The vector of `len` values that has these entries and zeros elsewhere.
    pub fn to_dense(&self, len: usize) -> Vec<T> {
        self.to_dense_with(len, T::ZERO)
    }

    /// The vector of `len` values that has these entries and `absent` elsewhere.
    pub fn to_dense_with(&self, len: usize, absent: T) -> Vec<T> {
        let mut dense = vec![absent; len];
        self.iter().for_each(|(i, v)| dense[i as usize] = v);
        dense
    }

    /// The sum of two vectors; sums that are zero are entries like others.
    pub fn merge(&self, other: &Self) -> Self {
        self.merge_with(other, &Reduction::Sum)
    }

    /// Two vectors as one, each absent entry read as the neutral element.
    pub fn merge_with(&self, other: &Self, reduction: &Reduction<T>) -> Self {
        let mut both = Self::default();
        self.merge_into(other, reduction, &mut both);
        both
    }

    /// [`merge_with`](Self::merge_with) into memory that is there already. What `out` held before is forgotten.
    pub fn merge_into(&self, other: &Self, reduction: &Reduction<T>, out: &mut Self) {
        merge(SortedRun::of(self), SortedRun::of(other), reduction, out);
    }

    /// These entries, which are sums laid over a vector, and others that are added to it: where only the others have an entry, it is combined with
    /// the vector's value, of which `beneath` has one for each of the others.
    pub fn merge_over(&self, mut beneath: Vec<T>, mut others: Self, reduction: &Reduction<T>) -> Self {
        reduction.combine_slices(&mut beneath, &others.values);
        if self.is_empty() {
            return Self { indices: others.indices, values: beneath };
        }
        let here = Marks::of(&self.indices);
        for ((&index, value), sum) in others.indices.iter().zip(&mut others.values).zip(beneath) {
            *value = if here.has(index) { *value } else { sum };
        }
        self.merge_with(&others, reduction)
    }

    /// The sum of many vectors, in a fixed order: ((0 + 1) + (2 + 3)) + …
    pub fn sum_of(sets: &[Self]) -> Self {
        Self::reduce(sets, &Reduction::Sum)
    }

    /// Many vectors as one, in the order of [`sum_of`](Self::sum_of).
    pub fn reduce(sets: &[Self], reduction: &Reduction<T>) -> Self {
        reduce(sets, reduction)
    }

    /// Calls `visit(index, here, there)` for every index that either side has, ascending.
    pub fn visit_union(&self, other: &Self, mut visit: impl FnMut(u32, Option<T>, Option<T>)) {
        let (mut i, mut j) = (0, 0);
        while let (Some(&here), Some(&there)) = (self.indices.get(i), other.indices.get(j)) {
            let (a, b) = (self.values[i], other.values[j]);
            visit(here.min(there), (here <= there).then_some(a), (there <= here).then_some(b));
            i += usize::from(here <= there);
            j += usize::from(there <= here);
        }
        let rest = self.indices[i..].iter().zip(&self.values[i..]);
        rest.for_each(|(&index, &value)| visit(index, Some(value), None));
        let rest = other.indices[j..].iter().zip(&other.values[j..]);
        rest.for_each(|(&index, &value)| visit(index, None, Some(value)));
    }

    /// Cuts entries that are indexed in the flat gradient into one set for each block, indexed within it.
    pub fn split(&self, partition: &Partition) -> Vec<Self> {
        let mut from = 0;
        (0..partition.blocks())
            .map(|b| {
                let range = partition.range(Block(b as u32));
                let to = from + self.indices[from..].partition_point(|&i| (i as usize) < range.end);
                let block = Entries {
                    indices: self.indices[from..to].iter().map(|&i| i - range.start as u32).collect(),
                    values: self.values[from..to].to_vec(),
                };
                from = to;
                block
            })
            .collect()
    }
}

impl<T: Element> FromIterator<(u32, T)> for Entries<T> {
    fn from_iter<I: IntoIterator<Item = (u32, T)>>(entries: I) -> Self {
        let entries = entries.into_iter();
        let mut all = Self::with_capacity(entries.size_hint().0);
        entries.for_each(|(index, value)| all.push(index, value));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn splitting_loses_nothing(dense in proptest::collection::vec(prop_oneof![Just(0.0f32), -1.0f32..1.0], 0..90), blocks in 1usize..12) {
            let partition = Partition::even(dense.len(), blocks);
            let parts = Entries::from_dense(&dense).split(&partition);
            for (b, part) in parts.iter().enumerate() {
                let range = partition.range(Block(b as u32));
                prop_assert_eq!(part.to_dense(range.len()), dense[range].to_vec());
            }
        }
    }

    proptest! {
        #[test]
        fn a_union_is_visited_in_order(a in proptest::collection::btree_map(0u32..60, -9i8..9, 0..40), b in proptest::collection::btree_map(0u32..60, -9i8..9, 0..40)) {
            let entries = |map: &std::collections::BTreeMap<u32, i8>| map.iter().map(|(&i, &v)| (i, f32::from(v))).collect::<Entries>();
            let mut visited = Vec::new();
            entries(&a).visit_union(&entries(&b), |index, here, there| visited.push((index, here, there)));
            let value = |map: &std::collections::BTreeMap<u32, i8>, i| map.get(&i).map(|&v| f32::from(v));
            let either = (0..60).map(|i| (i, value(&a, i), value(&b, i)));
            prop_assert_eq!(visited, either.filter(|(_, a, b)| a.is_some() || b.is_some()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn sums_that_cancel_are_entries() {
        let a = Entries { indices: vec![1, 4], values: vec![1.0, 2.0] };
        let b = Entries { indices: vec![1, 5], values: vec![-1.0, 3.0] };
        assert_eq!(a.merge(&b), Entries { indices: vec![1, 4, 5], values: vec![0.0, 2.0, 3.0] });
    }
}
