//! The rows "SparDL (no SAG)" and "Dense" of SparDL's Table 1, from the schedules and from bags that really travel.

use gleaner_algorithms::Method;
use gleaner_algorithms::schedule::{Cost, check};

use super::harness::Team;
use super::inputs::{Pattern, Random};

fn cost(method: Method, workers: u64, n: usize) -> Cost {
    check(method.schedules(workers as u32, n).unwrap()).unwrap().cost
}

/// ⌈log2 P⌉ and ⌊log2 P⌋, counted out.
fn logarithms(p: u64) -> (u64, u64) {
    let ceiling = (0..).find(|&l| 1u64 << l >= p).unwrap();
    let floor = (0..).find(|&l| 2u64 << l > p).unwrap();
    (ceiling, floor)
}

/// A gradient whose blocks have non-zeros enough, and none that cancel.
fn positive(workers: usize, n: usize) -> Vec<Vec<f32>> {
    let mut gradients = Pattern::Full.gradients(workers, n, &mut Random::new(4));
    gradients.iter_mut().flatten().for_each(|v| *v = v.abs() + 0.1);
    gradients
}

/// 2⌈log P⌉ α + 4k(P − 1)/P β (equation 3), where k/P is a whole number.
#[test]
fn spardl_costs_what_table_1_says() {
    for p in 1..=64u64 {
        for each in [1, 3] {
            let (k, n) = (each * p, 10 * p as usize);
            let words = 4 * k * (p - 1) / p;
            let rounds = 2 * logarithms(p).0;
            let expected = Cost { rounds, messages: rounds, words_received: words, words_critical: words };
            let method = Method::spardl().k(k as usize);
            assert_eq!(cost(method.clone(), p, n), expected, "P {p}, k {k}");
            // The same bags, counted as they come.
            let mut team = Team::of(method, p as usize, n);
            for _ in 0..2 {
                let outcome = team.step(&positive(p as usize, n));
                assert!(outcome.entries_received.iter().all(|&entries| 2 * entries == words), "P {p}, k {k}");
            }
        }
    }
}

/// Where P does not divide k the longest share counts, and every worker stays below the formula for the next k that
/// P divides.
#[test]
fn spardl_with_uneven_shares_stays_below() {
    for p in 1..=64u64 {
        for k in [p + p / 2, 3 * p - 1] {
            let above = 4 * k.next_multiple_of(p) * (p - 1) / p;
            let cost = cost(Method::spardl().k(k as usize), p, 10 * p as usize);
            assert_eq!(cost.rounds, 2 * logarithms(p).0);
            assert!(
                cost.words_received <= cost.words_critical && cost.words_critical <= above,
                "P {p}, k {k}"
            );
        }
    }
}

/// 2(P − 1) rounds and 2n(P − 1)/P words.
#[test]
fn the_ring_costs_what_its_file_says() {
    for p in 1..=64u64 {
        let n = 3 * p;
        let (rounds, words) = (2 * (p - 1), 2 * n * (p - 1) / p);
        let expected = Cost { rounds, messages: rounds, words_received: words, words_critical: words };
        assert_eq!(cost(Method::ring(), p, n as usize), expected, "P {p}");
    }
}

/// Table 1, "Dense": 2 log P α + 2n(P − 1)/P β for powers of two. Otherwise, with p = 2^⌊log2 P⌋, two rounds more and
/// 2n(p − 1)/p + 2n words along the critical path; the busiest worker takes in one surplus gradient of n words.
#[test]
fn rabenseifner_costs_what_table_1_says() {
    for p in 1..=64u64 {
        let levels = logarithms(p).1;
        let core = 1 << levels;
        let n = 3 * core;
        let words = 2 * n * (core - 1) / core;
        let surplus = u64::from(p > core);
        let expected = Cost {
            rounds: 2 * levels + 2 * surplus,
            messages: 2 * levels + surplus,
            words_received: words + n * surplus,
            words_critical: words + 2 * n * surplus,
        };
        assert_eq!(cost(Method::named("rabenseifner").unwrap(), p, n as usize), expected, "P {p}");
    }
}

/// log2 P rounds and n log2 P words for powers of two; otherwise two rounds and 2n words more.
#[test]
fn recursive_doubling_costs_what_its_file_says() {
    for p in 1..=64u64 {
        let levels = logarithms(p).1;
        let (n, surplus) = (7, u64::from(p > 1 << levels));
        let expected = Cost {
            rounds: levels + 2 * surplus,
            messages: levels + surplus,
            words_received: n * levels + n * surplus,
            words_critical: n * levels + 2 * n * surplus,
        };
        assert_eq!(cost(Method::named("recursive-doubling").unwrap(), p, n as usize), expected, "P {p}");
    }
}

/// Dense values that really come are as many as the checker says, at the busiest worker.
#[test]
fn dense_values_that_come_are_the_words_declared() {
    for method in super::harness::dense_methods() {
        for p in 1..=20 {
            let mut team = Team::of(method.clone(), p, 50);
            let outcome = team.step(&positive(p, 50));
            assert_eq!(
                outcome.entries_received.iter().copied().max(),
                Some(team.ensemble.cost().words_received)
            );
        }
    }
}
