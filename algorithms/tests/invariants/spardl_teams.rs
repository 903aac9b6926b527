//! SparDL's teams against §3.3 of the paper: R-SAG, B-SAG, Algorithm 2, and the shares of what all teams drop.

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::Sag;
use gleaner_algorithms::residual::Collection;
use proptest::prelude::*;

use super::harness::{Team, cases, open, spardl};
use super::inputs::{Pattern, Random, Share, entries, share};
use super::spardl_oracle::{Algorithm2, Residuals, Teams, algorithm_1};

/// Patterns of which whole numbers can be made.
const PATTERNS: [Pattern; 6] = [
    Pattern::Full,
    Pattern::Overlapping,
    Pattern::Disjoint,
    Pattern::Cancelling,
    Pattern::Integers,
    Pattern::Zero,
];

/// Whole numbers up to 16: sums are exact in any order, and so are halves of halves over three steps.
fn whole_numbers(pattern: Pattern, workers: usize, n: usize, random: &mut Random) -> Vec<Vec<f32>> {
    let mut gradients = pattern.gradients(workers, n, random);
    gradients.iter_mut().flatten().for_each(|v| *v = (*v * 16.0).round().clamp(-16.0, 16.0));
    gradients
}

fn divisors(workers: usize) -> impl Iterator<Item = usize> {
    (1..=workers).filter(move |d| workers.is_multiple_of(*d))
}

/// Several steps beside the paper's algorithms, which carry their own residuals and their own h: the same index set, the
/// same values, the same residuals, and exact conservation.
fn is_the_papers(
    workers: usize,
    teams: usize,
    sag: Sag,
    n: usize,
    share: Share,
    patterns: &[Pattern],
    seed: u64,
) {
    let k = share.k(n);
    for (collection, residuals) in [
        (Collection::Global, Residuals::Global),
        (Collection::Partial, Residuals::Partial),
        (Collection::Local, Residuals::Local),
    ] {
        let method = share.of(spardl(teams, sag), n).residual(collection);
        let mut team = Team::of(method.clone(), workers, n);
        let mut old = vec![vec![0.0; n]; workers];
        let mut control = Algorithm2::new(k, workers, teams);
        let mut random = Random::new(seed);
        for (step, pattern) in patterns.iter().enumerate() {
            let gradients = whole_numbers(*pattern, workers, n, &mut random);
            let outcome = team.step(&gradients);
            let by = match sag {
                Sag::Bruck if teams > 1 => Teams::Bruck(teams, control.h.round() as usize),
                _ => Teams::Recursive(teams),
            };
            let expected = algorithm_1(&gradients, &old, k, residuals, by, step);
            let mut update = vec![0.0; n];
            expected.gradients.iter().for_each(|(&i, &v)| update[i] = v);
            assert_eq!(outcome.delivered[0], update, "{method}, P {workers}: the global gradients");
            assert_eq!(outcome.new, expected.residuals, "{method}, P {workers}: the residuals");
            outcome.assert_identical();
            // Of what is reported as lost, a fifth or a third may have to be rounded.
            match collection == Collection::Local && !teams.is_power_of_two() {
                true => outcome.check().unwrap(),
                false => outcome.assert_conserved_exactly(),
            }
            if sag == Sag::Bruck && teams > 1 {
                control.adjust(expected.after_bsag, k);
                assert_eq!(team.ensemble.memories()[0].agreed[0], control.h, "{method}, P {workers}: h");
            }
            old = expected.residuals;
        }
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn both_spar_all_gathers_are_the_papers(
        (workers, n) in (2usize..=17).prop_flat_map(|p| (Just(p), entries(p))),
        share in share(),
        patterns in proptest::collection::vec(proptest::sample::select(&PATTERNS[..]), 1..4),
        seed: u64,
    ) {
        for teams in divisors(workers) {
            if teams.is_power_of_two() {
                is_the_papers(workers, teams, Sag::Recursive, n, share, &patterns, seed);
            }
            is_the_papers(workers, teams, Sag::Bruck, n, share, &patterns, seed);
        }
    }
}

/// Gradients that keep the places of their large entries and change a little from step to step, in whole numbers.
fn drifting(workers: usize, n: usize, step: usize) -> Vec<Vec<f32>> {
    let gradient = |w: usize| {
        let (mut shared, mut own) = (Random::new(7), Random::new(1000 + (w * 7919 + step * 31) as u64));
        let entry = |_| {
            let large = shared.below(1000) as f32 / 100.0 - 5.0;
            (large * large * large + own.below(25) as f32 - 12.0).round()
        };
        (0..n).map(entry).collect()
    };
    (0..workers).map(gradient).collect()
}

/// h follows Algorithm 2 over many steps, and finds the place where about as many gradients remain as are wanted: neither is
/// the budget of the last selection wasted, nor does h let through much that is then dropped.
#[test]
fn bsag_controls_h_by_algorithm_2() {
    for (p, d) in [(6usize, 3usize), (12, 6), (8, 4), (10, 5)] {
        let (n, k) = (100 * p, 10 * p);
        let mut team = Team::of(spardl(d, Sag::Bruck).k(k), p, n);
        let mut control = Algorithm2::new(k, p, d);
        let mut old = vec![vec![0.0; n]; p];
        let mut remaining = Vec::new();
        for t in 0..120 {
            assert_eq!(team.ensemble.memories()[0].agreed[0], control.h, "P {p}, d {d}, step {t}");
            let gradients = drifting(p, n, t);
            let by = Teams::Bruck(d, control.h.round() as usize);
            let expected = algorithm_1(&gradients, &old, k, Residuals::Global, by, t);
            let outcome = team.step(&gradients);
            assert_eq!(outcome.new, expected.residuals, "P {p}, d {d}, step {t}");
            control.adjust(expected.after_bsag, k);
            remaining.push(expected.after_bsag as f64 / k as f64);
            old = expected.residuals;
        }
        let steady = &mut remaining[40..];
        steady.sort_by(f64::total_cmp);
        let (low, middle, high) = (steady[8], steady[40], steady[72]);
        assert!((0.9..1.1).contains(&middle), "P {p}, d {d}: half of the steps have {middle} k or less");
        assert!(low > 0.7 && high < 1.4, "P {p}, d {d}: four steps in five have from {low} k to {high} k");
    }
}

/// Every entry has one large value among zeros or small ones, all of them multiples of a unit: bfloat16 distinguishes all of them
/// exactly and their sums not always.
fn large_and_small(workers: usize, n: usize, unit: f32, random: &mut Random) -> Vec<Vec<f32>> {
    let mut gradients = vec![vec![0.0; n]; workers];
    for i in 0..n {
        gradients.iter_mut().for_each(|g| g[i] = unit * (random.below(3) as f32 - 1.0));
        gradients[random.below(workers)][i] = unit * 16384.0;
    }
    gradients
}

/// What all teams round away or drop is shared out to d workers. With d a divisor of it the shares are exact; otherwise they
/// make it up to a unit of the last place, whatever d is.
#[test]
fn shares_of_all_numbers_of_teams_add_up() {
    let mut shared = 0;
    for (p, d) in (2..=17).flat_map(|p| divisors(p).filter(|&d| d > 1).map(move |d| (p, d))) {
        for sag in [Sag::Auto, Sag::Bruck] {
            for (unit, exact) in [(d as f32, true), (1.0, false), (5.0, false), (7.0, false)] {
                let n = 12 * p;
                let method = spardl(d, sag).density(1.0).coding(Coding::Bf16);
                let mut team = Team::of(method.clone(), p, n);
                open(&mut team.ensemble);
                let outcome = team.step(&large_and_small(p, n, unit, &mut Random::new((p * d) as u64)));
                outcome.assert_identical();
                let holders = |i: usize| outcome.new.iter().filter(|r| r[i] != 0.0).count();
                shared += (0..n).filter(|&i| holders(i) >= d).count();
                if exact {
                    outcome.assert_conserved_exactly();
                    continue;
                }
                for i in 0..n {
                    let left: f64 = outcome.new.iter().map(|r| f64::from(r[i])).sum();
                    let size: f64 = outcome.new.iter().map(|r| f64::from(r[i].abs())).sum();
                    let wrong = outcome.brought(i).0 - f64::from(outcome.delivered[0][i]) - left;
                    assert!(
                        wrong.abs() <= size * f64::from(f32::EPSILON),
                        "{method}, P {p}, unit {unit}, entry {i}: {wrong} is missing"
                    );
                }
            }
        }
    }
    assert!(shared > 1000, "{shared} drops were shared");
}
