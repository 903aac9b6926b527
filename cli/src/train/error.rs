//! What can go wrong while training: what a caller tells from other errors, and sentences that several places say.

use std::io;
use std::path::Path;

use gleaner_runtime::agreement::Disagreement;
use gleaner_runtime::{CheckpointError, Error, Failure};

use crate::report::{CommandError, refused};

/// The result of a part of training, or why the worker stops.
pub type TrainResult<T> = Result<T, CommandError>;

/// There is no step of which every worker has a checkpoint.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoCommonCheckpoint(pub String);

/// An option with a value that it may not have.
pub fn wrong(option: &str, expected: &str, found: &str) -> CommandError {
    refused(format!("{option}: expected {expected}, found {found}; correct the option"))
}

/// A checkpoint that cannot be taken, or is in the way.
pub fn unfit(path: &Path, expected: &str, found: &str, advice: &str) -> CommandError {
    format!("checkpoint {}: expected {expected}, found {found}; {advice}", path.display()).into()
}

/// A file or a directory that takes nothing.
pub fn unwritten(path: &Path) -> impl Fn(io::Error) -> CommandError {
    let advice = "make sure that the directory is writable and has room";
    move |source| format!("{}: could not be written: {source}; {advice}", path.display()).into()
}

/// The same error, in a sentence where the computation of a step has failed.
pub fn said(error: CommandError) -> CommandError {
    match error.downcast::<candle_core::Error>() {
        Ok(error) => {
            let advice = "please report this together with the command";
            format!("the computation of a step failed: {error}; {advice}").into()
        }
        Err(error) => error,
    }
}

/// The failure that all ranks see together, so that this one need not report it to them.
pub fn of_all(error: &CommandError) -> Option<Failure> {
    if let Some(disagreement) = error.downcast_ref::<Disagreement>() {
        return disagreement.of_all();
    }
    let (rank, reason) = match error.downcast_ref::<Error>() {
        Some(Error::Checkpoint(CheckpointError::Refused { rank, reason })) => (*rank, reason.clone()),
        Some(Error::Checkpoint(CheckpointError::Apart { other, .. })) => (other.0, error.to_string()),
        _ if error.is::<NoCommonCheckpoint>() => (0, error.to_string()),
        _ => return None,
    };
    Some(Failure { rank, step: None, reason })
}
