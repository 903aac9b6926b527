//! What a worker receives never exceeds what the checker declared, and a peer that sends more is refused.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use gleaner_algorithms::bag::wire::{Body, DecodeError, Decoder, Expected, Part, encode};
use gleaner_algorithms::bag::{Entries, Rounded, floats};
use gleaner_algorithms::collectives::Prepared;
use gleaner_algorithms::residual::Collection;
use gleaner_algorithms::schedule::{Execution, ExecutionError, Lockstep, Progress, Run, Step, lockstep};
use gleaner_algorithms::{Block, Method, Rank};
use proptest::prelude::*;

use super::harness::{COLLECTIONS, Team, cases, methods, variants};
use super::inputs::{Pattern, Random, entries, pattern, share};

/// The receives of one worker in their order, read a second time beside its execution.
struct Witness {
    /// With how many numbers of notes come before each.
    receives: VecDeque<(Vec<Expected>, Vec<Block>, usize)>,
    /// What was proposed for each block.
    proposed: Vec<Option<Arc<[u32]>>>,
    decoder: Option<(Decoder, Vec<usize>, Vec<Expected>)>,
}

impl Witness {
    /// Reads a payload and counts the non-zero entries of every block that came.
    fn read(&mut self, mut payload: Bytes) {
        let (decoder, nonzeros, expected) = self.decoder.get_or_insert_with(|| {
            let (expected, blocks, notes) =
                self.receives.pop_front().expect("no more receives than the proof lists");
            payload = payload.slice(8 * notes..);
            let sets = blocks.iter().map(|block| self.proposed[block.index()].clone()).collect();
            (Decoder::new(expected.clone()).with_sets(sets), vec![0; expected.len()], expected)
        });
        decoder
            .feed(payload, |block, part| {
                nonzeros[block] += match part {
                    Part::Sparse { entries, .. } => entries.len(),
                    Part::Dense { values, .. } => floats(&values).filter(|v| *v != 0.0).count(),
                    Part::Proposal { indices } => indices.len(),
                    Part::Aligned { values, .. } => values.len(),
                }
            })
            .unwrap();
        for (&found, Expected { len, bound, .. }) in nonzeros.iter().zip(expected) {
            assert!(found <= *bound as usize && bound <= len, "{found} entries came, at most {bound} may");
        }
        if decoder.is_complete() {
            self.decoder = None;
        }
    }
}

/// Lock step, with a witness at every worker. The same step of the team's shadow tells what will be proposed.
fn run_with_witnesses(team: &mut Team, shadow: &mut Team, gradients: &[Vec<f32>]) {
    let runs = gradients.iter().enumerate().map(|(w, gradient)| shadow.begin(w, gradient, usize::MAX));
    let step = lockstep(runs.collect()).unwrap();
    let proposed = step.runs[0].finished.observed().proposed;
    shadow.ensemble.commit(step, shadow.collection).unwrap();
    let mut witnesses: Vec<Witness> = team
        .ensemble
        .prepared()
        .map(|Prepared { schedule, proof, .. }| {
            let receives = proof.expected.iter().flat_map(|(step, receives)| {
                let numbers = |r: usize| proof.notes.get(&(*step, r)).map_or(0, |notes| notes.iter().sum());
                let blocks = |r: usize| match &schedule.steps[*step] {
                    Step::Exchange { receives, .. } => {
                        let slots = receives[r].slots;
                        let lanes = slots.lanes.count as usize;
                        slots.blocks(schedule.partition.blocks()).cycle().take(slots.count as usize * lanes)
                    }
                    other => panic!("{other:?} receives nothing"),
                };
                let told = move |r: usize, expected: &Vec<Expected>| {
                    (expected.clone(), blocks(r).collect::<Vec<Block>>(), numbers(r))
                };
                receives.iter().enumerate().map(move |(r, expected)| told(r, expected))
            });
            Witness { receives: receives.collect(), proposed: proposed.clone(), decoder: None }
        })
        .collect();
    let mut runs: Vec<Execution> =
        gradients.iter().enumerate().map(|(w, gradient)| team.begin(w, gradient, usize::MAX)).collect();
    let mut queues: HashMap<(usize, usize), VecDeque<Bytes>> = HashMap::new();
    let mut finished = vec![false; runs.len()];
    while finished.contains(&false) {
        let mut moved = false;
        for w in 0..runs.len() {
            let mut outbox = Vec::new();
            let progress = runs[w].advance(&mut outbox).unwrap();
            moved |= !outbox.is_empty();
            for message in outbox {
                queues.entry((w, message.to.index())).or_default().push_back(message.payload);
            }
            match progress {
                Progress::Finished => moved |= !std::mem::replace(&mut finished[w], true),
                Progress::Waiting(from) => {
                    if let Some(payload) = queues.get_mut(&(from.index(), w)).and_then(VecDeque::pop_front) {
                        witnesses[w].read(payload.clone());
                        let mut outbox = Vec::new();
                        runs[w].receive(from, payload, &mut outbox).unwrap();
                        for message in outbox {
                            queues.entry((w, message.to.index())).or_default().push_back(message.payload);
                        }
                        moved = true;
                    }
                }
            }
        }
        assert!(moved, "accepted schedules do not deadlock");
    }
    assert!(queues.values().all(VecDeque::is_empty));
    assert!(witnesses.iter().all(|w| w.receives.is_empty() && w.decoder.is_none()));
    let runs =
        runs.into_iter().map(|run| Run { finished: run.finish(), bytes_received: 0, words_received: 0 });
    team.ensemble.commit(Lockstep { runs: runs.collect(), words_critical: 0 }, team.collection).unwrap();
}

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn what_comes_is_within_its_bound(
        (workers, n) in (1usize..=17).prop_flat_map(|p| (Just(p), entries(p))),
        share in share(),
        patterns in proptest::collection::vec(pattern(), 1..4),
        seed: u64,
    ) {
        // One combination of options in three, other ones in every case.
        for method in variants(workers).into_iter().skip(seed as usize % 3).step_by(3) {
            let collection = COLLECTIONS[seed as usize % 3];
            let [mut team, mut shadow] =
                [0, 1].map(|_| Team::of(share.of(method.clone(), n).residual(collection), workers, n));
            let mut random = Random(seed);
            for pattern in &patterns {
                run_with_witnesses(&mut team, &mut shadow, &pattern.gradients(workers, n, &mut random));
            }
        }
    }
}

/// SparDL for two workers, 20 entries each in two blocks, 2 of each block: a peer may send two entries, not three.
#[test]
fn a_peer_that_sends_more_is_refused() {
    let mut team = Team::of(Method::spardl().k(4).residual(Collection::Global), 2, 40);
    let gradient = &Pattern::Full.gradients(1, 40, &mut Random(1))[0];
    let bag = |entries: &[(u32, f32)]| {
        let entries: Entries = entries.iter().copied().collect();
        encode(&[Body::Sparse { entries, len: 20, rounded: Rounded::EXACT }])
    };
    let mut run = team.begin(0, gradient, usize::MAX);
    assert_eq!(run.advance(&mut Vec::new()), Ok(Progress::Waiting(Rank(1))));
    let many = bag(&[(1, 1.0), (2, 1.0), (3, 1.0)]);
    assert_eq!(
        run.receive(Rank(1), many[0].clone(), &mut Vec::new()),
        Err(ExecutionError::Decode {
            from: Rank(1),
            source: DecodeError::Count { block: 0, count: 3, allowed: 2 }
        })
    );
    // Two are welcome, but from rank 1 only.
    let two = bag(&[(1, 1.0), (2, 1.0)]);
    let again = || {
        let candidates = vec![Default::default(); 2];
        let Prepared { schedule, proof, .. } = team.ensemble.prepared().next().unwrap().clone();
        let mut run = Execution::new(schedule, proof, Arc::new(gradient.clone()), candidates);
        run.advance(&mut Vec::new()).unwrap();
        run
    };
    assert_eq!(again().receive(Rank(1), two[0].clone(), &mut Vec::new()), Ok(()));
    assert_eq!(
        again().receive(Rank(0), two[0].clone(), &mut Vec::new()),
        Err(ExecutionError::Unexpected { from: Rank(0) })
    );
}

/// Finite gradients may have a sum that is not: whoever adds it reports it, whatever form its bag has.
#[test]
fn a_sum_out_of_range_is_reported() {
    for (n, k, method) in methods().flat_map(|m| [(12, 2), (12, 12), (2, 1)].map(|(n, k)| (n, k, m.clone())))
    {
        for workers in [2, 3, 4, 6] {
            let mut team = Team::of(method.clone().k(k), workers, n);
            let executions = (0..workers).map(|w| team.begin(w, &vec![f32::MAX; n], usize::MAX)).collect();
            let result = gleaner_algorithms::schedule::lockstep(executions);
            assert!(
                matches!(result, Err(ExecutionError::Overflow { .. } | ExecutionError::Sum { .. })),
                "{}, P {workers}, k {k}: {result:?}",
                method.collective().name()
            );
        }
    }
}
