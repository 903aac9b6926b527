//! How much goes to the background as the loss falls: OSP, Algorithm 1.

/// The share of U_max that Algorithm 1 allows: S_1 = 0 and S_i = (1 − loss_i / L) U_max, with L the loss of the first epoch.
///
/// The loss of an epoch is known at its end, so it decides for the epoch after it. A loss above L allows nothing, as does one
/// that is not finite; one below zero allows all. L is the first loss that is finite and above zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tuning {
    /// L, once it is known.
    first: Option<f64>,
    share: f64,
}

impl Tuning {
    /// Records the loss of an epoch at its end, the same on all workers.
    pub fn record(&mut self, loss: f64) {
        if self.first.is_none() && loss.is_finite() && loss > 0.0 {
            self.first = Some(loss);
        }
        self.share = match self.first {
            Some(first) if loss.is_finite() => (1.0 - loss / first).clamp(0.0, 1.0),
            _ => 0.0,
        };
    }

    /// How much of U_max goes to the background in the epoch that follows; 0 to 1.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// What it has learnt, for a checkpoint: the first loss, NaN while there is none, and the share.
    pub fn numbers(&self) -> [f64; 2] {
        [self.first.unwrap_or(f64::NAN), self.share]
    }

    /// The same again.
    pub fn of_numbers([first, share]: [f64; 2]) -> Self {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        Self { first: Some(first).filter(|first| first.is_finite() && *first > 0.0), share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_share_grows_as_the_loss_falls() {
        let shares = |losses: &[f64]| {
            let mut tuning = Tuning::default();
            let after = losses.iter().map(|&loss| {
                tuning.record(loss);
                tuning.share()
            });
            after.collect::<Vec<_>>()
        };
        assert_eq!(Tuning::default().share(), 0.0);
        assert_eq!(shares(&[2.0, 1.0, 0.5, 0.0]), [0.0, 0.5, 0.75, 1.0]);
        // A loss that grows again, above the first one, below zero, and one that is NaN or infinite.
        assert_eq!(shares(&[2.0, 0.5, 1.5, 3.0, -1.0]), [0.0, 0.75, 0.25, 0.0, 1.0]);
        assert_eq!(shares(&[2.0, 1.0, f64::NAN, 1.0, f64::INFINITY]), [0.0, 0.5, 0.0, 0.5, 0.0]);
        assert_eq!(shares(&[f64::NAN, 0.0, -1.0, 4.0, 3.0]), [0.0, 0.0, 0.0, 0.0, 0.25]);
    }

    proptest! {
        #[test]
        fn a_share_is_a_share_and_is_kept(losses in prop::collection::vec(any::<f64>(), 0..8)) {
            let mut tuning = Tuning::default();
            for loss in losses {
                tuning.record(loss);
                prop_assert!((0.0..=1.0).contains(&tuning.share()));
            }
            prop_assert_eq!(Tuning::of_numbers(tuning.numbers()), tuning);
        }
    }
}
