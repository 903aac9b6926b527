//! A schedule is data: one worker's program for one step, a short list of steps over slots.
//!
//! One description, many readers: [`check`](check()) proves a set of schedules right and derives what no algorithm
//! has to state; [`Execution`] runs one worker's schedule without doing any input or output itself;
//! [`lockstep`](lockstep()) runs all workers in one thread; [`Cost`] counts what the papers count.

mod check;
mod cost;
mod execution;
mod expression;
mod keep;
mod lockstep;
mod memory;
mod tally;

use std::fmt;
use std::sync::Arc;

pub use check::{CheckError, Holders, Proof, RankProof, check};
pub use cost::Cost;
pub(crate) use execution::Fate;
pub use execution::{Execution, ExecutionError, Finished, Observed, Outgoing, OwnChoice, Progress};
pub use keep::Candidates;
pub use lockstep::{Happening, Lockstep, Run, lockstep, watched};
pub use memory::Memory;
pub use tally::Tally;

use crate::bag::Coding;
use crate::selectors::Selection;
use crate::{Block, Partition, Rank};

/// A cyclic range of lanes: lane `first`, the next `count - 1` ones, and after the last lane the first.
///
/// A lane says whose contributions a slot carries, so that a worker can hold several bags of one block without adding
/// them up. Most methods add at once and have lane 0 alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lanes {
    /// Where the range starts.
    pub first: u32,
    /// How many lanes it has, at most all.
    pub count: u32,
}

impl Lanes {
    /// Lane 0.
    pub const FIRST: Self = Self { first: 0, count: 1 };
}

/// A cyclic range of blocks, in a cyclic range of lanes: block `first`, the next `count - 1` ones, and after the last
/// block the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slots {
    /// Where the range starts.
    pub first: Block,
    /// How many blocks it has, at most all.
    pub count: u32,
    /// In which lanes.
    pub lanes: Lanes,
}

impl Slots {
    /// One block, in lane 0.
    pub fn one(block: Block) -> Self {
        Self::range(block.0, 1)
    }

    /// `count` blocks from `first` on, in lane 0.
    pub fn range(first: u32, count: u32) -> Self {
        Self { first: Block(first), count, lanes: Lanes::FIRST }
    }

    /// `count` blocks from `first` on, in lane 0, in a partition of `blocks`; `first` may lie beyond the last block
    /// and is then taken round the circle.
    pub fn cyclic(first: u32, count: u32, blocks: u32) -> Self {
        Self::range(first % blocks, count)
    }

    /// The same blocks in one other lane.
    #[must_use]
    pub fn in_lane(self, lane: u32) -> Self {
        Self { lanes: Lanes { first: lane, count: 1 }, ..self }
    }

    /// The same blocks in `count` lanes of `lanes`, from `first` on and round the circle.
    #[must_use]
    pub fn in_lanes(self, first: u32, count: u32, lanes: u32) -> Self {
        Self { lanes: Lanes { first: first % lanes, count }, ..self }
    }

    /// The blocks of the range, in a partition of `blocks`.
    pub fn blocks(self, blocks: usize) -> impl ExactSizeIterator<Item = Block> + Clone {
        (0..self.count).map(move |i| Block(((self.first.0 as usize + i as usize) % blocks) as u32))
    }

    /// The places of the range, lane by lane, in a partition of `blocks` with `lanes` lanes.
    pub fn places(self, blocks: usize, lanes: u32) -> impl Iterator<Item = Place> + Clone {
        (0..self.lanes.count).flat_map(move |i| {
            let lane = (u64::from(self.lanes.first) + u64::from(i)) % u64::from(lanes);
            self.blocks(blocks).map(move |block| Place { block, lane: lane as u32 })
        })
    }
}

/// Where one bag or proposal lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Of which block.
    pub block: Block,
    /// In which lane.
    pub lane: u32,
}

impl Place {
    /// As an index into an array of all places, in a partition of `blocks`.
    pub(crate) fn index(self, blocks: usize) -> usize {
        self.lane as usize * blocks + self.block.index()
    }
}

impl fmt::Display for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first.0)?;
        if self.count != 1 {
            write!(f, "+{}", self.count)?;
        }
        match self.lanes {
            Lanes::FIRST => Ok(()),
            Lanes { first, count: 1 } => write!(f, " in lane {first}"),
            Lanes { first, count } => write!(f, " in lanes {first}+{count}"),
        }
    }
}

/// A number that is known when the schedule runs, not when it is made: what a [`Memory`] holds there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// The same on all workers.
    Agreed(u8),
    /// This worker's own: only for a choice that nobody else has to repeat.
    Own(u8),
}

/// What a `Keep` keeps. Of equal magnitudes the lower index wins, and the earlier slot; zeros are never kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Of each slot the k entries that are largest by magnitude, k given for every block of the partition.
    Top(Arc<[u32]>),
    /// The same, but no more than the register says.
    TopOf {
        /// Holds k.
        register: Register,
        /// k at most, for every block of the partition.
        most: Arc<[u32]>,
    },
    /// Of all slots together the k largest.
    Jointly(usize),
    /// Of all slots together the entries of at least the magnitude that the register holds; the largest of them if
    /// they are more than `most`.
    Above {
        /// Holds the magnitude.
        register: Register,
        /// How many are kept at most.
        most: usize,
    },
    /// What a selector chooses from all of this worker's own gradient, as far as that is of so many entries as an index can
    /// count. It keeps its state in this worker's own registers, from the first on.
    By(Arc<Selection>),
    /// Of each slot the entries at so many indices that are drawn by lot, k given for every block of the partition: the same
    /// indices on every worker, others in every step, each set of so many as likely as any other.
    Random(Arc<[u32]>),
    /// Every entry: to round them.
    Every,
    /// Every entry, and from here on a value for each entry of the block, those that are zero too.
    Dense,
}

/// What is told with a bag about how it came to be, for a method that learns from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Note {
    /// How many entries the last selection chose from: one number.
    Seen,
    /// With block b, where this worker's own selection would be cut for part b of so many parts of equal counts: the
    /// position of the part's first entry in the flat gradient. Where bags are added, so are these.
    Cut(u32),
}

/// What becomes of a slot that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It leaves this worker.
    Drop,
    /// This worker keeps a copy.
    Retain,
}

/// What becomes of a slot that is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is added to what the worker holds there: held + received.
    Add,
    /// It takes an empty place.
    Place,
}

/// One send of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// The receiver.
    pub to: Rank,
    /// What is sent.
    pub slots: Slots,
    /// Whether the sender still has it afterwards.
    pub after: After,
}

/// One receive of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The sender.
    pub from: Rank,
    /// What is received: the slots that the sender names.
    pub slots: Slots,
    /// Where it goes.
    pub how: How,
}

/// One step of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Keeps the entries that the rule chooses, rounded to what the coding can say; the others, and what was rounded
    /// away, go to the residuals.
    Keep {
        /// The slots to choose from.
        slots: Slots,
        /// The choice.
        rule: Rule,
        /// How values are told on the wire from here on.
        coding: Coding,
    },
    /// One latency round: all sends leave, then all receives are taken in, in their order here.
    Exchange {
        /// What leaves.
        sends: Vec<Send>,
        /// What comes.
        receives: Vec<Receive>,
    },
    /// Adds up all lanes of a block, as a balanced tree in the order of the lanes, into lane 0. Lanes that hold nothing
    /// are passed over; all pieces of a bag that was split are that bag again.
    Sum {
        /// The blocks, each by itself; the lanes are not looked at.
        slots: Slots,
    },
    /// Cuts the bag of each block in lane 0 into as many pieces as there are lanes, of equal counts but for one entry, the
    /// longer ones first: the piece i goes to lane i.
    Split {
        /// The blocks; the lanes are not looked at.
        slots: Slots,
    },
    /// Chooses indices of this worker's own accumulator, which stays as it is, and lays them down as a proposal: indices
    /// without values. A proposal travels like a bag, and stays on a worker until the step ends.
    Propose {
        /// Where the proposals go: of each block into one empty lane. The choice is from these blocks together.
        slots: Slots,
        /// The choice. By `Every` and `Dense` all indices are proposed, those of zeros too.
        rule: Rule,
    },
    /// Keeps of this worker's own accumulator the value at every index that was proposed for the block, zeros too, rounded
    /// to what the coding can say. From here on the bag is *aligned*: all workers have the same indices in it, so it travels
    /// as values alone, and so do sums of such bags.
    Align {
        /// The worker's own slots.
        slots: Slots,
        /// How values are told on the wire from here on.
        coding: Coding,
    },
    /// Ties a note to a bag, which carries it from here on. It is added to another only where their notes are added too.
    Annotate {
        /// The bags.
        slots: Slots,
        /// What is told.
        note: Note,
    },
}

/// One worker's program for one step. It starts with its own gradient (plus residual) in every block and
/// ends with the sum over all workers in every block, in lane 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Whose program this is.
    pub rank: Rank,
    /// The number of workers, P.
    pub workers: u32,
    /// How the gradient is cut into blocks.
    pub partition: Partition,
    /// How many bags of one block there may be side by side.
    pub lanes: u32,
    /// The lane in which this worker's own gradient lies at the start.
    pub lane: u32,
    /// What to do, in order.
    pub steps: Vec<Step>,
}

impl Schedule {
    /// How many entries a worker should be prepared to choose from each block of its own gradient, by the first
    /// selection there; None where none is ever made, or where no threshold predicts it.
    pub fn quotas(&self) -> Vec<Option<u32>> {
        let blocks = self.partition.blocks();
        let mut quotas = vec![None; blocks];
        let mut met = vec![false; blocks];
        for step in &self.steps {
            let (slots, rule) = match step {
                Step::Keep { slots, rule, .. } => (*slots, rule),
                Step::Propose { slots, rule } => (slots.in_lane(self.lane), rule),
                _ => continue,
            };
            for Place { block, .. } in slots.places(blocks, self.lanes).filter(|p| p.lane == self.lane) {
                let b = block.index();
                if !std::mem::replace(&mut met[b], true) {
                    quotas[b] = match rule {
                        Rule::Top(k) | Rule::TopOf { most: k, .. } => Some(k[b]),
                        Rule::Jointly(k) | Rule::Above { most: k, .. } => {
                            Some((*k).min(u32::MAX as usize) as u32)
                        }
                        Rule::By(selection) => Some(selection.most().min(u32::MAX as usize) as u32),
                        Rule::Random(_) | Rule::Every | Rule::Dense => None,
                    };
                }
            }
        }
        quotas
    }

    /// To whom a dense block goes on piece by piece while it comes in, by the last receive of this step: the next exchange
    /// sends this block alone.
    pub fn passes_on(&self, step: usize) -> Option<Rank> {
        let (Some(Step::Exchange { receives, .. }), Some(Step::Exchange { sends, .. })) =
            (self.steps.get(step), self.steps.get(step + 1))
        else {
            return None;
        };
        match (receives.last(), &sends[..]) {
            (Some(receive), [send]) if receive.slots == send.slots => Some(send.to),
            _ => None,
        }
    }

    /// The peers that this worker exchanges with, ascending.
    pub fn peers(&self) -> Vec<Rank> {
        let mut peers: Vec<Rank> = self
            .steps
            .iter()
            .flat_map(|step| match step {
                Step::Exchange { sends, receives } => {
                    sends.iter().map(|s| s.to).chain(receives.iter().map(|r| r.from)).collect()
                }
                _ => Vec::new(),
            })
            .collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}
