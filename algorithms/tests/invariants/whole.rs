//! Steps that deliver everything: nothing waits after one, and what was learnt is not touched by it.

use std::num::NonZeroU64;

use gleaner_algorithms::residual::{Correction, WholeSteps};
use proptest::prelude::*;

use super::harness::{COLLECTIONS, Team, cases, variants};
use super::inputs::{Random, entries, pattern};

proptest! {
    #![proptest_config(cases(12))]

    /// Every invariant holds in all steps. In a whole one the update is the sum of what waited and what came, in 64 bits within
    /// rounding, and all residuals are zero after it.
    #[test]
    fn a_whole_step_leaves_nothing(
        (workers, n) in (1usize..=6).prop_flat_map(|p| (Just(p), entries(p))),
        density in 0.0f64..0.5,
        patterns in proptest::collection::vec(pattern(), 5..7),
        every in 2u64..4,
        seed: u64,
    ) {
        let whole = WholeSteps { every: NonZeroU64::new(every), at: vec![0] };
        for method in variants(workers) {
            for collection in COLLECTIONS {
                let method = method.clone().density(density).residual(collection).whole_steps(whole.clone());
                let mut team = Team::of(method.clone(), workers, n);
                let mut random = Random::new(seed);
                for (step, pattern) in (0..).zip(&patterns) {
                    let gradients = pattern.gradients(workers, n, &mut random);
                    let before = team.ensemble.memories();
                    let outcome = team.step_in_pieces(&gradients, 1 + random.below(n.max(1)));
                    outcome.assert_invariants();
                    if !whole.contains(step) || !method.collective().is_sparse() {
                        continue;
                    }
                    prop_assert!(outcome.new.iter().flatten().all(|value| *value == 0.0), "{}", method);
                    prop_assert!(outcome.lost.iter().flatten().all(|value| *value == 0.0), "{}", method);
                    for entry in 0..n {
                        let parts = outcome.old.iter().chain(&outcome.gradients).map(|of| f64::from(of[entry]));
                        let (sum, size) = parts.fold((0.0, 0.0), |(sum, size), part| (sum + part, size + part.abs()));
                        let off = (f64::from(outcome.delivered[0][entry]) - sum).abs();
                        prop_assert!(off <= 1e-5 * size, "{method}, step {step}, entry {entry}: off by {off}");
                    }
                    for (before, after) in before.iter().zip(team.ensemble.memories()) {
                        prop_assert_eq!(after.steps, before.steps + 1);
                        // Unless the density of the next step is another one, what was learnt stays.
                        prop_assert_eq!(&after.agreed, &before.agreed, "{}", method);
                        prop_assert_eq!(&after.own, &before.own, "{}", method);
                    }
                }
            }
        }
    }

    /// With momentum correction the velocities are what is conserved, and with masking they start afresh after a whole step.
    #[test]
    fn velocities_are_delivered_too(
        (workers, n) in (1usize..=5).prop_flat_map(|p| (Just(p), entries(p))),
        patterns in proptest::collection::vec(pattern(), 4..5),
        mask: bool,
        seed: u64,
    ) {
        let whole = WholeSteps { every: NonZeroU64::new(3), at: Vec::new() };
        let correction = Correction { momentum: 0.5, mask, ..Correction::default() };
        for method in super::harness::methods().filter(|method| method.collective().is_sparse()) {
            let method = method.density(0.1).corrected(correction).whole_steps(whole.clone());
            let mut team = Team::of(method.clone(), workers, n);
            let mut random = Random::new(seed);
            for (step, pattern) in (0..).zip(&patterns) {
                let outcome = team.step_in_pieces(&pattern.gradients(workers, n, &mut random), n.max(1));
                outcome.assert_invariants();
                let velocities = team.ensemble.residuals.iter().flat_map(|r| r.velocity(0..n).unwrap());
                if whole.contains(step) {
                    prop_assert!(outcome.new.iter().flatten().all(|value| *value == 0.0), "{}", method);
                    prop_assert!(!mask || velocities.copied().all(|value| value == 0.0), "{}", method);
                }
            }
        }
    }
}
