//! EF21-SGDM: what is exchanged is by how much velocities have changed.

use gleaner_algorithms::Method;
use gleaner_algorithms::residual::Correction;
use proptest::prelude::*;

use super::harness::{Team, cases, methods};
use super::inputs::{Random, entries, pattern};

const MOMENTUM: f32 = 0.5;

fn ef21(method: Method) -> Method {
    method.corrected(Correction { momentum: MOMENTUM, ef21: true, ..Correction::default() })
}

/// The sum over the workers at an entry, and the sum of its parts' magnitudes.
fn sums<'a>(of: impl Iterator<Item = &'a Vec<f32>>, entry: usize) -> (f64, f64) {
    of.map(|values| f64::from(values[entry])).fold((0.0, 0.0), |(sum, size), v| (sum + v, size + v.abs()))
}

proptest! {
    #![proptest_config(cases(12))]

    /// After each step the velocities of all workers are what was delivered so far and what waits.
    #[test]
    fn velocities_are_what_was_delivered_and_what_waits(
        (workers, n) in (1usize..=5).prop_flat_map(|p| (Just(p), entries(p))),
        patterns in proptest::collection::vec(pattern(), 4..6),
        seed: u64,
    ) {
        for method in methods() {
            for method in [method.clone().density(0.1), method.density(0.1).complete_sums()] {
                let mut team = Team::of(ef21(method.clone()), workers, n);
                let mut random = Random::new(seed);
                let mut velocities = vec![vec![0.0f32; n]; workers];
                let mut delivered = vec![(0.0f64, 0.0f64); n];
                for pattern in &patterns {
                    let gradients = pattern.gradients(workers, n, &mut random);
                    for (velocity, gradient) in velocities.iter_mut().zip(&gradients) {
                        velocity.iter_mut().zip(gradient).for_each(|(u, g)| *u = MOMENTUM * *u + g);
                    }
                    let outcome = team.step_in_pieces(&gradients, 1 + random.below(n.max(1)));
                    outcome.assert_invariants();
                    for (entry, delivered) in delivered.iter_mut().enumerate() {
                        let update = f64::from(outcome.delivered[0][entry]);
                        let brought = outcome.brought(entry).1;
                        *delivered = (delivered.0 + update, delivered.1 + update.abs() + brought);
                        let (known, waiting) = (sums(velocities.iter(), entry), sums(outcome.new.iter(), entry));
                        let off = (known.0 - delivered.0 - waiting.0).abs();
                        let size = known.1 + delivered.1 + waiting.1;
                        // Products of the smallest numbers are rounded to multiples of the smallest of all.
                        let off = off - f64::from(f32::MIN_POSITIVE);
                        prop_assert!(off <= 1e-5 * size, "{method}, entry {entry}: off by {off} of {size}");
                    }
                }
            }
        }
    }
}

/// The paper's Algorithm 1 with the k largest entries: v ← m·v + gradient, c = Top-k(v − g), g ← g + c; and the sum over the workers of c is the update.
#[test]
fn it_does_what_the_paper_says() {
    const WORKERS: usize = 3;
    const N: usize = 40;
    const K: usize = 5;
    let mut team = Team::of(ef21(Method::named("topka").unwrap().k(K)), WORKERS, N);
    let mut random = Random::new(7);
    let (mut v, mut g) = (vec![vec![0.0f64; N]; WORKERS], vec![vec![0.0f64; N]; WORKERS]);
    for step in 0..30 {
        let gradient =
            |random: &mut Random| (0..N).map(|_| random.below(20_001) as f32 / 1e4 - 1.0).collect();
        let gradients: Vec<Vec<f32>> = (0..WORKERS).map(|_| gradient(&mut random)).collect();
        let mut update = vec![0.0; N];
        for rank in 0..WORKERS {
            let differences: Vec<f64> = (0..N)
                .map(|i| {
                    v[rank][i] = f64::from(MOMENTUM) * v[rank][i] + f64::from(gradients[rank][i]);
                    v[rank][i] - g[rank][i]
                })
                .collect();
            let mut largest: Vec<usize> = (0..N).collect();
            largest.sort_by(|a, b| differences[*b].abs().total_cmp(&differences[*a].abs()));
            for &i in &largest[..K] {
                g[rank][i] += differences[i];
                update[i] += differences[i];
            }
        }
        let outcome = team.step(&gradients);
        for (i, expected) in update.iter().enumerate() {
            let found = f64::from(outcome.delivered[0][i]);
            assert!((found - expected).abs() < 1e-5, "step {step}, entry {i}: {found}, expected {expected}");
        }
    }
}
