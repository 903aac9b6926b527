//! SIDCo: a threshold that suits the distribution of the magnitudes, fitted in stages, each to what exceeded the threshold of
//! the stage before (Abdelmoniem et al.: An Efficient Statistical-based Gradient Compression Technique for Distributed
//! Training Systems, MLSys 2021).
//!
//! With μ and σ² the mean and the variance of what exceeds η, the next threshold, which a share δ of it exceeds, is
//!
//! - exponential: η + μ ln(1/δ);
//! - generalised Pareto: η + (β/α)(e^(−α ln δ) − 1) with α = (1 − μ²/σ²)/2 and β = μ(μ²/σ² + 1)/2;
//! - gamma, in the first stage alone: −β(ln δ + ln Γ(α)) with s = ln μ − the mean of ln|g|,
//!   α = (3 − s + √((s − 3)² + 24s))/12s and β = μ/α; the stages after it are generalised Pareto.
//!
//! Each stage but the last leaves a quarter, and the last one the rest of the way to k/n. Every five steps the number of
//! stages follows the count: one fewer where on average more than 1.2k entries were chosen, one more where fewer than 0.8k
//! were.
//!
//! No promise about the count. We fit to the entries that are not zero, where the paper fits to all: zeros are never sent, and
//! have no logarithm. Where a fit gives no number, the exponential one stands in for it; where it gives a threshold that
//! nothing reaches, as with equal magnitudes, the largest entries are chosen, or nothing ever would be.

use super::moments::{Excesses, excesses, mean_logarithm};
use super::source::Source;
use super::{Chosen, DeviceError, Element};

/// What is fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// An exponential distribution in every stage.
    Exponential,
    /// A gamma distribution, then generalised Pareto.
    Gamma,
    /// A generalised Pareto distribution in every stage.
    Pareto,
}

/// The share that every stage but the last leaves, δ1.
const STAGE: f64 = 0.25;
/// Steps between two changes of the number of stages, Q.
const CHANGE_EVERY: f64 = 5.0;
/// How far the mean count may be from k, as a share of it: ε.
const TOLERANCE: f64 = 0.2;

/// At first: one stage, no steps, and a sum of 0 over their counts as multiples of k.
pub(super) const MEMORY: [f64; 3] = [1.0, 0.0, 0.0];

pub(super) fn choose<T: Element>(
    source: &Source<'_, T>,
    k: usize,
    fit: Fit,
    memory: &[f64],
) -> Result<Chosen<T>, DeviceError> {
    let stages = memory.first().map_or(1, |&stages| stages as u32);
    let threshold = T::from_f64(threshold(source.values()?, k, fit, stages));
    let found = source.at_least_the_largest(source.reaching(threshold)?)?;
    Ok(Chosen::by(found.entries, found.threshold))
}

/// Most stages that leave so small a share: δ1 to the power of all but the last is above it.
fn most_stages(share: f64) -> u32 {
    if share >= 1.0 { 1 } else { (share.ln() / STAGE.ln()).ceil().max(1.0) as u32 }
}

pub(super) fn learn(memory: &mut [f64], chosen: usize, k: usize, n: usize) {
    let [stages, steps, sum] = memory else { return };
    if k == 0 || n == 0 {
        return;
    }
    *steps += 1.0;
    *sum += chosen as f64 / k as f64;
    if *steps < CHANGE_EVERY {
        return;
    }
    let mean = *sum / *steps;
    let change = match mean {
        mean if mean > 1.0 + TOLERANCE => -1.0,
        mean if mean < 1.0 - TOLERANCE => 1.0,
        _ => 0.0,
    };
    let most = f64::from(most_stages(k as f64 / n as f64));
    (*stages, *steps, *sum) = ((*stages + change).clamp(1.0, most), 0.0, 0.0);
}

/// The threshold that about k entries reach.
fn threshold<T: Element>(values: &[T], k: usize, fit: Fit, stages: u32) -> f64 {
    let mut above = excesses(values, 0.0);
    let share = k as f64 / above.count;
    if share.is_nan() || share >= 1.0 {
        return 0.0;
    }
    let stages = stages.clamp(1, most_stages(share));
    let mut threshold = 0.0;
    for stage in 1..=stages {
        if stage > 1 {
            above = excesses(values, threshold);
        }
        if above.count == 0.0 {
            break;
        }
        let leaves = if stage < stages { STAGE } else { share / STAGE.powi(stages as i32 - 1) };
        let step = match fit {
            Fit::Exponential => exponential(above, leaves),
            Fit::Gamma if stage == 1 => gamma(above.mean, mean_logarithm(values), leaves),
            Fit::Gamma | Fit::Pareto => pareto(above, leaves),
        };
        threshold += if step > 0.0 && step.is_finite() { step } else { exponential(above, leaves) };
    }
    threshold
}

fn exponential(above: Excesses, leaves: f64) -> f64 {
    above.mean * (1.0 / leaves).ln()
}

fn pareto(above: Excesses, leaves: f64) -> f64 {
    let ratio = above.mean * above.mean / above.variance;
    let shape = 0.5 * (1.0 - ratio);
    let scale = 0.5 * above.mean * (ratio + 1.0);
    scale / shape * ((-shape * leaves.ln()).exp() - 1.0)
}

fn gamma(mean: f64, mean_logarithm: f64, leaves: f64) -> f64 {
    let s = mean.ln() - mean_logarithm;
    // Where all are equal there is no gamma distribution, and s is nothing but rounding errors.
    if s.is_nan() || s <= 1e-9 {
        return f64::NAN;
    }
    let shape = (3.0 - s + ((s - 3.0) * (s - 3.0) + 24.0 * s).sqrt()) / (12.0 * s);
    -(mean / shape) * (leaves.ln() + libm::lgamma(shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// n magnitudes at the quantiles of a distribution, in an order that has nothing to do with size.
    fn quantiles(n: usize, quantile: impl Fn(f64) -> f64) -> Vec<f32> {
        let place = |i: usize| (i * 7919) % n;
        (0..n).map(|i| quantile((place(i) as f64 + 0.5) / n as f64) as f32 * [1.0, -1.0][i % 2]).collect()
    }

    fn counted(values: &[f32], k: usize, fit: Fit, stages: u32) -> f64 {
        let threshold = threshold(values, k, fit, stages) as f32;
        values.iter().filter(|v| v.abs() >= threshold).count() as f64 / k as f64
    }

    #[test]
    fn each_fit_finds_k_of_its_own_distribution() {
        let n = 100_000;
        // Tails beyond 1 − p: e^(−x), and (1 + x/5)^(−5), that is α = 1/5.
        let exponential = quantiles(n, |p| -(1.0 - p).ln());
        let pareto = quantiles(n, |p| 5.0 * ((1.0 - p).powf(-0.2) - 1.0));
        for stages in 1..=4 {
            for fit in [Fit::Exponential, Fit::Gamma, Fit::Pareto] {
                let times = counted(&exponential, 1000, fit, stages);
                assert!((0.8..=1.2).contains(&times), "{fit:?} in {stages}: {times}");
            }
            let times = counted(&pareto, 1000, Fit::Pareto, stages);
            assert!((0.8..=1.2).contains(&times), "in {stages}: {times}");
        }
        // What the stages are for.
        let (one, four) =
            (counted(&pareto, 1000, Fit::Exponential, 1), counted(&pareto, 1000, Fit::Exponential, 4));
        assert!(one > 1.4 && four < 1.2, "{one}, {four}");
    }

    #[test]
    fn equal_magnitudes_have_a_threshold_too() {
        for size in [1e-30f32, 0.3, 1.0, 7e20] {
            for (fit, stages) in [(Fit::Exponential, 1), (Fit::Gamma, 1), (Fit::Gamma, 4), (Fit::Pareto, 2)] {
                let threshold = threshold(&vec![size; 1000], 10, fit, stages);
                assert!(threshold > 0.0 && threshold.is_finite(), "{fit:?} of {size}: {threshold}");
            }
        }
    }

    #[test]
    fn the_number_of_stages_follows_the_count() {
        let mut memory = MEMORY;
        for _ in 0..3 * 5 {
            learn(&mut memory, 10, 100, 10_000);
        }
        assert_eq!(memory[0], 4.0);
        // A share of 1% leaves room for four stages.
        (0..10 * 5).for_each(|_| learn(&mut memory, 10, 100, 10_000));
        assert_eq!(memory[0], 4.0);
        (0..5).for_each(|_| learn(&mut memory, 110, 100, 10_000));
        assert_eq!(memory[0], 4.0);
        (0..10 * 5).for_each(|_| learn(&mut memory, 200, 100, 10_000));
        assert_eq!(memory[0], 1.0);
    }
}
