//! Predicted thresholds make selection fast, and change nothing.

use proptest::prelude::*;

use super::harness::{Team, cases, variants};
use super::inputs::{Random, entries, pattern, share};

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn predictions_change_nothing(
        (workers, n) in (1usize..=17).prop_flat_map(|p| (Just(p), entries(p))),
        share in share(),
        patterns in proptest::collection::vec(pattern(), 2..6),
        wild in proptest::sample::select(&[0.0, -1.0, 1e-6, 0.3, 2.0, f32::MAX, f32::INFINITY, f32::NAN][..]),
        seed: u64,
    ) {
        // One combination of options in three, other ones in every case.
        for method in variants(workers).into_iter().skip(seed as usize % 3).step_by(3) {
            let method = share.of(method, n);
            let mut carried = Team::of(method, workers, n);
            let mut forgetful = Team::of(method, workers, n);
            let mut misled = Team::of(method, workers, n);
            let mut random = Random(seed);
            for pattern in &patterns {
                let gradients = pattern.gradients(workers, n, &mut random);
                for (residual, threshold) in
                    forgetful.ensemble.residuals.iter_mut().map(|r| (r, None)).chain(misled.ensemble.residuals.iter_mut().map(|r| (r, Some(wild))))
                {
                    let blocks = residual.thresholds().len();
                    residual.restore_thresholds(vec![threshold; blocks]);
                }
                let expected = forgetful.step(&gradients).bits();
                prop_assert!(carried.step_in_pieces(&gradients, 1 + n / 3).bits() == expected);
                prop_assert!(misled.step_in_pieces(&gradients, 1 + n / 2).bits() == expected);
            }
        }
    }
}

/// A prediction is made at all, once something was selected.
#[test]
fn predictions_are_carried() {
    let mut team = Team::of(gleaner_algorithms::Method::spardl().density(0.1), 4, 400);
    team.step(&super::inputs::Pattern::Full.gradients(4, 400, &mut Random(1)));
    assert!(
        team.ensemble.residuals.iter().all(|r| r.thresholds().iter().all(|t| t.is_some_and(|t| t > 0.0)))
    );
}
