//! Every single wrong edge or slot in every method's schedules is refused, or changes no bit.

use gleaner_algorithms::Method;
use gleaner_algorithms::schedule::{After, How, Lanes, Rule, Schedule, Slots, Step};
use gleaner_algorithms::{Block, Rank};

use super::harness::{COLLECTIONS, StepBits, Team, methods};
use super::inputs::{Pattern, Random};

const PATTERNS: [Pattern; 4] = [Pattern::Full, Pattern::Cancelling, Pattern::Integers, Pattern::Disjoint];

/// A density at which some bags are sparse and some turn dense, and a length that P does not divide.
fn original(method: Method, workers: u32) -> Vec<Schedule> {
    method.density(0.3).schedules(workers, 5 * workers as usize + 3).unwrap()
}

/// Other slots: every other first block, one block more, one less; the lane after, and one more.
fn other_slots(slots: Slots, blocks: u32) -> Vec<Slots> {
    let firsts = (0..=blocks).filter(|&b| b != slots.first.0).map(|b| Slots { first: Block(b), ..slots });
    let counts = [slots.count - 1, slots.count + 1].map(|count| Slots { count, ..slots });
    let Lanes { first, count } = slots.lanes;
    let lanes = [Lanes { first: first + 1, count }, Lanes { first, count: count + 1 }];
    firsts.chain(counts).chain(lanes.map(|lanes| Slots { lanes, ..slots })).collect()
}

/// Every version of an exchange with a single edge or slot, or what becomes of it, changed.
fn other_exchanges(step: &Step, workers: u32, blocks: u32) -> Vec<Step> {
    let Step::Exchange { sends, receives } = step else { return Vec::new() };
    let others = |rank: Rank| (0..=workers).map(Rank).filter(move |&r| r != rank);
    let mut steps = Vec::new();
    for i in 0..sends.len() {
        let mut change = |change: &dyn Fn(&mut gleaner_algorithms::schedule::Send)| {
            let mut sends = sends.clone();
            change(&mut sends[i]);
            steps.push(Step::Exchange { sends, receives: receives.clone() });
        };
        others(sends[i].to).for_each(|to| change(&|s| s.to = to));
        other_slots(sends[i].slots, blocks).into_iter().for_each(|slots| change(&|s| s.slots = slots));
        change(&|s| s.after = if s.after == After::Drop { After::Retain } else { After::Drop });
        let mut fewer = sends.clone();
        fewer.remove(i);
        steps.push(Step::Exchange { sends: fewer, receives: receives.clone() });
    }
    for i in 0..receives.len() {
        let mut change = |change: &dyn Fn(&mut gleaner_algorithms::schedule::Receive)| {
            let mut receives = receives.clone();
            change(&mut receives[i]);
            steps.push(Step::Exchange { sends: sends.clone(), receives });
        };
        others(receives[i].from).for_each(|from| change(&|r| r.from = from));
        other_slots(receives[i].slots, blocks).into_iter().for_each(|slots| change(&|r| r.slots = slots));
        change(&|r| r.how = if r.how == How::Add { How::Place } else { How::Add });
        let mut fewer = receives.clone();
        fewer.remove(i);
        steps.push(Step::Exchange { sends: sends.clone(), receives: fewer });
    }
    steps
}

/// Every version of a selection with other slots, another k, or all entries.
fn other_selections(step: &Step, blocks: u32) -> Vec<Step> {
    if let &Step::Align { slots, coding } = step {
        return other_slots(slots, blocks).into_iter().map(|slots| Step::Align { slots, coding }).collect();
    }
    let (Step::Keep { slots, rule, .. } | Step::Propose { slots, rule }) = step else { return Vec::new() };
    let with = |slots: Slots, rule: Rule| match *step {
        Step::Keep { coding, .. } => Step::Keep { slots, rule, coding },
        _ => Step::Propose { slots, rule },
    };
    let elsewhere = other_slots(*slots, blocks).into_iter().map(|slots| with(slots, rule.clone()));
    let others = other_rules(rule, *slots, blocks).into_iter().map(|rule| with(*slots, rule));
    elsewhere.chain(others).collect()
}

/// Every version of a rule with another k, and for proposals all entries.
fn other_rules(rule: &Rule, slots: Slots, blocks: u32) -> Vec<Rule> {
    let each = |k: &[u32], rule: fn(std::sync::Arc<[u32]>) -> Rule| {
        let other = |block: Block, other: u32| {
            let mut k = k.to_vec();
            k[block.index()] = other;
            rule(k.into())
        };
        let blocks = slots.blocks(blocks as usize);
        blocks.flat_map(|b| [k[b.index()].saturating_sub(1), k[b.index()] + 1].map(|k| other(b, k))).collect()
    };
    match rule {
        Rule::Top(k) => each(k, Rule::Top),
        Rule::Random(k) => each(k, Rule::Random),
        Rule::Jointly(k) => vec![Rule::Jointly(k + 1), Rule::Jointly(k.saturating_sub(1))],
        Rule::Above { register, most } => {
            vec![Rule::Above { register: *register, most: most + 1 }, Rule::Jointly(1), Rule::Every]
        }
        _ => Vec::new(),
    }
}

/// Every program with one step dropped, doubled, or swapped with a later one.
fn other_orders(steps: &[Step]) -> Vec<Vec<Step>> {
    let mut programs = Vec::new();
    for i in 0..steps.len() {
        let mut dropped = steps.to_vec();
        dropped.remove(i);
        programs.push(dropped);
        let mut doubled = steps.to_vec();
        doubled.insert(i, steps[i].clone());
        programs.push(doubled);
        for j in i + 1..steps.len() {
            let mut swapped = steps.to_vec();
            swapped.swap(i, j);
            programs.push(swapped);
        }
    }
    programs
}

/// The bits of two steps on each kind of input, after the laws were seen to hold for them; None if they are refused.
fn lawful_bits(schedules: &[Schedule]) -> Option<Vec<StepBits>> {
    let mut bits = Vec::new();
    for (collection, pattern) in COLLECTIONS.into_iter().flat_map(|c| PATTERNS.map(|p| (c, p))) {
        let mut team = Team::checked(schedules.to_vec(), collection).ok()?;
        let (workers, n) = (team.workers(), team.partition().entries());
        let mut random = Random(n as u64);
        for _ in 0..2 {
            let outcome = team.step(&pattern.gradients(workers, n, &mut random));
            outcome.assert_laws(collection);
            bits.push(outcome.bits());
        }
    }
    Some(bits)
}

#[derive(Default)]
struct Tally {
    refused: usize,
    equivalent: usize,
    /// Accepted with other results; the laws hold for them.
    other: usize,
}

/// Judges what `mutate` makes of each worker's program, for every method and P from 2 to 7.
fn judge_all(kind: &str, mutate: impl Fn(&Schedule) -> Vec<Vec<Step>>) -> Vec<(&'static str, Tally)> {
    let judged = methods().map(|method| {
        let name = method.collective().name();
        let mut tally = Tally::default();
        for workers in 2..=7 {
            let schedules = original(method.clone(), workers);
            let expected = lawful_bits(&schedules).unwrap();
            for rank in 0..workers as usize {
                for steps in mutate(&schedules[rank]) {
                    let mut mutant = schedules.clone();
                    mutant[rank].steps = steps;
                    *match lawful_bits(&mutant) {
                        None => &mut tally.refused,
                        Some(bits) if bits == expected => &mut tally.equivalent,
                        Some(_) => &mut tally.other,
                    } += 1;
                }
            }
        }
        println!(
            "{name}, {kind}: {} refused, {} equivalent, {} with other results",
            tally.refused, tally.equivalent, tally.other
        );
        (name, tally)
    });
    judged.collect()
}

/// A program with one step replaced by each of its versions.
fn with_each(schedule: &Schedule, versions: impl Fn(&Step, u32) -> Vec<Step>) -> Vec<Vec<Step>> {
    let blocks = schedule.partition.blocks() as u32;
    let steps = schedule.steps.iter().enumerate();
    steps
        .flat_map(|(i, step)| {
            versions(step, blocks).into_iter().map(move |version| {
                let mut steps = schedule.steps.clone();
                steps[i] = version;
                steps
            })
        })
        .collect()
}

#[test]
fn wrong_edges_and_slots_are_refused_or_change_no_bit() {
    let judged = judge_all("edges and slots", |schedule| {
        with_each(schedule, |step, blocks| other_exchanges(step, schedule.workers, blocks))
    });
    for (name, tally) in judged {
        assert!(tally.refused > 100, "{name}: too few to mean anything");
        assert_eq!(tally.other, 0, "{name}: an edge or slot changed the result and was accepted");
    }
}

/// A selection more, less or elsewhere may still be an all-reduce; then both laws hold (`lawful_bits` looks).
#[test]
fn other_selections_are_refused_or_obey_the_laws() {
    for (name, tally) in judge_all("selections", |schedule| with_each(schedule, other_selections)) {
        let sparse = Method::named(name).unwrap().collective().is_sparse();
        assert_eq!(tally.refused > 0, sparse, "{name}: selects if and only if it is sparse");
        // What all draw alike nobody can change alone.
        let alone = sparse && name != "random-k";
        assert_eq!(tally.other > 0, alone, "{name}: a worker selects for itself, or for all");
    }
}

#[test]
fn other_orders_are_refused_or_obey_the_laws() {
    for (name, tally) in judge_all("dropped, doubled and swapped steps", |s| other_orders(&s.steps)) {
        assert!(tally.refused > 10, "{name}: too few to mean anything");
    }
}

/// The same on all workers at once, where more of it is consistent.
#[test]
fn other_orders_on_all_workers_are_refused_or_obey_the_laws() {
    let (mut refused, mut accepted) = (0, 0);
    for (method, workers) in methods().flat_map(|m| (2..=7).map(move |p| (m.clone(), p))) {
        let schedules = original(method, workers);
        let programs: Vec<Vec<Vec<Step>>> = schedules.iter().map(|s| other_orders(&s.steps)).collect();
        let fewest = programs.iter().map(Vec::len).min().unwrap();
        for number in 0..fewest {
            let mut mutant = schedules.clone();
            for (schedule, programs) in mutant.iter_mut().zip(&programs) {
                schedule.steps = programs[number].clone();
            }
            *if lawful_bits(&mutant).is_none() { &mut refused } else { &mut accepted } += 1;
        }
    }
    println!("on all workers: {refused} refused, {accepted} accepted");
    assert!(refused > 0 && accepted > 0);
}
