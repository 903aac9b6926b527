//! By which rule entries are chosen, and what is noted about a choice.

use std::sync::Arc;

use crate::selectors::Selection;
use crate::{Allotment, Block, Partition};

/// A number that is known when the schedule runs, not when it is made: what a [`Memory`](super::Memory) holds there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// The same on all workers.
    Agreed(u8),
    /// This worker's own: only for a choice that no other worker has to repeat.
    Own(u8),
}

/// What a `Keep` keeps. Of equal magnitudes the lower index wins, and the earlier slot. Zeros of a worker's own are never
/// kept; sums that are zero come last, and are kept where there is room.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Of each slot the k entries that are largest by magnitude, k given for every block of the partition.
    Top(Allotment),
    /// The same, but no more than the register says.
    TopOf {
        /// Holds k.
        register: Register,
        /// k at most, for every block of the partition.
        most: Allotment,
    },
    /// Of all slots together the k largest.
    Jointly(usize),
    /// Of all slots together the entries of at least the magnitude that the register holds, and sums that are zero; the
    /// largest of them if they are more than `most`.
    Above {
        /// Holds the magnitude.
        register: Register,
        /// How many are kept at most.
        most: usize,
    },
    /// What a selector chooses from all of this worker's own gradient, which has no more entries than an index can
    /// count. It keeps its state in this worker's own registers, from the first on.
    By(Arc<Selection>),
    /// Of each slot the entries at this many indices that are sampled at random, k given for every block of the partition: the same
    /// indices on every worker, others in every step, each set of so many as likely as any other.
    Random(Allotment),
    /// Every entry: to round them.
    Every,
    /// Every entry, and from here on a value for each entry of the block, those that are zero too.
    Dense,
}

/// What a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The values of each slot by itself.
    Slot,
    /// The values of all its slots together.
    Slots,
    /// All of this worker's own gradient.
    Selector,
    /// No values: indices are sampled.
    Sampled,
    /// Nothing: every entry is kept.
    Nothing,
}

/// A number that travels with a bag about how it came to be, for a method that learns from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Note {
    /// How many entries the last selection chose from.
    Seen,
    /// With block b, where this worker's own selection would be cut for part b of as many parts of equal counts as blocks: the
    /// position of the part's first entry in the flat gradient. Where bags are added, so are these.
    Cut(u32),
}

impl Rule {
    /// How many entries are chosen at most, as the length of a block allows: of each slot, or of all of them where they are
    /// looked at [together](Self::is_joint). None for all of them.
    pub fn most(&self) -> Option<u32> {
        let most = |k: usize| u32::try_from(k).unwrap_or(u32::MAX);
        match self {
            Rule::Top(k) | Rule::TopOf { most: k, .. } | Rule::Random(k) => {
                Some((0..k.blocks() as u32).map(|block| k.most(Block(block))).max().unwrap_or(0))
            }
            Rule::Jointly(k) | Rule::Above { most: k, .. } => Some(most(*k)),
            Rule::By(selection) => Some(most(selection.most())),
            Rule::Every | Rule::Dense => None,
        }
    }

    /// What it does to some blocks, in words: how they are called, and how a count is written.
    pub fn in_words(
        &self,
        blocks: impl ExactSizeIterator<Item = Block> + Clone,
        called: &str,
        count: fn(u64) -> String,
    ) -> String {
        let most = |k: &Allotment| blocks.clone().map(|b| u64::from(k.most(b))).max().unwrap_or(0);
        match self {
            Rule::Top(k) => {
                let fewest = blocks.clone().map(|b| u64::from(k.least(b))).min().unwrap_or(0);
                let each = if blocks.len() == 1 { "" } else { "each of " };
                let or = if fewest == most(k) { String::new() } else { format!("{} or ", count(fewest)) };
                format!("keeps the top {or}{} of {each}{called}", count(most(k)))
            }
            Rule::TopOf { most: k, .. } => {
                format!("keeps the top h, at most {}, of {called}", count(most(k)))
            }
            Rule::Jointly(k) => format!("keeps the top {} of {called}", count(*k as u64)),
            Rule::Above { most, .. } => {
                format!("keeps what reaches a threshold, at most {}, of {called}", count(*most as u64))
            }
            Rule::By(selection) => {
                let most = count(selection.most() as u64);
                format!("keeps what the selector {} chooses, at most {most}, of {called}", selection.selector)
            }
            Rule::Random(k) => {
                let k = blocks.map(|b| u64::from(k.at(0, b))).sum();
                format!("keeps {} sampled at random of {called}", count(k))
            }
            Rule::Every => format!("rounds {called}"),
            Rule::Dense => format!("makes {called} dense"),
        }
    }

    /// What it looks at.
    pub fn scope(&self) -> Scope {
        match self {
            Rule::Top(_) | Rule::TopOf { .. } => Scope::Slot,
            Rule::Jointly(_) | Rule::Above { .. } => Scope::Slots,
            Rule::By(_) => Scope::Selector,
            Rule::Random(_) => Scope::Sampled,
            Rule::Every | Rule::Dense => Scope::Nothing,
        }
    }

    /// Whether the slots are looked at together.
    pub fn is_joint(&self) -> bool {
        matches!(self.scope(), Scope::Slots | Scope::Selector)
    }

    /// Whether the indices do not depend on any value.
    pub fn is_blind(&self) -> bool {
        matches!(self.scope(), Scope::Sampled | Scope::Nothing)
    }

    /// Whether it leaves no entry out.
    pub fn keeps_all(&self) -> bool {
        self.scope() == Scope::Nothing
    }

    /// Whether it leaves no entry of these blocks out, given with their lengths, whatever the values are.
    pub(super) fn keeps_entries(&self, mut blocks: impl Iterator<Item = (Block, usize)>) -> bool {
        match self {
            Rule::Every | Rule::Dense => true,
            Rule::Top(k) => blocks.all(|(block, len)| k.least(block) as usize >= len),
            Rule::Jointly(k) => *k >= blocks.map(|(_, len)| len).sum(),
            Rule::TopOf { .. } | Rule::Above { .. } | Rule::By(_) | Rule::Random(_) => false,
        }
    }

    /// Whether every index stays where it is, so that what is aligned stays aligned.
    pub fn keeps_form(&self) -> bool {
        match self {
            Rule::Every => true,
            Rule::Top(_)
            | Rule::TopOf { .. }
            | Rule::Jointly(_)
            | Rule::Above { .. }
            | Rule::By(_)
            | Rule::Random(_)
            | Rule::Dense => false,
        }
    }

    /// Whether there is a value for each entry of the block from here on.
    pub fn makes_dense(&self) -> bool {
        match self {
            Rule::Dense => true,
            Rule::Top(_)
            | Rule::TopOf { .. }
            | Rule::Jointly(_)
            | Rule::Above { .. }
            | Rule::By(_)
            | Rule::Random(_)
            | Rule::Every => false,
        }
    }

    /// Whether it reads what one worker has learnt by itself.
    pub(super) fn reads_own(&self) -> bool {
        match self {
            Rule::TopOf { register, .. } | Rule::Above { register, .. } => {
                matches!(register, Register::Own(_))
            }
            Rule::By(_) => true,
            Rule::Top(_) | Rule::Jointly(_) | Rule::Random(_) | Rule::Every | Rule::Dense => false,
        }
    }

    /// Whether it has what it needs for every block.
    pub(super) fn fits(&self, partition: &Partition) -> bool {
        match self {
            Rule::Top(k) | Rule::TopOf { most: k, .. } | Rule::Random(k) => k.blocks() == partition.blocks(),
            Rule::By(selection) => {
                let n = partition.entries();
                selection.selector.check().is_ok() && selection.layers.entries() == n && n < u32::MAX as usize
            }
            Rule::Jointly(_) | Rule::Above { .. } | Rule::Every | Rule::Dense => true,
        }
    }

    /// How many entries of a block it is to be prepared for; None where no threshold predicts them.
    pub(super) fn quota(&self, block: Block) -> Option<u32> {
        match self {
            Rule::Top(k) | Rule::TopOf { most: k, .. } => Some(k.most(block)),
            Rule::Jointly(_) | Rule::Above { .. } | Rule::By(_) => self.most(),
            Rule::Random(_) | Rule::Every | Rule::Dense => None,
        }
    }
}
