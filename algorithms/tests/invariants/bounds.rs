//! What a worker receives never exceeds what the checker declared, and a peer that sends more is refused. What travels is
//! encoded once, and passed on as the bytes that a fresh encoding would give.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use gleaner_algorithms::bag::wire::{Body, Content, DecodeError, Decoder, Expected, Part, encode};
use gleaner_algorithms::bag::{Coding, Dense, Entries, Rounded, floats};
use gleaner_algorithms::collectives::{Prepared, Routine};
use gleaner_algorithms::residual::Collection;
use gleaner_algorithms::schedule::{
    Execution, ExecutionError, Happening, Lockstep, Receipt, Run, Slots, Step, lockstep, watched,
};
use gleaner_algorithms::{Block, Element, Membership, Method, Rank};
use proptest::prelude::*;

use super::harness::{COLLECTIONS, Team, cases, methods, variants};
use super::inputs::{Pattern, Random, entries, pattern, share};

/// The receives of one worker in their order, read a second time beside its execution.
struct Witness {
    /// With how many numbers of notes come before each.
    receives: VecDeque<(Vec<Expected>, Vec<Block>, usize)>,
    /// What was proposed for each block.
    proposed: Vec<Option<Arc<[u32]>>>,
    reading: Option<Reading>,
}

/// A message that is being read.
struct Reading {
    decoder: Decoder,
    expected: Vec<Expected>,
    sets: Vec<Option<Arc<[u32]>>>,
    nonzeros: Vec<usize>,
    bodies: Vec<Option<Body>>,
    stream: Vec<u8>,
}

impl Witness {
    /// Reads a payload and counts the non-zero entries of every block that came. What came is what encoding it gives.
    fn read(&mut self, mut payload: Bytes) {
        let reading = self.reading.get_or_insert_with(|| {
            let (expected, blocks, notes) =
                self.receives.pop_front().expect("no more receives than the proof lists");
            payload = payload.slice(8 * notes..);
            let sets: Vec<_> = blocks.iter().map(|block| self.proposed[block.index()].clone()).collect();
            Reading {
                decoder: Decoder::new(expected.clone()).with_sets(sets.clone()),
                nonzeros: vec![0; expected.len()],
                bodies: vec![None; expected.len()],
                stream: Vec::new(),
                expected,
                sets,
            }
        });
        let Reading { decoder, expected, sets, nonzeros, bodies, stream } = reading;
        stream.extend_from_slice(&payload);
        decoder
            .feed(payload, |block, part| {
                let len = expected[block].len as usize;
                let (found, body) = match part {
                    Part::Sparse { entries, rounded, .. } => {
                        (entries.len(), Body::Sparse { entries, len, rounded })
                    }
                    Part::Dense { values: piece, rounded, .. } => {
                        let found = floats(&piece).filter(|v| *v != 0.0).count();
                        let mut values = match bodies[block].take() {
                            Some(Body::Dense { values, .. }) => values,
                            _ => Dense::default(),
                        };
                        values.push(piece);
                        (found, Body::Dense { values, rounded })
                    }
                    Part::Proposal { indices, .. } => {
                        (indices.len(), Body::Proposal { indices: indices.into(), len })
                    }
                    Part::Aligned { values, rounded, .. } => {
                        let indices = sets[block].clone().expect("what is aligned was proposed");
                        (values.len(), Body::Aligned { indices, values, len, rounded })
                    }
                    Part::Encoded { .. } => panic!("nothing is left to a device"),
                };
                nonzeros[block] += found;
                bodies[block] = Some(body);
            })
            .unwrap();
        for (&found, Expected { len, bound, .. }) in nonzeros.iter().zip(&*expected) {
            assert!(found <= *bound as usize && bound <= len, "{found} entries came, at most {bound} may");
        }
        if decoder.is_complete() {
            let most: u64 = expected.iter().map(|e| e.most_bytes::<f32>()).sum();
            assert!(stream.len() as u64 <= most, "{} bytes came, at most {most} may", stream.len());
            let bodies: Vec<Body> = bodies.drain(..).map(|body| body.expect("complete")).collect();
            assert!(encode(&bodies).concat() == *stream, "other bytes than those of a fresh encoding");
            self.reading = None;
        }
    }
}

/// Lock step, with a witness at every worker. The same step of the team's shadow shows what will be proposed.
fn run_with_witnesses(team: &mut Team, shadow: &mut Team, gradients: &[Vec<f32>]) {
    let runs = gradients.iter().enumerate().map(|(w, gradient)| shadow.begin(w, gradient, usize::MAX));
    let step = lockstep(runs.collect()).unwrap();
    let proposed = step.runs[0].finished.observed().proposed;
    let collection = shadow.collection();
    shadow.ensemble.commit(step, collection).unwrap();
    let mut witnesses: Vec<Witness> = team
        .ensemble
        .prepared()
        .map(|Prepared { program, .. }| {
            let schedule = program.schedule();
            let receives = schedule.steps.iter().zip(program.facts()).flat_map(|(step, facts)| {
                let slots = match step {
                    Step::Exchange { receives, .. } => receives.iter().map(|receive| receive.slots).collect(),
                    _ => Vec::new(),
                };
                let blocks = |slots: Slots| {
                    let places = slots.places(schedule.partition.blocks(), schedule.lanes);
                    places.map(|place| place.block).collect::<Vec<Block>>()
                };
                let expected = |(slots, receipt): (Slots, &Receipt)| {
                    (receipt.expected.clone(), blocks(slots), receipt.notes.iter().sum())
                };
                slots.into_iter().zip(&facts.receipts).map(expected).collect::<Vec<_>>()
            });
            Witness { receives: receives.collect(), proposed: proposed.clone(), reading: None }
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
            let progress = runs[w].go_on(&mut outbox).unwrap();
            moved |= !outbox.is_empty();
            for message in outbox {
                queues.entry((w, message.to.index())).or_default().push_back(message.payload);
            }
            match progress {
                None => moved |= !std::mem::replace(&mut finished[w], true),
                Some(from) => {
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
    assert!(witnesses.iter().all(|w| w.receives.is_empty() && w.reading.is_none()));
    let runs = runs.into_iter().map(|run| Run {
        finished: run.finish().unwrap(),
        bytes_received: 0,
        words_received: 0,
    });
    let collection = team.collection();
    team.ensemble.commit(Lockstep { runs: runs.collect(), words_critical: 0 }, collection).unwrap();
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
            let mut random = Random::new(seed);
            for pattern in &patterns {
                run_with_witnesses(&mut team, &mut shadow, &pattern.gradients(workers, n, &mut random));
            }
        }
    }

    /// What a block takes is bounded by its length, and where it may have this many entries, a longer one takes no less.
    #[test]
    fn a_longer_block_takes_no_less(most in 0u32..3000, len in 0u32..6000, longer in 0u32..6000) {
        fn holds<T: Element>(most: u32, len: u32, longer: u32) -> Result<(), TestCaseError> {
            for content in [Content::Bag, Content::Proposal, Content::Aligned] {
                let bytes = |len: u32| Expected { len, bound: most.min(len), content }.most_bytes::<T>();
                let each = content.most_bytes_each::<T>();
                prop_assert!(bytes(len) <= Expected::MOST_BESIDE + each * u64::from(len));
                prop_assert!(bytes(len) <= bytes(len + longer), "{content:?}, {} entries of {len}", most);
            }
            Ok(())
        }
        holds::<f32>(most, len, longer)?;
        holds::<f64>(most, len, longer)?;
        holds::<half::bf16>(most, len, longer)?;
    }
}

/// A step of these workers after another, with gradients that gather in one place, which moves: no program that comes up lets a
/// peer send more than was said before the first step.
#[test]
fn no_program_says_more_than_was_said_of_all() {
    let named = |name| Method::named(name).unwrap();
    for method in ["oktopk", "exdyna", "exdyna-printed"].map(named) {
        let mut kinds = BTreeSet::new();
        for (workers, n, k) in [(6usize, 600, 30), (9, 300, 100), (2, 40, 3)] {
            let method = method.clone().k(k);
            let said: Vec<_> = (0..workers as u32)
                .map(|rank| {
                    let membership = Membership::first(Rank(rank), workers as u32);
                    Routine::new(method.clone(), membership, n, 0).unwrap().volumes::<f32>().unwrap()
                })
                .collect();
            let mut team = Team::of(method.clone(), workers, n);
            let mut partitions = BTreeSet::new();
            for step in 0..70 {
                let memory = &team.ensemble.memories()[0];
                kinds.insert(method.structure(team.ensemble.shape(), memory).unwrap().kind);
                let lens = (0..workers as u32).map(|block| team.partition().block_len(Block(block)));
                partitions.insert(lens.collect::<Vec<_>>());
                for (said, prepared) in said.iter().zip(team.ensemble.prepared()) {
                    for (from, volume) in prepared.program.volumes::<f32>() {
                        assert_eq!(
                            said[&from].max(volume),
                            said[&from],
                            "{method}, P {workers}, step {step}"
                        );
                    }
                }
                let mut random = Random::new(step);
                let mut gradients = Pattern::Full.gradients(workers, n, &mut random);
                let from = if step < 40 { 0 } else { n - n / workers };
                for gradient in &mut gradients {
                    gradient[from..from + n / workers].iter_mut().for_each(|value| *value *= 100.0);
                }
                team.step(&gradients);
            }
            assert!(partitions.len() > 1, "{method}: the blocks stayed where they were");
        }
        let said = method.collective().kinds(&method.shape(6, 600).unwrap());
        assert!(said.iter().all(|kind| kinds.contains(kind)), "{method}: {kinds:?} came up");
    }
}

/// SparDL for two workers, 20 entries each in two blocks, 2 of each block: a peer may send two entries, not three.
#[test]
fn a_peer_that_sends_more_is_refused() {
    let mut team = Team::of(Method::spardl().k(4).residual(Collection::Global), 2, 40);
    let gradient = &Pattern::Full.gradients(1, 40, &mut Random::new(1))[0];
    let bag = |entries: &[(u32, f32)]| {
        let entries: Entries = entries.iter().copied().collect();
        encode(&[Body::Sparse { entries, len: 20, rounded: Rounded::EXACT }])
    };
    let mut run = team.begin(0, gradient, usize::MAX);
    assert_eq!(run.go_on(&mut Vec::new()), Ok(Some(Rank(1))));
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
        let Prepared { program, .. } = team.ensemble.prepared().next().unwrap().clone();
        let mut run = Execution::new(program, Arc::new(gradient.clone()), candidates);
        run.go_on(&mut Vec::new()).unwrap();
        run
    };
    assert_eq!(again().receive(Rank(1), two[0].clone(), &mut Vec::new()), Ok(()));
    assert_eq!(
        again().receive(Rank(0), two[0].clone(), &mut Vec::new()),
        Err(ExecutionError::Unexpected { from: Rank(0) })
    );
    // All twenty values are too many, too, whatever they are.
    let dense = encode(&[Body::Dense { values: vec![0.0f32; 20].into(), rounded: Rounded::EXACT }]);
    assert_eq!(
        again().receive(Rank(1), dense[0].clone(), &mut Vec::new()),
        Err(ExecutionError::Decode {
            from: Rank(1),
            source: DecodeError::Count { block: 0, count: 20, allowed: 2 }
        })
    );
}

/// How many entries each worker encodes in a step, where 12 for each worker are kept of n.
fn encoded(method: Method, workers: usize, n: usize) -> Vec<f64> {
    let mut team = Team::of(method.k(12 * workers), workers, n);
    let gradients = Pattern::Full.gradients(workers, n, &mut Random::new(3));
    let runs =
        gradients.iter().enumerate().map(|(w, gradient)| team.begin(w, gradient, usize::MAX)).collect();
    let mut encoded = vec![0.0; workers];
    let watch = |rank: Rank, happening: Happening<'_>| {
        if let Happening::Advanced(tally, _) = happening {
            encoded[rank.index()] = tally.encoded;
        }
    };
    watched(runs, watch).unwrap();
    encoded
}

/// In Bruck's all-gather every worker passes on what came: each worker encodes its own block alone, whatever P is. SparDL
/// encodes each of the other blocks once before that. So does CLT-k, whose first leader, rank 0, encodes its proposal as well;
/// a worker that passes that on does not.
#[test]
fn what_is_passed_on_is_not_encoded_again() {
    for workers in 2..=17 {
        let n = 3000 * workers;
        let each = vec![12.0 * workers as f64; workers];
        for coding in [Coding::Exact, Coding::Bf16] {
            assert_eq!(
                encoded(Method::named("topka").unwrap().coding(coding), workers, n),
                each,
                "P {workers}"
            );
            assert_eq!(encoded(Method::spardl().coding(coding), workers, n), each, "P {workers}");
            let mut led = each.clone();
            led[0] *= 2.0;
            let clt_k = Method::named("clt-k").unwrap().coding(coding);
            assert_eq!(encoded(clt_k, workers, n), led, "P {workers}");
        }
    }
}

/// Finite gradients may have a sum that is not: the worker that adds it reports it, whatever form its bag has.
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
