//! Which layers are exchanged together: OMGS-SGD (Shi et al., INFOCOM 2020) and its relatives.
//!
//! Backpropagation finishes one layer after the other. What is finished can be selected and exchanged while earlier layers of the
//! network are still at work. A [`Grouping`] says which layers wait for each other and are then selected and exchanged as
//! one. What it takes is computed by one [evaluator](evaluate), which all [strategies](STRATEGIES) and figures share.
//!
//! A new strategy is one new file here, its `mod` and one line in [`STRATEGIES`].
//!
//! ```
//! use gleaner_algorithms::merging::{self, Affine, Layer, Line, Pass, Placement, Problem};
//!
//! // Three layers, in the order in which backpropagation finishes them: seconds, and entries.
//! let layer = |backward, entries| Layer { backward, entries };
//! let pass = Pass::new(0.010, vec![layer(0.004, 5000), layer(0.0005, 200_000), layer(0.002, 1000)])?;
//! let costs = Affine {
//!     select: Line { fixed: 49e-6, per_entry: 1.7e-9 },
//!     exchange: Line { fixed: 1e-3, per_entry: 20e-9 },
//! };
//! let problem = Problem { pass: &pass, costs: &costs, place: Placement::Beside };
//! let grouping = merging::named("optimal")?.group(&problem)?;
//! let timeline = merging::evaluate(&problem, &grouping)?;
//! assert_eq!(grouping.to_string(), "2 + 1");
//! assert!(timeline.iteration < 0.0211);
//! # Ok::<(), gleaner_algorithms::merging::MergingError>(())
//! ```

mod bounds;
mod costs;
mod evaluate;
mod fit;
mod frontier;
mod grouping;
mod layer_wise;
mod mg_wfbp;
mod models;
mod omgs;
mod optimal;
mod pass;
mod single;
mod threshold;

use std::fmt::Debug;

pub use costs::{Affine, Costs, GroupCost, Line, Predicted, Published};
pub use evaluate::{GroupTimes, Placement, Problem, Span, Timeline, evaluate};
pub use fit::{Misfit, fit_growth, growth};
pub use grouping::Grouping;
pub use layer_wise::LayerWise;
pub use mg_wfbp::MgWfbp;
pub use models::{MODELS, ModelTensors, Tensor};
pub use omgs::Omgs;
pub use optimal::{Optimal, Solution};
pub use pass::{Layer, Pass};
pub use single::Single;
pub use threshold::Threshold;

use crate::collectives::RoutineError;

/// A way to decide which layers are exchanged together.
pub trait Strategy: Debug + Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// Where it was published and what it does, in one line.
    fn summary(&self) -> &'static str;

    /// The same with what stands behind a slash after the name; None where it takes nothing, or not this.
    fn with(&self, _value: &str) -> Option<Box<dyn Strategy>> {
        None
    }

    /// Whether its groups depend on times and costs, and not on the layers' entries and order alone.
    fn needs_times(&self) -> bool {
        true
    }

    /// The groups for this problem.
    ///
    /// # Errors
    /// Costs that cannot be evaluated, are negative or not finite.
    fn group(&self, problem: &Problem<'_>) -> Result<Grouping, MergingError>;
}

/// All strategies, in the order in which they are listed to users.
pub static STRATEGIES: &[fn() -> Box<dyn Strategy>] = &[
    || Box::new(LayerWise),
    || Box::new(Single),
    || Box::new(Threshold::PUBLISHED),
    || Box::new(MgWfbp),
    || Box::new(Omgs::READ),
    || Box::new(Omgs::PRINTED),
    || Box::new(Optimal),
];

/// The strategy of this name, such as `optimal`, `threshold` or `threshold/65536`.
///
/// # Errors
/// [`MergingError::Unknown`] and [`MergingError::Value`].
pub fn named(text: &str) -> Result<Box<dyn Strategy>, MergingError> {
    let (name, value) = text.split_once('/').map_or((text, None), |(name, value)| (name, Some(value)));
    let mut all = STRATEGIES.iter().map(|strategy| strategy());
    let Some(strategy) = all.find(|strategy| strategy.name() == name) else {
        let known: Vec<_> = STRATEGIES.iter().map(|strategy| strategy().name()).collect();
        return Err(MergingError::Unknown { name: name.into(), known: known.join(", ") });
    };
    match value {
        None => Ok(strategy),
        Some(value) => strategy
            .with(value)
            .ok_or_else(|| MergingError::Value { strategy: strategy.name(), value: value.into() }),
    }
}

/// Layers that cannot be merged, or a strategy that is not there.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum MergingError {
    /// No such strategy.
    #[error(
        "there is no merging strategy '{name}'{}; choose one of {known}",
        crate::sentence::did_you_mean(name, known)
    )]
    Unknown {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A value that a strategy does not take.
    #[error(
        "merging strategy {strategy} takes no '{value}'; expected a number of entries above 0 behind 'threshold/', such as threshold/8192, and nothing behind other names"
    )]
    Value {
        /// The strategy's name.
        strategy: &'static str,
        /// What stood behind the slash.
        value: String,
    },
    /// No layers.
    #[error("a backward pass of no layers; expected at least one")]
    NoLayers,
    /// A layer without entries.
    #[error(
        "layer {layer} has no entries; expected at least one in each: leave it out, with its time added to the next"
    )]
    Empty {
        /// Which, counted from 0 in the order in which backpropagation finishes them.
        layer: usize,
    },
    /// An invalid time.
    #[error("{what} takes {seconds} s; expected a finite time of at least 0: measure it again")]
    Time {
        /// What takes it.
        what: String,
        /// The time given, in seconds.
        seconds: f64,
    },
    /// A grouping that does not fit.
    #[error(
        "groups end after layers {ends:?}, and there are {layers} layers; expected ends that increase from at least 1, the last one {layers}"
    )]
    Ends {
        /// Behind which layers the groups end.
        ends: Vec<usize>,
        /// How many layers there are.
        layers: usize,
    },
    /// A line of a file of tensors that cannot be read.
    #[error(
        "line {line} of the tensors of {model} reads '{text}'; expected a layer's name and its tensors, such as 'conv1 weight=64x3x3x3 bias=64'"
    )]
    Tensors {
        /// The model.
        model: String,
        /// Which line, counted from 1.
        line: usize,
        /// What it says.
        text: String,
    },
    /// No forecast for this many entries.
    #[error(transparent)]
    Forecast(#[from] RoutineError),
}

crate::sentence::debug_as_sentence!(MergingError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_are_found_by_name() {
        for strategy in STRATEGIES {
            let (name, found) = (strategy().name(), named(strategy().name()).unwrap());
            assert_eq!(found.name(), name);
            assert_eq!(STRATEGIES.iter().filter(|other| other().name() == name).count(), 1);
        }
        let four = named("threshold/4").unwrap();
        assert_eq!(format!("{four:?}"), format!("{:?}", Threshold { entries: 4 }));
        // Numbers are written as in all options.
        for million in ["threshold/1000000", "threshold/1_000_000", "threshold/1M", "threshold/1e6"] {
            assert_eq!(
                format!("{:?}", named(million).unwrap()),
                format!("{:?}", Threshold { entries: 1_000_000 })
            );
        }
        let error = named("omsg").unwrap_err().to_string();
        assert!(error.contains("'omsg'") && error.contains("omgs, omgs-printed, optimal"), "{error}");
        for text in
            ["optimal/3", "threshold/", "threshold/0", "threshold/0k", "threshold/1.5", "threshold/many"]
        {
            assert!(named(text).unwrap_err().to_string().contains("threshold/8192"), "{text}");
        }
    }
}
