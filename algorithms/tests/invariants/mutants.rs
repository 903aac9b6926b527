//! Every single wrong edge or slot in every method's schedules is refused, or changes no bit.

use gleaner_algorithms::Method;
use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::{Sag, SparDl};
use gleaner_algorithms::schedule::{
    After, How, Lanes, Memory, Note, Register, Rule, Schedule, Slots, Step, check,
};
use gleaner_algorithms::selectors::{Selection, Selector};
use gleaner_algorithms::{Allotment, Block, Rank};

use super::harness::{COLLECTIONS, StepBits, Team, dense_methods, methods};
use super::inputs::{Pattern, Random};

const PATTERNS: [Pattern; 4] = [Pattern::Full, Pattern::Cancelling, Pattern::Integers, Pattern::Disjoint];

/// The schedules of a step, and what was learnt before it.
struct Original {
    schedules: Vec<Schedule>,
    memory: Memory,
}

/// A density at which some bags are sparse and some turn dense, and a length that P does not divide.
fn original(method: Method, workers: u32, learn: impl FnOnce(&mut Memory)) -> Original {
    let method = method.density(0.3);
    let shape = method.shape(workers, 5 * workers as usize + 3).unwrap();
    let mut memory = method.memory(&shape);
    learn(&mut memory);
    Original {
        schedules: method.schedules_of(&shape, &method.structure(&shape, &memory).unwrap()).collect(),
        memory,
    }
}

/// The first step of every method among 2 to 7 workers; and programs that no first step with default options has.
fn originals() -> Vec<(&'static str, Vec<Original>)> {
    let named = |name| Method::named(name).unwrap();
    let first = |m: Method| {
        (m.collective().name(), (2..=7).map(|p| original(m.clone(), p, |_| {})).collect::<Vec<_>>())
    };
    let mut originals: Vec<_> = methods().map(first).collect();
    let teams = |sag| {
        let with = move |(p, d)| original(Method::of(SparDl { teams: d, sag }), p, |_| {});
        [(2, 2), (4, 2), (6, 2), (4, 4)].map(with).into()
    };
    originals.push(("spardl by R-SAG", teams(Sag::Recursive)));
    originals.push(("spardl by B-SAG", teams(Sag::Bruck)));
    // Steps between those of exact thresholds; balanced or not.
    let oktopk = |balance| {
        let learn = move |memory: &mut Memory| {
            (memory.steps, memory.agreed[0], memory.agreed[1], memory.own[0]) = (1, 0.6, balance, 0.4);
            // Regions of which each is longer than the one before.
            let p = memory.agreed.len() - 1;
            for (i, cut) in (1..).zip(&mut memory.agreed[2..]) {
                *cut = ((5 * p + 3) * i * i / (p * p)) as f64;
            }
        };
        [2, 3, 5].map(|p| original(named("oktopk"), p, learn)).into()
    };
    originals.push(("oktopk between exact thresholds", oktopk(0.0)));
    originals.push(("oktopk balancing", oktopk(1.0)));
    let turn = |p: u32| original(named("exdyna"), p, |memory| memory.steps = u64::from(p) - 1);
    originals.push(("exdyna in its last turn", [2, 3, 5].map(turn).into()));
    let by =
        |selector| [2, 3, 5].map(|p| original(named("ssar-split-all-gather").selector(selector), p, |_| {}));
    originals.push(("selector blocks", by(Selector::Blocks(3)).into()));
    originals.push(("selector random", by(Selector::Random).into()));
    let rounded = |p| original(named("topkdsa").coding(Coding::Bf16), p, |_| {});
    originals.push(("topkdsa with rounded sums", [2, 3, 5].map(rounded).into()));
    originals
}

/// Other slots: every other first block, one block more, one less; the lane after, and one more.
fn other_slots(slots: Slots, blocks: u32) -> Vec<Slots> {
    let firsts = (0..=blocks).filter(|&b| b != slots.first.0).map(|b| Slots { first: Block(b), ..slots });
    let counts = [slots.count - 1, slots.count + 1].map(|count| Slots { count, ..slots });
    let Lanes { first, count, .. } = slots.lanes;
    let lanes = [Lanes { first: first + 1, ..slots.lanes }, Lanes { count: count + 1, ..slots.lanes }];
    firsts.chain(counts).chain(lanes.map(|lanes| Slots { lanes, ..slots })).collect()
}

/// Every version of an exchange with a single edge or slot, or what is done with it, changed; and of what chooses nothing with
/// other slots.
fn other_exchanges(step: &Step, workers: u32, blocks: u32) -> Vec<Step> {
    let elsewhere = |slots, with: &dyn Fn(Slots) -> Step| {
        other_slots(slots, blocks).into_iter().map(with).collect::<Vec<Step>>()
    };
    let (sends, receives) = match step {
        // Of these see `other_selections`.
        Step::Keep { .. } | Step::Propose { .. } | Step::Align { .. } => return Vec::new(),
        Step::Sum { slots } => return elsewhere(*slots, &|slots| Step::Sum { slots }),
        Step::Split { slots } => return elsewhere(*slots, &|slots| Step::Split { slots }),
        Step::Annotate { slots, note } => {
            let others = elsewhere(*slots, &|slots| Step::Annotate { slots, note: *note });
            return others.into_iter().chain(other_notes(step, blocks)).collect();
        }
        Step::Exchange { sends, receives } => (sends, receives),
    };
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

/// Every version of a note with another content.
fn other_notes(step: &Step, blocks: u32) -> Vec<Step> {
    let &Step::Annotate { slots, note } = step else { return Vec::new() };
    let others = match note {
        Note::Seen => vec![Note::Cut(blocks), Note::Cut(blocks + 1)],
        Note::Cut(parts) => vec![Note::Seen, Note::Cut(parts - 1), Note::Cut(parts + 1)],
    };
    others.into_iter().map(|note| Step::Annotate { slots, note }).collect()
}

/// Every version of a selection with other slots, another k, or all entries.
fn other_selections(step: &Step, blocks: u32) -> Vec<Step> {
    let versions = |slots: Slots, rule: &Rule, with: &dyn Fn(Slots, Rule) -> Step| -> Vec<Step> {
        let elsewhere = other_slots(slots, blocks).into_iter().map(|slots| with(slots, rule.clone()));
        let others = other_rules(rule, slots, blocks).into_iter().map(|rule| with(slots, rule));
        elsewhere.chain(others).collect()
    };
    match step {
        Step::Keep { slots, rule, coding } => {
            versions(*slots, rule, &|slots, rule| Step::Keep { slots, rule, coding: *coding })
        }
        Step::Propose { slots, rule } => versions(*slots, rule, &|slots, rule| Step::Propose { slots, rule }),
        Step::Align { slots, coding } => {
            let elsewhere = other_slots(*slots, blocks).into_iter();
            elsewhere.map(|slots| Step::Align { slots, coding: *coding }).collect()
        }
        // Of these see `other_exchanges`.
        Step::Exchange { .. } | Step::Sum { .. } | Step::Split { .. } | Step::Annotate { .. } => Vec::new(),
    }
}

/// Every version of a rule with another k, and for proposals all entries.
fn other_rules(rule: &Rule, slots: Slots, blocks: u32) -> Vec<Rule> {
    // Another number in one block, and what the first step has in every step.
    let each = |k: &Allotment, rule: &dyn Fn(Allotment) -> Rule| -> Vec<Rule> {
        let first: Vec<u32> = (0..blocks).map(|b| k.at(0, Block(b))).collect();
        let other = |block: Block, other: u32| {
            let mut k = first.clone();
            k[block.index()] = other;
            rule(k.into())
        };
        let near = |b: Block| [first[b.index()].saturating_sub(1), first[b.index()] + 1];
        let others = slots.blocks(blocks as usize).flat_map(|b| near(b).map(|k| other(b, k)));
        others.chain([rule(first.clone().into())]).collect()
    };
    match rule {
        Rule::Top(k) => each(k, &Rule::Top),
        Rule::Random(k) => each(k, &Rule::Random),
        Rule::Jointly(k) => vec![Rule::Jointly(k + 1), Rule::Jointly(k.saturating_sub(1))],
        Rule::Above { register, most } => {
            let own = Rule::Above { register: Register::Own(0), most: *most };
            let other = Rule::Above { register: Register::Agreed(1), most: *most };
            let more = Rule::Above { register: *register, most: most + 1 };
            vec![own, other, more, Rule::Jointly(1), Rule::Every]
        }
        Rule::TopOf { register, most } => {
            let with = |register, most| Rule::TopOf { register, most };
            let registers = [Register::Own(0), Register::Agreed(1)].map(|r| with(r, most.clone()));
            let all = [Rule::Top(most.clone()), Rule::Random(most.clone()), Rule::Every];
            each(most, &|most| with(*register, most)).into_iter().chain(registers).chain(all).collect()
        }
        Rule::By(selection) => {
            let Selection { selector, k, layers } = (**selection).clone();
            let by = |selector, k| Rule::By(Selection { selector, k, layers: layers.clone() }.into());
            vec![
                by(selector, k - 1),
                by(selector, k + 1),
                by(Selector::Bucketed(4), k),
                Rule::Jointly(k),
                Rule::Every,
            ]
        }
        Rule::Every => vec![Rule::Dense, Rule::Jointly(1), Rule::Top(vec![1; blocks as usize].into())],
        Rule::Dense => vec![Rule::Every, Rule::Jointly(1), Rule::Top(vec![1; blocks as usize].into())],
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

/// The bits of two steps on each kind of input, after the invariants were seen to hold for them; None if they are refused.
fn bits_if_invariant(schedules: &[Schedule], memory: &Memory) -> Option<Vec<StepBits>> {
    let mut bits = Vec::new();
    for (collection, pattern) in COLLECTIONS.into_iter().flat_map(|c| PATTERNS.map(|p| (c, p))) {
        let mut team = Team::checked_with(schedules.to_vec(), memory.clone(), collection).ok()?;
        let (workers, n) = (team.workers(), team.partition().entries());
        let mut random = Random::new(n as u64);
        for _ in 0..2 {
            let outcome = team.step(&pattern.gradients(workers, n, &mut random));
            outcome.assert_invariants();
            bits.push(outcome.bits());
        }
    }
    Some(bits)
}

#[derive(Default)]
struct Tally {
    refused: usize,
    equivalent: usize,
    /// Accepted with other results; the invariants hold for them.
    other: usize,
}

/// Checks what `mutate` makes of each worker's program.
fn check_all(kind: &str, mutate: impl Fn(&Schedule) -> Vec<Vec<Step>>) -> Vec<(&'static str, Tally)> {
    let checked = originals().into_iter().map(|(name, originals)| {
        let mut tally = Tally::default();
        for Original { schedules, memory } in originals {
            let expected = bits_if_invariant(&schedules, &memory).unwrap();
            for rank in 0..schedules.len() {
                for steps in mutate(&schedules[rank]) {
                    let mut mutant = schedules.clone();
                    mutant[rank].steps = steps;
                    *match bits_if_invariant(&mutant, &memory) {
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
    checked.collect()
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
    let checked = check_all("edges and slots", |schedule| {
        with_each(schedule, |step, blocks| other_exchanges(step, schedule.workers, blocks))
    });
    for (name, tally) in checked {
        assert!(tally.refused > 100, "{name}: too few to mean anything");
        assert_eq!(tally.other, 0, "{name}: an edge or slot changed the result and was accepted");
    }
}

/// A note that one worker sends otherwise than the others is refused. One that all send otherwise, they learn alike.
#[test]
fn other_notes_are_refused() {
    let (mut alone, mut of_all) = (0, 0);
    for (name, originals) in originals() {
        for Original { schedules, .. } in originals {
            let versions: Vec<Vec<Vec<Step>>> =
                schedules.iter().map(|schedule| with_each(schedule, other_notes)).collect();
            for (rank, steps) in
                versions.iter().enumerate().flat_map(|(r, all)| all.iter().map(move |s| (r, s)))
            {
                let mut mutant = schedules.clone();
                mutant[rank].steps.clone_from(steps);
                assert!(check(mutant).is_err(), "{name}, P {}: rank {rank} alone", schedules.len());
                alone += 1;
            }
            for number in 0..versions.iter().map(Vec::len).min().unwrap() {
                let mut mutant = schedules.clone();
                let each = mutant.iter_mut().zip(&versions);
                each.for_each(|(schedule, all)| schedule.steps.clone_from(&all[number]));
                of_all += usize::from(check(mutant).is_err());
            }
        }
    }
    assert!(alone > 50 && of_all > 20, "{alone} of one worker, {of_all} of all");
}

/// A selection more, less or elsewhere may still be an all-reduce; then both invariants hold (`bits_if_invariant` looks).
#[test]
fn other_selections_are_refused_or_obey_the_invariants() {
    for (name, tally) in check_all("selections", |schedule| with_each(schedule, other_selections)) {
        let sparse = !dense_methods().any(|m| m.collective().name() == name);
        assert_eq!(tally.refused > 0, sparse, "{name}: selects if and only if it is sparse");
        // What all sample alike one worker cannot change alone.
        let alone = sparse && name != "random-k";
        assert_eq!(tally.other > 0, alone, "{name}: a worker selects for itself, or for all");
    }
}

#[test]
fn other_orders_are_refused_or_obey_the_invariants() {
    for (name, tally) in check_all("dropped, doubled and swapped steps", |s| other_orders(&s.steps)) {
        assert!(tally.refused > 10, "{name}: too few to mean anything");
    }
}

/// The same on all workers at once, where more of it is consistent.
#[test]
fn other_orders_on_all_workers_are_refused_or_obey_the_invariants() {
    let (mut refused, mut accepted) = (0, 0);
    for Original { schedules, memory } in originals().into_iter().flat_map(|(_, originals)| originals) {
        let programs: Vec<Vec<Vec<Step>>> = schedules.iter().map(|s| other_orders(&s.steps)).collect();
        let fewest = programs.iter().map(Vec::len).min().unwrap();
        for number in 0..fewest {
            let mut mutant = schedules.clone();
            for (schedule, programs) in mutant.iter_mut().zip(&programs) {
                schedule.steps = programs[number].clone();
            }
            *if bits_if_invariant(&mutant, &memory).is_none() { &mut refused } else { &mut accepted } += 1;
        }
    }
    println!("on all workers: {refused} refused, {accepted} accepted");
    assert!(refused > 0 && accepted > 0);
}
