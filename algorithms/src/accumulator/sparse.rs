//! Gradient plus residual where most entries are zero by nature: sorted indices and values alone, so that whatever is done with
//! it takes as long as there are entries, and not as long as the gradient.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::Element;
use crate::bag::Entries;

/// The entries of a vector of this many values of which all others are zero.
#[derive(Debug, Default)]
pub struct SparseValues<T: Element = f32> {
    entries: Entries<T>,
    len: usize,
    /// All values, once they were asked for.
    copy: OnceLock<Arc<Vec<T>>>,
}

impl<T: Element> SparseValues<T> {
    /// A vector of `len` values that has these entries, whose indices are below.
    pub fn new(entries: Entries<T>, len: usize) -> Self {
        Self { entries, len, copy: OnceLock::new() }
    }

    /// Its entries.
    pub fn entries(&self) -> &Entries<T> {
        &self.entries
    }

    /// How many values it has, zeros included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none, not even zeros.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All values: as much memory as a dense accumulator takes, for what looks at all of them.
    pub(super) fn copied(&self) -> &Arc<Vec<T>> {
        self.copy.get_or_init(|| Arc::new(self.entries.to_dense(self.len)))
    }

    /// To be written to; a copy if others hold it.
    pub(crate) fn alone(this: &mut Arc<Self>) -> Option<&mut Entries<T>> {
        if Arc::get_mut(this).is_none() {
            *this = Arc::new(Self::new(this.entries.clone(), this.len));
        }
        let this = Arc::get_mut(this)?;
        this.copy.take();
        Some(&mut this.entries)
    }
}

/// The entries of a block, in the indices of the whole vector.
#[derive(Clone, Debug)]
pub(crate) struct SparseBlock<'a, T: Element> {
    indices: &'a [u32],
    values: &'a [T],
    range: Range<usize>,
}

impl<'a, T: Element> SparseBlock<'a, T> {
    pub(super) fn of(entries: &'a Entries<T>, range: Range<usize>) -> Self {
        let at = places(entries, &range);
        Self { indices: &entries.indices[at.clone()], values: &entries.values[at], range }
    }

    /// How many values the block has, zeros included.
    pub(super) fn len(&self) -> usize {
        self.range.len()
    }

    /// How many entries are stored.
    pub(super) fn stored(&self) -> usize {
        self.indices.len()
    }

    /// Those that are not `absent`, indexed within the block.
    pub(super) fn other_than(&self, absent: T) -> impl Iterator<Item = (u32, T)> + '_ {
        let start = self.range.start as u32;
        let entries =
            self.indices.iter().zip(self.values).map(move |(&index, &value)| (index - start, value));
        entries.filter(move |(_, value)| *value != absent)
    }

    /// All values at some positions of the block.
    pub(super) fn part(&self, range: Range<usize>) -> Vec<T> {
        let mut values = vec![T::ZERO; range.len()];
        let start = self.range.start + range.start;
        let from = self.indices.partition_point(|&index| (index as usize) < start);
        let entries = self.indices[from..].iter().zip(&self.values[from..]);
        for (&index, &value) in entries.take_while(|(index, _)| (**index as usize) < start + range.len()) {
            values[index as usize - start] = value;
        }
        values
    }

    /// The values at some indices, in the order given.
    pub(super) fn gather(&self, indices: &[u32]) -> Vec<T> {
        let start = self.range.start as u32;
        let value = |&index: &u32| {
            self.indices.binary_search(&(start + index)).map_or(T::ZERO, |place| self.values[place])
        };
        indices.iter().map(value).collect()
    }
}

/// A block of entries that are written to.
pub(crate) struct WrittenEntries<'a, T: Element> {
    entries: &'a mut Entries<T>,
    range: Range<usize>,
}

impl<'a, T: Element> WrittenEntries<'a, T> {
    pub(super) fn of(entries: &'a mut Entries<T>, range: Range<usize>) -> Self {
        Self { entries, range }
    }

    /// Puts other entries, indexed in the block, in the place of those that are there.
    fn replace(&mut self, with: impl FnOnce(&Entries<T>) -> Entries<T>) {
        let (at, start) = (places(self.entries, &self.range), self.range.start as u32);
        let here = Entries {
            indices: self.entries.indices[at.clone()].iter().map(|index| index - start).collect(),
            values: self.entries.values[at.clone()].to_vec(),
        };
        let Entries { indices, values } = with(&here);
        self.entries.indices.splice(at.clone(), indices.into_iter().map(|index| start + index));
        self.entries.values.splice(at, values);
    }

    pub(super) fn clear(&mut self) {
        self.replace(|_| Entries::default());
    }

    pub(super) fn clear_at(&mut self, indices: &[u32]) {
        self.replace(|here| crate::bag::Marks::of(indices).pick::<T, false>(here));
    }

    pub(super) fn set(&mut self, entries: &Entries<T>) {
        self.replace(|here| crate::bag::Marks::of(&entries.indices).pick::<T, false>(here).merge(entries));
    }

    pub(super) fn add(&mut self, entries: &Entries<T>) {
        self.replace(|here| here.merge(entries));
    }

    pub(super) fn gather(&self, indices: &[u32]) -> Vec<T> {
        SparseBlock::of(self.entries, self.range.clone()).gather(indices)
    }
}

/// Where the entries of a range are.
fn places<T: Element>(entries: &Entries<T>, range: &Range<usize>) -> Range<usize> {
    let before = |end: usize| entries.indices.partition_point(|&index| (index as usize) < end);
    before(range.start)..before(range.end)
}
