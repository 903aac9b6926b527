//! What can go wrong while training.

use std::io;
use std::path::PathBuf;

use gleaner_runtime::agreement::Disagreement;
use gleaner_runtime::{CheckpointError, Error, Failure};

/// Why a worker stopped; each says what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(
        "--balance: expected the samples of each of {workers} workers, {samples} together, found {found}; correct it, or let \
         them be distributed by speed"
    )]
    Balance { workers: usize, samples: usize, found: String },
    #[error("--slow: {0}")]
    Slow(String),
    #[error("{option}: expected {expected}, found {found}; correct the option")]
    Setting { option: &'static str, expected: &'static str, found: String },
    #[error("at step {step} the loss is {loss}, not a finite number; lower --lr, or set --clip")]
    Diverged { step: u64, loss: f32 },
    #[error(transparent)]
    Agreement(#[from] Disagreement),
    #[error("checkpoint {}: expected {expected}, found {found}; {advice}", path.display())]
    Checkpoint { path: PathBuf, expected: &'static str, found: String, advice: &'static str },
    #[error(
        "--resume: expected a step of which every worker has a checkpoint in {}, found {found}; \
         point --checkpoint at the directory of an earlier run, or start without --resume", directory.display()
    )]
    NoCommonCheckpoint { directory: PathBuf, found: String },
    #[error(
        "--record: expected a directory without recorded gradients, found {}; remove what was recorded there, or choose another \
         directory", path.display()
    )]
    Recorded { path: PathBuf },
    #[error(
        "--record: expected a gradient of the last step for {}, found none, since the step was skipped or had been taken before; \
         train with another number of --steps", path.display()
    )]
    NothingToRecord { path: PathBuf },
    #[error("{}: could not be written: {source}; make sure that the directory is writable and has room", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Trainer(#[from] gleaner_trainer::TrainerError),
    #[error("the computation of a step failed: {0}; please report this together with the command")]
    Compute(#[from] candle_core::Error),
    #[error(transparent)]
    Runtime(#[from] gleaner_runtime::Error),
    #[error(transparent)]
    Overlap(#[from] gleaner_candle::OverlapError),
    #[error("--synchrony: {0}")]
    Synchrony(#[from] gleaner_algorithms::synchrony::SynchronyError),
    #[error("--merge: {0}")]
    Merging(#[from] gleaner_algorithms::merging::MergingError),
    #[error(transparent)]
    Layout(#[from] gleaner_runtime::LayoutError),
    #[error(transparent)]
    Choice(#[from] crate::choice::ChoiceError),
    #[error(transparent)]
    Correction(#[from] gleaner_algorithms::residual::CorrectionError),
    #[error(transparent)]
    Staged(#[from] gleaner_runtime::staged::StagedError),
    #[error(
        "the training diverged: the held-out loss was {first:.4} before the first step and is {} now; lower --lr, or clip gradients \
         with --clip",
        if *last < 1e6 { format!("{last:.4}") } else { format!("{last:.1e}") }
    )]
    Worse { first: f64, last: f64 },
}

/// The result of a part of training, or why the worker stops.
pub type TrainResult<T> = Result<T, TrainError>;

impl TrainError {
    /// The failure that all ranks see together, so that this one need not report it to them.
    pub fn of_all(&self) -> Option<Failure> {
        let (rank, reason) = match self {
            TrainError::Agreement(error) => return error.of_all(),
            TrainError::Runtime(Error::Checkpoint(CheckpointError::Refused { rank, reason })) => {
                (*rank, reason.clone())
            }
            TrainError::Runtime(Error::Checkpoint(CheckpointError::Apart { other, .. })) => {
                (other.0, self.to_string())
            }
            TrainError::NoCommonCheckpoint { .. } => (0, self.to_string()),
            _ => return None,
        };
        Some(Failure { rank, step: None, reason })
    }
}
