//! One worker's run of one schedule, without any input or output of its own.
//!
//! Whoever drives it (the runtime over real links, [`lockstep`](super::lockstep()) over queues) sends what comes out
//! and feeds what comes in. The accumulator is only read; what is received lives in overlays and bags.

mod receive;

use std::sync::Arc;

use bytes::Bytes;

use super::keep::{Candidates, OwnTop, own_top};
use super::{After, RankProof, Rule, Schedule, Slots, Step};
use crate::bag::wire::{self, Body, DecodeError, Decoder};
use crate::bag::{Bag, Dense, Entries, Rounded};
use crate::{Block, Rank, select};

/// A message to a peer: one of the payloads of a slot.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The receiver.
    pub to: Rank,
    /// At most [`wire::PIECE`] bytes.
    pub payload: Bytes,
}

/// Where an execution stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It needs the next message from this rank.
    Waiting(Rank),
    /// It is done.
    Finished,
}

/// Why a step cannot go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExecutionError {
    /// A peer sent bytes that are not what the schedule declares.
    #[error("{from} sent something else than its schedule says: {source}")]
    Decode {
        /// The peer.
        from: Rank,
        /// What is wrong with the bytes.
        source: DecodeError,
    },
    /// A message that nobody waits for.
    #[error("{from} sent a message that the schedule does not expect now")]
    Unexpected {
        /// The peer.
        from: Rank,
    },
    /// A sum left the range of the number type.
    #[error(
        "the sum with what {from} sent is not finite at entry {entry} of the gradient: lower the learning rate or clip the gradients"
    )]
    Overflow {
        /// The peer.
        from: Rank,
        /// Position in the flat gradient.
        entry: usize,
    },
}

/// What a worker holds of one block.
#[derive(Debug)]
enum Held {
    /// Its own accumulator, and the sums of it with received entries where there are any.
    Own(Entries),
    /// A bag.
    Bag(Bag),
}

/// What became of a worker's own contribution to a block.
#[derive(Debug)]
pub(crate) enum Fate {
    /// All of it went into the sum.
    Whole,
    /// Only these indices were selected; at the others that received something, this sum remains.
    Selected { indices: Vec<u32>, settled: Entries },
}

/// A finished run: the update, and what the residual needs to know.
#[derive(Debug)]
pub struct Finished {
    /// The sum over all workers, block by block: the same bits on every worker.
    pub update: Vec<Bag>,
    pub(crate) accumulator: Arc<Vec<f32>>,
    pub(crate) fates: Vec<Fate>,
    /// This worker's share of what was dropped later on, by block.
    pub(crate) drops: Vec<Entries>,
    pub(crate) thresholds: Vec<Option<f32>>,
    /// Whether nothing was selected from any worker's contribution, by block.
    pub(crate) whole: Vec<bool>,
    /// Entries that this worker received over all messages; a dense value counts as one.
    pub entries_received: u64,
}

impl Finished {
    /// The number of non-zero entries of the update.
    pub fn entries(&self) -> usize {
        self.update.iter().map(Bag::nonzeros).sum()
    }
}

/// A run of one schedule.
#[derive(Debug)]
pub struct Execution {
    schedule: Arc<Schedule>,
    proof: Arc<RankProof>,
    accumulator: Arc<Vec<f32>>,
    candidates: Vec<Candidates>,
    held: Vec<Option<Held>>,
    /// Whether a block holds the worker's own contribution and nothing was selected from it or sent away yet.
    intact: Vec<bool>,
    fates: Vec<Fate>,
    drops: Vec<Entries>,
    step: usize,
    sent: bool,
    received: usize,
    decoder: Option<Decoder>,
    entries_received: u64,
    /// The dense block that is being received, if one is.
    arriving: Dense,
    /// To whom the arriving block is passed on piece by piece, ahead of the next exchange.
    passing_on: Option<Rank>,
}

impl Execution {
    /// Starts a run of a checked schedule on an accumulator of the partition's length, with candidates by block.
    pub fn new(
        schedule: Arc<Schedule>,
        proof: Arc<RankProof>,
        accumulator: Arc<Vec<f32>>,
        candidates: Vec<Candidates>,
    ) -> Self {
        let blocks = schedule.partition.blocks();
        Self {
            schedule,
            proof,
            accumulator,
            candidates,
            held: (0..blocks).map(|_| Some(Held::Own(Entries::default()))).collect(),
            intact: vec![true; blocks],
            fates: (0..blocks).map(|_| Fate::Whole).collect(),
            drops: vec![Entries::default(); blocks],
            step: 0,
            sent: false,
            received: 0,
            decoder: None,
            entries_received: 0,
            arriving: Dense::default(),
            passing_on: None,
        }
    }

    /// Goes on until a message is needed or all is done; appends what is to be sent.
    pub fn advance(&mut self, outbox: &mut Vec<Outgoing>) -> Progress {
        let schedule = self.schedule.clone();
        while let Some(step) = schedule.steps.get(self.step) {
            match step {
                Step::Keep { slots, rule: Rule::Top(k) } => {
                    let proof = self.proof.clone();
                    for (i, block) in slots.blocks(self.held.len()).enumerate() {
                        let holders = proof.holders.get(&self.step).map_or(1, |h| h[i]);
                        self.keep(block, k[block.index()], holders);
                    }
                }
                Step::Exchange { sends, receives } => {
                    if !self.sent {
                        self.sent = true;
                        let passed_on = self.passing_on.take().is_some();
                        for send in sends {
                            let bodies: Vec<Body> = send
                                .slots
                                .blocks(self.held.len())
                                .map(|b| self.body(b, send.after))
                                .collect();
                            if passed_on {
                                continue;
                            }
                            let payloads = wire::encode(&bodies);
                            outbox.extend(
                                payloads.into_iter().map(|payload| Outgoing { to: send.to, payload }),
                            );
                        }
                    }
                    if let Some(receive) = receives.get(self.received) {
                        let expected = || self.proof.expected[&self.step][self.received].clone();
                        self.decoder.get_or_insert_with(|| Decoder::new(expected()));
                        return Progress::Waiting(receive.from);
                    }
                    (self.sent, self.received) = (false, 0);
                }
            }
            self.step += 1;
        }
        Progress::Finished
    }

    /// Ends a run whose `advance` said that it is finished.
    pub fn finish(mut self) -> Finished {
        let update = (0..self.held.len())
            .map(|b| match self.held[b].take() {
                Some(Held::Own(overlay)) => self.materialise(Block(b as u32), &overlay),
                Some(Held::Bag(bag)) => bag,
                None => Bag::empty(),
            })
            .collect();
        Finished {
            update,
            accumulator: self.accumulator,
            fates: self.fates,
            drops: self.drops,
            thresholds: self.candidates.into_iter().map(|c| c.threshold).collect(),
            whole: self.proof.whole.clone(),
            entries_received: self.entries_received,
        }
    }

    fn block_at(&self, slots: Slots, position: usize) -> Block {
        Block(((slots.first.index() + position) % self.held.len()) as u32)
    }

    fn own(&self, block: Block) -> &[f32] {
        &self.accumulator[self.schedule.partition.range(block)]
    }

    fn block_len(&self, block: Block) -> usize {
        self.schedule.partition.block_len(block)
    }

    fn materialise(&self, block: Block, overlay: &Entries) -> Bag {
        let mut values = self.own(block).to_vec();
        overlay.iter().for_each(|(i, v)| values[i as usize] = v);
        Bag::Dense(values.into())
    }

    fn keep(&mut self, block: Block, k: u32, holders: u32) {
        let b = block.index();
        let held = match self.held[b].take() {
            Some(Held::Own(overlay)) if holders > 1 => Some(Held::Bag(self.materialise(block, &overlay))),
            held => held,
        };
        let intact = std::mem::take(&mut self.intact[b]);
        let kept = match held {
            Some(Held::Own(overlay)) => {
                let candidates = std::mem::take(&mut self.candidates[b]);
                let OwnTop { kept, settled, threshold } = own_top(self.own(block), &overlay, &candidates, k);
                self.candidates[b].threshold = threshold;
                self.fates[b] = Fate::Selected { indices: kept.indices.clone(), settled };
                kept
            }
            // Its own contribution with a dense one added: the same choice as from an overlay.
            Some(Held::Bag(Bag::Dense(sums))) if intact && holders == 1 => {
                let kept = select::top_k_dense(&sums.to_vec(), k as usize);
                let mut indices = kept.indices.iter().peekable();
                let unkept = (0u32..).zip(sums.iter());
                let settled = unkept.filter(|(i, _)| indices.next_if(|&kept| kept == i).is_none()).collect();
                self.fates[b] = Fate::Selected { indices: kept.indices.clone(), settled };
                kept
            }
            Some(Held::Bag(bag)) => {
                let entries = bag.into_entries();
                let (mut top, mut dropped) = (Entries::default(), Entries::default());
                select::top_k(&entries.indices, &entries.values, k as usize, &mut top, &mut dropped);
                let share = dropped.iter().map(|(i, v)| (i, v / holders as f32)).collect();
                self.drops[b] = self.drops[b].merge(&share);
                top
            }
            None => Entries::default(),
        };
        self.held[b] = Some(Held::Bag(Bag::smaller(kept, self.block_len(block))));
    }

    fn body(&mut self, block: Block, after: After) -> Body {
        let b = block.index();
        let (body, held) = match self.held[b].take() {
            Some(Held::Own(overlay)) if overlay.is_empty() => (
                Body::Dense {
                    values: Dense::lent(self.accumulator.clone(), self.schedule.partition.range(block)),
                    rounded: Rounded::EXACT,
                },
                Held::Own(overlay),
            ),
            Some(Held::Own(overlay)) => body_of(self.materialise(block, &overlay), self.block_len(block)),
            Some(Held::Bag(bag)) => body_of(bag, self.block_len(block)),
            None => body_of(Bag::empty(), self.block_len(block)),
        };
        match after {
            After::Retain => self.held[b] = Some(held),
            After::Drop => self.intact[b] = false,
        }
        body
    }
}

/// What is sent of a bag, and the bag to retain: one copy for both.
fn body_of(bag: Bag, len: usize) -> (Body, Held) {
    let rounded = Rounded::EXACT;
    let body = match &bag {
        Bag::Sparse(entries) => Body::Sparse { entries: entries.clone(), len, rounded },
        Bag::Dense(values) => Body::Dense { values: values.clone(), rounded },
    };
    (body, Held::Bag(bag))
}
