//! What can go wrong; each says what was expected, what was found, and what to do.

use std::io;
use std::path::PathBuf;

use gleaner_runtime::Failure;
use gleaner_runtime::agreement::Disagreement;

/// Why nothing was trained or predicted.
#[derive(Debug, thiserror::Error)]
pub enum RegressError {
    /// A line that is not a sample.
    #[error("{}: line {line}, column {column}: expected {expected}, found {found}; correct the line", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: u64,
        /// The byte within the line, from 1.
        column: usize,
        /// What should stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A file that cannot be read.
    #[error("{}: could not be read: {source}; make sure that it is there, whole, and may be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason, or the decoder's.
        source: io::Error,
    },
    /// Data that do not fit each other or the options.
    #[error("{data}: expected {expected}, found {found}; {advice}")]
    Data {
        /// The file or the shape.
        data: String,
        /// What is needed.
        expected: String,
        /// What is there.
        found: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// An option has a value that makes no sense.
    #[error("{option}: expected {expected}, found {found}; correct the option")]
    Setting {
        /// The option, such as `--lr`.
        option: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The loss is no longer a number.
    #[error("in epoch {epoch} the loss is {loss}, not a finite number; lower --lr")]
    Diverged {
        /// From 1.
        epoch: u64,
        /// The loss.
        loss: f64,
    },
    /// A file that is not a model, is damaged, or is of other data.
    #[error("{}: expected {expected}, found {found}; {advice}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What is needed.
        expected: String,
        /// What is there.
        found: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// Workers that must agree do not, or another worker has been refused something.
    #[error(transparent)]
    Agreement(#[from] Disagreement),
    /// A worker sent a note that this version does not understand.
    #[error(
        "expected a note of {expected} from rank {rank}, found {found} bytes; run the same version of gleaner on every worker"
    )]
    Note {
        /// The sender.
        rank: usize,
        /// What the note should be.
        expected: &'static str,
        /// Its length.
        found: usize,
    },
    /// The exchange with the other workers failed.
    #[error(transparent)]
    Runtime(#[from] gleaner_runtime::Error),
    /// What is asked of an update and what it holds differ.
    #[error(transparent)]
    Layout(#[from] gleaner_runtime::LayoutError),
}

impl RegressError {
    /// An option that has a value that makes no sense.
    pub fn setting(option: &'static str, expected: &str, found: impl ToString) -> Self {
        RegressError::Setting { option, expected: expected.into(), found: found.to_string() }
    }

    /// The failure that all ranks know of, so that this one need not report it.
    pub fn of_all(&self) -> Option<Failure> {
        match self {
            RegressError::Agreement(error) => error.of_all(),
            _ => None,
        }
    }
}
