//! Medians, quantiles and spreads of what was measured, and seeded random numbers.

pub mod random;

/// A value and how far it spreads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle: a median, or a mean where the figure says so.
    pub value: f64,
    /// The lower end of the error bar; the value itself where no spread is known.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Spread {
    /// A value whose spread is not known.
    pub fn exact(value: f64) -> Self {
        Self { value, low: value, high: value }
    }

    /// Median and quartiles of one run's values; none without values.
    pub fn quartiles(values: &[f64]) -> Option<Self> {
        Some(Self {
            value: quantile(values, 0.5)?,
            low: quantile(values, 0.25)?,
            high: quantile(values, 0.75)?,
        })
    }

    /// One measurement keeps its own spread; of several the median, and the least and the largest.
    pub fn over(spreads: &[Spread]) -> Option<Self> {
        let values: Vec<f64> = spreads.iter().map(|s| s.value).collect();
        match spreads {
            [one] => Some(*one),
            _ => Some(Self { value: quantile(&values, 0.5)?, low: least(&values), high: most(&values) }),
        }
    }

    /// The mean, the least and the largest.
    pub fn mean(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let value = values.iter().sum::<f64>() / values.len() as f64;
        Some(Self { value, low: least(values), high: most(values) })
    }

    /// All three, multiplied.
    pub fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, low: self.low * factor, high: self.high * factor }
    }
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// The value below which a share of the others lies; between two values it lies in proportion. None without values.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share * (sorted.len().checked_sub(1)?) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    // Of two that are equal the difference is not asked for: infinity less infinity is no number.
    Some(if below == above { below } else { below + (above - below) * place.fract() })
}

/// The value in the middle, or half-way between the two in the middle; 0 without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(&values.into_iter().collect::<Vec<f64>>(), 0.5).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_by_hand() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[7.0], 0.25), Some(7.0));
        assert_eq!(median([3.0, 1.0, 9.0]), 3.0);
        assert_eq!(median([f64::INFINITY, 1.0, f64::INFINITY]), f64::INFINITY);
        assert_eq!(median([]), 0.0);
        // Four values: the quartiles lie three quarters of a gap from the ends.
        let quartiles = Spread::quartiles(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(quartiles, Spread { value: 2.5, low: 1.75, high: 3.25 });
        let quartiles = Spread::quartiles(&[10.0, 50.0, 20.0, 40.0, 30.0]).unwrap();
        assert_eq!(quartiles, Spread { value: 30.0, low: 20.0, high: 40.0 });
    }

    #[test]
    fn evenly_spaced_values_have_their_quantiles_at_their_shares() {
        for len in 2..20 {
            let sorted: Vec<f64> = (0..len).map(|i| 3.0 + 2.0 * f64::from(i)).collect();
            let width = sorted[sorted.len() - 1] - 3.0;
            for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
                assert!(
                    (quantile(&sorted, share).unwrap() - (3.0 + share * width)).abs() < 1e-12,
                    "{share} of {len}"
                );
            }
        }
    }

    #[test]
    fn a_spread_is_ordered_and_turns_with_the_signs() {
        for seed in 0..50 {
            let values: Vec<f64> =
                (0..seed % 11 + 1).map(|i| f64::from((seed * 7919 + i * 104_729) % 97)).collect();
            let spread = Spread::quartiles(&values).unwrap();
            assert!(spread.low <= spread.value && spread.value <= spread.high);
            let turned = Spread::quartiles(&values.iter().map(|value| -value).collect::<Vec<_>>()).unwrap();
            let sums = [spread.low + turned.high, spread.value + turned.value, spread.high + turned.low];
            assert!(sums.iter().all(|sum| sum.abs() < 1e-9), "{values:?}");
            // As many values lie below the median as above it.
            let below = values.iter().filter(|value| **value < spread.value).count();
            let above = values.iter().filter(|value| **value > spread.value).count();
            assert!(below.max(above) <= values.len() / 2, "{values:?}");
        }
    }

    #[test]
    fn several_measurements_reach_from_least_to_largest() {
        let one = Spread { value: 5.0, low: 4.0, high: 9.0 };
        assert_eq!(Spread::over(&[one]), Some(one));
        let two = [one, Spread::exact(7.0)];
        assert_eq!(Spread::over(&two), Some(Spread { value: 6.0, low: 5.0, high: 7.0 }));
        assert_eq!(Spread::over(&[]), None);
    }

    #[test]
    fn means_by_hand() {
        assert_eq!(Spread::mean(&[1.0, 2.0, 6.0]), Some(Spread { value: 3.0, low: 1.0, high: 6.0 }));
        assert_eq!(Spread::mean(&[]), None);
    }
}
