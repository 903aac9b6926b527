//! Every type of value and every reduction: conservation, equal bits on all workers, and the reduction itself.

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::invariants::{InvariantError, Trial};
use gleaner_algorithms::schedule::ExecutionError;
use gleaner_algorithms::{Element, Method, Reduction};
use half::{bf16, f16};

use super::harness::{Team, methods, open, variants};
use super::inputs::Random;

/// Small numbers with a few bits, so that products stay in range; zeros and both signs among them.
fn values<T: Element>(n: usize, random: &mut Random) -> Vec<T> {
    (0..n).map(|_| T::from_f64((random.below(33) as f64 - 16.0) / 8.0)).collect()
}

/// The workers of a job that reduce by this.
fn team<T: Element>(method: Method, workers: u32, n: usize, reduction: Reduction<T>) -> Trial<T> {
    let mut team = Trial::new(method, workers, n).unwrap();
    team.ensemble = team.ensemble.reducing(reduction);
    team
}

/// The update as a vector, absent entries read as the neutral element; the same bits on every worker.
fn delivered<T: Element>(team: &mut Trial<T>, gradients: &[Vec<T>]) -> Result<Vec<T>, InvariantError> {
    let mut outcome = team.step(gradients)?;
    assert!(!outcome.anything_lost());
    let bits = |update: &[T]| update.iter().map(|v| v.bits()).collect::<Vec<_>>();
    let first = bits(&outcome.delivered[0]);
    assert!(outcome.delivered.iter().all(|update| bits(update) == first), "all workers have the same bits");
    Ok(outcome.delivered.swap_remove(0))
}

/// The distance between 1 and the next number.
fn epsilon<T: Element>() -> f64 {
    let one = T::ONE.bits();
    T::from_bits(one + 1).to_f64() - 1.0
}

/// Four contributions to every entry, each of one worker's gradient or old residual: multiples of `unit` so small that no sum
/// and no share of it is rounded, whatever the type.
fn exact<T: Element>(workers: usize, n: usize, unit: u32, random: &mut Random) -> [Vec<Vec<T>>; 2] {
    let mut vectors = vec![vec![T::ZERO; n]; 2 * workers];
    for contribution in 0..4 * n {
        let value = f64::from(unit) * (random.below(3) as f64 - 1.0);
        vectors[random.below(2 * workers)][contribution / 4] = T::from_f64(value);
    }
    let gradients = vectors.split_off(workers);
    [vectors, gradients]
}

/// Gradients + old residuals = delivered + new residuals, without any rounding.
fn conserves<T: Element>() {
    for workers in 1..=17usize {
        let mut random = Random::new(workers as u64);
        for method in variants(workers).into_iter().filter(|m| m.values() == Coding::Exact) {
            let n = 40 + random.below(60);
            let mut team = Team::<T>::of(method.clone().density(0.2), workers, n);
            for _ in 0..3 {
                // What d workers drop together is shared out to them.
                let holders =
                    team.ensemble.prepared().flat_map(|p| p.program.facts()).flat_map(|f| &f.holders);
                let unit = holders.map(|holders| holders.count).max().unwrap_or(1);
                let [old, gradients] = exact::<T>(workers, n, unit, &mut random);
                team.ensemble.residuals.iter_mut().zip(&old).for_each(|(r, old)| r.restore(0, old).unwrap());
                let outcome = team.step(&gradients);
                outcome.assert_identical();
                outcome.assert_conserved_exactly();
                assert!(!outcome.anything_lost());
            }
        }
    }
}

#[test]
fn every_type_is_conserved() {
    conserves::<f64>();
    conserves::<bf16>();
    conserves::<f16>();
}

fn larger<T: Element>(a: T, b: T) -> T {
    if a.magnitude() > b.magnitude() || (a.magnitude() == b.magnitude() && a > b) { a } else { b }
}

/// What every worker's values reduce to, one after the other in 64 bits.
fn reduced<T: Element>(reduction: Reduction<T>, column: impl Iterator<Item = T>) -> f64 {
    let column = column.map(|v| v.to_f64());
    match reduction {
        Reduction::Sum => column.sum(),
        Reduction::Max => column.fold(f64::NEG_INFINITY, f64::max),
        Reduction::Min => column.fold(f64::INFINITY, f64::min),
        Reduction::Product => column.product(),
        Reduction::Custom { .. } => {
            column.fold(0.0, |a, b| if b.abs() > a.abs() || (b.abs() == a.abs() && b > a) { b } else { a })
        }
    }
}

fn reduces<T: Element>() {
    let own = Reduction::Custom { name: "larger magnitude", neutral: T::ZERO, combine: larger };
    for reduction in [Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Product, own] {
        for workers in 1..=17u32 {
            let mut random = Random::new(u64::from(workers));
            for method in variants(workers as usize).into_iter().filter(|m| m.values() == Coding::Exact) {
                let sparse = method.collective().is_sparse();
                let n = 1 + random.below(70);
                let gradients: Vec<Vec<T>> = (0..workers).map(|_| values(n, &mut random)).collect();
                let team = |m: Method| {
                    let mut team = team(m, workers, n, reduction);
                    open(&mut team.ensemble);
                    team
                };
                let all = delivered(&mut team(method.clone().density(1.0)), &gradients);
                let found = match all {
                    Ok(found) => found,
                    Err(InvariantError::Execution(ExecutionError::NotASum { .. })) => {
                        assert!(sparse && !reduction.has_residual(), "{method} refuses {}", reduction.name());
                        continue;
                    }
                    Err(error) => panic!("{} of {} by {method}: {error}", reduction.name(), T::NAME),
                };
                for i in 0..n {
                    let expected = reduced(reduction, gradients.iter().map(|g| g[i]));
                    let size: f64 = match reduction {
                        Reduction::Sum => gradients.iter().map(|g| g[i].to_f64().abs()).sum(),
                        Reduction::Product => expected.abs(),
                        _ => 0.0,
                    };
                    let bound = size * epsilon::<T>() * f64::from(2 * workers);
                    // A product may become too small for its type.
                    let tiny = if matches!(reduction, Reduction::Product) { 1e-4 } else { 0.0 };
                    assert!(
                        (found[i].to_f64() - expected).abs() <= bound + tiny,
                        "{} of {} by {method}, P {workers}, entry {i}: {}, expected {expected}",
                        reduction.name(),
                        T::NAME,
                        found[i]
                    );
                }
                if sparse && !reduction.has_residual() {
                    let mut half = team(method.clone().k(n / 2));
                    // A selector that goes by buckets or blocks may round half of them up to all.
                    let all = half.ensemble.shape().k == n;
                    let refused = delivered(&mut half, &gradients);
                    assert!(
                        all || matches!(
                            refused,
                            Err(InvariantError::Execution(ExecutionError::NotASum { .. }))
                        ),
                        "{method}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_reduction_of_every_type_is_what_its_name_says() {
    reduces::<f32>();
    reduces::<f64>();
    reduces::<bf16>();
    reduces::<f16>();
}

/// SparCML's all-reduces take sparse vectors of any reduction, as long as nothing is selected.
#[test]
fn sparse_streams_take_any_reduction() {
    for name in
        ["topka", "topkdsa", "ssar-recursive-double", "ssar-split-all-gather", "dsar-split-all-gather"]
    {
        let method = Method::named(name).unwrap().density(1.0);
        let mut team = team(method, 4, 3, Reduction::<f32>::Max);
        let absent = Reduction::<f32>::Max.neutral();
        let gradients = [[absent, -3.0, absent], [-2.0, -4.0, absent], [absent; 3], [-5.0, 1.0, absent]];
        let gradients = gradients.map(|g| g.to_vec());
        assert_eq!(delivered(&mut team, &gradients).unwrap(), [-2.0, 1.0, absent], "{name}");
    }
}

/// Nothing of a maximum waits for the next step: not what a larger entry hid, and not what came to nothing.
#[test]
fn steps_of_other_reductions_know_nothing_of_each_other() {
    for method in methods() {
        let method = method.density(1.0);
        let mut team = team(method.clone(), 3, 4, Reduction::<f32>::Max);
        let steps = [
            (
                [[-3.0, 0.0, 2.0, -1.0], [0.0, -5.0, 1.0, -2.0], [-4.0, -6.0, 0.0, -3.0]],
                [0.0, 0.0, 2.0, -1.0],
            ),
            (
                [[-3.0, 1.0, -2.0, -1.0], [-1.0, -5.0, -1.0, 0.0], [-4.0, -6.0, 0.0, 3.0]],
                [-1.0, 1.0, 0.0, 3.0],
            ),
            ([[-9.0; 4], [-8.0; 4], [-7.0; 4]], [-7.0; 4]),
        ];
        for (step, (gradients, expected)) in steps.into_iter().enumerate() {
            match delivered(&mut team, &gradients.map(|g| g.to_vec())) {
                Ok(found) => assert_eq!(found, expected, "{method}, step {step}"),
                Err(InvariantError::Execution(ExecutionError::NotASum { .. })) => break,
                Err(error) => panic!("{method}, step {step}: {error}"),
            }
        }
    }
}

/// A sum of sparse bags that is dense by SparCML's δ still travels in the smallest form.
#[test]
fn nearly_dense_bags_travel_in_the_smallest_form() {
    let n = 40_000;
    let method = Method::named("ssar-recursive-double").unwrap().density(0.35);
    let mut random = Random::new(5);
    let mut gradient = || (0..n).map(|_| random.below(100_000) as f32 - 50_000.5).collect::<Vec<f32>>();
    let gradients: Vec<Vec<f32>> = (0..4).map(|_| gradient()).collect();
    let outcome = Team::of(method, 4, n).step(&gradients);
    let (first, union) = (0.35, 1.0 - 0.65f64.powi(2));
    // In each exchange the values, and a bit for each position.
    let bytes = n as f64 * (4.0 * (first + union) + 2.0 / 8.0);
    for found in outcome.bytes_received.iter().map(|&bytes| bytes as f64) {
        assert!(
            found < 1.02 * bytes,
            "{found} bytes, {bytes} expected, {} if dense",
            4.0 * (1.0 + first) * n as f64
        );
    }
}
