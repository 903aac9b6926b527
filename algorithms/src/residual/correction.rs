//! What keeps the accuracy of a training whose gradients are sent late: momentum correction and masking, local clipping and
//! the warm-up of the density (Deep Gradient Compression; Lin et al., ICLR 2018, §3.2 and §3.3).

use std::fmt;

use crate::{Element, Reduction, Sparsity, SparsityError};

/// What is done beside error feedback. Nothing, by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Correction {
    /// Momentum correction (§3.2): the share m, in [0, 1), of the velocity u that each step keeps. u ← m·u + gradient, and u
    /// instead of the gradient enters the residual. 0 for none. The optimiser then has no momentum of its own.
    pub momentum: f32,
    /// Momentum factor masking (§3.3): the velocity starts afresh at the entries that this worker sent.
    pub mask: bool,
    /// EF21-SGDM (Fatkhullin, Tyurin and Richtárik: Momentum Provably Improves Error Feedback!, NeurIPS 2023, Algorithm 1): by how much the velocity has
    /// changed, and not the velocity, enters the residual, which then holds what of this worker's velocity the others do not know. The optimiser adds up
    /// all updates, and steps by their sum. With momentum correction, and without masking.
    pub ef21: bool,
    /// Decay of the residual (Peng, Quesnelle and Kingma: DeMo, 2024, Algorithm 1): the share β, in (0, 1], of what waits that each step keeps,
    /// residual ← β·residual + gradient. What waits is a momentum then, and the optimiser needs none. None for all of it.
    pub decay: Option<f32>,
    /// Local gradient clipping (§3.2): a worker's gradient is shortened to this norm divided by √P before it is accumulated.
    pub clip: Option<f32>,
    /// Density warm-up (§3.3): the density falls from 25% to what the method is set to over this many steps. 0 for none.
    pub warm_up: u64,
}

/// An invalid correction.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum CorrectionError {
    /// No such share of a velocity.
    #[error("the momentum correction is {0}; expected a number from 0 to below 1, such as 0.9")]
    Momentum(f32),
    /// Nothing to mask.
    #[error(
        "momentum masking was asked for without momentum correction; set the momentum correction, too, or leave both out"
    )]
    Mask,
    /// Changes of nothing, or of velocities that start afresh.
    #[error(
        "EF21 was asked for {0}; expected momentum correction beside it, whose velocities it sends the changes of, and no masking"
    )]
    Ef21(&'static str),
    /// No such share of what waits.
    #[error("the decay of the residual is {0}; expected a number above 0 and up to 1, such as 0.999")]
    Decay(f32),
    /// What has residuals of another kind, or none.
    #[error("a decay of the residual was asked for with {0}")]
    DecayBeside(&'static str),
    /// No such norm.
    #[error("the norm to clip to is {0}; expected a number above 0")]
    Clip(f32),
    /// Two things that cannot be distinguished.
    #[error(
        "a density warm-up was asked for with the method auto, which measures steps whose density would not last; name a \
         method, or leave the warm-up out"
    )]
    Auto,
    /// Steps whose cost is another than that of the steps that are measured.
    #[error(
        "steps that deliver every entry were asked for with the method auto, which measures what a step costs; name a method, or \
         leave those steps out"
    )]
    WholeAuto,
    /// Servers apply what workers push, and no worker's residual is delivered by another.
    #[error(
        "steps, or parameters, of which every entry is delivered were asked for with parameter servers, to which workers push k entries \
         of each part in every step; do without servers, or leave them out"
    )]
    WholeServed,
    /// A second exchange whose cost no forecast has.
    #[error(
        "completed sums were asked for with the method auto, which does not expect what the second exchange of a step costs; name a method, \
         or leave them out"
    )]
    SumsAuto,
    /// Servers add up what workers push, and ask none for more.
    #[error(
        "completed sums were asked for with parameter servers, which apply what workers push; do without servers, or leave them out"
    )]
    SumsServed,
    /// Servers step by what workers push, and by nothing that came before.
    #[error(
        "EF21 was asked for with parameter servers, which step by what is pushed and add nothing up; do without servers, or leave it out"
    )]
    Ef21Served,
    /// Entries that an index cannot count.
    #[error(
        "completed sums were asked for of a gradient with {0} entries; expected fewer than 2³² − 1, so split it into groups of layers, or leave them \
         out"
    )]
    SumsLong(usize),
    /// Velocities of something that has no mean.
    #[error(
        "momentum correction, clipping and a decay of the residual are for gradients that are added up, which a {0} does not; choose the \
         sum, or leave them out"
    )]
    NotASum(&'static str),
    /// A share that its type rounds to all.
    #[error(
        "the momentum correction {0} is 1 as {1}, and a velocity would never decay; choose less, or a wider type"
    )]
    Rounded(f32, &'static str),
    /// A share of what waits that its type rounds to all.
    #[error(
        "the decay of the residual {0} is 1 as {1}, and nothing would decay; choose less, or a wider type"
    )]
    DecayRounded(f32, &'static str),
}

crate::sentence::debug_as_sentence!(CorrectionError);

/// The density at the start of a warm-up (§3.3: a sparsity of 75%).
const FIRST: f64 = 0.25;

/// How many times smaller the density becomes at a time (§3.3: 25%, 6.25%, 1.5625%, 0.4%, 0.1%).
const TIMES: f64 = 4.0;

impl Correction {
    /// Whether it changes gradients or residuals as they are accumulated, which is done in main memory.
    pub fn needs_main_memory(&self) -> bool {
        self.momentum > 0.0 || self.clip.is_some() || self.decay.is_some()
    }

    /// Refuses numbers that make no sense.
    ///
    /// # Errors
    /// A momentum outside [0, 1), masking without momentum, a decay outside (0, 1] or beside momentum, or a norm that is not above 0.
    pub fn check(&self) -> Result<(), CorrectionError> {
        if !(0.0..1.0).contains(&self.momentum) {
            return Err(CorrectionError::Momentum(self.momentum));
        }
        if self.mask && self.momentum == 0.0 {
            return Err(CorrectionError::Mask);
        }
        match (self.ef21, self.momentum > 0.0, self.mask) {
            (true, false, _) => return Err(CorrectionError::Ef21("without momentum correction")),
            (true, _, true) => return Err(CorrectionError::Ef21("with masking")),
            _ => {}
        }
        match self.decay {
            Some(decay) if !(decay > 0.0 && decay <= 1.0) => return Err(CorrectionError::Decay(decay)),
            Some(_) if self.momentum > 0.0 => {
                let velocities = "momentum correction, whose velocities decay already, also as in EF21; leave one of them out";
                return Err(CorrectionError::DecayBeside(velocities));
            }
            _ => {}
        }
        match self.clip {
            Some(norm) if !(norm > 0.0 && norm.is_finite()) => Err(CorrectionError::Clip(norm)),
            _ => Ok(()),
        }
    }

    /// Refuses what does not go with values of a type, or with a reduction.
    ///
    /// # Errors
    /// Momentum, clipping or a decay of what is not summed, or a momentum or a decay that is 1 once it is rounded to the type.
    pub fn fits<T: Element>(&self, reduction: &Reduction<T>) -> Result<(), CorrectionError> {
        if self.needs_main_memory() && !reduction.has_residual() {
            return Err(CorrectionError::NotASum(reduction.name()));
        }
        let is_all = |share: f32| T::from_f64(f64::from(share)) >= T::ONE;
        if let Some(decay) = self.decay.filter(|&decay| decay < 1.0 && is_all(decay)) {
            return Err(CorrectionError::DecayRounded(decay, T::NAME));
        }
        match is_all(self.momentum) {
            true => Err(CorrectionError::Rounded(self.momentum, T::NAME)),
            false => Ok(()),
        }
    }

    /// The factor, below 1, that shortens a gradient of this norm, among this many workers. None where it is short enough, and
    /// where the norm is not finite: then its values are checked one by one.
    pub fn shortening(&self, norm: f64, workers: u32) -> Option<f64> {
        let limit = f64::from(self.clip?) / f64::from(workers).sqrt();
        (norm.is_finite() && norm > limit).then(|| limit / norm)
    }

    /// The density of a step, counted from 0, of a method that is set to `target`: in stages of equal numbers of steps, each
    /// about four times as sparse as the one before. Each stage has schedules of its own, so there are few. A target of 25%
    /// or more is there from the start.
    pub fn density(&self, target: f64, step: u64) -> f64 {
        if step >= self.warm_up || target >= FIRST || target <= 0.0 {
            return target;
        }
        let stages = (FIRST / target).log(TIMES).round().max(1.0);
        let stage = (step as f64 * stages / self.warm_up as f64).floor();
        FIRST * (target / FIRST).powf(stage / stages)
    }

    /// The sparsity in place of a method's own in a step, counted from 0, with a gradient of n entries.
    ///
    /// # Errors
    /// An invalid sparsity.
    pub fn sparsity(&self, of: Sparsity, step: u64, n: usize) -> Result<Sparsity, SparsityError> {
        let k = of.k(n)?;
        if step >= self.warm_up || k == 0 {
            return Ok(of);
        }
        let target = match of {
            Sparsity::Density(density) => density,
            Sparsity::K(k) => k as f64 / n as f64,
        };
        let warm = Sparsity::Density(self.density(target, step)).k(n)?;
        Ok(if warm > k { Sparsity::K(warm) } else { of })
    }
}

/// What is done, each after a comma; nothing where nothing is.
impl fmt::Display for Correction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.momentum > 0.0 {
            write!(f, ", {} momentum correction", self.momentum)?;
        }
        if self.mask {
            write!(f, " with masking")?;
        }
        if self.ef21 {
            write!(f, " as in EF21")?;
        }
        if let Some(decay) = self.decay {
            write!(f, ", residual decay {decay}")?;
        }
        if let Some(norm) = self.clip {
            write!(f, ", clipped to norm {norm}")?;
        }
        match self.warm_up {
            0 => Ok(()),
            steps => write!(f, ", density warm-up over {steps} steps"),
        }
    }
}

/// The L2 norm of some values; finite for every finite value but the very largest of f64.
pub fn norm<T: Element>(values: &[T]) -> f64 {
    let of =
        |unit: f64| values.iter().map(|value| (value.to_f64() / unit).powi(2)).sum::<f64>().sqrt() * unit;
    let plain = of(1.0);
    if plain.is_finite() && plain > 0.0 {
        return plain;
    }
    // Squares too large for f64, or too small.
    let largest = values.iter().fold(0.0, |largest: f64, value| largest.max(value.to_f64().abs()));
    if largest > 0.0 { of(largest) } else { plain }
}

/// The velocity of a gradient, under momentum correction.
#[derive(Debug)]
pub(super) struct Velocity<T: Element> {
    momentum: T,
    pub(super) mask: bool,
    /// Whether its changes are accumulated, and not itself.
    ef21: bool,
    pub(super) values: Vec<T>,
    /// A piece of the next velocity, until it is known to be finite.
    next: Vec<T>,
}

impl<T: Element> Velocity<T> {
    /// At rest; None without momentum.
    pub(super) fn new(correction: &Correction, n: usize) -> Option<Self> {
        let momentum = T::from_f64(f64::from(correction.momentum));
        (correction.momentum > 0.0).then(|| Self {
            momentum,
            mask: correction.mask,
            ef21: correction.ef21,
            values: vec![T::ZERO; n],
            next: Vec::new(),
        })
    }

    /// What a velocity of u makes of a gradient, to be accumulated: m·u + g, or by how much that is more than u.
    pub(super) fn made(&self, u: T, gradient: T) -> T {
        let factor = if self.ef21 { self.momentum - T::ONE } else { self.momentum };
        factor * u + gradient
    }

    /// Computes a piece of the next velocity and lets `pass` accumulate it, or its change, while it is in the nearest cache. What `pass`
    /// refuses, from the index in its error on, stays as it was.
    pub(super) fn advance(
        &mut self,
        at: usize,
        gradient: &[T],
        pass: impl FnOnce(&[T]) -> Result<(), usize>,
    ) -> Result<(), usize> {
        let here = at..at + gradient.len();
        let mut next = std::mem::take(&mut self.next);
        next.clear();
        next.extend(self.values[here.clone()].iter().zip(gradient).map(|(&u, &g)| self.made(u, g)));
        let outcome = pass(&next);
        let sound = outcome.err().unwrap_or(next.len());
        let old = &mut self.values[here][..sound];
        match self.ef21 {
            true => old.iter_mut().zip(&next).for_each(|(u, &change)| *u += change),
            false => old.copy_from_slice(&next[..sound]),
        }
        self.next = next;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::norm as norm_of;
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    #[test]
    fn the_warm_up_has_the_papers_stages() {
        let warm_up = Correction { warm_up: 4, ..Correction::default() };
        let stages: Vec<f64> = (0..6).map(|step| warm_up.density(0.001, step)).collect();
        for (found, paper) in stages.iter().zip([0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001]) {
            assert!((found / paper - 1.0).abs() < 0.02, "{stages:?}");
        }
    }

    proptest! {
        #[test]
        fn a_warm_up_falls_from_a_quarter_to_its_target(target in 1e-5f64..1.0, warm_up in 1u64..500, n in 1usize..100_000) {
            let correction = Correction { warm_up, ..Correction::default() };
            let densities: Vec<f64> = (0..warm_up + 2).map(|step| correction.density(target, step)).collect();
            prop_assert_eq!(densities[0], target.max(FIRST));
            prop_assert_eq!(densities[warm_up as usize], target);
            prop_assert!(densities.windows(2).all(|d| d[1] <= d[0]));
            let mut stages = densities.clone();
            stages.dedup();
            // Eight stages reach the least target; in fewer steps some are left out.
            let is_gradual = stages.windows(2).all(|d| d[0] / d[1] <= TIMES * TIMES);
            prop_assert!(warm_up < 8 || is_gradual, "{:?}", stages);
            let ks = |step| correction.sparsity(Sparsity::Density(target), step, n).unwrap().k(n).unwrap();
            prop_assert!((0..warm_up + 2).all(|step| ks(step) >= ks(step + 1)));
            prop_assert_eq!(ks(warm_up), Sparsity::Density(target).k(n).unwrap());
        }

        #[test]
        fn clipping_never_lengthens_and_leaves_short_gradients_alone(
            values in proptest::collection::vec(-1e3f32..1e3, 0..50), norm in 1e-3f32..1e4, workers in 1u32..100,
        ) {
            let correction = Correction { clip: Some(norm), ..Correction::default() };
            let limit = f64::from(norm) / f64::from(workers).sqrt();
            match correction.shortening(norm_of(&values), workers) {
                None => prop_assert!(norm_of(&values) <= limit * (1.0 + 1e-12)),
                Some(factor) => {
                    let shorter: Vec<f32> = values.iter().map(|v| v * factor as f32).collect();
                    prop_assert!(norm_of(&shorter) <= norm_of(&values));
                    prop_assert!((norm_of(&shorter) / limit - 1.0).abs() < 1e-5);
                }
            }
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let none = Correction::default();
        for momentum in [-0.1, 1.0, f32::NAN] {
            assert!(matches!(Correction { momentum, ..none }.check(), Err(CorrectionError::Momentum(_))));
        }
        for norm in [0.0, -1.0, f32::INFINITY, f32::NAN] {
            assert!(matches!(Correction { clip: Some(norm), ..none }.check(), Err(CorrectionError::Clip(_))));
        }
        for decay in [0.0, -0.5, 1.5, f32::NAN] {
            assert!(matches!(
                Correction { decay: Some(decay), ..none }.check(),
                Err(CorrectionError::Decay(_))
            ));
        }
        let beside = Correction { decay: Some(0.5), momentum: 0.5, ..none }.check();
        assert!(matches!(beside, Err(CorrectionError::DecayBeside(_))), "{beside:?}");
        assert_eq!(Correction { decay: Some(1.0), ..none }.check(), Ok(()));
        assert_eq!(Correction { mask: true, ..none }.check(), Err(CorrectionError::Mask));
        assert_eq!(
            Correction { mask: true, momentum: 0.9, clip: Some(1.0), warm_up: 9, ef21: false, decay: None }
                .check(),
            Ok(())
        );
        let ef21 = Correction { ef21: true, ..none };
        assert!(ef21.check().unwrap_err().to_string().contains("without momentum correction"));
        assert!(
            Correction { mask: true, momentum: 0.5, ..ef21 }
                .check()
                .unwrap_err()
                .to_string()
                .contains("with masking")
        );
        assert_eq!(Correction { momentum: 0.5, ..ef21 }.check(), Ok(()));
        let momentum = |momentum| Correction { momentum, ..none };
        assert_eq!(
            momentum(0.999).fits(&Reduction::<bf16>::Sum),
            Err(CorrectionError::Rounded(0.999, bf16::NAME))
        );
        let decays = |decay| Correction { decay: Some(decay), ..Correction::default() };
        assert_eq!(
            decays(0.999).fits(&Reduction::<bf16>::Sum),
            Err(CorrectionError::DecayRounded(0.999, bf16::NAME))
        );
        assert_eq!(decays(1.0).fits(&Reduction::<bf16>::Sum), Ok(()));
        assert_eq!(momentum(0.999).fits(&Reduction::<f16>::Sum), Ok(()));
        assert_eq!(momentum(0.9).fits(&Reduction::<f32>::Max), Err(CorrectionError::NotASum("max")));
        let clip = Correction { clip: Some(1.0), ..none };
        assert_eq!(clip.fits(&Reduction::<f32>::Product), Err(CorrectionError::NotASum("product")));
        assert_eq!(none.fits(&Reduction::<f32>::Product), Ok(()));
        // Whose square is not finite, or nothing.
        for size in [1e200, 1e-200] {
            assert!((norm_of(&[3.0 * size, -4.0 * size]) / size - 5.0).abs() < 1e-12);
        }
        assert_eq!(norm_of::<f64>(&[]), 0.0);
        assert_eq!(none.shortening(f64::INFINITY, 1), None);
        assert_eq!(Correction { clip: Some(1.0), ..none }.shortening(f64::NAN, 1), None);
    }
}
