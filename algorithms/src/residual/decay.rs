//! A residual that decays: the momentum of DeMo (Peng, Quesnelle and Kingma, *DeMo: Decoupled Momentum Optimization*, 2024, Algorithm 1).
//!
//! m ← β·m + gradient; what is selected of m is sent and subtracted from it. m is what waits, so it is the residual.

use super::Correction;
use crate::Element;

/// Decays what waits, piece by piece.
#[derive(Debug)]
pub(super) struct Decay<T: Element> {
    /// β.
    kept: T,
    /// The last piece as it was, to be put back where it is refused.
    before: Vec<T>,
}

impl<T: Element> Decay<T> {
    pub(super) fn new(correction: &Correction) -> Option<Self> {
        let kept = T::from_f64(f64::from(correction.decay?));
        Some(Self { kept, before: Vec::new() })
    }

    /// What is left of a value.
    pub(super) fn of(&self, value: T) -> T {
        self.kept * value
    }

    /// Lets a piece decay.
    pub(super) fn apply(&mut self, values: &mut [T]) {
        self.before.clear();
        self.before.extend_from_slice(values);
        values.iter_mut().for_each(|value| *value = self.kept * *value);
    }

    /// Puts the last piece back, from an index on.
    pub(super) fn undo(&self, values: &mut [T], from: usize) {
        values[from..].copy_from_slice(&self.before[from..]);
    }
}
