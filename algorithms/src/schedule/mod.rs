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

use std::fmt;
use std::sync::Arc;

pub use check::{CheckError, Proof, RankProof, check};
pub use cost::Cost;
pub(crate) use execution::Fate;
pub use execution::{Execution, ExecutionError, Finished, Outgoing, Progress};
pub use keep::Candidates;
pub use lockstep::{Run, lockstep};

use crate::{Block, Partition, Rank};

/// A cyclic range of blocks: block `first`, the next `count - 1` ones, and after the last block the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slots {
    /// Where the range starts.
    pub first: Block,
    /// How many blocks it has, at most all.
    pub count: u32,
}

impl Slots {
    /// One block.
    pub fn one(block: Block) -> Self {
        Self { first: block, count: 1 }
    }

    /// `count` blocks from `first` on, in a partition of `blocks`; `first` may lie beyond the last block and
    /// is then taken round the circle.
    pub fn cyclic(first: u32, count: u32, blocks: u32) -> Self {
        Self { first: Block(first % blocks), count }
    }

    /// The blocks of the range, in a partition of `blocks`.
    pub fn blocks(self, blocks: usize) -> impl ExactSizeIterator<Item = Block> {
        (0..self.count).map(move |i| Block(((self.first.0 as usize + i as usize) % blocks) as u32))
    }
}

impl fmt::Display for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "{}", self.first.0),
            count => write!(f, "{}+{count}", self.first.0),
        }
    }
}

/// What a `Keep` keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Of each block the k entries that are largest by magnitude, k given for every block of the
    /// partition. Of equal magnitudes the lower index wins; zeros are never kept.
    Top(Arc<[u32]>),
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Keeps the entries that the rule chooses; the others go to the residuals.
    Keep {
        /// The blocks to choose from, each by itself.
        slots: Slots,
        /// The choice.
        rule: Rule,
    },
    /// One latency round: all sends leave, then all receives are taken in, in their order here.
    Exchange {
        /// What leaves.
        sends: Vec<Send>,
        /// What comes.
        receives: Vec<Receive>,
    },
}

/// One worker's program for one step. It starts with its own gradient (plus residual) in every block and
/// ends with the sum over all workers in every block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Whose program this is.
    pub rank: Rank,
    /// The number of workers, P.
    pub workers: u32,
    /// How the gradient is cut into blocks.
    pub partition: Partition,
    /// What to do, in order.
    pub steps: Vec<Step>,
}

impl Schedule {
    /// The k of the first `Keep` on each block, None where the schedule never selects: what a worker
    /// should be prepared to choose from its own gradient.
    pub fn quotas(&self) -> Vec<Option<u32>> {
        let blocks = self.partition.blocks();
        let mut quotas = vec![None; blocks];
        for step in &self.steps {
            if let Step::Keep { slots, rule: Rule::Top(k) } = step {
                for block in slots.blocks(blocks) {
                    quotas[block.index()].get_or_insert(k[block.index()]);
                }
            }
        }
        quotas
    }

    /// The peers that this worker exchanges with, ascending.
    pub fn peers(&self) -> Vec<Rank> {
        let mut peers: Vec<Rank> = self
            .steps
            .iter()
            .flat_map(|step| match step {
                Step::Keep { .. } => Vec::new(),
                Step::Exchange { sends, receives } => {
                    sends.iter().map(|s| s.to).chain(receives.iter().map(|r| r.from)).collect()
                }
            })
            .collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}
