//! Residuals of gradients that are sparse already: entries alone, as long as nothing asks for more.

use std::sync::Arc;

use super::{NonFinite, Residual};
use crate::bag::Entries;
use crate::device::DeviceError;
use crate::{Accumulator, Element, Partition, SparseValues};

impl<T: Element> Residual<T> {
    /// A residual of zeros for gradients that are sparse already, of which it holds entries alone.
    ///
    /// # Panics
    /// If the partition has more entries than an index of 32 bits counts.
    pub fn sparse(partition: Partition, quotas: Vec<Option<u32>>) -> Self {
        let n = partition.entries();
        assert!(u32::try_from(n).is_ok(), "{n} entries: indices of sparse gradients are 32 bits wide");
        Self::of(SparseValues::new(Entries::default(), n).into(), None, partition, quotas)
    }

    /// Whether it holds entries alone.
    pub fn is_sparse(&self) -> bool {
        self.sparse
    }

    /// Adds a gradient of which only entries are given: in time that grows with them and with the residual's, and with nothing
    /// else. A residual of all values takes them, too, as the gradient that has zeros elsewhere.
    ///
    /// # Errors
    /// As [`accumulate`](Self::accumulate).
    ///
    /// # Panics
    /// If indices do not ascend, or are not below the number of entries of the partition.
    pub fn accumulate_entries(&mut self, gradient: &Entries<T>) -> Result<(), super::AccumulateError> {
        let n = self.partition.entries();
        let ascend = gradient.indices.windows(2).all(|pair| pair[0] < pair[1]);
        let below = gradient.indices.last().is_none_or(|&last| (last as usize) < n);
        assert!(ascend && below, "indices that ascend, below {n}");
        if !self.sparse {
            return self.accumulate(0, &gradient.to_dense(n)[..]);
        }
        self.present()?;
        self.given_one();
        Ok(self.accumulate_sparse(0, gradient)?)
    }

    /// Adds entries that are indexed from position `offset` on.
    pub(super) fn accumulate_sparse(&mut self, offset: usize, part: &Entries<T>) -> Result<(), NonFinite> {
        let Accumulator::Sparse(values) = &mut self.values else { return Ok(()) };
        let Some(entries) = SparseValues::alone(values) else { return Ok(()) };
        if let Some(before) = &mut self.before
            && !before.given
        {
            let old = if self.zero { Entries::default() } else { entries.clone() };
            before.entries = Some(SparseValues::new(old, self.partition.entries()));
            (before.zero, before.given) = (self.zero, true);
        }
        if std::mem::take(&mut self.zero) {
            entries.clear();
        }
        let indices = part.indices.iter().map(|index| offset as u32 + index).collect();
        let part = Entries { indices, values: part.values.clone() };
        let sums = if entries.is_empty() { part } else { entries.merge(&part) };
        let count = sums.values.iter().filter(|value| !value.is_finite()).count();
        if let Some(place) = sums.values.iter().position(|value| !value.is_finite()) {
            return Err(NonFinite { entry: sums.indices[place] as usize, count });
        }
        *entries = sums;
        Ok(())
    }

    /// No entries, of a vector of as many values.
    pub(super) fn no_entries(&self) -> Accumulator<T> {
        Accumulator::Sparse(Arc::new(SparseValues::new(Entries::default(), self.partition.entries())))
    }

    /// What waits, entry by entry, without what open steps hold: of a residual of all values, those that are not zero.
    ///
    /// # Errors
    /// What has failed on a device.
    pub fn entries(&self) -> Result<Entries<T>, DeviceError> {
        match &self.values {
            _ if self.zero || self.lent => Ok(Entries::default()),
            Accumulator::Sparse(values) => {
                Ok(values.entries().iter().filter(|(_, value)| *value != T::ZERO).collect())
            }
            values => Ok(Entries::from_dense(&values.read(0..values.len())?)),
        }
    }
}
