//! Why a set of schedules does not achieve its goal.

use super::super::{Fault, Slots};
use crate::{Block, Rank};

/// Why a set of schedules is refused.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// No schedule at all.
    #[error("there are schedules for no worker; expected one for each rank")]
    NoWorkers,
    /// The schedules do not belong together.
    #[error(
        "schedule {position} says it is for {rank} of {workers} workers with another partition or number of workers than schedule 0; expected the schedules of all ranks in order"
    )]
    Misplaced {
        /// Position in the list.
        position: usize,
        /// The rank it names.
        rank: Rank,
        /// The number of workers it names.
        workers: u32,
    },
    /// A step names a rank or blocks that do not exist, or its own rank as a peer.
    #[error("step {step} of {rank} names a peer or slots {slots} that do not exist")]
    Nowhere {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: usize,
        /// The slots it names.
        slots: Slots,
    },
    /// Lanes that are relative to blocks, and as many blocks as do not come round with them.
    #[error(
        "the schedules cannot be rotated by {by}: their lanes do not come round with the blocks; use no relative lanes, or a number of blocks that is a multiple of that of the lanes"
    )]
    Rotation {
        /// By how many ranks.
        by: u32,
    },
    /// A step uses a block that left this worker, or places one where another is.
    #[error("step {step} of {rank} {fault} {block}")]
    Slot {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: usize,
        /// The block.
        block: Block,
        /// What is wrong.
        fault: &'static str,
    },
    /// A receive does not name the slots that were sent.
    #[error("step {step} of {rank} expects slots {expected} from {from}, which sends slots {found}")]
    Mismatch {
        /// The receiver.
        rank: Rank,
        /// Its step.
        step: usize,
        /// The sender.
        from: Rank,
        /// What the receive names.
        expected: Slots,
        /// What the send names.
        found: Slots,
    },
    /// Every worker that is not done waits.
    #[error("step {step} of {rank} waits for {from}, which never sends")]
    Deadlock {
        /// The rank that waits.
        rank: Rank,
        /// In which step.
        step: usize,
        /// The rank that it waits for.
        from: Rank,
    },
    /// A message that no worker receives.
    #[error("{from} sends slots {slots} to {to}, which never receives them")]
    Unreceived {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// The slots.
        slots: Slots,
    },
    /// A worker ends without a block, or with another expression than rank 0.
    #[error("{rank} ends with another sum in {block} than rank 0")]
    Differs {
        /// The worker.
        rank: Rank,
        /// The block.
        block: Block,
    },
    /// What the machine itself refuses.
    #[error(transparent)]
    Fault(Fault),
    /// A contribution is lost or counted twice.
    #[error("the contribution of {rank} to {block} is counted {times} times; expected once")]
    Counted {
        /// Whose contribution.
        rank: Rank,
        /// The block.
        block: Block,
        /// How often.
        times: usize,
    },
}

crate::sentence::debug_as_sentence!(CheckError);
