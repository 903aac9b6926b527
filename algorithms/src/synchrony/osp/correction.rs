//! What stands in for global gradients that are still under way, and how it is put right: OSP, §4.2.

use super::StandIn;
use crate::synchrony::Sgd;

/// Local-gradient-based parameter correction (LGP) on one worker.
///
/// Equation 6 gives the next pass P_partial = P + ΣG^g + ΣG^l: the optimiser's increment with the global gradient for important
/// layers, which have come with the routine stage, and with the *local* one for the others. (The paper prints G^g in both sums;
/// its index sets and its text say local, as the global ones have not arrived.) [`predict`](Self::predict) adds that increment.
///
/// Equation 7 puts it right when the global ones arrive: P_partial − ΣG^l + ΣG^g. As both sums were added to the same true
/// values, that is these with the global increment: what a server sends, or what every worker computes after an all-reduce. So
/// the true values take the place of predicted ones, which leaves no rounding behind, and the correction is exact whatever the
/// optimiser is: momentum, weight decay and Adam change how good a prediction is, and never what it ends as.
///
/// An increment needs the optimiser's velocity. A worker that is sent parameters does not have it, but [sees](Self::learn) each
/// true change: w ← w − rate·v gives v = (before − after)/rate. With Nesterov the change is (1 + m)·G + m²·v for the gradient G
/// with its decay and the velocity v before, so G and the next velocity m·v + G follow. Weight decay pulls by the true values, on
/// both sides alike. Of Adam's two moments only a ratio shows in a change, so a worker cannot derive them; servers have
/// stochastic gradient descent alone.
#[derive(Clone, Debug)]
pub struct Lgp {
    correction: StandIn,
    sgd: Sgd,
    /// What the global velocity is, as true changes show it; empty where the optimiser has none.
    velocities: Vec<f32>,
    /// The average of past global gradients, NaN before the first; empty without EMA-LGP.
    averages: Vec<f32>,
    /// Of a part of what is predicted: its velocities and gradients.
    scratch: [Vec<f32>; 2],
}

/// How many entries are predicted at once.
const PART: usize = 4096;

impl Lgp {
    /// For this many parameters, with the optimiser that makes the true updates.
    pub fn new(correction: StandIn, sgd: Sgd, entries: usize) -> Self {
        let velocities = if correction != StandIn::Off && sgd.momentum != 0.0 { entries } else { 0 };
        let averages = if matches!(correction, StandIn::Average(_)) { entries } else { 0 };
        Self {
            correction,
            sgd,
            velocities: vec![0.0; velocities],
            averages: vec![f32::NAN; averages],
            scratch: [Vec::new(), Vec::new()],
        }
    }

    /// Makes P_partial of true values that begin at entry `at` (equation 6): adds one increment of the optimiser, with the
    /// worker's own gradient of these entries, the mean over its own samples, or with what EMA-LGP makes of it.
    pub fn predict(&mut self, at: usize, values: &mut [f32], local: &[f32], rate: f32) {
        let keeps = match self.correction {
            StandIn::Off => return,
            StandIn::Local => 0.0,
            StandIn::Average(keeps) => keeps,
        };
        let [velocities, gradients] = &mut self.scratch;
        for (part, (values, local)) in values.chunks_mut(PART).zip(local.chunks(PART)).enumerate() {
            let range = at + part * PART..at + part * PART + values.len();
            velocities.clear();
            match self.velocities.get(range.clone()) {
                Some(known) => velocities.extend_from_slice(known),
                None => velocities.resize(values.len(), 0.0),
            }
            gradients.clear();
            match self.averages.get(range) {
                Some(averages) => {
                    gradients.extend(averages.iter().zip(local).map(|(a, l)| mix(keeps, *a, *l)))
                }
                None => gradients.extend_from_slice(local),
            }
            self.sgd.step(values, velocities, gradients, rate);
        }
    }

    /// The true values of the entries from `at` on went from `before` to `after` in one step of the optimiser at this rate:
    /// learns what the velocities are, and the global gradients.
    pub fn learn(&mut self, at: usize, before: &[f32], after: &[f32], rate: f32) {
        let range = at..at + before.len();
        // At rate 0 nothing shows.
        if rate == 0.0 || self.velocities.is_empty() && self.averages.is_empty() {
            return;
        }
        let Sgd { momentum, weight_decay, nesterov } = self.sgd;
        let mut velocities = self.velocities.get_mut(range.clone());
        let mut averages = self.averages.get_mut(range);
        for (entry, (before, after)) in before.iter().zip(after).enumerate() {
            let change = (before - after) / rate;
            let velocity = velocities.as_deref().map_or(0.0, |velocities| velocities[entry]);
            let decayed = if nesterov {
                (change - momentum * momentum * velocity) / (1.0 + momentum)
            } else {
                change - momentum * velocity
            };
            if let Some(velocities) = velocities.as_deref_mut() {
                velocities[entry] = momentum * velocity + decayed;
            }
            if let (Some(averages), StandIn::Average(keeps)) = (averages.as_deref_mut(), self.correction) {
                averages[entry] = mix(keeps, averages[entry], decayed - weight_decay * before);
            }
        }
    }

    /// What it has learnt, for a checkpoint: velocities and averages, each empty where there are none.
    pub fn memory(&self) -> [&[f32]; 2] {
        [&self.velocities, &self.averages]
    }

    /// The same again. False if the lengths are not those of its own memory, which then stays as it is.
    pub fn remember(&mut self, [velocities, averages]: [&[f32]; 2]) -> bool {
        let fits = velocities.len() == self.velocities.len() && averages.len() == self.averages.len();
        if fits {
            self.velocities.copy_from_slice(velocities);
            self.averages.copy_from_slice(averages);
        }
        fits
    }
}

/// So much of the average, and the rest of the new value; that alone before there is an average.
fn mix(keeps: f32, average: f32, value: f32) -> f32 {
    if average.is_nan() { value } else { keeps * average + (1.0 - keeps) * value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Sgd = Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false };

    #[test]
    fn a_prediction_is_an_increment_with_the_local_gradient() {
        let mut lgp = Lgp::new(StandIn::Local, PLAIN, 3);
        let mut values = [1.0, 2.0];
        lgp.predict(1, &mut values, &[4.0, -8.0], 0.5);
        assert_eq!(values, [-1.0, 6.0]);
        let mut off = Lgp::new(StandIn::Off, Sgd { momentum: 0.9, ..PLAIN }, 3);
        off.learn(0, &[1.0; 3], &[2.0; 3], 0.5);
        off.predict(1, &mut values, &[4.0, -8.0], 0.5);
        assert_eq!((values, off.memory()), ([-1.0, 6.0], [&[][..], &[]]));
    }

    #[test]
    fn the_average_begins_with_the_first_global_gradient() {
        let mut lgp = Lgp::new(StandIn::Average(0.75), PLAIN, 1);
        let predicted = |lgp: &mut Lgp, local: f32| {
            let mut value = [0.0];
            lgp.predict(0, &mut value, &[local], 1.0);
            -value[0]
        };
        assert_eq!(predicted(&mut lgp, 8.0), 8.0);
        lgp.learn(0, &[0.0], &[-4.0], 1.0);
        assert_eq!(predicted(&mut lgp, 8.0), 0.75 * 4.0 + 0.25 * 8.0);
        lgp.learn(0, &[0.0], &[-16.0], 2.0);
        assert_eq!(predicted(&mut lgp, 8.0), 0.75 * (0.75 * 4.0 + 0.25 * 8.0) + 0.25 * 8.0);
        let mut again = Lgp::new(StandIn::Average(0.75), PLAIN, 1);
        assert!(again.remember(lgp.memory()));
        assert_eq!(predicted(&mut again, 3.0), predicted(&mut lgp, 3.0));
        assert!(!Lgp::new(StandIn::Local, PLAIN, 1).remember(lgp.memory()));
    }

    proptest! {
        /// Equation 7 to the letter gives what the true values are, and a worker that saw all true changes predicts what a server
        /// would do with its gradient: with any momentum and decay, plain and by Nesterov.
        #[test]
        fn equation_7_gives_the_true_values(
            gradients in prop::collection::vec((-1.0f32..1.0, -1.0f32..1.0), 1..12),
            momentum in prop::sample::select(vec![0.0f32, 0.5, 0.9]),
            weight_decay in prop::sample::select(vec![0.0f32, 0.01]),
            nesterov: bool, rate in 0.05f32..0.5, value in -1.0f32..1.0,
        ) {
            let sgd = Sgd { momentum, weight_decay, nesterov };
            let mut lgp = Lgp::new(StandIn::Local, sgd, 1);
            let (mut truth, mut velocity) = ([value], [0.0]);
            for (global, local) in gradients {
                let (before, was) = (truth, velocity);
                let mut partial = before;
                lgp.predict(0, &mut partial, &[local], rate);
                let (mut wanted, mut scratch) = (before, was);
                sgd.step(&mut wanted, &mut scratch, &[local], rate);
                prop_assert!((partial[0] - wanted[0]).abs() < 1e-4, "predicted {} for {}", partial[0], wanted[0]);
                sgd.step(&mut truth, &mut velocity, &[global], rate);
                let (local_increment, global_increment) = (partial[0] - before[0], truth[0] - before[0]);
                let corrected = partial[0] - local_increment + global_increment;
                prop_assert!((corrected - truth[0]).abs() < 1e-5, "corrected {} for {}", corrected, truth[0]);
                lgp.learn(0, &before, &truth, rate);
            }
        }
    }
}
