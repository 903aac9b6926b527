//! Which indices of a block are among some entries, one bit each.

use super::Entries;
use crate::Element;

/// A set of indices. Asking it costs no branch that data decides, unlike walking along two sorted lists: which of two random
/// indices comes first cannot be predicted.
///
/// Making it clears a bit for every index up to the last: a thirty-second of the memory that f32 values there take.
#[derive(Debug)]
pub(crate) struct Marks(Vec<u64>);

impl Marks {
    /// Marks these, which ascend.
    pub(crate) fn of(indices: &[u32]) -> Self {
        let mut words = vec![0; indices.last().map_or(0, |&last| last as usize / 64 + 1)];
        indices.iter().for_each(|&index| words[index as usize / 64] |= 1 << (index % 64));
        Self(words)
    }

    /// Whether an index is marked.
    #[inline]
    pub(crate) fn has(&self, index: u32) -> bool {
        self.0.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Those of some indices that are marked, in the order given.
    pub(crate) fn among(&self, indices: &[u32]) -> Vec<u32> {
        let (mut marked, mut count) = (vec![0; indices.len()], 0);
        for &index in indices {
            marked[count] = index;
            count += usize::from(self.has(index));
        }
        marked.truncate(count);
        marked
    }

    /// The entries whose indices are marked, or with `MARKED` false those whose are not.
    pub(crate) fn pick<T: Element, const MARKED: bool>(&self, entries: &Entries<T>) -> Entries<T> {
        let (mut indices, mut values) = (vec![0; entries.len()], vec![T::ZERO; entries.len()]);
        let mut count = 0;
        for (index, value) in entries.iter() {
            (indices[count], values[count]) = (index, value);
            count += usize::from(self.has(index) == MARKED);
        }
        indices.truncate(count);
        values.truncate(count);
        Entries { indices, values }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn marks_are_a_set(marked: BTreeSet<u16>, asked: BTreeSet<u16>) {
            let indices = |set: &BTreeSet<u16>| set.iter().map(|&i| u32::from(i)).collect::<Vec<_>>();
            let marks = Marks::of(&indices(&marked));
            let entries: Entries = asked.iter().map(|&i| (u32::from(i), f32::from(i))).collect();
            let (both, rest) = (&marked & &asked, &asked - &marked);
            prop_assert_eq!(marks.among(&entries.indices), indices(&both));
            prop_assert_eq!(marks.pick::<_, true>(&entries), both.iter().map(|&i| (u32::from(i), f32::from(i))).collect());
            prop_assert_eq!(marks.pick::<_, false>(&entries), rest.iter().map(|&i| (u32::from(i), f32::from(i))).collect());
        }
    }
}
