//! What can go wrong while training.

use std::io;
use std::path::PathBuf;

use gleaner_runtime::{CheckpointError, Error, Failure};

/// Why a worker stopped; each says what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// Samples are to be dealt out that do not fit the workers.
    #[error(
        "--balance: expected the samples of each of {workers} workers, {samples} together, found {found}; correct it, or let \
         them be dealt out by speed"
    )]
    Balance {
        /// How many workers there are.
        workers: usize,
        /// Samples of a step.
        samples: usize,
        /// As given.
        found: String,
    },
    /// An option has a value that makes no sense.
    #[error("{option}: expected {expected}, found {found}; correct the option")]
    Setting {
        /// The option, such as `--density`.
        option: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// The loss is no longer a number.
    #[error("at step {step} the loss is {loss}, not a finite number; lower --lr, or set --clip")]
    Diverged {
        /// The step.
        step: u64,
        /// The loss.
        loss: f32,
    },
    /// Workers that must agree do not.
    #[error("expected the same {what} on every worker, found {found}; {advice}")]
    WorkersDiffer {
        /// The first of those that fewest agree with.
        rank: u32,
        /// What must agree.
        what: &'static str,
        /// Which ranks have what.
        found: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// A checkpoint does not fit this run, or is damaged.
    #[error("checkpoint {}: expected {expected}, found {found}; {advice}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What this run needs.
        expected: String,
        /// What the checkpoint has.
        found: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// There is no step of which every worker has a checkpoint.
    #[error(
        "--resume: expected a step of which every worker has a checkpoint in {}, found {found}; \
         point --checkpoint at the directory of an earlier run, or start without --resume", directory.display()
    )]
    NoCommonCheckpoint {
        /// The directory of checkpoints.
        directory: PathBuf,
        /// The steps each rank has.
        found: String,
    },
    /// Another worker has been refused its checkpoint.
    #[error("rank {rank} cannot begin: {reason}")]
    Refused {
        /// Which one.
        rank: u32,
        /// What it says.
        reason: String,
    },
    /// Gradients of another run lie where those of this one belong.
    #[error(
        "--record: expected a directory without recorded gradients, found {}; remove what was recorded there, or choose another \
         directory", path.display()
    )]
    Recorded {
        /// One of them.
        path: PathBuf,
    },
    /// A run whose last step has no gradient.
    #[error(
        "--record: expected a gradient of the last step for {}, found none, since the step was skipped or had been taken before; \
         train with another number of --steps", path.display()
    )]
    NothingToRecord {
        /// The file that was to be written.
        path: PathBuf,
    },
    /// A file could not be written.
    #[error("{}: could not be written: {source}; make sure that the directory is writable and has room", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Data or a model that cannot be.
    #[error(transparent)]
    Trainer(#[from] gleaner_trainer::TrainerError),
    /// The forward or backward pass failed.
    #[error("the computation of a step failed: {0}; please report this together with the command")]
    Compute(#[from] candle_core::Error),
    /// The exchange with the other workers failed.
    #[error(transparent)]
    Runtime(#[from] gleaner_runtime::Error),
    /// Gradients that cannot be handed over while the backward pass goes on.
    #[error(transparent)]
    Overlap(#[from] gleaner_candle::OverlapError),
    /// No such synchrony.
    #[error("--synchrony: {0}")]
    Synchrony(#[from] gleaner_algorithms::synchrony::SynchronyError),
    /// No such merging strategy.
    #[error("--merge: {0}")]
    Merging(#[from] gleaner_algorithms::merging::MergingError),
    /// The layout and what is asked of an update differ.
    #[error(transparent)]
    Layout(#[from] gleaner_runtime::LayoutError),
    /// A method that cannot be.
    #[error(transparent)]
    Choice(#[from] crate::choice::ChoiceError),
    /// A correction that cannot be.
    #[error(transparent)]
    Correction(#[from] gleaner_algorithms::residual::CorrectionError),
    /// A checkpoint that cannot be written.
    #[error(transparent)]
    Staged(#[from] gleaner_runtime::staged::StagedError),
    /// A model that became worse.
    #[error(
        "the training diverged: the held-out loss was {first:.4} before the first step and is {} now; lower --lr, or clip gradients \
         with --clip",
        if *last < 1e6 { format!("{last:.4}") } else { format!("{last:.1e}") }
    )]
    Worse {
        /// The loss before the first step.
        first: f64,
        /// The loss after the last one.
        last: f64,
    },
}

impl TrainError {
    /// The failure that all ranks see together, so that this one need not report it to them.
    pub fn of_all(&self) -> Option<Failure> {
        let (rank, reason) = match self {
            TrainError::Refused { rank, reason }
            | TrainError::Runtime(Error::Checkpoint(CheckpointError::Refused { rank, reason })) => {
                (*rank, reason.clone())
            }
            TrainError::Runtime(Error::Checkpoint(CheckpointError::Apart { other, .. })) => {
                (other.0, self.to_string())
            }
            TrainError::NoCommonCheckpoint { .. } => (0, self.to_string()),
            TrainError::WorkersDiffer { rank, .. } => (*rank, self.to_string()),
            _ => return None,
        };
        Some(Failure { rank, step: None, reason })
    }
}
