//! Which indices of a block are among some entries, one bit each.

use super::Entries;
use crate::Element;

/// A set of indices. Asking it costs no branch that data decides, unlike walking along two sorted lists: which of two random
/// indices comes first cannot be predicted.
///
/// Making it clears a bit for every index up to the last: a thirty-second of the memory that f32 values there take. Where so few
/// are marked that this would take longer than all else, as in gradients that are sparse already, the sorted list is walked along.
#[derive(Debug)]
pub(crate) enum Marks<'a> {
    /// A bit for each index up to the last.
    Bits(Vec<u64>),
    /// The marked indices themselves.
    Sorted(&'a [u32]),
}

/// Words of bits for each marked index, at most: as many as one marked index of 128 takes.
const WORDS: usize = 2;

impl<'a> Marks<'a> {
    /// Marks these, which ascend.
    pub(crate) fn of(indices: &'a [u32]) -> Self {
        let words = indices.last().map_or(0, |&last| last as usize / 64 + 1);
        if words > WORDS * indices.len() {
            return Marks::Sorted(indices);
        }
        let mut bits = vec![0; words];
        indices.iter().for_each(|&index| bits[index as usize / 64] |= 1 << (index % 64));
        Marks::Bits(bits)
    }

    /// Whether an index is marked.
    #[inline]
    pub(crate) fn has(&self, index: u32) -> bool {
        match self {
            Marks::Bits(bits) => is_set(bits, index),
            Marks::Sorted(marked) => marked.binary_search(&index).is_ok(),
        }
    }

    /// Those of some indices that are marked, in the order given; they ascend.
    pub(crate) fn among(&self, indices: &[u32]) -> Vec<u32> {
        let (mut marked, mut count) = (vec![0; indices.len()], 0);
        let mut keep = |index: u32, is_marked: bool| {
            marked[count] = index;
            count += usize::from(is_marked);
        };
        match self {
            Marks::Bits(bits) => indices.iter().for_each(|&index| keep(index, is_set(bits, index))),
            Marks::Sorted(all) => along(all, indices, |place, is_marked| keep(indices[place], is_marked)),
        }
        marked.truncate(count);
        marked
    }

    /// The entries whose indices are marked, or with `MARKED` false those whose are not.
    pub(crate) fn pick<T: Element, const MARKED: bool>(&self, entries: &Entries<T>) -> Entries<T> {
        let (mut indices, mut values) = (vec![0; entries.len()], vec![T::ZERO; entries.len()]);
        let mut count = 0;
        let mut keep = |(index, value): (u32, T), is_marked: bool| {
            (indices[count], values[count]) = (index, value);
            count += usize::from(is_marked == MARKED);
        };
        match self {
            Marks::Bits(bits) => entries.iter().for_each(|entry| keep(entry, is_set(bits, entry.0))),
            Marks::Sorted(all) => along(all, &entries.indices, |place, is_marked| {
                keep((entries.indices[place], entries.values[place]), is_marked);
            }),
        }
        indices.truncate(count);
        values.truncate(count);
        Entries { indices, values }
    }
}

#[inline]
fn is_set(bits: &[u64], index: u32) -> bool {
    bits.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
}

/// Calls `visit(place, is_marked)` for each of the indices; both lists ascend.
fn along(marked: &[u32], indices: &[u32], mut visit: impl FnMut(usize, bool)) {
    let mut next = 0;
    for (place, index) in indices.iter().enumerate() {
        while marked.get(next).is_some_and(|marked| marked < index) {
            next += 1;
        }
        visit(place, marked.get(next) == Some(index));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn marks_are_a_set(
            marked: BTreeSet<u16>,
            asked: BTreeSet<u16>,
            // So that they are kept as bits, or as a sorted list.
            apart in prop_oneof![Just(1u32), Just(60_000)],
        ) {
            let indices = |set: &BTreeSet<u16>| set.iter().map(|&i| u32::from(i) * apart).collect::<Vec<_>>();
            let entries = |set: &BTreeSet<u16>| -> Entries {
                set.iter().map(|&i| (u32::from(i) * apart, f32::from(i))).collect()
            };
            let all = indices(&marked);
            let marks = Marks::of(&all);
            let asked_for = entries(&asked);
            let (both, rest) = (&marked & &asked, &asked - &marked);
            prop_assert_eq!(marks.among(&asked_for.indices), indices(&both));
            prop_assert_eq!(marks.pick::<_, true>(&asked_for), entries(&both));
            prop_assert_eq!(marks.pick::<_, false>(&asked_for), entries(&rest));
            prop_assert!(asked.iter().all(|i| marks.has(u32::from(*i) * apart) == marked.contains(i)));
        }
    }
}
