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
mod step;
mod tally;
mod values;

use std::collections::BTreeSet;
use std::fmt;

pub use check::{CheckError, Proof, check, check_for};
pub use cost::Cost;
use cost::NOTE;
pub use execution::{Execution, ExecutionError, Finished, Observed, Outgoing, OwnChoice};
pub use goal::{Goal, Ranks};
pub use keep::Candidates;
pub use lockstep::{Happening, Lockstep, Run, lockstep, watched};
pub use machine::{Arrival, Did, Fault, Machine, Progress, Reader, Slotted, Store, Works};
pub use memory::Memory;
pub use program::{Facts, Holders, Program, Receipt, Volume};
pub use rule::{Note, Register, Rule, Scope};
pub use step::{After, How, Receive, Send, Step};
pub use tally::Tally;
pub(crate) use values::Fate;
pub use values::{Done, Work};

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
        (0..self.count).map(move |i| Block(round(u64::from(self.first.0) + u64::from(i), blocks as u64)))
    }

    /// The places of the range, lane by lane, in a partition of `blocks` with `lanes` lanes.
    pub fn places(self, blocks: usize, lanes: u32) -> impl Iterator<Item = Place> + Clone {
        let Lanes { first, count, relative } = self.lanes;
        (0..count).flat_map(move |i| {
            let lane = round(u64::from(first) + u64::from(i), u64::from(lanes));
            self.blocks(blocks).map(move |block| {
                let back = if relative { round(u64::from(block.0), u64::from(lanes)) } else { 0 };
                let lane = if lane < back { lane + lanes - back } else { lane - back };
                Place { block, lane }
            })
        })
    }
}

/// A number of a circle that may lie beyond its end. Most do not, and a division takes long.
fn round(number: u64, circle: u64) -> u32 {
    (if number < circle { number } else { number % circle }) as u32
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
        for (slots, rule) in self.steps.iter().filter_map(|step| step.chooses(self.lane)) {
            for place in slots.places(blocks, self.lanes).filter(|place| place.lane == self.lane) {
                first[place.block.index()].get_or_insert(rule);
            }
        }
        let quota = |(block, rule): (u32, Option<&Rule>)| rule?.quota(Block(block));
        (0..).zip(first).map(quota).collect()
    }

    /// Whether it leaves no entry out, but for what it rounds, and names none that no worker brings: then it does for gradients that
    /// are sparse already.
    pub fn keeps_entries(&self) -> bool {
        self.steps.iter().all(|step| step.keeps_entries(&self.partition, self.lanes))
    }

    /// The sends and receives of a step, if it is an exchange.
    pub fn exchange(&self, step: usize) -> Option<(&[Send], &[Receive])> {
        self.steps.get(step)?.exchange()
    }

    /// What is sent and received in each exchange.
    pub fn exchanges(&self) -> impl Iterator<Item = (&[Send], &[Receive])> {
        self.steps.iter().filter_map(Step::exchange)
    }

    /// Where a dense block is passed on to piece by piece while it arrives, by the last receive of a step, and whether it is retained
    /// then: the next exchange sends this block alone.
    pub fn passes_on(&self, step: usize) -> Option<(Rank, After)> {
        match (self.exchange(step)?.1.last(), self.exchange(step + 1)?.0) {
            (Some(receive), [send]) if receive.slots == send.slots => Some((send.to, send.after)),
            _ => None,
        }
    }

    /// How many messages this worker sends.
    pub fn messages(&self) -> u64 {
        self.exchanges().map(|(sends, _)| sends.len() as u64).sum()
    }

    /// The ranks that this worker exchanges messages with.
    pub fn peers(&self) -> BTreeSet<Rank> {
        let peers = |(sends, receives): (&[Send], &[Receive])| -> Vec<Rank> {
            sends.iter().map(|send| send.to).chain(receives.iter().map(|receive| receive.from)).collect()
        };
        self.exchanges().flat_map(peers).collect()
    }
}
