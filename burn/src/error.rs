//! What can go wrong between a model's backward pass and the exchange.

use gleaner_algorithms::merging::MergingError;
use gleaner_runtime::planner::PlanError;

/// Why a step cannot go on. The job has then ended on all ranks, which name this one and the reason.
#[derive(Debug, thiserror::Error)]
pub enum OverlapError {
    /// The exchange failed, or what was handed over does not fit.
    #[error(transparent)]
    Runtime(#[from] gleaner_runtime::Error),
    /// Layers that cannot be grouped, or whose times no rank can give.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Groups where nothing can be exchanged before all is there.
    #[error(
        "local clipping needs the norm of the whole gradient before any of it is exchanged, and '{0}' would exchange groups of it; \
         expected the merging strategy 'single', or a method without clipping"
    )]
    Clipped(&'static str),
    /// A module with nothing to train.
    #[error("the module has no parameter that requires a gradient; make it on Device::flex().autodiff()")]
    Untrained,
    /// A parameter that the module did not have at first.
    #[error(
        "a layer has a parameter that the module of Overlap::new does not have; watch the layers of that module"
    )]
    Unknown,
    /// A parameter of another type or on another device.
    #[error("parameter '{name}' is of {found}; expected f32 on Device::flex().autodiff()")]
    Kind {
        /// The parameter.
        name: String,
        /// Its type and device.
        found: String,
    },
    /// A gradient that burn does not give.
    #[error("the gradient of '{name}' cannot be read: {reason}")]
    Unreadable {
        /// The parameter.
        name: String,
        /// What burn says.
        reason: String,
    },
    /// A layer of an earlier step.
    #[error(
        "the model uses parameter '{0}' as it was watched in an earlier step, with the values of that step; call watch in every \
         forward pass"
    )]
    Stale(String),
    /// A gradient of which only a part was handed over.
    #[error(
        "the model uses parameter '{0}' both as watched and directly in one step, so that its gradient comes in two parts; use the \
         layer that watch gives in all places"
    )]
    TwoWays(String),
    /// A second backward pass in a step.
    #[error(
        "backward was called twice in one step; add the losses and call it once, or call wait between the two"
    )]
    Twice,
}

impl From<MergingError> for OverlapError {
    fn from(error: MergingError) -> Self {
        Self::Plan(error.into())
    }
}
