//! What follows from a check: the program of each rank, and the cost.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use super::super::expression::{Expressions, Node, Term};
use super::super::program::{Facts, Holders, Program, Receipt};
use super::super::{Cost, Goal, Receive, Rule, Schedule, Slots, Step};
use super::symbols::Symbols;
use super::value::{Carries, Record, Value};
use crate::Rank;
use crate::bag::Coding;
use crate::bag::wire::Expected;

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
    /// By what was kept, up to rotation: which of these ranks have kept it, and by which term.
    holders: HashMap<Term, Vec<(Rank, Term)>>,
    whole: Vec<bool>,
    keeps_all: bool,
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proof").field("cost", &self.cost).field("goal", &self.goal).finish_non_exhaustive()
    }
}

impl Proof {
    pub(super) fn new(goal: Goal, symbols: Symbols, whole: Vec<bool>) -> Self {
        let Symbols { schedules, expressions, rules, records, .. } = symbols;
        let keeps = |step: &Step| match step {
            Step::Keep { rule: Rule::Every | Rule::Dense, coding: Coding::Exact, .. } => true,
            Step::Keep { .. } | Step::Align { .. } => false,
            _ => true,
        };
        let keeps_all = schedules.iter().flat_map(|schedule| &schedule.steps).all(keeps);
        let mut holders: HashMap<Term, Vec<(Rank, Term)>> = HashMap::new();
        for (rank, records) in (0..).map(Rank).zip(&records) {
            for &term in records.iter().flat_map(|record| &record.kept) {
                holders.entry(term.unrotated()).or_default().push((rank, term));
            }
        }
        let cost = Cost::default();
        let mut proof =
            Self { cost, goal, schedules, records, expressions, rules, holders, whole, keeps_all };
        proof.cost = proof.count();
        proof
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
        let schedule = match self.rotates() {
            true => Arc::new(self.schedules[0].rotated(rank.0)),
            false => self.schedules[rank.index()].clone(),
        };
        let records = self.records(rank).iter().enumerate();
        let mut facts: Vec<Facts> =
            records.map(|(step, record)| self.facts(step, record, &schedule)).collect();
        let mut sends_later = false;
        for (step, facts) in facts.iter_mut().enumerate().rev() {
            let sends = schedule.exchange(step).map_or(0, |(sends, _)| sends.len());
            (facts.sends_later, facts.sends_again) = (sends_later, sends_later || sends > 1);
            sends_later |= sends > 0;
        }
        Program {
            schedule,
            facts,
            goal: self.goal.clone(),
            epoch: 0,
            whole: self.whole.clone(),
            keeps_all: self.keeps_all,
        }
    }

    /// Whether all ranks do the same, rotated: rank 0 was checked in place of all.
    pub fn rotates(&self) -> bool {
        self.schedules.len() < self.workers() as usize
    }

    /// What a rank did, or rank 0 in its place.
    fn records(&self, rank: Rank) -> &[Record] {
        &self.records[if self.rotates() { 0 } else { rank.index() }]
    }

    fn facts(&self, step: usize, record: &Record, schedule: &Schedule) -> Facts {
        let partition = &schedule.partition;
        let receives = schedule.exchange(step).map_or(&[][..], |(_, receives)| receives);
        let receipt = |(receive, (slots, values, round)): (&Receive, &(Slots, Vec<Value>, u64))| {
            let (slots, values) = self.of_rank(schedule.rank, *slots, values);
            let expected =
                slots.places(partition.blocks(), schedule.lanes).zip(&*values).map(|(place, value)| {
                    let len = partition.block_len(place.block) as u32;
                    Expected { len, bound: value.bound(len), content: value.form.content() }
                });
            Receipt {
                from: receive.from,
                expected: expected.collect(),
                notes: values.iter().map(|value| usize::from(value.note.is_some())).collect(),
                words: self.words(slots, &values),
                round: *round,
            }
        };
        let kept = match record.of_all {
            true => self.in_order(schedule.rank, &record.kept),
            false => Cow::Borrowed(&record.kept[..]),
        };
        Facts {
            began: record.began,
            ended: record.ended,
            holders: kept.iter().map(|&term| self.holders(term, schedule.rank)).collect(),
            stages: kept.iter().map(|&term| self.expressions.depth(term)).collect(),
            receipts: receives.iter().zip(&record.arrivals).map(receipt).collect(),
            passes_on: schedule.passes_on(step),
            ..Facts::default()
        }
    }

    /// What a rank receives where its record is of rank 0; the symbols themselves stay those of rank 0.
    fn of_rank<'a>(&self, rank: Rank, slots: Slots, values: &'a [Value]) -> (Slots, Cow<'a, [Value]>) {
        let schedule = &self.schedules[0];
        match slots.count as usize == schedule.partition.blocks() {
            _ if !self.rotates() => (slots, Cow::Borrowed(values)),
            true => (slots.rotated(rank.0, schedule), self.in_order(rank, values)),
            false => (slots.rotated(rank.0, schedule), Cow::Borrowed(values)),
        }
    }

    /// What rank 0 has of all blocks, from the first on, as it is for the blocks of a rank.
    fn in_order<'a, V: Clone>(&self, rank: Rank, of_blocks: &'a [V]) -> Cow<'a, [V]> {
        let mut ordered = Cow::Borrowed(of_blocks);
        let blocks = self.schedules[0].partition.blocks();
        if self.rotates() && rank.0 > 0 && blocks > 1 {
            ordered.to_mut().chunks_mut(blocks).for_each(|lane| lane.rotate_right(rank.index()));
        }
        ordered
    }

    /// Who holds what a worker, or rank 0 in its place, has kept.
    fn holders(&self, term: Term, rank: Rank) -> Holders {
        let expressions = &self.expressions;
        let turns = if self.rotates() { self.workers() } else { 1 };
        let term = expressions.rotated(term, rank.0 % turns);
        let (mut count, mut first) = (0, u32::MAX);
        for &(other, of) in &self.holders[&term.unrotated()] {
            if let Some(by) = expressions.rotation(of, term) {
                count += turns / expressions.period(term);
                first = first.min(other.0 + by);
            }
        }
        Holders { count, is_first: first == rank.0 }
    }

    /// The most words that the values of one message can have: what was chosen together has one bound together.
    fn words(&self, slots: Slots, values: &[Value]) -> u64 {
        let schedule = &self.schedules[0];
        let partition = &schedule.partition;
        let mut together: HashMap<Term, (u64, u64)> = HashMap::new();
        let mut words = 0;
        for (place, value) in slots.places(partition.blocks(), schedule.lanes).zip(values) {
            let len = partition.block_len(place.block) as u64;
            // An index is a word, and so is a value.
            let each = if value.form == Carries::Bag { 2 } else { 1 };
            let sparse = match value.form {
                Carries::Bag if !value.selected => len,
                _ => (each * u64::from(value.bound(len as u32))).min(len),
            };
            match self.chosen_together(value) {
                Some((inputs, most)) if values.len() > 1 => {
                    let (sum, limit) = together.entry(inputs).or_insert((0, each * most as u64));
                    *sum = (*sum + sparse).min(*limit);
                }
                _ => words += sparse,
            }
        }
        words + together.values().map(|(sum, _)| sum).sum::<u64>()
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
        let mut cost = Cost::default();
        // The largest receive of each round, in words.
        let mut rounds: BTreeMap<u64, u64> = BTreeMap::new();
        // What is received of all blocks has as many words on every rank.
        let mut of_all = HashMap::new();
        for rank in (0..self.workers()).map(Rank) {
            let (mut sent, mut received, mut words_received) = (0, 0, 0);
            for (step, record) in self.records(rank).iter().enumerate() {
                let mut words = 0;
                for (index, (slots, values, _)) in record.arrivals.iter().enumerate() {
                    let here = |proof: &Self| {
                        let (slots, values) = proof.of_rank(rank, *slots, values);
                        proof.words(slots, &values)
                    };
                    let same = self.rotates() && slots.count as usize == self.schedules[0].partition.blocks();
                    words += match same {
                        true => *of_all.entry((step, index)).or_insert_with(|| here(self)),
                        false => here(self),
                    };
                }
                sent += record.sent;
                received += record.arrivals.len() as u64;
                words_received += words;
                if record.exchanged {
                    cost.rounds = cost.rounds.max(record.ended);
                    let largest = rounds.entry(record.ended).or_default();
                    *largest = words.max(*largest);
                }
            }
            cost.messages = cost.messages.max(sent.max(received));
            cost.words_received = cost.words_received.max(words_received);
        }
        cost.words_critical = rounds.values().sum();
        cost
    }
}
