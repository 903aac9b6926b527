//! SparDL against the paper's Algorithm 1, and what it delivers.

use gleaner_algorithms::Method;
use gleaner_algorithms::residual::Collection;
use proptest::prelude::*;

use super::harness::{Team, cases};
use super::inputs::{Pattern, Random, Share, entries, pattern, share};
use super::spardl_oracle::{Residuals, Teams, algorithm_1, shares};

/// Several steps of SparDL beside Algorithm 1, each carrying its own residuals. The sums are made in the paper's order,
/// so that both select the same and every value is equal.
fn is_algorithm_1(workers: usize, n: usize, share: Share, patterns: &[Pattern], seed: u64) {
    for (collection, residuals) in [
        (Collection::Global, Residuals::Global),
        (Collection::Partial, Residuals::Partial),
        (Collection::Local, Residuals::Local),
    ] {
        let mut team = Team::of(share.of(Method::spardl(), n).residual(collection), workers, n);
        let mut old = vec![vec![0.0; n]; workers];
        let mut random = Random::new(seed);
        for (step, pattern) in patterns.iter().enumerate() {
            let gradients = pattern.gradients(workers, n, &mut random);
            let outcome = team.step(&gradients);
            let expected = algorithm_1(&gradients, &old, share.k(n), residuals, Teams::Recursive(1), step);
            let mut update = vec![0.0; n];
            expected.gradients.iter().for_each(|(&i, &v)| update[i] = v);
            assert_eq!(outcome.delivered[0], update, "the global gradients");
            assert_eq!(outcome.new, expected.residuals, "the residuals, {collection:?}");
            old = expected.residuals;
        }
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn spardl_is_algorithm_1(
        (workers, n) in (1usize..=17).prop_flat_map(|p| (Just(p), entries(p))),
        share in share(),
        patterns in proptest::collection::vec(pattern(), 1..5),
        seed: u64,
    ) {
        is_algorithm_1(workers, n, share, &patterns, seed);
    }

    /// Each block delivers its share of k at most; all of it where nothing cancels and there is as much to deliver.
    #[test]
    fn spardl_delivers_its_allotment(
        (workers, n) in (1usize..=17).prop_flat_map(|p| (Just(p), entries(p))),
        share in share(),
        pattern in pattern(),
        seed: u64,
    ) {
        let k = share.k(n);
        let allotment = shares(k, n, workers, 0);
        prop_assert_eq!(allotment.iter().sum::<usize>(), k);
        let mut team = Team::of(share.of(Method::spardl(), n), workers, n);
        let mut gradients = pattern.gradients(workers, n, &mut Random::new(seed));
        let outcome = team.step(&gradients);
        for (delivered, &allotted) in outcome.delivered_by_block().into_iter().zip(&allotment) {
            prop_assert!(delivered <= allotted, "{} entries of at most {}", delivered, allotted);
        }
        // Of positive numbers no sum is zero.
        gradients.iter_mut().flatten().for_each(|v| *v = v.abs());
        let mut team = Team::of(share.of(Method::spardl(), n), workers, n);
        let outcome = team.step(&gradients);
        let mut start = 0;
        for (b, (delivered, &allotted)) in outcome.delivered_by_block().into_iter().zip(&allotment).enumerate() {
            let len = n / workers + usize::from(b < n % workers);
            let nonzeros = (start..start + len).filter(|&i| gradients.iter().any(|g| g[i] != 0.0)).count();
            prop_assert_eq!(delivered, allotted.min(nonzeros));
            start += len;
        }
    }
}

#[test]
fn spardl_is_algorithm_1_with_many_workers() {
    for workers in [32, 33, 64] {
        is_algorithm_1(workers, 640, Share::Density(0.1), &[Pattern::Full, Pattern::Integers], 2);
        is_algorithm_1(workers, 333, Share::Density(0.7), &[Pattern::Full, Pattern::Cancelling], 2);
    }
}
