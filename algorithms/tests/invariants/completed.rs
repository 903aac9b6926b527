//! Completed sums: of an entry that is delivered nothing waits on any worker.

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::MethodError;
use gleaner_algorithms::residual::{Collection, Correction, CorrectionError};
use gleaner_algorithms::schedule::Step;
use gleaner_algorithms::{Block, Method};
use proptest::prelude::*;

use super::harness::{COLLECTIONS, Outcome, Team, cases, methods, variants};
use super::inputs::{Random, entries, pattern};

/// The positions of the entries of an update in the flat gradient.
fn delivered(outcome: &Outcome) -> Vec<usize> {
    let blocks = (0..).map(Block).zip(&outcome.update[0]);
    let of = |(block, bag)| {
        let start = outcome.partition.range(block).start;
        let bag: &gleaner_algorithms::bag::Bag = bag;
        bag.iter().map(|(i, _)| start + i as usize).collect::<Vec<_>>()
    };
    blocks.flat_map(of).collect()
}

proptest! {
    #![proptest_config(cases(12))]

    /// Every invariant holds. With exact values, an entry of an update has all that any worker brought to it, and nothing waits there.
    #[test]
    fn nothing_waits_where_something_is_delivered(
        (workers, n) in (1usize..=6).prop_flat_map(|p| (Just(p), entries(p))),
        density in 0.0f64..0.5,
        patterns in proptest::collection::vec(pattern(), 3..5),
        seed: u64,
    ) {
        for method in variants(workers) {
            for collection in COLLECTIONS {
                let method = method.clone().density(density).residual(collection).complete_sums();
                let mut team = Team::of(method.clone(), workers, n);
                let mut random = Random::new(seed);
                for pattern in &patterns {
                    let gradients = pattern.gradients(workers, n, &mut random);
                    let outcome = team.step_in_pieces(&gradients, 1 + random.below(n.max(1)));
                    outcome.assert_invariants();
                    if !method.completes_sums() || method.values() != Coding::Exact {
                        continue;
                    }
                    for entry in delivered(&outcome) {
                        prop_assert!(outcome.new.iter().all(|residual| residual[entry] == 0.0), "{}, {}", method, entry);
                        if collection != Collection::Global {
                            continue;
                        }
                        let (sum, size) = outcome.brought(entry);
                        let off = (f64::from(outcome.delivered[0][entry]) - sum).abs();
                        prop_assert!(off <= 1e-5 * size, "{method}, entry {entry}: off by {off}");
                    }
                }
            }
        }
    }

    /// A method learns from its own sums, and selects as without it what it is given.
    #[test]
    fn it_changes_neither_what_is_selected_nor_what_is_learnt(
        (workers, n) in (1usize..=5).prop_flat_map(|p| (Just(p), entries(p))),
        pattern in pattern(),
        seed: u64,
    ) {
        let gradients = pattern.gradients(workers, n, &mut Random::new(seed));
        for method in methods() {
            let of = |method: Method| {
                let mut team = Team::of(method, workers, n);
                let outcome = team.step(&gradients);
                (delivered(&outcome), team.ensemble.memories())
            };
            let method = method.density(0.2);
            prop_assert!(of(method.clone()) == of(method.clone().complete_sums()), "{}", method);
        }
    }

    /// With momentum correction the velocities are what is conserved, and with masking they start afresh wherever something is delivered.
    #[test]
    fn velocities_start_afresh_where_sums_are_complete(
        (workers, n) in (1usize..=5).prop_flat_map(|p| (Just(p), entries(p))),
        patterns in proptest::collection::vec(pattern(), 3..4),
        seed: u64,
    ) {
        let correction = Correction { momentum: 0.5, mask: true, ..Correction::default() };
        for method in methods().filter(|method| method.collective().is_sparse()) {
            let method = method.density(0.1).corrected(correction).complete_sums();
            let mut team = Team::of(method.clone(), workers, n);
            // Those that complete sums by their nature mask what a worker has sent, which is all but zeros.
            let prepared = team.ensemble.prepared().next().unwrap();
            let by_nature =
                prepared.program.schedule().steps.iter().any(|step| matches!(step, Step::Align { .. }));
            let mut random = Random::new(seed);
            for pattern in &patterns {
                let outcome = team.step(&pattern.gradients(workers, n, &mut random));
                outcome.assert_invariants();
                for entry in delivered(&outcome).into_iter().filter(|_| !by_nature) {
                    let velocities = team.ensemble.residuals.iter().map(|r| r.velocity(0..n).unwrap()[entry]);
                    prop_assert!(velocities.eq(vec![0.0; workers]), "{}, entry {}", method, entry);
                }
            }
        }
    }
}

/// Two workers, of whom each selects another entry: the second exchange brings what the other has there.
#[test]
fn sums_are_completed_by_hand() {
    let gradients = [vec![8.0f32, 1.0, 0.0, 0.0], vec![2.0, 9.0, 0.0, 0.5]];
    let update = |method: Method| Team::of(method, 2, 4).step(&gradients).delivered[0].clone();
    let topka = || Method::named("topka").unwrap().k(1);
    assert_eq!(update(topka()), [8.0, 9.0, 0.0, 0.0]);
    assert_eq!(update(topka().complete_sums()), [10.0, 10.0, 0.0, 0.0]);
}

#[test]
fn what_cannot_be_completed_is_refused() {
    let refused = Method::auto().complete_sums().candidates(4, 100).unwrap_err();
    assert_eq!(refused, MethodError::Correction(CorrectionError::SumsAuto));
    let long = 1 << 33;
    let refused = Method::spardl().complete_sums().shape(64, long).unwrap_err();
    assert_eq!(refused, MethodError::Correction(CorrectionError::SumsLong(long)));
    assert!(Method::ring().complete_sums().shape(64, long).is_ok());
}
