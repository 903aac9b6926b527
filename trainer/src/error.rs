//! What is wrong with data and models.

use std::path::PathBuf;

use crate::data::Input;
use crate::device::Place;
use crate::models::ModelKind;

/// The names of data, without paths.
const KNOWN: &str =
    "text, digits, mnist, cifar10, cifar100, synthetic, fresh-text, fresh-digits, fresh-clicks";

/// Why there is nothing to train, or nothing to train on.
#[derive(Debug, thiserror::Error)]
pub enum TrainerError {
    /// The argument of `--data` names no known data.
    #[error(
        "--data: expected text, text:FILE, digits, mnist:DIR, cifar10:DIR, cifar100:DIR, synthetic, fresh-text, \
         fresh-digits or fresh-clicks, found {found:?}{}; use one of these",
        gleaner_algorithms::did_you_mean(found.split(':').next().unwrap_or_default(), KNOWN)
    )]
    UnknownData {
        /// The argument.
        found: String,
    },
    /// A data file is missing, damaged or of another kind.
    #[error("{}: expected {expected}, found {found}; {advice}", path.display())]
    Data {
        /// The file or directory.
        path: PathBuf,
        /// What a good file has.
        expected: String,
        /// What this one has.
        found: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// The model cannot read this kind of data.
    #[error("--model {model} needs {needed}, found {found}; choose other data or another --model")]
    ModelAndData {
        /// The model asked for.
        model: ModelKind,
        /// What it can read.
        needed: &'static str,
        /// What the data are.
        found: Input,
    },
    /// The workers' batches are larger than the data.
    #[error(
        "expected at least one batch of {batch} for each of {workers} workers, found {examples} examples to train on; \
         lower --batch or --workers, or bring more data"
    )]
    TooFewExamples {
        /// Examples to train on.
        examples: usize,
        /// Workers that share them.
        workers: usize,
        /// Examples per worker and step.
        batch: usize,
    },
    /// A device that only another build of this program has.
    #[error(
        "--device {place}: expected cpu, since this program is built without CUDA; build it with cargo build --release --package \
         gleaner-cli --features cuda, which needs nvcc and the libraries of CUDA"
    )]
    NotBuilt {
        /// The argument.
        place: Place,
    },
    /// A device that is not there, or is of no use.
    #[error("--device {place}: there is no such device that can be used: {source}; choose another --device")]
    NoDevice {
        /// The argument.
        place: Place,
        /// What candle says.
        source: candle_core::Error,
    },
    /// The computation failed.
    #[error("the computation of a step failed: {0}; please report this together with the command")]
    Compute(#[from] candle_core::Error),
    /// An update of another layout than the model's.
    #[error(transparent)]
    Layout(#[from] gleaner_runtime::LayoutError),
    /// An update that cannot be applied.
    #[error(transparent)]
    Runtime(#[from] gleaner_runtime::Error),
}
