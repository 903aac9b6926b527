//! A schedule is data: one worker's program for one step, a short list of steps over slots.
//!
//! One description, many readers: [`check`](check()) proves a set of schedules right and derives what no algorithm
//! has to state; [`Execution`] runs one worker's schedule without doing any input or output itself;
//! [`lockstep`](lockstep()) runs all workers in one thread; [`Cost`] counts what the papers count.

mod check;
mod cost;
mod execution;
mod expression;
mod goal;
mod keep;
mod lockstep;
mod machine;
mod memory;
mod program;
mod rotation;
mod rule;
mod tally;
mod values;

use std::collections::BTreeSet;
use std::fmt;

pub use check::{CheckError, Proof, check, check_for};
pub use cost::Cost;
pub use execution::{Execution, ExecutionError, Finished, Observed, Outgoing, OwnChoice};
pub use goal::{Goal, Ranks};
pub use keep::Candidates;
pub use lockstep::{Happening, Lockstep, Run, lockstep, watched};
pub use machine::{Arrival, Fault, Machine, Progress, Reader, Store};
pub use memory::Memory;
pub use program::{Facts, Holders, Program, Receipt};
pub use rule::{Note, Register, Rule};
pub use tally::Tally;
pub(crate) use values::Fate;
pub use values::{Done, Work};

use crate::bag::Coding;
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
    /// Whether lanes are counted back from the block's own number: in block b, lane l of the range is lane l − b.
    pub relative: bool,
}

impl Lanes {
    /// Lane 0.
    pub const FIRST: Self = Self { first: 0, count: 1, relative: false };
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
        Self { lanes: Lanes { first: lane, ..Lanes::FIRST }, ..self }
    }

    /// The same blocks in `count` lanes of `lanes`, from `first` on and round the circle.
    #[must_use]
    pub fn in_lanes(self, first: u32, count: u32, lanes: u32) -> Self {
        Self { lanes: Lanes { first: first % lanes, count, relative: false }, ..self }
    }

    /// As [`in_lanes`](Self::in_lanes), counted back from each block's own number.
    #[must_use]
    pub fn in_relative_lanes(self, first: u32, count: u32, lanes: u32) -> Self {
        Self { lanes: Lanes { first: first % lanes, count, relative: true }, ..self }
    }

    /// The blocks of the range, in a partition of `blocks`.
    pub fn blocks(self, blocks: usize) -> impl ExactSizeIterator<Item = Block> + Clone {
        (0..self.count).map(move |i| Block(((self.first.0 as usize + i as usize) % blocks) as u32))
    }

    /// The places of the range, lane by lane, in a partition of `blocks` with `lanes` lanes.
    pub fn places(self, blocks: usize, lanes: u32) -> impl Iterator<Item = Place> + Clone {
        let Lanes { first, count, relative } = self.lanes;
        (0..count).flat_map(move |i| {
            self.blocks(blocks).map(move |block| {
                let back = if relative { block.0 % lanes } else { 0 };
                let lane = (u64::from(first) + u64::from(i) + u64::from(lanes - back)) % u64::from(lanes);
                Place { block, lane: lane as u32 }
            })
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

impl fmt::Display for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first.0)?;
        if self.count != 1 {
            write!(f, "+{}", self.count)?;
        }
        match self.lanes {
            Lanes::FIRST => Ok(()),
            Lanes { first, count, relative: true } => write!(f, " in lanes {first}+{count} less the block"),
            Lanes { first, count: 1, .. } => write!(f, " in lane {first}"),
            Lanes { first, count, .. } => write!(f, " in lanes {first}+{count}"),
        }
    }
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
        let mut first: Vec<Option<&Rule>> = vec![None; blocks];
        for step in &self.steps {
            let (slots, rule) = match step {
                Step::Keep { slots, rule, .. } => (*slots, rule),
                Step::Propose { slots, rule } => (slots.in_lane(self.lane), rule),
                _ => continue,
            };
            for place in slots.places(blocks, self.lanes).filter(|place| place.lane == self.lane) {
                first[place.block.index()].get_or_insert(rule);
            }
        }
        let quota = |(block, rule): (u32, Option<&Rule>)| rule?.quota(Block(block));
        (0..).zip(first).map(quota).collect()
    }

    /// The sends and receives of a step, if it is an exchange.
    pub fn exchange(&self, step: usize) -> Option<(&[Send], &[Receive])> {
        match self.steps.get(step)? {
            Step::Exchange { sends, receives } => Some((sends, receives)),
            _ => None,
        }
    }

    /// What is sent and received in each exchange.
    pub fn exchanges(&self) -> impl Iterator<Item = (&[Send], &[Receive])> {
        (0..self.steps.len()).filter_map(|step| self.exchange(step))
    }

    /// To whom a dense block goes on piece by piece while it comes in, by the last receive of a step: the next exchange
    /// sends this block alone.
    pub fn passes_on(&self, step: usize) -> Option<Rank> {
        match (self.exchange(step)?.1.last(), self.exchange(step + 1)?.0) {
            (Some(receive), [send]) if receive.slots == send.slots => Some(send.to),
            _ => None,
        }
    }

    /// How many messages this worker sends.
    pub fn messages(&self) -> u64 {
        self.exchanges().map(|(sends, _)| sends.len() as u64).sum()
    }

    /// Whom this worker exchanges messages with.
    pub fn peers(&self) -> BTreeSet<Rank> {
        let peers = |(sends, receives): (&[Send], &[Receive])| -> Vec<Rank> {
            sends.iter().map(|send| send.to).chain(receives.iter().map(|receive| receive.from)).collect()
        };
        self.exchanges().flat_map(peers).collect()
    }
}
