//! What follows from a check: the program of each rank, and the cost.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::{fmt, iter};

use super::super::expression::{Expressions, Node, Term};
use super::super::program::{Facts, Holders, Program, Receipt};
use super::super::{Cost, Goal, NOTE, Receive, Rule, Schedule, Slots, Step};
use super::CheckError;
use super::symbols::Symbols;
use super::value::{Carries, Flight, Record, Value};
use crate::bag::wire::Expected;
use crate::{Block, Partition, Rank};

/// That a set of schedules is right, and what follows from it.
pub struct Proof {
    /// What it costs.
    pub cost: Cost,
    goal: Goal,
    /// Of all ranks, or of rank 0 where the others are rotations.
    schedules: Vec<Arc<Schedule>>,
    /// By rank and step, of the same ranks.
    records: Vec<Vec<Record>>,
    expressions: Expressions,
    rules: Vec<Rule>,
    /// By what was kept, up to rotation: which of these ranks have kept it, in which blocks, and by which term.
    holders: HashMap<Term, Vec<(Rank, Slots, Term)>>,
    whole: Vec<bool>,
    keeps_all: bool,
    /// By how many ranks what was proved is rotated, where each rank has a schedule of its own.
    rotation: u32,
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proof").field("cost", &self.cost).field("goal", &self.goal).finish_non_exhaustive()
    }
}

impl Proof {
    pub(super) fn new(goal: Goal, symbols: Symbols, whole: Vec<bool>) -> Self {
        let Symbols { schedules, expressions, rules, records, .. } = symbols;
        let keeps_all = schedules.iter().flat_map(|schedule| &schedule.steps).all(Step::keeps_all);
        let blocks = schedules[0].partition.blocks() as u32;
        let mut holders: HashMap<Term, Vec<(Rank, Slots, Term)>> = HashMap::new();
        for (rank, records) in (0..).map(Rank).zip(&records) {
            for (slots, kept) in records.iter().filter_map(|record| record.kept.as_ref()) {
                for (first, count, term) in kept.within(slots.count) {
                    let blocks = Slots::cyclic(slots.first.0 + first, count, blocks);
                    holders.entry(term.unrotated()).or_default().push((rank, blocks, term));
                }
            }
        }
        let cost = Cost::default();
        let mut proof = Self {
            cost,
            goal,
            schedules,
            records,
            expressions,
            rules,
            holders,
            whole,
            keeps_all,
            rotation: 0,
        };
        proof.cost = proof.count();
        proof
    }

    /// The same where all do what was proved, rotated by this many ranks: what rank 0 does there, this rank does.
    ///
    /// # Errors
    /// Schedules whose lanes do not come round with the blocks.
    pub(crate) fn rotated(self, by: u32) -> Result<Self, CheckError> {
        if !self.goal.rotates() || !self.schedules.iter().all(|schedule| schedule.lanes_come_round()) {
            return Err(CheckError::Rotation { by });
        }
        if self.rotates() {
            return Ok(self);
        }
        let mut proof = Self { rotation: by % self.workers(), ..self };
        proof.cost = proof.count();
        Ok(proof)
    }

    /// The number of workers, P.
    pub fn workers(&self) -> u32 {
        self.schedules[0].workers
    }

    /// What a rank is to run.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn program(&self, rank: Rank) -> Program {
        assert!(rank.0 < self.workers(), "{rank} of {} workers", self.workers());
        let (of, by) = self.of_rank(rank);
        let schedule = match by {
            0 => self.schedules[of].clone(),
            by => Arc::new(self.schedules[of].rotated(by)),
        };
        let records = self.records[of].iter().enumerate();
        let mut sums = Sums::default();
        let mut facts: Vec<Facts> =
            records.map(|(step, record)| self.facts(step, record, &schedule, &mut sums)).collect();
        let mut sends_later = false;
        for (step, facts) in facts.iter_mut().enumerate().rev() {
            let sends = schedule.exchange(step).map_or(0, |(sends, _)| sends.len());
            (facts.sends_later, facts.sends_again) = (sends_later, sends_later || sends > 1);
            sends_later |= sends > 0;
        }
        let mut whole = self.whole.clone();
        whole.rotate_right(by as usize % self.whole.len());
        Program { schedule, facts, goal: self.goal.clone(), epoch: 0, whole, keeps_all: self.keeps_all }
    }

    /// How many expressions it is about.
    #[cfg(test)]
    pub(super) fn expressions(&self) -> usize {
        self.expressions.len()
    }

    /// Whether all ranks do the same, rotated: rank 0 was checked in place of all.
    pub fn rotates(&self) -> bool {
        self.schedules.len() < self.workers() as usize
    }

    /// Whose schedule and record are those of a rank, and rotated by how much.
    fn of_rank(&self, rank: Rank) -> (usize, u32) {
        let by = if self.rotates() { rank.0 } else { self.rotation };
        (((rank.0 + self.workers() - by) % self.workers()) as usize, by)
    }

    fn facts(&self, step: usize, record: &Record, schedule: &Schedule, sums: &mut Sums) -> Facts {
        let partition = &schedule.partition;
        let (_, by) = self.of_rank(schedule.rank);
        let receives = schedule.exchange(step).map_or(&[][..], |(_, receives)| receives);
        let receipt = |(receive, flight): (&Receive, &Flight)| {
            let (slots, values) = flight.values.rotated(flight.slots, by, schedule);
            let expected =
                slots.places(partition.blocks(), schedule.lanes).zip(&values).map(|(place, value)| {
                    let len = partition.block_len(place.block) as u32;
                    Expected { len, bound: value.bound(len), content: value.form.content() }
                });
            Receipt {
                from: receive.from,
                expected: expected.collect(),
                most: values.iter().map(|value| value.bound(u32::MAX)).collect(),
                notes: values.iter().map(|value| usize::from(value.note.is_some())).collect(),
                words: self.words(flight, sums).of(by),
                round: flight.round,
            }
        };
        let mut facts = Facts {
            began: record.began,
            ended: record.ended,
            receipts: receives.iter().zip(&record.arrivals).map(receipt).collect(),
            passes_on: schedule.passes_on(step),
            ..Facts::default()
        };
        if let Some((slots, kept)) = &record.kept {
            let (slots, kept) = kept.rotated(*slots, by, schedule);
            let places = slots.places(partition.blocks(), schedule.lanes);
            facts.stages = kept.iter().map(|&term| self.expressions.depth(term)).collect();
            facts.holders = places
                .zip(kept)
                .map(|(place, term)| self.holders(term, place.block, schedule.rank))
                .collect();
        }
        facts
    }

    /// The holders of what a worker, or rank 0 in its place, has kept of a block.
    fn holders(&self, term: Term, block: Block, rank: Rank) -> Holders {
        let (workers, blocks) = (self.workers(), self.whole.len() as u32);
        let (rotations, rotation) = if self.rotates() { (workers, rank.0) } else { (1, 0) };
        let term = self.expressions.rotated(term, rotation);
        let (mut count, mut first) = (0, u32::MAX);
        for &(other, of_blocks, of) in &self.holders[&term.unrotated()] {
            let Some(by) = self.expressions.rotation(of, term) else { continue };
            for by in
                (by..rotations).step_by(self.expressions.period(term) as usize).map(|by| by + self.rotation)
            {
                let behind = block.0 + blocks - (of_blocks.first.0 + by) % blocks;
                if behind % blocks < of_blocks.count {
                    count += 1;
                    first = first.min((other.0 + by) % workers);
                }
            }
        }
        Holders { count, is_first: first == rank.0 }
    }

    /// The most words that one message can have: what was chosen together has one bound together.
    fn words(&self, flight: &Flight, sums: &mut Sums) -> Words {
        let slots = flight.slots;
        let alone = (slots.count, slots.lanes.count) == (1, 1);
        let mut together = HashMap::new();
        let mut most = vec![u64::MAX];
        let mut notes = 0;
        let mut part = |(at, count, value): (u32, u32, Value)| {
            notes += if value.note.is_some() { NOTE * u64::from(count) } else { 0 };
            let group = match (!alone).then(|| self.chosen_together(&value)).flatten() {
                Some((inputs, k)) => *together.entry(inputs).or_insert_with(|| {
                    most.push(words_each(&value) * k as u64);
                    most.len() - 1
                }),
                None => 0,
            };
            (slots.first.0 + at, count, sums.of(&self.schedules[0].partition, &value), group)
        };
        let parts = flight.values.within(slots.count).map(&mut part).collect();
        Words { parts, sums: vec![0; most.len()], most, notes }
    }

    /// What a value was chosen from together with others, and how many of all these at most.
    fn chosen_together(&self, value: &Value) -> Option<(Term, usize)> {
        let node = match value.form {
            // An aligned one has what its proposals have, if there is one.
            Carries::Aligned(union) => match self.expressions.node(union) {
                Node::Set(members) if members.len() == 1 => self.expressions.node(members[0]),
                _ => return None,
            },
            Carries::Bag | Carries::Proposal => self.expressions.node(value.term),
        };
        match node {
            Node::Kept(kept) | Node::Proposed(kept) => {
                Some((kept.among?, self.rules.get(kept.rule? as usize)?.most()? as usize))
            }
            _ => None,
        }
    }

    /// What it costs: as all ranks receive it, the busiest of them.
    fn count(&self) -> Cost {
        let (mut cost, mut sums) = (Cost::default(), Sums::default());
        // The largest receive of each round, in words.
        let mut rounds: Vec<u64> = Vec::new();
        // Where rank 0 stands in place of all, what it receives is counted at each rotation.
        let rotations = if self.rotates() { 0..self.workers() } else { self.rotation..self.rotation + 1 };
        for records in &self.records {
            let (mut sent, mut received, mut words_received) = (0, 0, vec![0; rotations.len()]);
            for record in records {
                let mut words = vec![0; rotations.len()];
                for flight in &record.arrivals {
                    let mut counted = self.words(flight, &mut sums);
                    // What is received of all blocks has as many words on every rank.
                    let of_all = self.rotates() && flight.slots.count as usize == self.whole.len();
                    let same = of_all.then(|| counted.of(0));
                    let each = words.iter_mut().zip(rotations.clone());
                    each.for_each(|(words, by)| *words += same.unwrap_or_else(|| counted.of(by)));
                }
                sent += record.sent;
                received += record.arrivals.len() as u64;
                words_received.iter_mut().zip(&words).for_each(|(sum, words)| *sum += words);
                if record.exchanged {
                    cost.rounds = cost.rounds.max(record.ended);
                    rounds.resize(rounds.len().max(record.ended as usize + 1), 0);
                    let largest = &mut rounds[record.ended as usize];
                    *largest = words.into_iter().max().unwrap_or(0).max(*largest);
                }
            }
            cost.messages = cost.messages.max(sent.max(received));
            cost.words_received = cost.words_received.max(words_received.into_iter().max().unwrap_or(0));
        }
        cost.words_critical = rounds.iter().sum();
        cost
    }
}

/// The words of a message on a worker however many ranks further on.
struct Words {
    /// From which block on, of how many, the sums of such values, and with which others it was chosen; 0 for none.
    parts: Vec<(u32, u32, Rc<[u64]>, usize)>,
    /// By those that were chosen together.
    sums: Vec<u64>,
    most: Vec<u64>,
    notes: u64,
}

impl Words {
    fn of(&mut self, by: u32) -> u64 {
        self.sums.fill(0);
        for (first, count, sums, group) in &self.parts {
            let blocks = sums.len() - 1;
            let first = (first + by) as usize % blocks;
            self.sums[*group] += match first + *count as usize {
                end if end <= blocks => sums[end] - sums[first],
                end => sums[blocks] - sums[first] + sums[end - blocks],
            };
        }
        let bags: u64 = self.sums.iter().zip(&self.most).map(|(sum, most)| sum.min(most)).sum();
        bags + self.notes
    }
}

/// Words of one entry: an index is one, and so is a value.
fn words_each(value: &Value) -> u64 {
    if value.form == Carries::Bag { 2 } else { 1 }
}

/// The most words that equal values of blocks have, summed up from the first block on.
#[derive(Default)]
struct Sums(HashMap<(u64, u32, u32), Rc<[u64]>>);

impl Sums {
    fn of(&mut self, partition: &Partition, value: &Value) -> Rc<[u64]> {
        let dense = value.form == Carries::Bag && !value.selected;
        let each = if dense { 0 } else { words_each(value) };
        let words = |len: usize| match each {
            0 => len as u64,
            each => (each * u64::from(value.bound(len as u32))).min(len as u64),
        };
        let sums = self.0.entry((each, value.most, value.pieces)).or_insert_with(|| {
            let blocks = (0..partition.blocks() as u32).map(|block| words(partition.block_len(Block(block))));
            let sum = blocks.scan(0, |sum, words| {
                *sum += words;
                Some(*sum)
            });
            iter::once(0).chain(sum).collect()
        });
        sums.clone()
    }
}
