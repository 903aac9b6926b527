//! What keeps a plan from being made.

use gleaner_algorithms::merging::MergingError;

use crate::failure::Error;

/// Why there is no plan.
#[derive(thiserror::Error)]
pub enum PlanError {
    /// The job has failed.
    #[error(transparent)]
    Runtime(#[from] Error),
    /// A strategy that gives no groups.
    #[error(transparent)]
    Merging(#[from] MergingError),
    /// A rank that measured other layers.
    #[error(
        "rank {rank} sent {found} bytes of measured times, expected {expected}; start every worker with the same program and model"
    )]
    Times {
        /// The rank.
        rank: usize,
        /// The bytes of this many layers.
        expected: usize,
        /// How many came.
        found: usize,
    },
}

gleaner_transport::debug_as_sentence!(PlanError);
