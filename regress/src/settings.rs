//! What a run is to do.

use std::path::PathBuf;

use gleaner_algorithms::Method;

use crate::data::Source;
use crate::error::RegressError;
use crate::objective::{Loss, Penalty};

/// How the learning rate falls, with t in epochs since the beginning, and the decay d.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// η.
    Constant,
    /// η/(1 + d·t).
    Inverse,
    /// η/√(1 + d·t).
    Root,
}

impl Schedule {
    /// The share of the first rate that is left.
    pub fn share(self, decay: f64, epochs: f64) -> f64 {
        match self {
            Schedule::Constant => 1.0,
            Schedule::Inverse => 1.0 / (1.0 + decay * epochs),
            Schedule::Root => 1.0 / (1.0 + decay * epochs).sqrt(),
        }
    }
}

/// Mini-batch stochastic gradient descent.
#[derive(Clone, Debug, PartialEq)]
pub struct Descent {
    /// Samples of each worker in a step.
    pub batch: usize,
    /// The learning rate at first, η; without one, 1/(c·mean ‖x‖² + λ₂), where c is the most that the loss's second derivative is.
    pub rate: Option<f64>,
    /// How it falls.
    pub schedule: Schedule,
    /// How fast.
    pub decay: f64,
    /// How many steps behind the weights may be by which a gradient is computed.
    pub staleness: usize,
    /// Threads of each worker.
    pub threads: usize,
    /// Whether samples come in another order in every epoch, or always in that of the file.
    pub shuffles: bool,
}

/// How the objective is minimised.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// By batches of samples, of which every worker has its own.
    Sgd(Descent),
    /// By coordinates: stochastic coordinate descent. Every worker has all samples, and a slice of the features.
    Scd {
        /// Coordinates that each worker changes in an iteration.
        coordinates: usize,
    },
}

/// What a run is to do; the same on all workers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where samples come from.
    pub data: Source,
    /// Samples that are not trained on: a LIBSVM file.
    pub held_out: Option<PathBuf>,
    /// The number of features, n; without it, the highest index there is.
    pub features: Option<usize>,
    /// A constant entry of every sample, whose weight is a bias.
    pub bias: Option<f32>,
    /// What a wrong prediction costs.
    pub loss: Loss,
    /// What large weights cost.
    pub penalty: Penalty,
    /// How the objective is minimised.
    pub algorithm: Algorithm,
    /// Passes over the data, or over the coordinates.
    pub epochs: u64,
    /// Of all that is random.
    pub seed: u64,
    /// How workers sum up sparse vectors.
    pub method: Method,
}

/// Threads of a worker, at most: each has a place for every feature that occurs.
const MOST_THREADS: usize = 256;

/// Steps that may be under way, at most.
const MOST_STEPS: usize = 64;

/// Features, at most: what vectors of indices of 32 bits can have, with room for a constant.
pub const MOST_FEATURES: usize = u32::MAX as usize - 2;

impl Settings {
    /// Makes sure that options make sense, and fit each other.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), RegressError> {
        let number = |option, value: f64, may: bool, expected: &str| match may {
            true => Ok(()),
            false => Err(RegressError::setting(option, expected, value)),
        };
        let Penalty { l1, l2 } = self.penalty;
        number("--l1", l1, l1.is_finite() && l1 >= 0.0, "a finite number from 0 on")?;
        number("--l2", l2, l2.is_finite() && l2 >= 0.0, "a finite number from 0 on")?;
        if let Some(bias) = self.bias {
            number("--bias", bias.into(), bias.is_finite() && bias != 0.0, "a finite number other than 0")?;
        }
        if let Some(features) = self.features.filter(|n| !(1..=MOST_FEATURES).contains(n)) {
            let expected = format!("a number from 1 to {MOST_FEATURES}");
            return Err(RegressError::setting("--features", &expected, features));
        }
        if let (Source::Generated { .. }, Some(1)) = (&self.data, self.features) {
            return Err(RegressError::setting("--features", "2 or more of synthetic data", 1));
        }
        if self.method.sparse_candidates(2, 2).is_err() {
            return Err(RegressError::setting(
                "--method",
                "a method that sums sparse vectors, or auto",
                self.method.collective().name(),
            ));
        }
        match &self.algorithm {
            Algorithm::Sgd(Descent { batch, rate, decay, threads, staleness, .. }) => {
                number("--batch", *batch as f64, *batch > 0, "1 or more")?;
                let may = (1..=MOST_THREADS).contains(threads);
                number("--threads", *threads as f64, may, &format!("1 to {MOST_THREADS}"))?;
                let may = *staleness <= MOST_STEPS;
                number("--staleness", *staleness as f64, may, &format!("at most {MOST_STEPS} steps"))?;
                number("--decay", *decay, decay.is_finite() && *decay >= 0.0, "a finite number from 0 on")?;
                let Some(rate) = *rate else { return Ok(()) };
                number("--lr", rate, rate.is_finite() && rate > 0.0, "a finite number above 0")?;
                let most = "less than 1/λ₂, beyond which L2 turns the signs of all weights";
                number("--lr", rate, rate * l2 < 1.0, most)
            }
            Algorithm::Scd { coordinates } => {
                number("--coordinates", *coordinates as f64, *coordinates > 0, "1 or more")?;
                if self.loss.curvature().is_none() {
                    let expected = "logistic, squared-hinge or squares for coordinate descent, which can stop at a corner \
                                    of another loss";
                    return Err(RegressError::setting("--loss-function", expected, self.loss));
                }
                Ok(())
            }
        }
    }
}
