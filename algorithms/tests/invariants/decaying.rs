//! Residuals that decay: β·old residuals + gradients = delivered + new residuals + lost.

use gleaner_algorithms::collectives::MethodError;
use gleaner_algorithms::residual::{AccumulateError, Correction, CorrectionError, Residual, Waiting};
use gleaner_algorithms::{Method, Partition};
use proptest::prelude::*;

use super::harness::{COLLECTIONS, Team, bits_of, cases, methods};
use super::inputs::{Pattern, Random, entries, pattern};

fn decaying(method: Method, decay: f32) -> Method {
    method.corrected(Correction { decay: Some(decay), ..Correction::default() })
}

proptest! {
    #![proptest_config(cases(20))]

    /// What the harness calls old residuals is β times what waited before, as it was read here.
    #[test]
    fn what_decays_is_all_that_is_missing(
        (workers, n) in (1usize..=7).prop_flat_map(|p| (Just(p), entries(p))),
        density in 0.0f64..1.0,
        decay in 0.1f32..=1.0,
        patterns in proptest::collection::vec(pattern(), 1..5),
        seed: u64,
    ) {
        for method in methods().filter(|method| method.collective().is_sparse()) {
            for collection in COLLECTIONS {
                let method = decaying(method.clone().density(density).residual(collection), decay);
                let mut team = Team::of(method.clone(), workers, n);
                let mut random = Random::new(seed);
                for pattern in &patterns {
                    let gradients = pattern.gradients(workers, n, &mut random);
                    let waited: Vec<Vec<f32>> =
                        team.ensemble.residuals.iter().map(|r| r.read(0..n).unwrap()).collect();
                    let outcome = team.step_in_pieces(&gradients, 1 + random.below(n.max(1)));
                    for (old, waited) in outcome.old.iter().zip(&waited) {
                        let left: Vec<f32> = waited.iter().map(|v| decay * v).collect();
                        prop_assert_eq!(bits_of(old), bits_of(&left), "{}", method);
                    }
                    outcome.assert_invariants();
                }
            }
        }
    }

    /// A decay of 1 keeps every bit.
    #[test]
    fn a_decay_of_one_changes_nothing(workers in 1usize..=5, n in 1usize..100, seed: u64) {
        for method in methods().filter(|method| method.collective().is_sparse()).map(|m| m.density(0.1)) {
            let run = |method: Method| {
                let (mut team, mut random) = (Team::of(method, workers, n), Random::new(seed));
                let step = |_| team.step(&Pattern::Full.gradients(workers, n, &mut random)).bits();
                (0..4).map(step).collect::<Vec<_>>()
            };
            prop_assert!(run(method.clone()) == run(decaying(method.clone(), 1.0)), "{}", method);
        }
    }

    /// What is refused is as it was, and has not decayed.
    #[test]
    fn what_is_refused_has_not_decayed(
        n in 1usize..20_000, size in 1usize..9000, at: proptest::sample::Index, reverts: bool, seed: u64,
    ) {
        let mut random = Random::new(seed);
        let mut values = || Pattern::Full.gradients(1, n, &mut random).remove(0);
        let correction = Correction { decay: Some(0.9), ..Correction::default() };
        let partition = Partition::even(n, 3.min(n));
        let quotas = vec![Some(1); partition.blocks()];
        let mut residual = Residual::new(partition, quotas).corrected(&correction);
        if reverts {
            residual = residual.revertible().unwrap();
        }
        let (waited, mut gradient) = (values(), values());
        residual.set_waiting(0, &Waiting { residual: waited.clone(), velocity: None }).unwrap();
        let bad = at.index(n);
        gradient[bad] = f32::INFINITY;
        let mut expected = waited.clone();
        for (i, piece) in gradient.chunks(size).enumerate() {
            let here = i * size..i * size + piece.len();
            match residual.accumulate(here.start, piece) {
                Err(AccumulateError::NonFinite(error)) => prop_assert_eq!((error.entry, error.count), (bad, 1)),
                added => added.unwrap(),
            }
            let taken = here.start..if here.contains(&bad) { bad } else { here.end };
            taken.for_each(|i| expected[i] = 0.9 * waited[i] + gradient[i]);
        }
        prop_assert_eq!(bits_of(&residual.read(0..n).unwrap()), bits_of(&expected));
        if reverts {
            residual.revert().unwrap();
            prop_assert_eq!(bits_of(&residual.read(0..n).unwrap()), bits_of(&waited));
        }
    }
}

/// The paper's Algorithm 1 without its transform: m ← β·m + gradient, q = the k largest of m, m ← m − q; and the sum over the workers of q is the update.
#[test]
fn it_does_what_the_paper_says() {
    const WORKERS: usize = 3;
    const N: usize = 40;
    const K: usize = 5;
    const DECAY: f32 = 0.9;
    let mut team = Team::of(decaying(Method::named("topka").unwrap().k(K), DECAY), WORKERS, N);
    let mut random = Random::new(7);
    let mut m = vec![vec![0.0f64; N]; WORKERS];
    for step in 0..30 {
        let gradients: Vec<Vec<f32>> =
            (0..WORKERS).map(|_| (0..N).map(|_| random.below(20_001) as f32 / 1e4 - 1.0).collect()).collect();
        let mut update = vec![0.0; N];
        for (m, gradient) in m.iter_mut().zip(&gradients) {
            m.iter_mut().zip(gradient).for_each(|(m, g)| *m = f64::from(DECAY) * *m + f64::from(*g));
            let mut largest: Vec<usize> = (0..N).collect();
            largest.sort_by(|a, b| m[*b].abs().total_cmp(&m[*a].abs()));
            for &i in &largest[..K] {
                update[i] += std::mem::take(&mut m[i]);
            }
        }
        let outcome = team.step(&gradients);
        for (i, expected) in update.iter().enumerate() {
            let found = f64::from(outcome.delivered[0][i]);
            assert!((found - expected).abs() < 1e-5, "step {step}, entry {i}: {found}, expected {expected}");
        }
    }
}

#[test]
fn what_has_nothing_to_decay_is_refused() {
    let refusal = |method: Method| decaying(method, 0.9).candidates(3, 100).unwrap_err();
    for (method, named) in [(Method::ring(), "with a dense method"), (Method::auto(), "with the method auto")]
    {
        let refused = refusal(method);
        assert!(matches!(refused, MethodError::Correction(CorrectionError::DecayBeside(_))), "{refused}");
        assert!(refused.to_string().contains(named), "{refused}");
    }
    let sparse = decaying(Method::spardl(), 0.9);
    assert!(sparse.for_sparse(3, 100).unwrap_err().to_string().contains("with a decay of the residual"));
    assert_eq!(sparse.beside(3, 100).unwrap().correction().decay, None);
    assert_eq!(sparse.whole_beside().correction().decay, None);
}
