//! Methods that agree on indices before they add up values: what is proposed is delivered, once; and what the checker
//! demands of them.

use std::collections::BTreeSet;

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::schedule::{Cost, Observed, Proof, Rule, Schedule, Step, check, lockstep};
use gleaner_algorithms::{Block, Method};

use super::by_hand::{self, add, copy, exchange, keep, place, slots, swap};
use super::harness::Team;
use super::inputs::{Pattern, Random};

/// The methods that propose.
fn agreeing() -> impl Iterator<Item = Method> {
    let proposes = |schedule: &Schedule| schedule.steps.iter().any(|s| matches!(s, Step::Propose { .. }));
    Method::all().filter(move |method| method.schedules(3, 90).unwrap().iter().any(proposes))
}

fn named(name: &str) -> Method {
    Method::named(name).unwrap()
}

/// A step of all workers: what each of them saw, the positions that were proposed, and the update as a vector.
fn step(team: &mut Team, gradients: &[Vec<f32>]) -> (Vec<Observed>, Vec<usize>, Vec<f32>) {
    let partition = team.partition().clone();
    let runs = gradients.iter().enumerate().map(|(w, g)| team.begin(w, g, usize::MAX)).collect();
    let step = lockstep(runs).unwrap();
    let observed: Vec<Observed> = step.runs.iter().map(|run| run.finished.observed()).collect();
    let positions = (0..partition.blocks()).flat_map(|b| {
        let start = partition.range(Block(b as u32)).start;
        observed[0].proposed[b].as_ref().unwrap().iter().map(move |&i| start + i as usize)
    });
    let positions = positions.collect();
    let collection = team.collection();
    let committed = team.ensemble.commit(step, collection).unwrap();
    let mut update = vec![0.0; partition.entries()];
    for (b, bag) in committed[0].update.iter().enumerate() {
        let start = partition.range(Block(b as u32)).start;
        bag.iter().for_each(|(i, v)| update[start + i as usize] = v);
    }
    (observed, positions, update)
}

fn accumulators(team: &Team, gradients: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let of = |(residual, gradient): (&gleaner_algorithms::residual::Residual, &Vec<f32>)| {
        residual.read(0..gradient.len()).unwrap().iter().zip(gradient).map(|(e, g)| e + g).collect()
    };
    team.ensemble.residuals.iter().zip(gradients).map(of).collect()
}

/// The union of all selections is as large as their sum, and is what is delivered, however much or little workers have in
/// common.
#[test]
fn nothing_builds_up() {
    assert!(agreeing().count() >= 4);
    for method in agreeing() {
        let name = method.collective().name();
        for workers in 1..=17 {
            let n = 90 + 7 * workers;
            let mut team = Team::of(method.clone().density(0.1), workers, n);
            let k = team.ensemble.shape().k;
            let mut random = Random::new(workers as u64);
            let mut most = 0;
            for _ in 0..12 {
                let gradients = Pattern::Full.gradients(workers, n, &mut random);
                let (observed, positions, update) = step(&mut team, &gradients);
                let union: BTreeSet<usize> = positions.iter().copied().collect();
                let delivered: BTreeSet<usize> = (0..n).filter(|&i| update[i] != 0.0).collect();
                assert_eq!(delivered, union, "{name}, P {workers}");
                assert_eq!(union.len(), positions.len(), "{name}, P {workers}: an index was proposed twice");
                assert!(observed.iter().all(|o| o.proposed == observed[0].proposed), "{name}, P {workers}");
                let selected: usize = observed.iter().map(|o| o.own.entries).sum();
                match name {
                    // Nothing here looks at values.
                    "random-k" => assert_eq!((selected, union.len()), (0, k), "{name}, P {workers}"),
                    "clt-k" => assert_eq!((selected, union.len()), (k, k), "{name}, P {workers}"),
                    _ => assert_eq!(selected, union.len(), "{name}, P {workers}"),
                }
                most = most.max(union.len());
            }
            assert!(most > 0, "{name}, P {workers}: nothing was ever proposed");
        }
    }
}

/// Worker t mod P proposes the k largest of its own accumulator in step t, and every worker's values there are delivered.
#[test]
fn clt_k_takes_turns() {
    for workers in [1, 2, 3, 4, 6, 7] {
        let (n, k) = (60, 9);
        let mut team = Team::of(named("clt-k").k(k), workers, n);
        let mut random = Random::new(workers as u64);
        for t in 0..2 * workers + 1 {
            // Whole numbers, whose sums are exact.
            let gradients: Vec<Vec<f32>> =
                (0..workers).map(|_| (0..n).map(|_| random.below(2000) as f32 - 999.5).collect()).collect();
            let accumulators = accumulators(&team, &gradients);
            let leader = &accumulators[t % workers];
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|&a, &b| leader[b].abs().total_cmp(&leader[a].abs()).then(a.cmp(&b)));
            let mut expected = vec![0.0; n];
            for &i in &order[..k] {
                expected[i] = accumulators.iter().map(|a| a[i]).sum();
            }
            let (_, positions, update) = step(&mut team, &gradients);
            assert_eq!(positions.into_iter().collect::<BTreeSet<_>>(), order[..k].iter().copied().collect());
            assert_eq!(update, expected, "P {workers}, step {t}");
        }
    }
}

/// The generator samples k indices of n, others in every step, each as often as any other, and each pair.
#[test]
fn random_k_draws_every_set() {
    let (workers, n, k, steps) = (2, 40, 8, 4000);
    let mut team = Team::of(named("random-k").k(k), workers, n);
    let gradients = vec![vec![1.0; n]; workers];
    let mut times = vec![0u32; n];
    let (mut together, mut before, mut repeated) = (0, Vec::new(), 0);
    for _ in 0..steps {
        let accumulators = accumulators(&team, &gradients);
        let (_, positions, update) = step(&mut team, &gradients);
        assert_eq!(positions.len(), k);
        assert!(positions.iter().all(|&i| update[i] == accumulators[0][i] + accumulators[1][i]));
        positions.iter().for_each(|&i| times[i] += 1);
        together += u32::from(positions.contains(&3) && positions.contains(&4));
        repeated += usize::from(positions == before);
        before = positions;
    }
    // A fifth of 4000 steps, within five standard deviations of sqrt(4000 · 0.2 · 0.8).
    assert!(times.iter().all(|&t| (800 - 127..=800 + 127).contains(&t)), "{times:?}");
    // Both in a block of 20 of which 4 are sampled: 4 · 3 / (20 · 19) of the steps, within five deviations.
    assert!((126 - 56..=126 + 56).contains(&together), "{together}");
    assert!(repeated < 3, "{repeated}");
}

/// One block and two lanes, the second for proposals.
fn schedules(steps: Vec<Vec<Step>>) -> Vec<Schedule> {
    let with_lanes = |schedule| Schedule { lanes: 3, ..schedule };
    by_hand::schedules(8, 1, steps).into_iter().map(with_lanes).collect()
}

fn lane(lane: u32) -> gleaner_algorithms::schedule::Slots {
    slots(0, 1).in_lane(lane)
}

fn propose(in_lane: u32, rule: Rule) -> Step {
    Step::Propose { slots: lane(in_lane), rule }
}

fn top(k: u32) -> Rule {
    Rule::Top(vec![k].into())
}

fn align() -> Step {
    Step::Align { slots: slots(0, 1), coding: Coding::Exact }
}

/// Rank 0 proposes, and sends the proposal to rank 1.
fn sent() -> [Vec<Step>; 2] {
    [
        vec![propose(1, top(3)), exchange(vec![copy(1, lane(1))], vec![])],
        vec![exchange(vec![], vec![place(0, lane(1))])],
    ]
}

fn checked(steps: [Vec<Step>; 2]) -> Result<Proof, String> {
    check(schedules(steps.to_vec())).map_err(|error| error.to_string())
}

/// A step more for each of two workers.
fn then(mut steps: [Vec<Step>; 2], zero: &[Step], one: &[Step]) -> [Vec<Step>; 2] {
    steps[0].extend_from_slice(zero);
    steps[1].extend_from_slice(one);
    steps
}

#[test]
fn an_index_is_a_word_and_so_is_a_value() {
    let proof = checked(then(sent(), &[align(), swap(1)], &[align(), swap(0)])).unwrap();
    let cost = Cost { rounds: 2, messages: 2, words_received: 6, words_critical: 6 };
    assert_eq!(proof.cost, cost);
    // What both sample alike is not sent, and of two proposals the union is kept.
    let sampled = |k: u32| propose(1, Rule::Random(vec![k].into()));
    let each = |steps: &[Step]| then([vec![], vec![]], steps, steps);
    let proof = checked(then(each(&[sampled(3), align()]), &[swap(1)], &[swap(0)])).unwrap();
    assert_eq!(proof.cost, Cost { rounds: 1, messages: 1, words_received: 3, words_critical: 3 });
    let both = [
        vec![propose(1, top(2)), exchange(vec![copy(1, lane(1))], vec![place(1, lane(2))]), align(), swap(1)],
        vec![propose(2, top(2)), exchange(vec![copy(0, lane(2))], vec![place(0, lane(1))]), align(), swap(0)],
    ];
    assert_eq!(checked(both).unwrap().cost.words_critical, 2 + 4);
}

#[test]
fn a_reader_of_values_knows_their_indices() {
    let does_not_know = |steps: [Vec<Step>; 2]| {
        let error = checked(steps).unwrap_err();
        assert!(error.contains("receives values at indices that it does not know"), "{error}");
    };
    // Rank 1 kept nothing at the proposal, or not yet.
    does_not_know(then(
        sent(),
        &[align(), exchange(vec![copy(1, slots(0, 1))], vec![])],
        &[exchange(vec![], vec![add(0, slots(0, 1))])],
    ));
    // Each proposes, and sends nothing.
    let own = [vec![propose(1, top(3))], vec![propose(1, top(3))]];
    does_not_know(then(own, &[align(), swap(1)], &[align(), swap(0)]));
    // Rank 1 has a proposal more.
    let more = then(sent(), &[], &[propose(2, top(1))]);
    does_not_know(then(more, &[align(), swap(1)], &[align(), swap(0)]));
    // They sample unequally many.
    let sampled = |k: u32| vec![propose(1, Rule::Random(vec![k].into())), align()];
    does_not_know(then([sampled(3), sampled(4)], &[swap(1)], &[swap(0)]));
}

#[test]
fn proposals_have_no_values() {
    let refused = |steps: [Vec<Step>; 2], fault: &str| {
        let error = checked(steps).unwrap_err();
        assert!(error.contains(fault), "{error}, expected: {fault}");
    };
    let alone = |steps: Vec<Step>| [steps, vec![]];
    refused(alone(vec![align()]), "holds no proposal");
    refused(alone(vec![propose(0, top(1))]), "lays a proposal where it already holds");
    refused(alone(vec![propose(1, top(1)), propose(1, top(1))]), "lays a proposal where it already holds");
    refused(alone(vec![propose(1, top(1)), keep(lane(1), 1, 1)]), "as if it had values");
    // What came from another worker is not its own accumulator any more.
    let swapped = [vec![swap(1), propose(1, top(1))], vec![swap(0)]];
    refused(swapped, "what is no longer its own accumulator");
    let kept = vec![propose(1, top(1)), keep(slots(0, 1), 2, 1), align()];
    refused(alone(kept), "what is no longer its own accumulator");
    refused(alone(vec![propose(1, top(1)), align(), align()]), "what is no longer its own accumulator");
    // A proposal is placed, and not added.
    let added = [
        vec![propose(1, top(1)), exchange(vec![copy(1, lane(1))], vec![])],
        vec![propose(1, top(1)), exchange(vec![], vec![add(0, lane(1))])],
    ];
    refused(added, "adds to a proposal");
    // One worker keeps everything, and the other what was proposed: they end with different sums.
    let half = then(sent(), &[align()], &[]);
    assert!(
        checked(then(
            half,
            &[exchange(vec![], vec![add(1, slots(0, 1))])],
            &[exchange(vec![copy(0, slots(0, 1))], vec![],)]
        ))
        .is_err()
    );
}

/// Sums of aligned bags are aligned, and what is placed is; whatever else is done makes a bag with indices.
#[test]
fn sums_of_values_travel_as_values() {
    let words = |after: &[Step]| {
        let mut steps = then(sent(), &[align()], &[align()]);
        steps[0].push(exchange(vec![], vec![add(1, slots(0, 1))]));
        steps[1].push(exchange(vec![by_hand::give(0, slots(0, 1))], vec![]));
        steps[0].extend_from_slice(after);
        steps[0].push(exchange(vec![copy(1, slots(0, 1))], vec![]));
        steps[1].push(exchange(vec![], vec![place(0, slots(0, 1))]));
        checked(steps).unwrap().cost.words_critical
    };
    let rounded = Step::Keep { slots: slots(0, 1), rule: Rule::Every, coding: Coding::Bf16 };
    assert_eq!(words(&[]), 3 + 3 + 3);
    assert_eq!(words(&[rounded]), 3 + 3 + 3);
    assert_eq!(words(&[keep(slots(0, 1), 2, 1)]), 3 + 3 + 2 * 2);
}
