//! A threshold for a gradient that is normally distributed (Gaussian-k: Shi et al.: Understanding Top-k Sparsification in
//! Distributed Deep Learning, 2019, Algorithm 1): μ + σ·z, where z leaves k/2n above it on either side. Where the count then
//! is below 2k/3 or above 4k/3, the threshold is halved, or taken one and a half times, three times at most.
//!
//! No promise about the count. Gradients have heavier tails than that, so the first guess is often far too high or too low.
//! Where the last guess is above all entries, the largest are chosen, or of equal magnitudes nothing ever would be.

use std::f64::consts::{FRAC_1_SQRT_2, TAU};

use super::source::Source;
use super::{Chosen, DeviceError, Element, moments};

/// Times that the threshold is corrected.
const CORRECTIONS: usize = 3;

/// Steps of Newton's method, of which the smallest share of 2³² entries needs fewer than half.
const STEPS: usize = 60;

pub(super) fn choose<T: Element>(source: &Source<'_, T>, k: usize) -> Result<Chosen<T>, DeviceError> {
    let n = source.len().max(1);
    let (mean, variance) = moments::signed(source.values()?);
    // The tail that is further from zero is on the side of the mean.
    let first = mean.abs() + variance.sqrt() * upper_quantile(k.min(n) as f64 / (2.0 * n as f64));
    let mut found = source.reaching(T::from_f64(first.max(0.0)))?;
    for _ in 0..CORRECTIONS {
        let factor = match 3 * found.entries.len() {
            count if count < 2 * k => 0.5,
            count if count > 4 * k => 1.5,
            _ => break,
        };
        let threshold = T::from_f64(factor * found.threshold.to_f64());
        found = source.again(&found, threshold)?;
    }
    let found = source.at_least_the_largest(found)?;
    Ok(Chosen::by(found.entries, found.threshold))
}

/// Above which number a standard normal variable lies with this probability, in (0, 1/2]: by Newton's method from 0 on, which
/// the tail's convexity leads there from one side.
fn upper_quantile(probability: f64) -> f64 {
    let tail = |z: f64| 0.5 * libm::erfc(z * FRAC_1_SQRT_2);
    let density = |z: f64| (-0.5 * z * z).exp() / TAU.sqrt();
    let mut quantile = 0.0;
    for _ in 0..STEPS {
        quantile += (tail(quantile) - probability) / density(quantile);
    }
    quantile
}

#[cfg(test)]
mod tests {
    use super::upper_quantile;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (probability, quantile) in [
            (0.5, 0.0),
            (0.25, 0.674490),
            (0.05, 1.644854),
            (0.005, 2.575829),
            (0.0005, 3.290527),
            (1e-7, 5.199338),
            (1e-12, 7.034484),
        ] {
            let found: f64 = upper_quantile(probability);
            assert!((found - quantile).abs() < 1e-6, "{probability}: {found}");
        }
    }
}
