//! What a run has handled: the numbers that its processor time follows.

use std::ops::{Add, Sub};

use super::{Rule, Scope};

/// Entries that were handled so far, by what was done to them. Each kind has a cost of its own on each machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Entries that were chosen from one block of a worker's own accumulator.
    pub chosen: f64,
    /// Entries that were chosen by rules that look at several blocks together, and those of bags that they looked at.
    pub pooled: f64,
    /// Entries of bags that other selections looked at, and indices that were sampled at random or agreed on.
    pub sifted: f64,
    /// Sparse entries, indices of proposals and aligned values that were encoded. What is passed on unchanged costs none, and neither
    /// do entries whose indices a device encodes.
    pub encoded: f64,
    /// Sparse entries that were decoded, and those that they were merged with.
    pub merged: f64,
    /// Values of dense blocks that were added, copied or looked at.
    pub dense: f64,
    /// Entries of a worker's own choice that were taken out of its residual.
    pub cleared: f64,
    /// Sparse entries of the update and of drops that were committed.
    pub committed: f64,
    /// Values of dense updates that were committed to a residual.
    pub committed_dense: f64,
}

impl Tally {
    /// In the order of the fields.
    pub fn parts(&self) -> [f64; 9] {
        [
            self.chosen,
            self.pooled,
            self.sifted,
            self.encoded,
            self.merged,
            self.dense,
            self.cleared,
            self.committed,
            self.committed_dense,
        ]
    }

    /// A selection by this rule: entries chosen from a worker's own accumulator, or looked at in a bag.
    pub fn select(&mut self, rule: &Rule, own: bool, entries: f64) {
        let handled = match rule.scope() {
            Scope::Slots => &mut self.pooled,
            // Indices sampled at random need no look at what else there is.
            Scope::Sampled => &mut self.sifted,
            Scope::Slot | Scope::Selector | Scope::Nothing if own => &mut self.chosen,
            Scope::Slot | Scope::Selector | Scope::Nothing => &mut self.sifted,
        };
        *handled += entries;
    }

    /// From what [`parts`](Self::parts) gave.
    pub fn of(
        [chosen, pooled, sifted, encoded, merged, dense, cleared, committed, committed_dense]: [f64; 9],
    ) -> Self {
        Self { chosen, pooled, sifted, encoded, merged, dense, cleared, committed, committed_dense }
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
