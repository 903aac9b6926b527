//! What a run has handled: the numbers that its processor time follows.

use std::ops::{Add, Sub};

/// Entries that were handled so far, by what was done to them. Each kind has a price of its own on each machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Sparse entries that selections looked at, or chose from a worker's own accumulator.
    pub chosen: f64,
    /// Sparse entries, indices of proposals and aligned values that were encoded.
    pub encoded: f64,
    /// Sparse entries that were decoded, and those that they were merged with.
    pub merged: f64,
    /// Values of dense blocks that were added, copied or looked at.
    pub dense: f64,
    /// Sparse entries that were committed: of the update, of the worker's own choice, and of drops.
    pub committed: f64,
    /// Values of dense updates that were committed to a residual.
    pub settled: f64,
}

impl Tally {
    /// In the order of the fields.
    pub fn parts(&self) -> [f64; 6] {
        [self.chosen, self.encoded, self.merged, self.dense, self.committed, self.settled]
    }

    /// From what [`parts`](Self::parts) gave.
    pub fn of([chosen, encoded, merged, dense, committed, settled]: [f64; 6]) -> Self {
        Self { chosen, encoded, merged, dense, committed, settled }
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (a, b) = (self.parts(), other.parts());
        Self::of(std::array::from_fn(|i| a[i] + b[i]))
    }
}

impl Sub for Tally {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let (a, b) = (self.parts(), other.parts());
        Self::of(std::array::from_fn(|i| a[i] - b[i]))
    }
}
