//! The weights of a model under penalties that a step pays for the entries of its gradient only.
//!
//! A step of SGD is w ← shrink((1 − ηλ₂) w − η g, ηλ₁): the proximal step of FOBOS (Duchi and Singer, JMLR 2009), whose section
//! on high dimensions puts it off for entries whose gradient is zero. Here w = s·v with one factor s for all. L2 changes s alone. In v a
//! step's L1 takes ηλ₁/s from every magnitude; the sum U of these is counted, and for each entry what of it was taken already, so that
//! what is left is taken when the entry is read or changed. Steps without a gradient commute, so putting them off changes nothing.
//!
//! The weights of the features that this worker's samples have come first, close together: a pass reads and changes these above all, and
//! spread over n each would take a cache line of its own.

use gleaner_algorithms::bag::Entries;

use crate::compact::Features;
use crate::objective::{Penalty, shrink};

/// Weights, zero at first.
pub(crate) struct Weights<'a> {
    /// This worker's.
    own: &'a Features,
    /// v, of these and then of all others, each ascending.
    values: Vec<f32>,
    /// s.
    scale: f64,
    penalty: Penalty,
    /// U.
    taken: f64,
    /// How much of U each entry has paid, in the order of v; nothing without L1.
    paid: Vec<f64>,
}

/// Below it, s goes back to 1: v would grow without bound.
const SMALLEST: f64 = 1e-6;

impl<'a> Weights<'a> {
    /// Of n features, of which a worker's samples have `own`.
    pub(crate) fn new(n: usize, own: &'a Features, penalty: Penalty) -> Self {
        let paid = if penalty.l1 > 0.0 { vec![0.0; n] } else { Vec::new() };
        Self { own, values: vec![0.0; n], scale: 1.0, penalty, taken: 0.0, paid }
    }

    /// The v at a place, with what L1 takes of it. The places of the worker's own features are their numbers.
    #[inline]
    pub(crate) fn unscaled(&self, place: usize) -> f64 {
        let value = f64::from(self.values[place]);
        match self.paid.get(place) {
            Some(paid) if value != 0.0 => shrink(value, self.taken - paid),
            _ => value,
        }
    }

    /// s, by which [`unscaled`](Self::unscaled) weights are multiplied.
    pub(crate) fn scale(&self) -> f64 {
        self.scale
    }

    /// A step against a sum of gradients of this many samples.
    pub(crate) fn step(&mut self, gradient: &Entries<f32>, samples: u64, rate: f64) {
        self.scale *= 1.0 - rate * self.penalty.l2;
        let factor = rate / samples.max(1) as f64 / self.scale;
        for (index, entry) in gradient.iter() {
            let (below, is_own) = self.own.below(index);
            let below = below as usize;
            let place = if is_own { below } else { self.own.all.len() + index as usize - below };
            let value = self.unscaled(place) - factor * f64::from(entry);
            self.values[place] = value as f32;
            if let Some(paid) = self.paid.get_mut(place) {
                *paid = self.taken;
            }
        }
        self.taken += rate * self.penalty.l1 / self.scale;
        if self.scale < SMALLEST {
            self.catch_up();
        }
    }

    /// Takes all that was put off.
    fn catch_up(&mut self) {
        for place in 0..self.values.len() {
            self.values[place] = (self.scale * self.unscaled(place)) as f32;
        }
        self.scale = 1.0;
        self.taken = 0.0;
        self.paid.fill(0.0);
    }

    /// All weights in the order of the features, once nothing is put off.
    pub(crate) fn up_to_date(&mut self) -> Vec<f32> {
        self.catch_up();
        let (own, others) = self.values.split_at(self.own.all.len());
        let mut all = Vec::with_capacity(self.values.len());
        let mut rest = 0;
        for (before, (&index, &weight)) in self.own.all.iter().zip(own).enumerate() {
            let until = index as usize - before;
            all.extend_from_slice(&others[rest..until]);
            all.push(weight);
            rest = until;
        }
        all.extend_from_slice(&others[rest..]);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is put off gives what steps on all weights give.
        #[test]
        fn putting_off_changes_nothing(
            steps in proptest::collection::vec((proptest::collection::btree_map(0u32..12, -4.0f32..4.0, 0..5), 0.01f64..0.9), 1..60),
            l1 in prop_oneof![Just(0.0), 0.001f64..0.2],
            l2 in prop_oneof![Just(0.0), 0.01f64..1.0],
            own in proptest::collection::btree_set(0u32..12, 0..12),
        ) {
            let own = Features::of(&own.into_iter().collect::<Vec<u32>>());
            let mut lazy = Weights::new(12, &own, Penalty { l1, l2 });
            let mut eager = [0.0f64; 12];
            for (gradient, rate) in &steps {
                let gradient: Entries<f32> = gradient.iter().map(|(&i, &g)| (i, g)).collect();
                let dense = gradient.to_dense(12);
                for (weight, entry) in eager.iter_mut().zip(dense) {
                    *weight = shrink((1.0 - rate * l2) * *weight - rate * f64::from(entry) / 2.0, rate * l1);
                }
                lazy.step(&gradient, 2, *rate);
                for (place, &index) in own.all.iter().enumerate() {
                    let (found, weight) = (lazy.scale() * lazy.unscaled(place), eager[index as usize]);
                    prop_assert!((found - weight).abs() < 1e-4, "{found} {weight}");
                }
            }
            for (found, weight) in lazy.up_to_date().into_iter().zip(eager) {
                prop_assert!((f64::from(found) - weight).abs() < 1e-4);
            }
        }
    }
}
