//! Dense methods deliver the sum; a sparse method at density 1 does too.

use std::collections::VecDeque;
use std::sync::Arc;

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::schedule::{Candidates, Execution};
use gleaner_algorithms::{Method, Rank};
use proptest::prelude::*;

use super::harness::{Outcome, Team, cases, dense_methods, open, variants};
use super::inputs::{Random, entries, pattern};

/// The update is the float64 sum of what the workers brought, within 1e-5 of the sum of the absolute values.
fn assert_sum(outcome: &Outcome) {
    for (i, &delivered) in outcome.delivered[0].iter().enumerate() {
        let (sum, size) = outcome.brought(i);
        assert!((f64::from(delivered) - sum).abs() <= 1e-5 * size, "entry {i}: {delivered}, expected {sum}");
    }
}

proptest! {
    #![proptest_config(cases(120))]

    #[test]
    fn dense_methods_deliver_the_sum_and_keep_nothing(
        (workers, n) in (1usize..=17).prop_flat_map(|p| (Just(p), entries(p))),
        patterns in proptest::collection::vec(pattern(), 1..4),
        seed: u64,
    ) {
        for method in dense_methods() {
            let mut team = Team::of(method, workers, n);
            let mut random = Random::new(seed);
            for pattern in &patterns {
                let outcome = team.step(&pattern.gradients(workers, n, &mut random));
                assert_sum(&outcome);
                prop_assert_eq!(&outcome.new, &vec![vec![0.0; n]; workers]);
                prop_assert!(!outcome.anything_lost());
            }
        }
    }

    /// With everything selected what remains is at entries whose sum is exactly zero, and there it sums to zero.
    #[test]
    fn sparse_methods_at_density_1_deliver_the_sum(
        (workers, n) in (1usize..=17).prop_flat_map(|p| (Just(p), entries(p))),
        patterns in proptest::collection::vec(pattern(), 1..4),
        seed: u64,
    ) {
        let exact = |m: &Method| m.collective().is_sparse() && m.values() == Coding::Exact;
        for method in variants(workers).into_iter().filter(exact) {
            let mut team = Team::of(method.density(1.0), workers, n);
            let mut random = Random::new(seed);
            // What was learnt may hold back more than the density: a threshold from the step before, and B-SAG's h.
            let steps = if team.ensemble.memories()[0].own.is_empty() { patterns.len() } else { 1 };
            for pattern in &patterns[..steps] {
                open(&mut team.ensemble);
                let outcome = team.step(&pattern.gradients(workers, n, &mut random));
                outcome.assert_identical();
                assert_sum(&outcome);
                for i in (0..n).filter(|&i| outcome.delivered[0][i] != 0.0) {
                    prop_assert!(outcome.new.iter().all(|r| r[i] == 0.0), "entry {} is delivered and kept", i);
                }
            }
        }
    }
}

#[test]
fn dense_methods_deliver_the_sum_of_many_workers() {
    for workers in [32, 33, 64] {
        for method in dense_methods() {
            let gradients = super::inputs::Pattern::Full.gradients(workers, 130, &mut Random::new(9));
            assert_sum(&Team::of(method, workers, 130).step(&gradients));
        }
    }
}

/// Of a block that goes on piece by piece and is not retained nothing is kept: its memory is free once it is sent. What a worker
/// retains shares its memory with what goes on.
#[test]
fn what_goes_on_in_a_reduce_scatter_keeps_no_memory() {
    const WORKERS: usize = 4;
    let ensemble =
        Ensemble::<f32>::new(Method::named("ring").unwrap(), WORKERS as u32, WORKERS * 8192).unwrap();
    let program = |worker: usize| ensemble.prepared().nth(worker).unwrap().program.clone();
    let begin = |worker| {
        Execution::new(
            program(worker),
            Arc::new(vec![1.0f32; WORKERS * 8192]),
            vec![Candidates::default(); WORKERS],
        )
    };
    let mut executions: Vec<_> = (0..WORKERS).map(begin).collect();
    let mut queues = vec![VecDeque::new(); WORKERS];
    let (mut free, mut shared, mut outbox) = (0, 0, Vec::new());
    let mut done = [false; WORKERS];
    while done != [true; WORKERS] {
        for worker in 0..WORKERS {
            done[worker] = executions[worker].go_on(&mut outbox).unwrap().is_none();
            queues[(worker + 1) % WORKERS].extend(outbox.drain(..).map(|sent| sent.payload));
            let Some(payload) = queues[worker].pop_front() else { continue };
            let from = Rank(((worker + WORKERS - 1) % WORKERS) as u32);
            executions[worker].receive(from, payload, &mut outbox).unwrap();
            for sent in outbox.iter().filter(|sent| sent.payload.len() > 64) {
                *(if sent.payload.is_unique() { &mut free } else { &mut shared }) += 1;
            }
            queues[(worker + 1) % WORKERS].extend(outbox.drain(..).map(|sent| sent.payload));
        }
    }
    // Blocks of 32 KiB in two pieces: two rounds of the reduce-scatter, the sum at its end, and two rounds of the all-gather.
    assert_eq!((free, shared), (2 * 2 * WORKERS, 3 * 2 * WORKERS));
    for execution in executions {
        let update = execution.finish().unwrap().update;
        assert!(update.iter().all(|bag| bag.iter().all(|(_, sum)| sum == WORKERS as f32)));
    }
}
