//! Predicted thresholds make selection fast, and change nothing.

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::residual::Collection;
use gleaner_algorithms::schedule::lockstep;
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
            let mut carried = Team::of(method.clone(), workers, n);
            let mut forgetful = Team::of(method.clone(), workers, n);
            let mut misled = Team::of(method, workers, n);
            let mut random = Random::new(seed);
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
    let mut team = Team::of(Method::spardl().density(0.1), 4, 400);
    team.step(&super::inputs::Pattern::Full.gradients(4, 400, &mut Random::new(1)));
    assert!(
        team.ensemble.residuals.iter().all(|r| r.thresholds().iter().all(|t| t.is_some_and(|t| t > 0.0)))
    );
}

/// An entry of a gradient, of the step, its index, the number of entries and a random number.
type Entry = fn(usize, usize, usize, f32) -> f32;

/// Streams in which the step before predicts nothing, or the wrong thing.
const HOSTILE: [(&str, Entry); 8] = [
    ("grows a thousandfold in each step", |step, _, _, random| random * 1e-20 * 1e3f32.powi(step as i32)),
    ("shrinks a thousandfold in each step", |step, _, _, random| random * 1e20 * 1e-3f32.powi(step as i32)),
    ("alternates", |step, _, _, random| if step % 2 == 1 { 1000.0 * random } else { random }),
    ("all equal", |_, _, _, _| 1.0),
    ("rising", |_, i, _, _| i as f32),
    ("falling, then rising", |step, i, n, _| if step < 4 { (n - i) as f32 } else { (2 * i) as f32 }),
    ("one huge entry", |step, i, n, random| if i == (step * 7919) % n { 1e30 } else { random }),
    ("two levels, the larger last", |_, i, n, _| if i > n - n / 50 { -2.0 } else { 1.0 }),
];

/// However wrong the prediction is, one worker's choice is that of a full sort.
#[test]
fn hostile_streams_are_selected_as_a_full_sort_would() {
    let n = 150_000;
    for (name, entry) in HOSTILE {
        // One selects block by block, the other from all blocks together.
        for (method, k) in [("spardl", 15), ("spardl", 1500), ("topka", 1500)] {
            let mut ensemble = Ensemble::new(Method::named(method).unwrap().k(k), 1, n).unwrap();
            let (mut sums, mut random) = (vec![0.0f32; n], Random::new(k as u64));
            for step in 0..8 {
                let gradient: Vec<f32> =
                    (0..n).map(|i| entry(step, i, n, random.below(2001) as f32 - 1000.0)).collect();
                ensemble.residuals[0].accumulate(0, &gradient).unwrap();
                let run = ensemble.begin(0).unwrap();
                let finished = lockstep(vec![run]).unwrap();
                let committed = ensemble.commit(finished, Collection::Global).unwrap();
                let update: Vec<(u32, f32)> = committed[0].update.iter().flat_map(|bag| bag.iter()).collect();

                sums.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += value);
                let mut order: Vec<u32> = (0..n as u32).filter(|&i| sums[i as usize] != 0.0).collect();
                order.sort_by(|&a, &b| {
                    let size = |i: u32| sums[i as usize].abs();
                    size(b).total_cmp(&size(a)).then(a.cmp(&b))
                });
                order.truncate(k);
                order.sort_unstable();
                let expected: Vec<(u32, f32)> = order.iter().map(|&i| (i, sums[i as usize])).collect();
                assert_eq!(update, expected, "{method}, {name}, k = {k}, step {step}");
                order.iter().for_each(|&i| sums[i as usize] = 0.0);
            }
        }
    }
}
