//! The checker: it runs the schedules of all workers on symbols.
//!
//! It proves that every send has its receive, that no slot is used after it left, that nothing deadlocks (SparDL,
//! Theorem 3.1 falls out), that every worker's contribution to every block is counted exactly once, and that
//! all workers end with the same expressions, hence the same bits. It derives what no algorithm states: the share
//! of a drop that each holder of a copy keeps, how many entries a receive may bring, and the cost.

mod error;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::cost::Cost;
pub use error::CheckError;

use super::expression::{Expressions, Id, Node};
use super::{After, How, Rule, Schedule, Send, Slots, Step};
use crate::bag::wire::Expected;
use crate::{Block, Rank};

/// What the checker derived for one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankProof {
    /// For each `Keep` (by its place in the schedule) and each of its blocks: how many workers hold that very
    /// expression and drop the same entries, so that each keeps one part in so many.
    pub holders: BTreeMap<usize, Vec<u32>>,
    /// For each exchange, each of its receives and each block: what may come.
    pub expected: BTreeMap<usize, Vec<Vec<Expected>>>,
    /// For each block: whether nothing was ever selected from its sum, so that every entry is delivered, those that
    /// cancel to zero too.
    pub whole: Vec<bool>,
}

/// That a set of schedules is right, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// What it costs.
    pub cost: Cost,
    /// By rank.
    pub ranks: Vec<RankProof>,
}

/// Checks the schedules of all workers, in the order of their ranks.
///
/// # Errors
/// The first reason found why they do not add up to an all-reduce.
pub fn check(schedules: &[Schedule]) -> Result<Proof, CheckError> {
    for (position, schedule) in schedules.iter().enumerate() {
        let Schedule { rank, workers, partition, .. } = schedule;
        if rank.index() != position
            || *workers as usize != schedules.len()
            || *partition != schedules[0].partition
        {
            return Err(CheckError::Misplaced { position, rank: *rank, workers: *workers });
        }
    }
    let mut checker = Checker::new(schedules);
    while checker.round()? {}
    checker.conclude()
}

/// The symbolic content of one block at one worker.
#[derive(Clone, Copy, Debug)]
struct Value {
    expression: Id,
    /// Non-zero entries at most.
    bound: u32,
    /// Whether everything in it was selected; what was not travels dense.
    selected: bool,
}

struct Flight {
    slots: Slots,
    values: Vec<Value>,
    round: u64,
}

#[derive(Default)]
struct Worker {
    held: Vec<Option<Value>>,
    step: usize,
    /// Whether the present exchange's sends have left, and how many of its receives have come.
    sent: bool,
    received: usize,
    /// The last round that this worker finished, and the one that the present exchange has reached.
    finished_round: u64,
    round: u64,
    round_words: u64,
    messages_sent: u64,
    messages_received: u64,
    words_received: u64,
    proof: RankProof,
}

struct Checker<'a> {
    schedules: &'a [Schedule],
    blocks: usize,
    expressions: Expressions,
    workers: Vec<Worker>,
    flights: HashMap<(Rank, Rank), VecDeque<Flight>>,
    /// Every selection that was made: who, at which step, of which block, and its result.
    kept: Vec<(Rank, usize, Block, Id)>,
    /// The largest receive of each round, in words.
    rounds: BTreeMap<u64, u64>,
}

impl<'a> Checker<'a> {
    fn new(schedules: &'a [Schedule]) -> Self {
        let blocks = schedules.first().map_or(0, |s| s.partition.blocks());
        let mut expressions = Expressions::default();
        let workers = schedules
            .iter()
            .map(|schedule| Worker {
                held: (0..blocks as u32)
                    .map(|b| {
                        Some(Value {
                            expression: expressions.leaf(schedule.rank, Block(b)),
                            bound: schedule.partition.block_len(Block(b)) as u32,
                            selected: false,
                        })
                    })
                    .collect(),
                ..Worker::default()
            })
            .collect();
        Self {
            schedules,
            blocks,
            expressions,
            workers,
            flights: HashMap::new(),
            kept: Vec::new(),
            rounds: BTreeMap::new(),
        }
    }

    /// Runs every worker until it waits. Says whether there is more to do.
    fn round(&mut self) -> Result<bool, CheckError> {
        let (mut progress, mut waiting) = (false, None);
        for rank in (0..self.schedules.len() as u32).map(Rank) {
            let before = self.place(rank);
            while self.workers[rank.index()].step < self.schedules[rank.index()].steps.len() {
                if let Some(from) = self.step(rank)? {
                    waiting.get_or_insert((rank, self.workers[rank.index()].step, from));
                    break;
                }
            }
            progress |= self.place(rank) != before;
        }
        match waiting {
            Some((rank, step, from)) if !progress => Err(CheckError::Deadlock { rank, step, from }),
            waiting => Ok(waiting.is_some()),
        }
    }

    /// How far a worker has come: to have sent is something, even if it waits in the same step.
    fn place(&self, rank: Rank) -> (usize, bool, usize) {
        let Worker { step, sent, received, .. } = self.workers[rank.index()];
        (step, sent, received)
    }

    /// Runs the present step of a worker; names the rank that it waits for if it cannot finish.
    fn step(&mut self, rank: Rank) -> Result<Option<Rank>, CheckError> {
        let schedules = self.schedules;
        let step = self.workers[rank.index()].step;
        match &schedules[rank.index()].steps[step] {
            Step::Keep { slots, rule } => self.keep(rank, step, *slots, rule)?,
            Step::Exchange { sends, receives } => {
                if !self.workers[rank.index()].sent {
                    let worker = &mut self.workers[rank.index()];
                    (worker.sent, worker.round, worker.round_words) = (true, worker.finished_round + 1, 0);
                    sends.iter().try_for_each(|send| self.send(rank, step, send))?;
                }
                while let Some(receive) = receives.get(self.workers[rank.index()].received) {
                    self.exists(rank, step, receive.from, receive.slots)?;
                    let queue = self.flights.entry((receive.from, rank)).or_default();
                    let Some(flight) = queue.pop_front() else { return Ok(Some(receive.from)) };
                    self.receive(rank, step, receive, flight)?;
                }
                let worker = &mut self.workers[rank.index()];
                (worker.sent, worker.received, worker.finished_round) = (false, 0, worker.round);
                let largest = self.rounds.entry(worker.round).or_default();
                *largest = worker.round_words.max(*largest);
            }
        }
        self.workers[rank.index()].step += 1;
        Ok(None)
    }

    fn exists(&self, rank: Rank, step: usize, peer: Rank, slots: Slots) -> Result<(), CheckError> {
        let peer_exists = peer.index() < self.schedules.len() && peer != rank;
        if peer_exists && self.has(slots) { Ok(()) } else { Err(CheckError::Nowhere { rank, step, slots }) }
    }

    fn has(&self, slots: Slots) -> bool {
        slots.first.index() < self.blocks && (1..=self.blocks).contains(&(slots.count as usize))
    }

    fn held(&mut self, rank: Rank, step: usize, block: Block) -> Result<Value, CheckError> {
        self.workers[rank.index()].held[block.index()].ok_or(CheckError::Slot {
            rank,
            step,
            block,
            fault: "uses what it does not hold:",
        })
    }

    fn keep(&mut self, rank: Rank, step: usize, slots: Slots, rule: &Rule) -> Result<(), CheckError> {
        let Rule::Top(k) = rule;
        if !self.has(slots) || k.len() != self.blocks {
            return Err(CheckError::Nowhere { rank, step, slots });
        }
        for block in slots.blocks(self.blocks) {
            let value = self.held(rank, step, block)?;
            let k = k[block.index()];
            let expression = self.expressions.top(value.expression, k);
            self.kept.push((rank, step, block, expression));
            self.workers[rank.index()].held[block.index()] =
                Some(Value { expression, bound: value.bound.min(k), selected: true });
        }
        Ok(())
    }

    fn send(&mut self, rank: Rank, step: usize, send: &Send) -> Result<(), CheckError> {
        self.exists(rank, step, send.to, send.slots)?;
        let mut values = Vec::with_capacity(send.slots.count as usize);
        for block in send.slots.blocks(self.blocks) {
            values.push(self.held(rank, step, block)?);
            if send.after == After::Drop {
                self.workers[rank.index()].held[block.index()] = None;
            }
        }
        let worker = &mut self.workers[rank.index()];
        worker.messages_sent += 1;
        let flight = Flight { slots: send.slots, values, round: worker.round };
        self.flights.entry((rank, send.to)).or_default().push_back(flight);
        Ok(())
    }

    fn receive(
        &mut self,
        rank: Rank,
        step: usize,
        receive: &super::Receive,
        flight: Flight,
    ) -> Result<(), CheckError> {
        if flight.slots != receive.slots {
            let (expected, found) = (receive.slots, flight.slots);
            return Err(CheckError::Mismatch { rank, step, from: receive.from, expected, found });
        }
        let partition = &self.schedules[0].partition;
        let (mut words, mut expected) = (0, Vec::with_capacity(flight.values.len()));
        for (block, came) in receive.slots.blocks(self.blocks).zip(flight.values) {
            let len = partition.block_len(block) as u32;
            words += if came.selected { (2 * u64::from(came.bound)).min(len.into()) } else { len.into() };
            expected.push(Expected { len, bound: came.bound });
            let held = &mut self.workers[rank.index()].held[block.index()];
            *held = match (receive.how, *held) {
                (How::Place, None) => Some(came),
                (How::Add, Some(value)) => Some(Value {
                    expression: self.expressions.add(value.expression, came.expression),
                    bound: value.bound.saturating_add(came.bound).min(len),
                    selected: value.selected && came.selected,
                }),
                (How::Place, Some(_)) => {
                    return Err(CheckError::Slot {
                        rank,
                        step,
                        block,
                        fault: "places a bag where it already holds",
                    });
                }
                (How::Add, None) => {
                    return Err(CheckError::Slot {
                        rank,
                        step,
                        block,
                        fault: "adds to what it does not hold:",
                    });
                }
            };
        }
        let worker = &mut self.workers[rank.index()];
        worker.round = worker.round.max(flight.round);
        worker.round_words += words;
        worker.words_received += words;
        worker.messages_received += 1;
        worker.received += 1;
        worker.proof.expected.entry(step).or_default().push(expected);
        Ok(())
    }

    fn conclude(mut self) -> Result<Proof, CheckError> {
        for (&(from, to), queue) in &self.flights {
            if let Some(flight) = queue.front() {
                return Err(CheckError::Unreceived { from, to, slots: flight.slots });
            }
        }
        let mut used = HashSet::new();
        let mut whole = Vec::with_capacity(self.blocks);
        for block in (0..self.blocks as u32).map(Block) {
            let sum = self.workers[0].held[block.index()].map(|v| v.expression);
            for rank in (0..self.workers.len() as u32).map(Rank) {
                let held = self.workers[rank.index()].held[block.index()].map(|v| v.expression);
                if held.is_none() || held != sum {
                    return Err(CheckError::Differs { rank, block });
                }
            }
            let selections = used.len();
            if let Some(sum) = sum {
                self.count(sum, block, &mut used)?;
            }
            // Blocks share no expressions, so a selection from this one is a new one.
            whole.push(used.len() == selections);
        }
        let mut holders: HashMap<Id, u32> = HashMap::new();
        for &(rank, step, block, result) in &self.kept {
            if !used.contains(&result) {
                return Err(CheckError::KeptInVain { rank, step, block });
            }
            *holders.entry(result).or_default() += 1;
        }
        for &(rank, step, _, result) in &self.kept {
            self.workers[rank.index()].proof.holders.entry(step).or_default().push(holders[&result]);
        }
        self.workers.iter_mut().for_each(|worker| worker.proof.whole = whole.clone());
        let largest = |count: fn(&Worker) -> u64| self.workers.iter().map(count).max().unwrap_or(0);
        let cost = Cost {
            rounds: largest(|w| w.finished_round),
            messages: largest(|w| w.messages_sent.max(w.messages_received)),
            words_received: largest(|w| w.words_received),
            words_critical: self.rounds.values().sum(),
        };
        Ok(Proof { cost, ranks: self.workers.into_iter().map(|w| w.proof).collect() })
    }

    /// Every worker's contribution must be in the sum of a block once; remembers which selections are in it.
    fn count(&self, sum: Id, block: Block, used: &mut HashSet<Id>) -> Result<(), CheckError> {
        let mut times = vec![0usize; self.workers.len()];
        let mut wrong = None;
        self.expressions.visit(sum, |id, node| {
            match node {
                Node::Leaf(rank, of) => {
                    times[rank.index()] += 1;
                    if of != block || times[rank.index()] > 1 {
                        wrong = Some(rank);
                    }
                }
                Node::Top(..) => {
                    used.insert(id);
                }
                Node::Add(..) => {}
            }
            wrong.is_none()
        });
        let missing = times.iter().position(|&t| t == 0).map(|r| Rank(r as u32));
        match wrong.or(missing) {
            Some(rank) => Err(CheckError::Counted { rank, block, times: times[rank.index()] }),
            None => Ok(()),
        }
    }
}
