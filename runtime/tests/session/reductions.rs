//! Every type of value and every reduction, between real workers, for every method that is listed.
//!
//! All values are such that sums and products of them are exact in every type: what is expected is computed here, in 64 bits
//! and in any order.

use gleaner_algorithms::schedule::{ExecutionError, Step};
use gleaner_algorithms::{Element, Method, Reduction};
use gleaner_runtime::{Error, Session};
use half::{bf16, f16};

use crate::job::{self, NETWORKS};

/// Random numbers below a bound.
fn random(seed: u64, bound: u64) -> u64 {
    gleaner_statistics::random::at(seed, 1) % bound
}

/// Powers of two of both signs, and zeros.
fn powers_of_two(n: usize, rank: usize, seed: u64) -> Vec<f64> {
    let value =
        |i| [0.0, 0.5, 1.0, 2.0, -0.5, -1.0, -2.0][random(seed << 40 | (rank as u64) << 32 | i, 7) as usize];
    (0..n as u64).map(value).collect()
}

/// Small whole numbers.
fn whole_numbers(n: usize, rank: usize, seed: u64) -> Vec<f64> {
    let value = |i| random(seed << 40 | (rank as u64) << 32 | i, 7) as f64 - 3.0;
    (0..n as u64).map(value).collect()
}

fn narrow<T: Element>(values: &[f64]) -> Vec<T> {
    values.iter().map(|&v| T::from_f64(v)).collect()
}

fn larger<T: Element>(a: T, b: T) -> T {
    if a.magnitude() > b.magnitude() || (a.magnitude() == b.magnitude() && a > b) { a } else { b }
}

fn reductions<T: Element>() -> [Reduction<T>; 5] {
    let own = Reduction::Custom { name: "larger magnitude", neutral: T::ZERO, combine: larger };
    [Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Product, own]
}

/// One entry of all workers, reduced.
fn reduced(reduction: &str, column: impl Iterator<Item = f64>) -> f64 {
    match reduction {
        "sum" => column.sum(),
        "max" => column.fold(f64::NEG_INFINITY, f64::max),
        "min" => column.fold(f64::INFINITY, f64::min),
        "product" => column.product(),
        _ => column.fold(0.0, |a, b| if b.abs() > a.abs() || (b.abs() == a.abs() && b > a) { b } else { a }),
    }
}

/// Whether a sparse method selects on each worker alone: where everything is selected, it takes any reduction.
fn selects_once(method: &Method) -> bool {
    let leaves_out = |step: &Step| match step {
        Step::Keep { rule, .. } => !rule.keeps_all(),
        Step::Align { .. } => true,
        _ => false,
    };
    let schedules = method.clone().density(1.0).schedules(3, 90).unwrap();
    method.collective().is_sparse() && !schedules.iter().flat_map(|s| &s.steps).any(leaves_out)
}

/// What one step gives on this worker: the sum, or what the reduction gives. None where the method refuses it.
fn step<T: Element>(session: &Session, n: usize, method: Method, reduction: Reduction<T>) -> Option<Vec<T>> {
    let mut reducer = match session.reducer_of("w", n, method.clone(), reduction) {
        Ok(reducer) => reducer,
        Err(Error::Reduction(ExecutionError::NotASum { .. })) => return None,
        Err(error) => panic!("{method}, {} of {}: {error}", reduction.name(), T::NAME),
    };
    let values = powers_of_two(n, session.rank(), 0);
    let update = reducer.start(&narrow(&values)).unwrap().wait().unwrap();
    if !reduction.has_residual() {
        return Some(update.values("w").unwrap());
    }
    let mut sum = vec![T::ZERO; n];
    update.add_to("w", &mut sum, T::from_f64(session.world_size() as f64)).unwrap();
    Some(sum)
}

fn every_reduction_of<T: Element>() {
    let n = 333;
    for over in NETWORKS {
        for workers in [2, 3, 5] {
            let results = job::run(over, workers, |session| {
                let mut found = Vec::new();
                for listed in Method::all() {
                    for reduction in reductions::<T>() {
                        let method = listed.clone().density(1.0);
                        let found_here = step(&session, n, method.clone(), reduction);
                        let takes = reduction.has_residual()
                            || !listed.collective().is_sparse()
                            || selects_once(&listed);
                        // Refused by all workers alike, or the job would fail.
                        assert_eq!(found_here.is_some(), takes, "{method}, {}", reduction.name());
                        found.extend(found_here.map(|values| (method, reduction, values)));
                    }
                }
                found
            });
            for (rank, found) in results.iter().enumerate() {
                for (method, reduction, found) in found {
                    let what = format!("{} of {} by {method}", reduction.name(), T::NAME);
                    for (i, found) in found.iter().enumerate() {
                        let column = (0..workers as usize).map(|rank| powers_of_two(n, rank, 0)[i]);
                        let expected = reduced(reduction.name(), column);
                        assert_eq!(found.to_f64(), expected, "{what}: entry {i}, rank {rank} over {over:?}");
                    }
                }
            }
        }
    }
}

/// Some steps of a selection: gradients = delivered + residuals, exactly, and the same bits on every worker.
fn sums_are_conserved_of<T: Element>() {
    let (n, steps) = (240, 3);
    for over in NETWORKS {
        for workers in [2, 5] {
            for listed in Method::all() {
                let method = listed.clone().density(0.1);
                let results = job::run(over, workers, |session| {
                    let mut reducer =
                        session.reducer_of("w", n, method.clone(), Reduction::<T>::Sum).unwrap();
                    let mut delivered = vec![T::ZERO; n];
                    for step in 0..steps {
                        let values = whole_numbers(n, session.rank(), step);
                        let update = reducer.start(&narrow(&values)).unwrap().wait().unwrap();
                        update.add_to("w", &mut delivered, T::from_f64(f64::from(workers))).unwrap();
                    }
                    (delivered, reducer.residual().unwrap())
                });
                for i in 0..n {
                    let all = (0..workers as usize).flat_map(|rank| (0..steps).map(move |step| (rank, step)));
                    let brought: f64 = all.map(|(rank, step)| whole_numbers(n, rank, step)[i]).sum();
                    let kept: f64 = results.iter().map(|(_, residual)| residual[i].to_f64()).sum();
                    let what = format!("{method} of {} among {workers} over {over:?}, entry {i}", T::NAME);
                    assert_eq!(results[0].0[i].to_f64() + kept, brought, "{what}");
                    assert!(results.iter().all(|(sum, _)| sum[i].bits() == results[0].0[i].bits()), "{what}");
                }
                assert!(results[0].0.iter().any(|v| v.to_f64() != 0.0), "{method} delivers something");
            }
        }
    }
}

#[test]
fn every_reduction_of_f32() {
    every_reduction_of::<f32>();
}

#[test]
fn every_reduction_of_f64() {
    every_reduction_of::<f64>();
}

#[test]
fn every_reduction_of_bf16() {
    every_reduction_of::<bf16>();
}

#[test]
fn every_reduction_of_f16() {
    every_reduction_of::<f16>();
}

#[test]
fn sums_of_every_type_are_conserved() {
    sums_are_conserved_of::<f32>();
    sums_are_conserved_of::<f64>();
    sums_are_conserved_of::<bf16>();
    sums_are_conserved_of::<f16>();
}

/// A selection would falsify any other reduction than the sum, so it is refused.
#[test]
fn no_dense_method_refuses_a_reduction_and_a_selection_refuses_all_but_the_sum() {
    let taken = |method: Method| {
        let results = job::run(job::Over::Memory, 3, |session| {
            reductions::<f32>().map(|reduction| step(&session, 50, method.clone(), reduction).is_some())
        });
        assert_eq!(results, [results[0]; 3]);
        results[0]
    };
    for listed in Method::all() {
        let method = listed.clone();
        match listed.collective().is_sparse() {
            true => {
                assert_eq!(taken(method.clone().density(0.5)), [true, false, false, false, false], "{method}")
            }
            false => assert_eq!(taken(method.clone()), [true; 5], "{method}"),
        }
    }
    let selecting: Vec<Method> = Method::all().filter(selects_once).collect();
    assert!(selecting.len() >= 5);
    for method in selecting {
        assert_eq!(taken(method.clone().density(1.0)), [true; 5], "{method}");
    }
}
