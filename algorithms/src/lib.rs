//! What to send and what to keep. Pure: no sockets, no clock, no async, no threads of its own.
//!
//! The five terms:
//!
//! | word | here |
//! |---|---|
//! | **bag** | [`bag::Bag`]: a sparse vector in flight, dense once that is smaller |
//! | **block** | [`Block`], a contiguous range of the flat gradient, cut by a [`Partition`] |
//! | **slot** | [`schedule::Slots`]: the cyclic range of blocks that a step works on |
//! | **schedule** | [`schedule::Schedule`]: one worker's program for one step, as data |
//! | **residual** | [`residual::Residual`]: what was selected out and waits for a later step |
//!
//! Conservation, the first invariant: entry by entry and summed over the workers,
//! *gradients + old residuals = delivered + new residuals + lost*.

mod accumulator;
mod allotment;
pub mod bag;
pub mod collectives;
pub mod density;
pub mod device;
pub mod element;
pub mod forecast;
pub mod invariants;
mod layers;
pub mod merging;
mod partition;
mod reduction;
pub mod residual;
pub mod schedule;
pub mod select;
pub mod selectors;
mod sentence;
pub mod shares;
pub mod synchrony;

pub use accumulator::{Accumulator, OnDevice, SparseValues};
pub use allotment::Allotment;
pub use collectives::Method;
pub use element::Element;
pub use layers::Layers;
pub use partition::{Partition, Sparsity, SparsityError};
pub use reduction::Reduction;
pub use sentence::did_you_mean;
pub use shares::SelectOver;

use std::fmt;

/// A worker's number in the present membership, from 0 to P − 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u32);

/// A block's number in its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block(pub u32);

/// A worker's place in a membership. Ranks and their number hold for one epoch; another membership is another epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Which membership.
    pub epoch: u16,
    /// This worker's rank in it.
    pub rank: Rank,
    /// The number of workers, P.
    pub workers: u32,
}

impl Membership {
    /// The first membership of a job.
    pub fn first(rank: Rank, workers: u32) -> Self {
        Self { epoch: 0, rank, workers }
    }
}

impl Rank {
    /// As an index into per-rank arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Block {
    /// As an index into per-block arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}
