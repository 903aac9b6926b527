//! The same optimiser where entries come late: its momentum counts how long they have waited in residuals.

use std::sync::Arc;

use super::Sgd;

/// From this many steps on, entries are treated as if they had waited for so many.
const LONGEST: usize = 4096;

/// Stochastic gradient descent whose momentum counts the steps that an entry has waited in residuals.
///
/// Momentum m applies a gradient g bit by bit: of the g/(1 − m) that it amounts to in the end, 1 − mᵃ⁺¹ of it within the a steps after
/// its own. An entry that waits holds the gradients of all steps since it last came, so much of that is overdue when it comes, and momentum that takes
/// it for a new one makes it later still. So, of an entry that comes after w steps, the share q = (1 − mʷ)/(w(1 − m)), which is the mean of mᵃ over its steps, goes into
/// the velocity, and the rest is applied at once with all that it amounts to, (1 − q)/(1 − m). An entry that comes in every step has q = 1,
/// and that is [`Sgd`] to the last bit.
///
/// An entry that waited w steps is taken for the sum of w gradients. That is exact where all workers' values of an entry are delivered together,
/// as with [completed sums](crate::Method::complete_sums). With SparDL some workers' parts of it may be older, and rounding leaves a rest that comes
/// later; both count as newer than they are. Totals are conserved in any case: in the end g/(1 − m) of each gradient has been applied.
///
/// An entry comes where the gradient is not 0. With a dense method an entry of 0 has not waited, so [`Sgd`] is for that. A row of an embedding
/// that no example has used has not waited either: it is taken as if it had, and steps at once when it is used.
#[derive(Clone, Debug, PartialEq)]
pub struct LateSgd {
    sgd: Sgd,
    shares: Arc<[f32]>,
}

impl LateSgd {
    /// With the momentum of these options, from 0 to below 1. With a larger one what is applied of a gradient is not bounded, and the momentum
    /// is that of [`Sgd`].
    pub fn new(sgd: Sgd) -> Self {
        let momentum = f64::from(sgd.momentum);
        let mut powers = 0.0;
        let share = |steps: usize| {
            powers = powers * momentum + 1.0;
            if momentum < 1.0 { (powers / steps as f64) as f32 } else { 1.0 }
        };
        LateSgd { sgd, shares: (1..=LONGEST).map(share).collect() }
    }

    /// The options.
    pub fn sgd(&self) -> Sgd {
        self.sgd
    }

    /// The same with another weight decay.
    pub fn weight_decay(self, weight_decay: f32) -> Self {
        LateSgd { sgd: Sgd { weight_decay, ..self.sgd }, ..self }
    }

    /// The share of an entry that goes into the velocity, after 1, 2, … steps; for longer the last.
    pub fn shares(&self) -> &[f32] {
        &self.shares
    }

    /// By what the rest of an entry is multiplied.
    pub fn rest(&self) -> f32 {
        if self.sgd.momentum < 1.0 { 1.0 / (1.0 - self.sgd.momentum) } else { 0.0 }
    }

    /// For every parameter as [`Sgd::step`], with q of its gradient and what the rest amounts to. `waited` holds the steps since entries last came, 0 at
    /// first; an entry comes where the gradient is not 0. All four slices have the same length.
    pub fn step(
        &self,
        parameters: &mut [f32],
        velocities: &mut [f32],
        waited: &mut [f32],
        gradient: &[f32],
        rate: f32,
    ) {
        let Sgd { momentum, weight_decay, nesterov } = self.sgd;
        let (shares, rest, longest) = (&*self.shares, self.rest(), LONGEST - 1);
        let kept = velocities.iter_mut().zip(waited);
        for ((value, (velocity, waited)), &gradient) in parameters.iter_mut().zip(kept).zip(gradient) {
            let mut share = 0.0;
            if gradient == 0.0 {
                *waited += 1.0;
            } else {
                share = shares.get(*waited as usize).copied().unwrap_or(shares[longest]);
                *waited = 0.0;
            }
            let decay = weight_decay * *value;
            let timely = share * gradient;
            *velocity = momentum * *velocity + timely + decay;
            let ahead = if nesterov { timely + decay + momentum * *velocity } else { *velocity };
            *value -= rate * (ahead + (1.0 - share) * rest * gradient);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SGD: Sgd = Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false };

    /// Of each gradient of 1, 1/(1 − m) has been applied in the end, however many steps it waited with others.
    #[test]
    fn nothing_is_lost_however_long_entries_wait() {
        for nesterov in [false, true] {
            for every in [1, 2, 7, 40, 5000] {
                let late = LateSgd::new(Sgd { nesterov, ..SGD });
                let (mut value, mut velocity, mut waited) = ([0.0], [0.0], [0.0]);
                for step in 1..=every * 3 {
                    let came = if step % every == 0 { every as f32 } else { 0.0 };
                    late.step(&mut value, &mut velocity, &mut waited, &[came], 1.0);
                }
                (0..400).for_each(|_| late.step(&mut value, &mut velocity, &mut waited, &[0.0], 1.0));
                let expected = -10.0 * 3.0 * every as f32;
                assert!((value[0] / expected - 1.0).abs() < 1e-3, "{every}: {} and {expected}", value[0]);
            }
        }
    }

    proptest! {
        /// Whenever gradients are delivered: where nothing waits any more, a parameter moves by rate × their sum/(1 − m), with what the velocity still has to
        /// apply.
        #[test]
        fn a_gradient_comes_to_the_same_whenever_it_is_delivered(
            steps in prop::collection::vec((prop_oneof![Just(0.0f32), -1.0f32..1.0], any::<bool>()), 1..200),
            momentum in 0.0f32..0.99,
            rate in 1e-3f32..1.0,
            nesterov: bool,
        ) {
            let late = LateSgd::new(Sgd { momentum, nesterov, ..SGD });
            let (mut value, mut velocity, mut waited) = ([0.0], [0.0], [0.0]);
            let (mut waiting, mut sum, mut size) = (0.0f32, 0.0, 0.0);
            for (number, &(gradient, comes)) in (1..).zip(&steps) {
                waiting += gradient;
                (sum, size) = (sum + f64::from(gradient), size + f64::from(gradient.abs()));
                let is_delivered = comes || number == steps.len();
                let came = if is_delivered { std::mem::take(&mut waiting) } else { 0.0 };
                late.step(&mut value, &mut velocity, &mut waited, &[came], rate);
            }
            let (momentum, rate) = (f64::from(momentum), f64::from(rate));
            let owed = f64::from(velocity[0]) * momentum.powi(if nesterov { 2 } else { 1 });
            let found = f64::from(value[0]) - rate * owed / (1.0 - momentum);
            let times = rate / (1.0 - momentum);
            prop_assert!((found + times * sum).abs() <= 1e-4 * times * size, "{} and {}", found, -times * sum);
        }

        /// Where the gradients of an entry are alike while it waits, it comes to where the usual momentum has it, which got each of them at once, and goes
        /// on as fast.
        #[test]
        fn gradients_that_are_alike_while_they_wait_make_the_usual_steps(
            waits in prop::collection::vec((prop_oneof![-1.0f32..-0.01, 0.01f32..1.0], 1u8..60), 1..8),
            momentum in 0.0f32..0.95,
            nesterov: bool,
        ) {
            let sgd = Sgd { momentum, nesterov, ..SGD };
            let late = LateSgd::new(sgd);
            let (mut usual, mut other, mut waited) = (([0.0], [0.0]), ([0.0], [0.0]), [0.0]);
            let mut size = 0.0;
            for (gradient, steps) in waits {
                let all = gradient * f32::from(steps);
                for step in 1..=steps {
                    let came = if step == steps { all } else { 0.0 };
                    sgd.step(&mut usual.0, &mut usual.1, &[gradient], 1.0);
                    late.step(&mut other.0, &mut other.1, &mut waited, &[came], 1.0);
                }
                size += all.abs() / (1.0 - momentum);
                for (usual, other) in [(usual.0, other.0), (usual.1, other.1)] {
                    prop_assert!((usual[0] - other[0]).abs() <= 1e-4 * size, "{:?} and {:?}", usual, other);
                }
            }
        }
    }

    #[test]
    fn entries_of_every_step_are_stepped_as_usual() {
        for nesterov in [false, true] {
            let sgd = Sgd { weight_decay: 0.01, nesterov, ..SGD };
            let late = LateSgd::new(sgd);
            let (mut one, mut other) = (([1.0], [0.5]), ([1.0], [0.5]));
            let mut waited = [0.0];
            for gradient in [0.3, -0.2, 1.5, 0.7] {
                sgd.step(&mut one.0, &mut one.1, &[gradient], 0.1);
                late.step(&mut other.0, &mut other.1, &mut waited, &[gradient], 0.1);
                assert_eq!((one, waited), (other, [0.0]));
            }
        }
    }

    #[test]
    fn a_momentum_without_end_is_the_usual_one() {
        let sgd = Sgd { momentum: 1.0, ..SGD };
        let (mut one, mut other, mut waited) = (([0.0], [0.0]), ([0.0], [0.0]), [0.0]);
        for gradient in [0.0, 1.0, 0.0, 2.0] {
            sgd.step(&mut one.0, &mut one.1, &[gradient], 0.1);
            LateSgd::new(sgd).step(&mut other.0, &mut other.1, &mut waited, &[gradient], 0.1);
        }
        assert_eq!(one, other);
    }

    /// Of a constant gradient that comes in sums, parameters are as far as momentum has them of what has come, within a step's worth.
    #[test]
    fn parameters_are_no_further_behind_than_what_waits() {
        let (late, every, steps) = (LateSgd::new(SGD), 20, 200);
        let (mut prompt, mut behind, mut plain) = (([0.0], [0.0]), ([0.0], [0.0]), ([0.0], [0.0]));
        let mut waited = [0.0];
        for step in 1..=steps {
            let came = if step % every == 0 { every as f32 } else { 0.0 };
            SGD.step(&mut prompt.0, &mut prompt.1, &[1.0], 1.0);
            SGD.step(&mut plain.0, &mut plain.1, &[came], 1.0);
            late.step(&mut behind.0, &mut behind.1, &mut waited, &[came], 1.0);
        }
        // What momentum still has to apply of 200 gradients is 9 times 10.
        assert!((prompt.0[0] + 10.0 * steps as f32 - 90.0).abs() < 1e-1, "{prompt:?}");
        assert!((behind.0[0] - prompt.0[0]).abs() < 1.0, "{behind:?} {prompt:?}");
        assert!(plain.0[0] - prompt.0[0] > 80.0, "{plain:?} {prompt:?}");
    }
}
