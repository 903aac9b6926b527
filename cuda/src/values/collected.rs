//! What the calls of a step have collected of a block: where each call's records are, and whether nothing is missing.

use crate::kernels::{NOTHING, TILE};

/// Calls of a step in one block, beyond which its candidates are not used.
pub(super) const CALLS: usize = 4096;

/// Part of a block that one call was given.
#[derive(Clone, Copy, Debug)]
struct Part {
    first: u32,
    count: u32,
    record: u32,
}

/// What the calls of a step have collected of a block.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// How many entries the block has, and how many records there is room for.
    len: u32,
    room: u32,
    parts: Vec<Part>,
    records: u32,
    /// The least magnitude of a candidate; None before the first call, and [`NOTHING`] where none are wanted.
    limit: Option<u32>,
    /// What it was made of.
    threshold: f32,
    /// Something has changed since it was collected, or not all was.
    is_invalid: bool,
}

/// A call as the kernels know it: its first record, how many it has, and how many the calls of lower index have.
pub(super) type Call = [u32; 4];

/// Records of a call of this many entries.
fn records(count: u32) -> u32 {
    count.div_ceil(TILE as u32)
}

/// Room for the records of a block.
pub(super) fn room(len: usize) -> usize {
    len.min(len.div_ceil(TILE) + CALLS)
}

/// The smallest magnitude that reaches a threshold, as on the host: zeros never do, and what is not finite always does.
pub(super) fn limit(threshold: f32) -> u32 {
    if threshold > 0.0 { threshold.to_bits() } else { 1 }
}

impl Collected {
    /// Nothing, of a block of this many entries.
    pub(super) fn new(len: usize) -> Self {
        Self { len: len as u32, room: room(len) as u32, ..Self::default() }
    }

    /// Forgets everything, for another step.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        (self.records, self.limit, self.is_invalid) = (0, None, false);
    }

    /// The values have changed otherwise than by a call.
    pub(super) fn invalidate(&mut self) {
        self.is_invalid = true;
    }

    /// A call of `count` entries from `first` on: from which magnitude on it collects, and where its first record is.
    pub(super) fn call(&mut self, first: u32, count: u32, threshold: Option<f32>) -> (u32, u32) {
        let limit = threshold.map_or(NOTHING, limit);
        if self.limit.is_none() {
            (self.limit, self.threshold) = (Some(limit), threshold.unwrap_or_default());
        }
        let fits = self.parts.len() < CALLS && self.records + records(count) <= self.room;
        self.is_invalid |= self.limit != Some(limit) || !fits;
        if self.is_invalid || limit == NOTHING {
            return (NOTHING, 0);
        }
        let record = self.records;
        self.parts.push(Part { first, count, record });
        self.records += records(count);
        (limit, record)
    }

    /// The calls by index, if every entry was given once and all that was wanted was collected.
    pub(super) fn calls(&mut self) -> Option<Vec<Call>> {
        if self.is_invalid || self.limit.is_none_or(|limit| limit == NOTHING) {
            return None;
        }
        self.parts.sort_unstable_by_key(|part| part.first);
        let (mut end, mut before) = (0, 0);
        let mut calls = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            if part.first != end {
                return None;
            }
            let count = records(part.count);
            calls.push([part.record, count, before, 0]);
            (end, before) = (end + part.count, before + count);
        }
        (end == self.len).then_some(calls)
    }

    /// Whether candidates are still what they were collected from.
    pub(super) fn holds(&self) -> bool {
        !self.is_invalid
    }

    /// Records of all calls.
    pub(super) fn records(&self) -> u32 {
        self.records
    }

    /// The least magnitude of a candidate.
    pub(super) fn limit(&self) -> u32 {
        self.limit.unwrap_or(NOTHING)
    }

    /// What it was made of; 0 where every non-zero entry is a candidate.
    pub(super) fn threshold(&self) -> f32 {
        if self.threshold > 0.0 { self.threshold } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_any_order_are_put_in_order() {
        let mut collected = Collected::new(10_000);
        assert_eq!(collected.call(5000, 5000, Some(0.5)), (0.5f32.to_bits(), 0));
        assert_eq!(collected.call(0, 5000, Some(0.5)), (0.5f32.to_bits(), 2));
        assert_eq!(collected.calls(), Some(vec![[2, 2, 0, 0], [0, 2, 2, 0]]));
        assert_eq!(collected.records(), 4);
    }

    #[test]
    fn what_is_missing_or_given_twice_is_not_used() {
        let calls: [&[(u32, u32)]; 4] =
            [&[(0, 4999)], &[(0, 5000), (0, 5000)], &[(1, 9999)], &[(0, 6000), (5000, 5000)]];
        for parts in calls {
            let mut collected = Collected::new(10_000);
            for &(first, count) in parts {
                collected.call(first, count, Some(0.5));
            }
            assert_eq!(collected.calls(), None, "{parts:?}");
        }
    }

    #[test]
    fn another_threshold_within_a_step_ends_the_collection() {
        for other in [None, Some(0.25)] {
            let mut collected = Collected::new(100);
            collected.call(0, 50, Some(0.5));
            assert_eq!(collected.call(50, 50, other), (NOTHING, 0));
            assert_eq!(collected.calls(), None);
            collected.clear();
            collected.call(0, 100, other);
            assert_eq!(collected.calls().is_some(), other.is_some());
        }
    }

    #[test]
    fn more_calls_than_there_is_room_for_end_the_collection() {
        let mut collected = Collected::new(2 * CALLS);
        for first in 0..CALLS as u32 {
            assert_ne!(collected.call(first, 1, Some(0.5)).0, NOTHING);
        }
        assert_eq!(collected.call(CALLS as u32, CALLS as u32, Some(0.5)).0, NOTHING);
        assert_eq!(collected.calls(), None);
    }
}
