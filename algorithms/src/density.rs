//! A density that follows the share of the norm which a step delivers, within a budget of entries.
//!
//! Error feedback is analysed by the share δ of the squared L2 norm that a compressor C delivers: ‖C(x) − x‖² ≤ (1 − δ)‖x‖²
//! (Karimireddy, Rebjock, Stich and Jaggi, *Error Feedback Fixes SignSGD*, ICML 2019, Assumption A). A fixed density delivers a large share
//! where few entries hold most of the norm, and a small one where it is spread over many. Here δ is set and the density follows, by a rule of
//! this project: it is doubled where less was delivered, and halved where more was. What a method is set to is the budget: in the mean
//! over all steps so far, no more entries are selected.

use crate::residual::WholeSteps;

/// Steps from one look to the next. So many are paid for in advance.
const EVERY: u64 = 20;

/// The density is a power of two times what the method is set to: from a sixteenth of it to eight times as much. So there are few
/// schedules.
const LEVELS: std::ops::RangeInclusive<i32> = -4..=3;

/// By how much the odds of a share, s/(1 − s), may be off. Where twice the density has at most twice the odds, one of two neighbouring levels
/// lies within the band, and the density stays there.
const BAND: f64 = std::f64::consts::SQRT_2;

/// A share of the norm with which no density can follow it.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum NormShareError {
    /// No share that a step of a sparse method has.
    #[error("the share of the norm is {0}; expected a number above 0 and below 1, such as 0.5")]
    Share(f64),
    /// What has no density of its own, or one that follows something else.
    #[error("a share of the norm was asked for with {0}")]
    Beside(&'static str),
    /// Every entry is delivered.
    #[error(
        "a share of the norm was asked for with {0}, which delivers every entry; choose a sparse method, or leave the share out"
    )]
    Dense(&'static str),
}

crate::sentence::debug_as_sentence!(NormShareError);

/// The number of entries that steps select, as it follows the share of the norm that they deliver. The same on all ranks, as long as it is given
/// the same shares.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveDensity {
    share: f64,
    /// k as the method is set to, of n.
    budget: usize,
    n: usize,
    /// The power of two.
    level: i32,
    /// How many entries fewer were selected than the budget allowed.
    saved: u64,
    /// How many steps selected entries.
    steps: u64,
}

impl AdaptiveDensity {
    /// One that begins at its budget, of `budget` out of n entries in a step, and follows `share`, in (0, 1).
    pub fn new(share: f64, budget: usize, n: usize) -> Self {
        Self { share, budget, n, level: 0, saved: 0, steps: 0 }
    }

    /// How many entries a step selects now.
    pub fn k(&self) -> usize {
        self.at(self.level)
    }

    /// The mean number of entries that a step has selected so far; before the first step, what it will select.
    pub fn mean(&self) -> f64 {
        match self.steps {
            0 => self.k() as f64,
            steps => self.budget as f64 - self.saved as f64 / steps as f64,
        }
    }

    /// The same as a share of the entries.
    pub fn mean_density(&self) -> f64 {
        self.mean() / self.n.max(1) as f64
    }

    /// Counts steps that have selected [`k`](Self::k) entries each.
    pub fn passed(&mut self, steps: u64) {
        self.steps += steps;
        let allowed = self.saved + steps * self.budget as u64;
        self.saved = allowed.saturating_sub(steps * self.k() as u64);
    }

    /// Takes the density of the next steps: by the share of the squared norm that the last one delivered, if it had a norm, and by what the
    /// budget allows until the next look. Says whether it is another one than before.
    pub fn follow(&mut self, delivered: Option<f64>) -> bool {
        let odds = |share: f64| share / (1.0 - share);
        let (before, aim) = (self.k(), odds(self.share));
        let wanted = match delivered.map(odds) {
            Some(odds) if odds * BAND < aim => self.level + 1,
            Some(odds) if odds > aim * BAND => self.level - 1,
            _ => self.level,
        };
        let allowed = |level: &i32| {
            let more = self.at(*level).saturating_sub(self.budget) as u64;
            EVERY.saturating_mul(more) <= self.saved
        };
        let wanted = wanted.clamp(*LEVELS.start(), *LEVELS.end());
        self.level = (*LEVELS.start()..=wanted).rev().find(allowed).unwrap_or(0);
        self.k() != before
    }

    fn at(&self, level: i32) -> usize {
        let k = self.budget as f64 * f64::from(level).exp2();
        (k as usize).clamp(1.min(self.budget), self.n)
    }

    /// What a checkpoint holds of it.
    pub fn numbers(&self) -> Vec<f64> {
        vec![f64::from(self.level), self.saved as f64, self.steps as f64]
    }

    /// Goes on from [`numbers`](Self::numbers). None for what it does not give.
    #[must_use]
    pub fn restored(&self, numbers: &[f64]) -> Option<Self> {
        let &[level, saved, steps] = numbers else { return None };
        // Beyond 2⁵³ not every whole number is one of 64 bits.
        let most = (1u64 << 53) as f64;
        let whole =
            |number: f64| (number >= 0.0 && number < most && number.fract() == 0.0).then_some(number as u64);
        let level = LEVELS.into_iter().find(|&known| f64::from(known) == level)?;
        Some(Self { level, saved: whole(saved)?, steps: whole(steps)?, ..*self })
    }
}

/// Whether the norm is looked at in a step, counted from 0: in every n-th, or the last before it that does not deliver everything.
pub fn looks_in(step: u64, whole: &WholeSteps) -> bool {
    let end = step - step % EVERY + EVERY;
    !whole.contains(step) && (step + 1..end).all(|later| whole.contains(later))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use proptest::prelude::*;

    use super::*;

    /// Runs steps of which one delivers the share that `delivers` says of the density, and gives each step's k.
    fn run(
        density: &mut AdaptiveDensity,
        steps: u64,
        mut delivers: impl FnMut(u64, f64) -> f64,
    ) -> Vec<usize> {
        let mut ks = Vec::new();
        for step in 0..steps {
            ks.push(density.k());
            density.passed(1);
            if looks_in(step, &WholeSteps::default()) {
                let share = delivers(step, density.k() as f64 / density.n as f64);
                density.follow(Some(share));
            }
        }
        ks
    }

    proptest! {
        /// Whatever is delivered, no step so far has brought the mean above the budget, and none has more than eight times as many.
        #[test]
        fn the_mean_never_exceeds_the_budget(
            share in 0.01f64..0.99, n in 1usize..100_000, part in 0.0f64..=1.0,
            delivered in proptest::collection::vec(0.0f64..=1.0, 60),
        ) {
            let budget = (part * n as f64) as usize;
            let mut density = AdaptiveDensity::new(share, budget, n);
            let ks = run(&mut density, 20 * 60, |step, _| delivered[(step / 20) as usize]);
            let mut sum = 0;
            for (step, &k) in ks.iter().enumerate() {
                sum += k;
                prop_assert!(sum <= (step + 1) * budget, "step {}: {} of {}", step, sum, (step + 1) * budget);
                prop_assert!(k <= 8 * budget && k <= n && (k > 0 || budget == 0));
            }
            prop_assert!((density.mean() - sum as f64 / ks.len() as f64).abs() < 1e-6 * (1.0 + budget as f64));
        }

        /// Where the odds of the share grow with a power of the density up to 1, and the budget suffices, it comes as near as levels are apart,
        /// and stays.
        #[test]
        fn it_comes_near_the_share_and_stays(share in 0.05f64..0.9, more in 1.0f64..4.0, power in 0.3f64..1.0) {
            let budget = 10_000;
            let aim = share / (1.0 - share);
            let mut density = AdaptiveDensity::new(share, budget, 1_000_000);
            let odds = |d: f64| aim * more * (d * 100.0).powf(power);
            let ks = run(&mut density, 600, |_, d| odds(d) / (1.0 + odds(d)));
            prop_assert!(ks[300..].iter().all(|&k| k == ks[300]), "{:?}", &ks[300..]);
            let off = odds(ks[300] as f64 / 1e6) / aim;
            let least = ks[300] == budget / 16;
            prop_assert!((0.999 / BAND..1.001 * BAND).contains(&off) || off > 1.0 && least, "odds are {} times", off);
        }

        #[test]
        fn it_goes_on_from_its_numbers(delivered in proptest::collection::vec(0.0f64..1.0, 20)) {
            let mut density = AdaptiveDensity::new(0.5, 1000, 20_000);
            run(&mut density, 20 * 20, |step, _| delivered[(step / 20) as usize]);
            prop_assert_eq!(AdaptiveDensity::new(0.5, 1000, 20_000).restored(&density.numbers()), Some(density));
        }
    }

    /// What was saved while few entries held the norm is spent once many do.
    #[test]
    fn what_is_saved_early_is_spent_later() {
        let mut density = AdaptiveDensity::new(0.5, 1000, 20_000);
        let ks = run(&mut density, 2000, |step, _| if step < 1000 { 0.9 } else { 0.1 });
        assert_eq!((ks[999], *ks.iter().max().unwrap()), (62, 8000));
        let spent: usize = ks.iter().sum();
        assert!(spent <= 2000 * 1000 && spent > 1900 * 1000, "{spent}");
    }

    #[test]
    fn numbers_of_nothing_are_refused() {
        let density = AdaptiveDensity::new(0.5, 10, 100);
        for numbers in [
            &[][..],
            &[0.0, 1.0],
            &[9.0, 0.0, 0.0],
            &[0.5, 0.0, 0.0],
            &[0.0, -1.0, 0.0],
            &[0.0, 0.0, f64::NAN],
            &[0.0, 1e300, 0.0],
        ] {
            assert_eq!(density.restored(numbers), None, "{numbers:?}");
        }
    }

    #[test]
    fn each_twenty_steps_are_looked_at_once() {
        let looks = |whole: &WholeSteps| (0..120).filter(|&step| looks_in(step, whole)).collect::<Vec<u64>>();
        assert_eq!(looks(&WholeSteps::default()), [19, 39, 59, 79, 99, 119]);
        // The last of them delivers everything, or the last two.
        let every = WholeSteps { every: NonZeroU64::new(20), at: vec![38] };
        assert_eq!(looks(&every), [18, 37, 58, 78, 98, 118]);
        assert_eq!(looks(&WholeSteps { every: NonZeroU64::new(1), at: Vec::new() }), []);
    }
}
