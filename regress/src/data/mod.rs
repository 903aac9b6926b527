//! Samples: from LIBSVM files, or synthetic ones in the shape of known data.

mod file;
mod generated;
mod line;
mod source;

use std::ops::Range;

pub use file::{Part, Sharding, each_sample, read};
pub use generated::Shape;
pub use source::Source;
pub(crate) use source::{Held, of_rank};

/// Samples by row (CSR): the non-zero entries of each as ascending indices from 0, and their values.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    labels: Vec<f32>,
    /// Where each row starts, and the end of the last.
    starts: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<f32>,
}

impl Default for Samples {
    fn default() -> Self {
        Self { labels: Vec::new(), starts: vec![0], indices: Vec::new(), values: Vec::new() }
    }
}

/// One sample.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Its label, as it stands in the data.
    pub label: f32,
    /// Features that are not zero, ascending from 0.
    pub indices: &'a [u32],
    /// Their values.
    pub values: &'a [f32],
}

impl Row<'_> {
    /// (feature, value), ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u32, f32)> + '_ {
        self.indices.iter().copied().zip(self.values.iter().copied())
    }
}

impl Samples {
    /// The number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The number of non-zero entries.
    pub fn nonzeros(&self) -> usize {
        self.indices.len()
    }

    /// The labels of all samples.
    pub fn labels(&self) -> &[f32] {
        &self.labels
    }

    /// The sample with this number, from 0.
    #[inline]
    pub fn row(&self, number: usize) -> Row<'_> {
        let range: Range<usize> = self.starts[number]..self.starts[number + 1];
        Row { label: self.labels[number], indices: &self.indices[range.clone()], values: &self.values[range] }
    }

    /// All samples in order.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        (0..self.len()).map(|number| self.row(number))
    }

    /// The indices of all entries, sample by sample, to be numbered again; they must stay ascending.
    pub(crate) fn indices_mut(&mut self) -> &mut [u32] {
        &mut self.indices
    }

    /// Appends an entry to the sample that [`end`](Self::end) will complete; its index must be above those before.
    pub fn push(&mut self, index: u32, value: f32) {
        self.indices.push(index);
        self.values.push(value);
    }

    /// Completes a sample.
    pub fn end(&mut self, label: f32) {
        self.labels.push(label);
        self.starts.push(self.indices.len());
    }

    /// Forgets all samples and keeps the memory.
    pub fn clear(&mut self) {
        self.labels.clear();
        self.starts.truncate(1);
        self.indices.clear();
        self.values.clear();
    }

    /// Appends a constant entry to every sample, behind all others: a bias is its weight.
    pub fn add_constant(&mut self, index: u32, value: f32) {
        let (count, nonzeros) = (self.len(), self.nonzeros());
        self.indices.resize(nonzeros + count, index);
        self.values.resize(nonzeros + count, value);
        // From the last on, so that nothing is written over before it has moved.
        for number in (0..count).rev() {
            let (from, to) = (self.starts[number], self.starts[number + 1]);
            self.indices.copy_within(from..to, from + number);
            self.values.copy_within(from..to, from + number);
            self.indices[to + number] = index;
            self.values[to + number] = value;
        }
        self.starts.iter_mut().enumerate().for_each(|(number, start)| *start += number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_comes_behind_all_entries() {
        let mut samples = Samples::default();
        for count in [2, 0, 3, 1] {
            (0..count).for_each(|i| samples.push(i, i as f32 + 1.0));
            samples.end(count as f32);
        }
        let before = samples.clone();
        samples.add_constant(9, 0.5);
        assert_eq!((samples.len(), samples.nonzeros()), (4, 10));
        for (row, before) in samples.rows().zip(before.rows()) {
            assert_eq!(row.label, before.label);
            assert!(row.iter().eq(before.iter().chain([(9, 0.5)])));
        }
    }
}
