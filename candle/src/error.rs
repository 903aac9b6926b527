//! What can go wrong between a model's backward pass and the exchange.

use candle_core::{DType, DeviceLocation, Shape};
use gleaner_algorithms::merging::MergingError;
use gleaner_runtime::planner::PlanError;

/// Why a step cannot go on. The job has then ended on all ranks, which name this one and the reason.
#[derive(Debug, thiserror::Error)]
pub enum OverlapError {
    /// The exchange failed, or what was handed over does not fit.
    #[error(transparent)]
    Runtime(#[from] gleaner_runtime::Error),
    /// The backward pass itself failed.
    #[error("the backward pass failed: {0}")]
    Candle(#[from] candle_core::Error),
    /// A strategy that gives no groups.
    #[error(transparent)]
    Merging(#[from] MergingError),
    /// Groups where nothing can be exchanged before all is there.
    #[error(
        "local clipping needs the norm of the whole gradient before any of it is exchanged, and '{0}' would exchange groups of it; expected \
         the merging strategy 'single', or a method without clipping"
    )]
    Clipped(&'static str),
    /// No such parameter.
    #[error("there is no parameter named '{0}'; watch those that Overlap::new was given")]
    Unknown(String),
    /// No such embedding.
    #[error(
        "there is no embedding named '{0}'; ask for the rows of those that Overlap::with_embeddings was given"
    )]
    NoEmbedding(String),
    /// An embedding whose rows cannot be selected.
    #[error(
        "embedding '{name}' is of {dtype:?} on {device:?} with the shape {shape:?}; expected a matrix of f32 in main memory, or a \
         parameter that is no embedding"
    )]
    NoTable {
        /// The embedding.
        name: String,
        /// Its shape.
        shape: Shape,
        /// Its type.
        dtype: DType,
        /// Where it lies.
        device: DeviceLocation,
    },
    /// A parameter of another type or on a device.
    #[error(
        "parameter '{name}' is of {dtype:?} on {device:?}; expected f32 in main memory, or on a CUDA device in a build with the feature \
         'cuda' of gleaner-candle"
    )]
    Kind {
        /// The parameter.
        name: String,
        /// Its type.
        dtype: DType,
        /// Where it lies.
        device: DeviceLocation,
    },
    /// Parameters that are not all in the memory of one device.
    #[error("parameter '{name}' is on {device:?}, and others are not; expected all of them in one place")]
    Apart {
        /// The parameter.
        name: String,
        /// Where it lies.
        device: DeviceLocation,
    },
    /// A device that cannot be used.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Device(#[from] gleaner_cuda::CudaError),
    /// A tensor of an earlier step.
    #[error(
        "the model uses parameter '{0}' as it was watched in an earlier step, with the values of that step; call watch in every \
         forward pass"
    )]
    Stale(String),
    /// A gradient of which only a part was handed over.
    #[error(
        "the model uses parameter '{0}' both as watched and directly in one step, so that its gradient comes in two parts; use \
         what watch gives in all places"
    )]
    TwoWays(String),
    /// A second backward pass in a step.
    #[error(
        "backward was called twice in one step; add the losses and call it once, or call wait between the two"
    )]
    Twice,
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

impl From<PlanError> for OverlapError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Runtime(error) => Self::Runtime(error),
            PlanError::Merging(error) => Self::Merging(error),
            PlanError::Times { rank, expected, found } => Self::Times { rank, expected, found },
        }
    }
}
