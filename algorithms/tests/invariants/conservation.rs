//! Conservation and bit-identity, for every method that is listed and every residual collection.

use gleaner_algorithms::residual::Correction;
use proptest::prelude::*;

use super::harness::{COLLECTIONS, Team, cases, methods, variants};
use super::inputs::{PATTERNS, Pattern, Random, Share, entries, pattern, share};

/// One in so many of all combinations of methods, options and collections is tested in a case, other ones in the next.
const ONE_IN: usize = 12;

/// Several steps in a row, carrying residuals; returns whether anything was lost. Every other method warms up, so that its density
/// is another one in each of the first steps.
fn steps_obey_the_invariants(
    workers: usize,
    n: usize,
    share: Share,
    patterns: &[Pattern],
    seed: u64,
) -> bool {
    let mut lost = false;
    let all =
        variants(workers).into_iter().flat_map(|m| COLLECTIONS.map(|collection| (m.clone(), collection)));
    let first = (seed as usize).wrapping_add(n).wrapping_add(workers) % ONE_IN;
    for (number, (method, collection)) in all.skip(first).step_by(ONE_IN).enumerate() {
        let warm_up = if (number + first).is_multiple_of(2) { 0 } else { 3 };
        let method = method.corrected(Correction { warm_up, ..Correction::default() });
        let mut team = Team::of(share.of(method.clone(), n).residual(collection), workers, n);
        let mut random = Random::new(seed);
        for pattern in patterns {
            let gradients = pattern.gradients(workers, n, &mut random);
            let size = 1 + random.below(n.max(1));
            let outcome = team.step_in_pieces(&gradients, size);
            outcome.assert_invariants();
            if !method.collective().is_sparse() {
                assert!(!outcome.anything_lost(), "a dense method loses nothing");
            }
            lost |= outcome.anything_lost();
        }
    }
    lost
}

proptest! {
    #![proptest_config(cases(120))]

    #[test]
    fn nothing_is_lost_and_all_workers_agree(
        (workers, n) in (1usize..=17).prop_flat_map(|p| (Just(p), entries(p))),
        share in share(),
        patterns in proptest::collection::vec(pattern(), 1..5),
        seed: u64,
    ) {
        steps_obey_the_invariants(workers, n, share, &patterns, seed);
    }
}

proptest! {
    #![proptest_config(cases(6))]

    /// Each gradient is multiplied by the rate of its own step, whatever the rates are: what was delivered by then and what waits is the sum of
    /// rates × gradients, so that nothing that waited has another step's rate.
    #[test]
    fn what_waits_keeps_the_rate_of_its_step(
        (workers, n) in (1usize..=5).prop_flat_map(|p| (Just(p), entries(p))),
        steps in proptest::collection::vec((pattern(), -16i32..3), 3..6),
        seed: u64,
    ) {
        for method in methods().map(|method| method.density(0.1)) {
            let mut team = Team::of(method.clone(), workers, n);
            let mut random = Random::new(seed);
            // Rates × gradients less what was delivered, and the sum of all sizes.
            let mut sums = vec![(0.0f64, 0.0f64); n];
            for &(pattern, power) in &steps {
                let rate = 1.5f32.powi(power);
                let gradients = pattern.gradients(workers, n, &mut random);
                let times = |gradient: &Vec<f32>| gradient.iter().map(|value| rate * value).collect();
                let scaled: Vec<Vec<f32>> = gradients.iter().map(times).collect();
                let outcome = team.step_in_pieces(&scaled, 1 + random.below(n.max(1)));
                outcome.assert_invariants();
                for (entry, (sum, size)) in sums.iter_mut().enumerate() {
                    let came: f64 = gradients.iter().map(|of| f64::from(of[entry])).sum();
                    *sum += f64::from(rate) * came - f64::from(outcome.delivered[0][entry]);
                    *size += outcome.brought(entry).1;
                    // Products of the smallest numbers are rounded to multiples of the smallest of all.
                    let off = (*sum - outcome.left(entry).0).abs() - f64::from(f32::MIN_POSITIVE);
                    prop_assert!(off <= 1e-5 * *size, "{method}, entry {entry}: off by {off} of {size}");
                }
            }
        }
    }
}

#[test]
fn at_every_number_of_workers_and_awkward_lengths() {
    for workers in 1..=17 {
        for n in [0, 1, workers - 1, workers, workers + 1, 2 * workers, 3 * workers - 1, 37] {
            for share in [Share::Density(0.0), Share::Density(1e-9), Share::Density(0.5), Share::Density(1.0)]
            {
                steps_obey_the_invariants(workers, n, share, &[Pattern::Integers, Pattern::Cancelling], 7);
            }
        }
    }
}

#[test]
fn with_many_workers() {
    for workers in [32, 33, 64] {
        for (share, n) in [(Share::Density(0.05), 300), (Share::K(600), 150)] {
            steps_obey_the_invariants(workers, n, share, &PATTERNS, workers as u64);
        }
    }
}

/// Long enough that blocks travel in several payloads, dense and sparse.
#[test]
fn with_payloads_in_pieces() {
    for share in [Share::Density(0.4), Share::Density(0.7)] {
        steps_obey_the_invariants(3, 300_000, share, &[Pattern::Full, Pattern::Cancelling], 3);
    }
}

/// So that the invariant about what is lost is not vacuous.
#[test]
fn partial_and_local_collection_do_lose() {
    assert!(steps_obey_the_invariants(6, 120, Share::Density(0.1), &[Pattern::Full, Pattern::Full], 1));
}

#[test]
fn density_0_delivers_nothing_and_keeps_everything() {
    let sparse = methods().filter(|m| m.collective().is_sparse());
    for method in sparse {
        for (collection, workers) in COLLECTIONS.into_iter().flat_map(|c| (1..=17).map(move |p| (c, p))) {
            let n = 5 * workers + 2;
            let mut team = Team::of(method.clone().density(0.0).residual(collection), workers, n);
            let mut random = Random::new(5);
            let mut sums = vec![vec![0.0f32; n]; workers];
            for _ in 0..3 {
                let gradients = Pattern::Integers.gradients(workers, n, &mut random);
                let outcome = team.step(&gradients);
                for (sum, gradient) in sums.iter_mut().zip(&gradients) {
                    sum.iter_mut().zip(gradient).for_each(|(s, g)| *s += g);
                }
                assert_eq!(outcome.delivered, vec![vec![0.0; n]; workers]);
                assert_eq!(outcome.new, sums);
                assert!(!outcome.anything_lost());
            }
        }
    }
}
