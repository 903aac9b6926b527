//! What the programs of all workers together achieve: which workers bring something, and which end with the sums.

use std::sync::Arc;

use crate::{Block, Rank};

/// Some ranks for each block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// All of them.
    All,
    /// One for each block.
    Owners(Arc<[Rank]>),
    /// All but the owners of any block.
    AllBut(Arc<[Rank]>),
}

impl Ranks {
    /// Whether a rank is one of those of a block.
    pub fn has(&self, rank: Rank, block: Block) -> bool {
        match self {
            Ranks::All => true,
            Ranks::Owners(owners) => owners.get(block.index()) == Some(&rank),
            Ranks::AllBut(owners) => !owners.contains(&rank),
        }
    }

    /// Whether they stay the same where ranks and blocks are rotated together.
    fn rotates(&self) -> bool {
        match self {
            Ranks::All => true,
            Ranks::Owners(owners) => owners.iter().enumerate().all(|(block, owner)| owner.index() == block),
            Ranks::AllBut(_) => false,
        }
    }
}

/// What is to be achieved: every block of those who end with it is the sum of what those who bring something have brought,
/// each counted once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    /// The workers that bring something.
    pub brings: Ranks,
    /// The workers that end with the sums; no other worker holds anything at the end.
    pub ends: Ranks,
}

impl Goal {
    /// Every worker brings everything and ends with all sums.
    pub const ALL_REDUCE: Self = Self { brings: Ranks::All, ends: Ranks::All };

    /// Every worker brings everything, and the owner of each block ends with its sum.
    pub fn reduce_scatter(owners: impl Into<Arc<[Rank]>>) -> Self {
        Self { brings: Ranks::All, ends: Ranks::Owners(owners.into()) }
    }

    /// The owner of each block brings it, and every worker ends with all.
    pub fn all_gather(owners: impl Into<Arc<[Rank]>>) -> Self {
        Self { brings: Ranks::Owners(owners.into()), ends: Ranks::All }
    }

    /// Every worker but the servers brings everything, and the server of each block ends with its sum.
    pub fn push(servers: impl Into<Arc<[Rank]>>) -> Self {
        let servers = servers.into();
        Self { brings: Ranks::AllBut(servers.clone()), ends: Ranks::Owners(servers) }
    }

    /// The server of each block brings it, and every other worker ends with all.
    pub fn pull(servers: impl Into<Arc<[Rank]>>) -> Self {
        let servers = servers.into();
        Self { brings: Ranks::Owners(servers.clone()), ends: Ranks::AllBut(servers) }
    }

    /// Whether it stays the same where ranks and blocks are rotated together.
    pub(super) fn rotates(&self) -> bool {
        self.brings.rotates() && self.ends.rotates()
    }
}
