//! The checker: it runs the schedules of all workers on symbols.
//!
//! It proves that every send has its receive, that no slot is used after it left, that nothing deadlocks (SparDL,
//! Theorem 3.1 falls out), that every contribution to every block is counted exactly once, and that all who end with a block
//! hold the same expression, hence the same bits. It derives what no algorithm states: the share of a drop that each holder of
//! a copy keeps, how many entries a receive may bring, and the cost.
//!
//! Where the schedules are rotations of one another, one of them is run in place of all: what it receives is what it sends,
//! rotated.
//!
//! No selection is discarded: what a selection leaves in a slot stays there, becomes part of what is received, added up or put
//! together, or is selected from again, and no step discards a slot. So it is part of what some worker ends with, and the shares
//! of every drop add up.

mod error;
mod proof;
mod symbols;
mod value;

use std::sync::Arc;

pub use error::CheckError;
pub use proof::Proof;

use self::symbols::Symbols;
use self::value::{Carries, Value};
use super::expression::{Expressions, Node, Term};
use super::machine::{Machine, Progress, Store};
use super::{Goal, Note, Place, Ranks, Schedule};
use crate::{Block, Rank};

/// Checks that schedules, in the order of their ranks, are an all-reduce.
///
/// # Errors
/// The first reason found why they are not.
pub fn check(schedules: impl IntoIterator<Item = Schedule>) -> Result<Proof, CheckError> {
    check_for(Goal::ALL_REDUCE, schedules)
}

/// Checks that schedules, in the order of their ranks, achieve a goal.
///
/// # Errors
/// The first reason found why they do not.
pub fn check_for(goal: Goal, schedules: impl IntoIterator<Item = Schedule>) -> Result<Proof, CheckError> {
    let mut schedules = schedules.into_iter();
    let Some(first) = schedules.next() else { return Err(CheckError::NoWorkers) };
    belongs(0, &first, &first)?;
    let mut rotates = goal.rotates() && first.can_rotate();
    let mut all = vec![Arc::new(first)];
    let mut count = 1;
    for schedule in schedules {
        let first = all[0].clone();
        belongs(count, &schedule, &first)?;
        if rotates && !first.is_rotated(&schedule) {
            all.extend((1..schedule.rank.0).map(|by| Arc::new(first.rotated(by))));
            rotates = false;
        }
        if !rotates {
            all.push(Arc::new(schedule));
        }
        count += 1;
    }
    let Schedule { rank, workers, .. } = *all[0];
    if workers as usize != count {
        return Err(CheckError::Misplaced { position: 0, rank, workers });
    }
    let (symbols, held) = run(all, &goal, rotates)?;
    let whole = sums(&symbols, &goal, &held)?;
    Ok(Proof::new(goal, symbols, whole))
}

/// Whether a schedule has the place of its rank, among others for as many workers and the same blocks.
fn belongs(position: usize, schedule: &Schedule, first: &Schedule) -> Result<(), CheckError> {
    let Schedule { rank, workers, partition, lanes, lane, .. } = schedule;
    let same = (*workers, partition, *lanes) == (first.workers, &first.partition, first.lanes);
    if rank.index() == position && position < *workers as usize && same && lane < lanes {
        return Ok(());
    }
    Err(CheckError::Misplaced { position, rank: *rank, workers: *workers })
}

/// Runs the schedules on symbols until all are done: what was learnt, and what each worker holds at the end.
fn run(
    schedules: Vec<Arc<Schedule>>,
    goal: &Goal,
    rotates: bool,
) -> Result<(Symbols, Vec<Store<Value>>), CheckError> {
    let first = schedules[0].clone();
    let (blocks, lanes) = (first.partition.blocks(), first.lanes);
    let rotations = if rotates { first.workers } else { 1 };
    let mut symbols = Symbols::new(schedules.clone(), Expressions::new(rotations, blocks));
    let mut machines = Vec::with_capacity(schedules.len());
    for schedule in &schedules {
        let mut held = Store::new(blocks, lanes);
        let own = Value::own(symbols.expressions.intern(Node::Leaf(schedule.rank)));
        for block in (0..blocks as u32).map(Block).filter(|&block| goal.brings.has(schedule.rank, block)) {
            *held.at(Place { block, lane: schedule.lane }) = Some(own);
        }
        machines.push(Machine::<Symbols>::new(held));
    }
    loop {
        let (mut progress, mut waiting) = (false, None);
        for (schedule, machine) in schedules.iter().zip(&mut machines) {
            symbols.rank = schedule.rank;
            let before = machine.place();
            while let Progress::Waiting(from) = machine.advance(schedule, &mut symbols)? {
                let Some(flight) = symbols.next_from(from) else {
                    waiting.get_or_insert((schedule.rank, machine.place().0, from));
                    break;
                };
                let round = flight.round;
                machine.receive(schedule, &mut symbols, (from, round), flight)?;
            }
            progress |= machine.place() != before;
        }
        match waiting {
            None => break,
            Some((rank, step, from)) if !progress => return Err(CheckError::Deadlock { rank, step, from }),
            Some(_) => {}
        }
    }
    match symbols.left_over() {
        Some(error) => Err(error),
        None => Ok((symbols, machines.into_iter().map(|machine| machine.held).collect())),
    }
}

/// What a worker ends with in a block: the sum, a note tied to it, and at which indices it kept its own values.
type Ends = Option<(Term, Option<(Note, Term)>, Option<Term>)>;

/// Whether all who end with a block hold the same sum of all contributions to it, and no other worker holds anything of it. By block, whether
/// nothing was selected from it.
fn sums(symbols: &Symbols, goal: &Goal, held: &[Store<Value>]) -> Result<Vec<bool>, CheckError> {
    let schedule = &symbols.schedules[0];
    let blocks = schedule.partition.blocks() as u32;
    let rotates = held.len() < schedule.workers as usize;
    let bag = |rank: usize, place| held[rank].get(place).filter(|value| value.form != Carries::Proposal);
    let ends = |rank: usize, block: Block| -> Ends {
        let value = bag(rank, Place { block, lane: 0 })?;
        Some((value.term, value.note, symbols.agreed[rank][block.index()]))
    };
    let mut sums: Vec<Option<Ends>> = vec![None; blocks as usize];
    for (rank, block) in (0..held.len()).flat_map(|rank| (0..blocks).map(move |block| (rank, Block(block)))) {
        let mut others = (1..schedule.lanes).map(|lane| Place { block, lane });
        let here = ends(rank, block);
        let same = match goal.ends.has(Rank(rank as u32), block) {
            true => here.is_some() && *sums[block.index()].get_or_insert(here) == here,
            false => here.is_none(),
        };
        if !same || others.any(|place| bag(rank, place).is_some()) {
            return Err(CheckError::Differs { rank: Rank(rank as u32), block });
        }
    }
    let mut whole = Vec::with_capacity(blocks as usize);
    for (block, sum) in (0..).map(Block).zip(sums.iter().map(|sum| sum.flatten())) {
        if rotates && goal.ends == Ranks::All {
            // What rank 0 ends with in block 0, its rotations end with in theirs.
            let by = if blocks == 1 { 1 } else { block.0 };
            let of = |term| symbols.expressions.rotated(term, by);
            let there = ends(0, Block(0)).map(|(term, note, agreed)| {
                (of(term), note.map(|(note, says)| (note, of(says))), agreed.map(of))
            });
            if sum != there {
                return Err(CheckError::Differs { rank: Rank(by), block });
            }
        }
        whole.push(match sum {
            // Rotations of rank 0 end with what it ends with.
            _ if rotates && block != Block(0) => whole[0],
            Some((sum, ..)) => count(symbols, goal, sum, block)?,
            // No worker ends with it, and no step discards a slot: no worker has brought anything.
            None => true,
        });
    }
    Ok(whole)
}

/// Every contribution to a block must be in its sum once, and nothing else. Whether nothing was selected from it.
fn count(symbols: &Symbols, goal: &Goal, sum: Term, block: Block) -> Result<bool, CheckError> {
    let workers = symbols.schedules[0].workers;
    let mut times = vec![0usize; workers as usize];
    let (mut wrong, mut whole) = (None, true);
    symbols.expressions.visit(sum, |node| {
        match node {
            Node::Leaf(rank) => {
                times[rank.index()] += 1;
                wrong = (times[rank.index()] > 1).then_some(*rank);
            }
            Node::Kept(_) => whole = false,
            Node::Add(..) => {}
            // A piece alone is not the whole sum, and the others have no values.
            _ => wrong = Some(Rank(0)),
        }
        wrong.is_none()
    });
    let brings = |rank: &Rank| usize::from(goal.brings.has(*rank, block));
    let missing = (0..workers).map(Rank).find(|rank| times[rank.index()] != brings(rank));
    match wrong.or(missing) {
        Some(rank) => Err(CheckError::Counted { rank, block, times: times[rank.index()] }),
        None => Ok(whole),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{After, How, Lanes, Receive, Send, Slots, Step};
    use super::*;
    use crate::{Method, Partition};

    /// Checks every rank by itself, though they be rotations.
    fn one_by_one(schedules: Vec<Schedule>) -> Proof {
        let all = schedules.into_iter().map(Arc::new).collect();
        let (symbols, held) = run(all, &Goal::ALL_REDUCE, false).unwrap();
        let whole = sums(&symbols, &Goal::ALL_REDUCE, &held).unwrap();
        Proof::new(Goal::ALL_REDUCE, symbols, whole)
    }

    /// Two proofs make the same programs.
    fn assert_same(found: &Proof, expected: &Proof, what: &str) {
        assert_eq!(found.cost, expected.cost, "{what}");
        for rank in (0..found.workers()).map(Rank) {
            let (found, expected) = (found.program(rank), expected.program(rank));
            assert_eq!(found.schedule(), expected.schedule());
            assert_eq!(found.facts(), expected.facts(), "{what}, {rank}");
            assert_eq!((found.whole, found.keeps_all), (expected.whole, expected.keeps_all));
        }
    }

    #[test]
    fn a_rotated_proof_is_that_of_the_rotated_schedules() {
        let mut rotated = 0;
        for (method, workers) in Method::all().flat_map(|m| (1..=9).map(move |p| (m.clone(), p))) {
            for (k, n) in [(7, 40), (40, 40), (5, 12)] {
                let schedules = method.clone().k(k.min(n)).schedules(workers, n).unwrap();
                for by in 0..workers {
                    let of = |rank| schedules[((rank + workers - by) % workers) as usize].rotated(by);
                    let proof = check(schedules.clone()).unwrap().rotated(by).unwrap();
                    rotated += u32::from(!proof.rotates());
                    let what = format!("{method}, P {workers}, n {n}, rotated by {by}");
                    assert_same(&proof, &one_by_one((0..workers).map(of).collect()), &what);
                }
            }
        }
        assert!(rotated > 300, "{rotated} proofs of all ranks were rotated");
    }

    /// What is alike in many blocks, or on many ranks, is one expression: there are no P² of them for P workers.
    #[test]
    fn a_thousand_workers_are_few_expressions() {
        for method in Method::all() {
            let proof = check(method.schedules(1024, 14_728_266).unwrap()).unwrap();
            assert!(proof.expressions() < 64 * 1024, "{method}: {} expressions", proof.expressions());
        }
    }

    /// Lanes that are relative to blocks, of which there are not as many.
    #[test]
    fn lanes_that_do_not_come_round_are_not_rotated() {
        let keep = |rank| Schedule {
            rank: Rank(rank),
            workers: 1,
            partition: Partition::even(9, 3),
            lanes: 2,
            lane: 0,
            steps: vec![Step::Sum { slots: Slots::range(0, 3).in_relative_lanes(0, 1, 2) }],
        };
        let proof = check([keep(0)]).unwrap();
        assert_eq!(proof.rotated(1).unwrap_err(), CheckError::Rotation { by: 1 });
    }

    /// What rank 0 proves in place of all is what all of them prove.
    #[test]
    fn rotations_prove_the_same() {
        let mut rotated = 0;
        for (method, workers) in Method::all().flat_map(|m| (1..=17).map(move |p| (m.clone(), p))) {
            for (k, n) in [(1, 40), (7, 40), (20, 40), (40, 40), (5, 12), (30, 103)] {
                let method = method.clone().k(k.min(n));
                let schedules = method.schedules(workers, n).unwrap();
                let proof = check(schedules.clone()).unwrap();
                rotated += u32::from(proof.rotates());
                assert_same(&proof, &one_by_one(schedules), &format!("{method}, P {workers}, n {n}"));
            }
        }
        assert!(rotated > 700, "most methods are rotations: {rotated}");
    }

    /// Every version of some slots that starts elsewhere, has one block or lane more or less, or other lanes.
    fn others(slots: Slots) -> Vec<Slots> {
        let lanes = slots.lanes;
        let first = |by: u32| Slots { first: Block(slots.first.0.wrapping_add(by)), ..slots };
        let count = |count: u32| Slots { count, ..slots };
        let lane = |lanes| Slots { lanes, ..slots };
        vec![
            first(1),
            first(u32::MAX),
            count(slots.count + 1),
            count(slots.count.wrapping_sub(1)),
            lane(Lanes { first: lanes.first + 1, ..lanes }),
            lane(Lanes { count: lanes.count + 1, ..lanes }),
            lane(Lanes { relative: !lanes.relative, ..lanes }),
        ]
    }

    /// Every version of a schedule with one edge or slot, or what is done with it, changed.
    fn wrong(schedule: &Schedule) -> Vec<Schedule> {
        let mut all = Vec::new();
        for at in 0..schedule.steps.len() {
            let mut with = |step: Step| {
                let mut mutant = schedule.clone();
                mutant.steps[at] = step;
                all.push(mutant);
            };
            let next = |rank: Rank| Rank((rank.0 + 1) % schedule.workers);
            let step = &schedule.steps[at];
            match step {
                Step::Exchange { sends, receives } => {
                    for (i, send) in sends.iter().enumerate() {
                        let mut change = |send| {
                            let mut sends = sends.clone();
                            sends[i] = send;
                            with(Step::Exchange { sends, receives: receives.clone() });
                        };
                        others(send.slots)
                            .into_iter()
                            .for_each(|slots| change(Send { slots, ..send.clone() }));
                        change(Send { to: next(send.to), ..send.clone() });
                        let after = if send.after == After::Drop { After::Retain } else { After::Drop };
                        change(Send { after, ..send.clone() });
                    }
                    for (i, receive) in receives.iter().enumerate() {
                        let mut change = |receive| {
                            let mut receives = receives.clone();
                            receives[i] = receive;
                            with(Step::Exchange { sends: sends.clone(), receives });
                        };
                        let slots = others(receive.slots).into_iter();
                        slots.for_each(|slots| change(Receive { slots, ..receive.clone() }));
                        change(Receive { from: next(receive.from), ..receive.clone() });
                        let how = if receive.how == How::Add { How::Place } else { How::Add };
                        change(Receive { how, ..receive.clone() });
                    }
                }
                Step::Keep { slots, .. }
                | Step::Propose { slots, .. }
                | Step::Align { slots, .. }
                | Step::Sum { slots }
                | Step::Split { slots }
                | Step::Annotate { slots, .. } => {
                    for other in others(*slots) {
                        with(step.renamed(|rank| rank, |_| other));
                    }
                    if let Step::Annotate { slots, note } = *step {
                        let others: &[Note] = match note {
                            Note::Seen => &[Note::Cut(schedule.workers)],
                            Note::Cut(parts) => &[Note::Seen, Note::Cut(parts - 1), Note::Cut(parts + 1)],
                        };
                        others.iter().for_each(|&note| with(Step::Annotate { slots, note }));
                    }
                }
            }
        }
        all
    }

    /// What is wrong on all ranks alike is refused by one in place of all where all refuse it, and only there.
    #[test]
    fn rotations_refuse_the_same() {
        let balancing = |workers| {
            let method = Method::named("oktopk").unwrap().density(0.3);
            let shape = method.shape(workers, 40).unwrap();
            let mut memory = method.memory(&shape);
            (memory.steps, memory.agreed[0], memory.agreed[1]) = (1, 0.6, 1.0);
            method.schedules_of(&shape, &method.structure(&shape, &memory).unwrap()).next().unwrap()
        };
        let (mut refused, mut accepted) = (0, 0);
        for workers in 2..=5 {
            let first = Method::all().map(|m| m.density(0.3).schedules(workers, 40).unwrap().remove(0));
            for schedule in first.chain([balancing(workers)]) {
                for mutant in wrong(&schedule) {
                    let all: Vec<Schedule> = (0..workers).map(|by| mutant.rotated(by)).collect();
                    let alone: Vec<_> = all.iter().cloned().map(Arc::new).collect();
                    let one_by_one = run(alone, &Goal::ALL_REDUCE, false)
                        .and_then(|(symbols, held)| sums(&symbols, &Goal::ALL_REDUCE, &held));
                    let found = check(all).is_ok();
                    assert_eq!(found, one_by_one.is_ok(), "P {workers}: {mutant:?}");
                    *if found { &mut accepted } else { &mut refused } += 1;
                }
            }
        }
        assert!(refused > 2000 && accepted > 0, "{refused} refused, {accepted} accepted");
    }
}
