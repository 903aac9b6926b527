//! Momentum correction and masking: what enters the residuals is the velocity, and the invariants hold for it.

use gleaner_algorithms::residual::{AccumulateError, Correction, Residual, Waiting};
use gleaner_algorithms::{Method, Partition};
use proptest::prelude::*;

use super::harness::{COLLECTIONS, Outcome, Team, bits_of, cases, methods};
use super::inputs::{Pattern, Random, entries, pattern};

const MOMENTUM: f32 = 0.7;

fn velocities(team: &Team, n: usize) -> Vec<Vec<f32>> {
    team.ensemble.residuals.iter().map(|r| r.velocity(0..n).unwrap().to_vec()).collect()
}

/// A step, with the velocities in place of the gradients in what it says, and those before masking and after.
fn step(team: &mut Team, gradients: &[Vec<f32>], size: usize) -> (Outcome, Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let n = gradients[0].len();
    let mut moved = velocities(team, n);
    for (velocity, gradient) in moved.iter_mut().zip(gradients) {
        velocity.iter_mut().zip(gradient).for_each(|(u, g)| *u = MOMENTUM * *u + g);
    }
    let mut outcome = team.step_in_pieces(gradients, size);
    outcome.gradients.clone_from(&moved);
    (outcome, moved, velocities(team, n))
}

proptest! {
    #![proptest_config(cases(40))]

    /// Velocities + old residuals = delivered + new residuals + lost, and only what left a residual is masked.
    #[test]
    fn nothing_is_lost_of_the_velocities(
        (workers, n) in (1usize..=9).prop_flat_map(|p| (Just(p), entries(p))),
        density in 0.0f64..1.0,
        patterns in proptest::collection::vec(pattern(), 1..5),
        mask: bool,
        seed: u64,
    ) {
        let correction = Correction { momentum: MOMENTUM, mask, ..Correction::default() };
        for (method, collection) in methods().flat_map(|m| COLLECTIONS.map(|c| (m.clone(), c))) {
            let mut team = Team::of(method.clone().density(density).residual(collection).corrected(correction), workers, n);
            let mut random = Random::new(seed);
            for pattern in &patterns {
                let gradients = pattern.gradients(workers, n, &mut random);
                let (outcome, moved, after) = step(&mut team, &gradients, 1 + random.below(n.max(1)));
                outcome.assert_invariants();
                for w in 0..workers {
                    if !mask {
                        prop_assert_eq!(bits_of(&after[w]), bits_of(&moved[w]), "{}", method);
                        continue;
                    }
                    for i in 0..n {
                        let kept = after[w][i].to_bits() == moved[w][i].to_bits();
                        prop_assert!(kept || after[w][i].to_bits() == 0, "{method}: entry {i} of rank {w}");
                        // What did not move at all stayed where it was, and its velocity with it.
                        let whole = outcome.old[w][i] + moved[w][i];
                        let stayed = outcome.delivered[0][i] == 0.0 && outcome.new[w][i].to_bits() == whole.to_bits();
                        prop_assert!(kept || !stayed || whole == 0.0, "{method}: entry {i} of rank {w} was not sent");
                    }
                }
            }
        }
    }

    /// Where every worker sends its own k largest entries, and all of them are delivered, these are masked and no others.
    #[test]
    fn masking_zeroes_exactly_what_was_sent(
        workers in 1usize..=6, n in 1usize..200, k in 1usize..20, steps in 1usize..6, seed: u64,
    ) {
        let k = k.min(n);
        let correction = Correction { momentum: MOMENTUM, mask: true, ..Correction::default() };
        let topka = Method::named("topka").unwrap().k(k).corrected(correction);
        let mut team = Team::of(topka, workers, n);
        let mut random = Random::new(seed);
        for _ in 0..steps {
            let gradients = Pattern::Full.gradients(workers, n, &mut random);
            let (outcome, moved, after) = step(&mut team, &gradients, n);
            for w in 0..workers {
                let accumulated: Vec<f32> = outcome.old[w].iter().zip(&moved[w]).map(|(r, u)| r + u).collect();
                let mut order: Vec<usize> = (0..n).filter(|&i| accumulated[i] != 0.0).collect();
                order.sort_by(|&a, &b| accumulated[b].abs().total_cmp(&accumulated[a].abs()).then(a.cmp(&b)));
                let mut expected = moved[w].clone();
                for &i in order.iter().take(k).filter(|&&i| outcome.delivered[0][i] != 0.0) {
                    expected[i] = 0.0;
                }
                prop_assert_eq!(bits_of(&after[w]), bits_of(&expected));
            }
        }
    }

    /// A dense method with momentum correction delivers what an optimiser with momentum makes of its sums.
    #[test]
    fn dense_methods_deliver_the_velocity(workers in 1usize..=5, n in 1usize..100, seed: u64) {
        let correction = Correction { momentum: MOMENTUM, ..Correction::default() };
        let mut corrected = Team::of(Method::ring().corrected(correction), workers, n);
        let mut plain = Team::of(Method::ring(), workers, n);
        let mut random = Random::new(seed);
        let (mut velocity, mut size) = (vec![0.0f64; n], vec![0.0f64; n]);
        for _ in 0..6 {
            let gradients = Pattern::Full.gradients(workers, n, &mut random);
            let sums = plain.step(&gradients);
            let delivered = corrected.step(&gradients).delivered.swap_remove(0);
            for i in 0..n {
                velocity[i] = f64::from(MOMENTUM) * velocity[i] + f64::from(sums.delivered[0][i]);
                size[i] += gradients.iter().map(|g| f64::from(g[i].abs())).sum::<f64>();
                prop_assert!((f64::from(delivered[i]) - velocity[i]).abs() <= 1e-5 * size[i]);
            }
        }
    }

    /// Whatever was given of a step, and wherever it was refused, a revertible residual forgets all of it.
    #[test]
    fn a_reverted_step_leaves_every_bit_as_it_was(
        n in 1usize..20_000, size in 1usize..9000, momentum in prop_oneof![Just(0.0f32), Just(0.5)],
        bad in proptest::collection::vec(any::<proptest::sample::Index>(), 0..4), fresh: bool, seed: u64,
    ) {
        let correction = Correction { momentum, ..Correction::default() };
        let mut random = Random::new(seed);
        let mut values = || Pattern::Full.gradients(1, n, &mut random).remove(0);
        let partition = Partition::even(n, 3.min(n));
        let quotas = vec![Some(1); partition.blocks()];
        let mut residual = Residual::new(partition, quotas).corrected(&correction).revertible().unwrap();
        if !fresh {
            residual.set_waiting(0, &Waiting { residual: values(), velocity: (momentum > 0.0).then(&mut values) }).unwrap();
        }
        let all = |r: &Residual| (bits_of(&r.read(0..n).unwrap()), r.velocity(0..n).map(bits_of));
        let before = all(&residual);
        let mut gradient = values();
        bad.iter().for_each(|at| gradient[at.index(n)] = f32::NAN);
        let mut refused = 0;
        for (i, piece) in gradient.chunks(size).enumerate() {
            match residual.accumulate(i * size, piece) {
                Ok(()) => {}
                Err(AccumulateError::Device(error)) => panic!("there is no device: {error}"),
                Err(AccumulateError::NonFinite(error)) => {
                    let first = piece.iter().position(|v| v.is_nan()).unwrap();
                    prop_assert_eq!(error.entry, i * size + first);
                    refused += error.count;
                }
            }
        }
        prop_assert_eq!(refused, gradient.iter().filter(|v| v.is_nan()).count());
        if refused == 0 {
            drop(residual.begin().unwrap());
        }
        residual.revert().unwrap();
        prop_assert_eq!(&all(&residual), &before);
        // And the next step goes as if there had been none before it.
        let good = values();
        residual.accumulate(0, &good).unwrap();
        residual.begin().unwrap();
        residual.revert().unwrap();
        prop_assert_eq!(&all(&residual), &before);
    }
}
