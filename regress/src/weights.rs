//! The weights of a model under penalties that a step pays for the entries of its gradient only.
//!
//! A step of SGD is w ← shrink((1 − ηλ₂) w − η g, ηλ₁): the proximal step of FOBOS (Duchi and Singer, JMLR 2009), whose section
//! on high dimensions puts it off for entries whose gradient is zero. Here w = s·v with one factor s for all. L2 changes s alone. In v a
//! step's L1 takes ηλ₁/s from every magnitude; the sum U of these is counted, and for each entry what of it was taken already, so that
//! what is left is taken when the entry is read or changed. Steps without a gradient commute, so putting them off changes nothing.

use gleaner_algorithms::bag::Entries;

use crate::objective::{Penalty, shrink};

/// Weights, zero at first.
pub(crate) struct Weights {
    /// v.
    values: Vec<f32>,
    /// s.
    scale: f64,
    penalty: Penalty,
    /// U.
    taken: f64,
    /// How much of U each entry has paid; nothing without L1.
    paid: Vec<f64>,
}

/// Below it, s goes back to 1: v would grow without bound.
const SMALLEST: f64 = 1e-6;

impl Weights {
    pub(crate) fn new(n: usize, penalty: Penalty) -> Self {
        let paid = if penalty.l1 > 0.0 { vec![0.0; n] } else { Vec::new() };
        Self { values: vec![0.0; n], scale: 1.0, penalty, taken: 0.0, paid }
    }

    /// A weight.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> f64 {
        self.scale * self.unscaled(index)
    }

    /// A weight's v, with what L1 takes of it.
    #[inline]
    pub(crate) fn unscaled(&self, index: u32) -> f64 {
        let value = f64::from(self.values[index as usize]);
        match self.paid.get(index as usize) {
            Some(paid) if value != 0.0 => shrink(value, self.taken - paid),
            _ => value,
        }
    }

    /// s, by which [`unscaled`](Self::unscaled) weights are multiplied.
    pub(crate) fn scale(&self) -> f64 {
        self.scale
    }

    /// A step against a sum of gradients of so many samples.
    pub(crate) fn step(&mut self, gradient: &Entries<f32>, samples: u64, rate: f64) {
        self.scale *= 1.0 - rate * self.penalty.l2;
        let factor = rate / samples.max(1) as f64 / self.scale;
        for (index, entry) in gradient.iter() {
            let value = self.unscaled(index) - factor * f64::from(entry);
            self.values[index as usize] = value as f32;
            if let Some(paid) = self.paid.get_mut(index as usize) {
                *paid = self.taken;
            }
        }
        self.taken += rate * self.penalty.l1 / self.scale;
        if self.scale < SMALLEST {
            self.settle();
        }
    }

    /// Takes all that was put off.
    pub(crate) fn settle(&mut self) {
        for index in 0..self.values.len() as u32 {
            self.values[index as usize] = self.get(index) as f32;
        }
        self.scale = 1.0;
        self.taken = 0.0;
        self.paid.fill(0.0);
    }

    /// All weights, once nothing is put off.
    pub(crate) fn settled(&mut self) -> &[f32] {
        self.settle();
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is put off comes to what steps on all weights come to.
        #[test]
        fn putting_off_changes_nothing(
            steps in proptest::collection::vec((proptest::collection::btree_map(0u32..12, -4.0f32..4.0, 0..5), 0.01f64..0.9), 1..60),
            l1 in prop_oneof![Just(0.0), 0.001f64..0.2],
            l2 in prop_oneof![Just(0.0), 0.01f64..1.0],
        ) {
            let mut lazy = Weights::new(12, Penalty { l1, l2 });
            let mut eager = [0.0f64; 12];
            for (gradient, rate) in &steps {
                let gradient: Entries<f32> = gradient.iter().map(|(&i, &g)| (i, g)).collect();
                let dense = gradient.to_dense(12);
                for (weight, entry) in eager.iter_mut().zip(dense) {
                    *weight = shrink((1.0 - rate * l2) * *weight - rate * f64::from(entry) / 2.0, rate * l1);
                }
                lazy.step(&gradient, 2, *rate);
                for (index, weight) in eager.iter().enumerate() {
                    prop_assert!((lazy.get(index as u32) - weight).abs() < 1e-4, "{} {}", lazy.get(index as u32), weight);
                }
            }
            for (settled, weight) in lazy.settled().iter().zip(eager) {
                prop_assert!((f64::from(*settled) - weight).abs() < 1e-4);
            }
        }
    }
}
