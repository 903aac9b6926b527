//! QSGD rounds at random, and what an all-reduce delivers is right on average: whole steps, not the rounding alone.

use gleaner_algorithms::Method;
use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::schedule::Step;

use super::harness::{Outcome, Team, methods};
use super::inputs::{Pattern, Random};

/// Methods that select once, on each worker, and deliver the sum of that: the sparse ones that leave nothing out where that
/// selection does not.
fn selecting_once() -> impl Iterator<Item = Method> {
    let leaves_out = |step: &Step| match step {
        Step::Keep { rule, .. } => !rule.keeps_all(),
        Step::Align { .. } => true,
        _ => false,
    };
    methods().filter(move |method| {
        let schedules = method.clone().density(1.0).schedules(3, 90).unwrap();
        method.collective().is_sparse() && !schedules.iter().flat_map(|s| &s.steps).any(leaves_out)
    })
}

/// With which probability one comparison of a mean fails although the rounding is unbiased: 10⁻¹². A test makes fewer than
/// 10⁴ of them, so it fails by chance less often than once in 10⁸ choices of the generator.
const ERROR_RATE: f64 = 1e-12;

/// The steps of a team that gets the same gradients every time and whose residuals are forgotten.
fn repeated<'a>(
    method: Method,
    gradients: &'a [Vec<f32>],
    steps: usize,
) -> impl Iterator<Item = Outcome> + use<'a> {
    let n = gradients[0].len();
    let mut team = Team::of(method, gradients.len(), n);
    (0..steps).map(move |_| {
        let outcome = team.step(gradients);
        team.ensemble.residuals.iter_mut().for_each(|residual| residual.restore(0, &vec![0.0; n]).unwrap());
        outcome
    })
}

/// The `k` largest of a gradient, the others zero.
fn largest(gradient: &[f32], k: usize) -> Vec<f64> {
    let mut order: Vec<usize> = (0..gradient.len()).collect();
    order.sort_by(|&a, &b| gradient[b].abs().total_cmp(&gradient[a].abs()).then(a.cmp(&b)));
    let mut largest = vec![0.0; gradient.len()];
    order[..k].iter().for_each(|&i| largest[i] = f64::from(gradient[i]));
    largest
}

/// The sum of the `k` largest of each gradient, each rounded towards zero to a level of one bucket.
fn truncated(gradients: &[Vec<f32>], k: usize, levels: f64) -> Vec<f64> {
    let mut sums = vec![0.0; gradients[0].len()];
    for gradient in gradients {
        let level = gradient.iter().fold(0.0, |m: f64, v| m.max(f64::from(v.abs()))) / levels;
        let rounded = largest(gradient, k).into_iter().map(|v| (v / level).trunc() * level);
        sums.iter_mut().zip(rounded).for_each(|(sum, v)| *sum += v);
    }
    sums
}

/// How far the mean of this many independent numbers of this variance and range may lie from their expectation: the empirical
/// Bernstein bound (Audibert, Munos, Szepesvári, 2009, theorem 1), which holds for every distribution and every count.
fn bernstein(count: f64, variance: f64, range: f64) -> f64 {
    let log = (3.0 / ERROR_RATE).ln();
    (2.0 * variance * log / count).sqrt() + 3.0 * range * log / count
}

/// Over 4000 seeds, the mean of what is delivered is the sum of what was selected, entry by entry.
#[test]
fn what_a_quantised_all_reduce_delivers_is_right_on_average() {
    let (workers, n, k, steps) = (4, 40, 16, 4000);
    let gradients = Pattern::Full.gradients(workers, n, &mut Random::new(11));
    let mut expected = vec![0.0; n];
    for gradient in &gradients {
        expected.iter_mut().zip(largest(gradient, k)).for_each(|(sum, v)| *sum += v);
    }
    // No rounding makes a bucket's largest magnitude larger, so this is the most that all scales of one stage are together.
    let most: f64 = gradients.iter().map(|g| g.iter().fold(0.0, |m: f64, v| m.max(f64::from(v.abs())))).sum();
    assert!(selecting_once().count() >= 5);
    for selecting in selecting_once() {
        for coding in [Coding::Qsgd2, Coding::Qsgd4, Coding::Qsgd8] {
            let method = selecting.clone().k(k).coding(coding);
            let (mut sums, mut squares) = (vec![0.0; n], vec![0.0; n]);
            for outcome in repeated(method.clone(), &gradients, steps) {
                for (i, v) in outcome.delivered[0].iter().map(|v| f64::from(*v)).enumerate() {
                    sums[i] += v;
                    squares[i] += v * v;
                }
            }
            let count = steps as f64;
            // Rounding moves a value within one level. Besides the selections, sums are rounded in two stages at most.
            let levels = f64::from((1u32 << (coding.bits() - 1)) - 1);
            let truncated = truncated(&gradients, k, levels);
            let mut differ = 0;
            for i in 0..n {
                let mean = sums[i] / count;
                let variance = (squares[i] / count - mean * mean).max(0.0);
                let bound = bernstein(count, variance, 3.0 * most / levels);
                differ += usize::from((truncated[i] - expected[i]).abs() > 2.0 * bound);
                assert!(
                    (mean - expected[i]).abs() <= bound,
                    "{method}, entry {i}: {} is selected, {mean} is delivered on average, which may differ by {bound}",
                    expected[i]
                );
            }
            // Rounding towards zero would be found out.
            assert!(differ > 0, "{method} may truncate");
        }
    }
}

/// How often two roundings of the same values gave the same, in each of this many parts.
fn alike(a: &[f32], b: &[f32], parts: usize) -> Vec<f64> {
    let part = a.len() / parts;
    let share = |(a, b): (&[f32], &[f32])| {
        a.iter().zip(b).filter(|(a, b)| a.to_bits() == b.to_bits()).count() as f64 / part as f64
    };
    a.chunks(part).zip(b.chunks(part)).map(share).collect()
}

/// Two roundings of one value between two levels agree with probability p² + (1 − p)², where p says how far it is up. For
/// values that are spread evenly that is 2/3 of them. Where a sum of rounded values is rounded again, it is up to 5/6 (two
/// that fell apart are half-way between the sum's levels, and half of them meet again), or less. With 2000 entries in a
/// part, the share is above 5/6 by 0.06 with a probability below exp(−2 · 2000 · 0.06²), less than 10⁻⁶ (Hoeffding). The
/// numbers being equal, it is 1.
const INDEPENDENT: std::ops::Range<f64> = 0.0..0.9;

/// The numbers are others in every step, for every method; and where each worker's selection travels by itself, they are
/// others for every worker.
#[test]
fn every_step_rounds_by_numbers_of_its_own_and_so_does_every_rank() {
    for workers in [2usize, 3, 4, 5] {
        let n = 2000 * workers;
        let gradients = vec![Pattern::Full.gradients(1, n, &mut Random::new(12)).remove(0); workers];
        for method in selecting_once() {
            let method = method.density(1.0).coding(Coding::Qsgd4);
            let steps: Vec<Outcome> = repeated(method.clone(), &gradients, 3).collect();
            for (s, t) in [(0, 1), (0, 2), (1, 2)] {
                let shares = alike(&steps[s].new[0], &steps[t].new[0], workers);
                let independent = shares.iter().all(|share| INDEPENDENT.contains(share));
                assert!(independent, "{method}, P {workers}, steps {s} and {t}: {shares:?} are alike");
            }
            let ranks = (0..workers).flat_map(|a| (0..a).map(move |b| (a, b)));
            for (a, b) in ranks {
                let shares = alike(&steps[0].new[a], &steps[0].new[b], workers);
                let independent = shares.iter().all(|share| INDEPENDENT.contains(share));
                assert!(independent, "{method}, P {workers}, ranks {a} and {b}: {shares:?} are alike");
            }
        }
    }
}
