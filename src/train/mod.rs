//! `gleaner train`: a trainer for several workers that exchange sparse gradients.
//!
//! [`worker`] is what each rank runs: the same model from the same seed, its own share of the data, gradients handed to
//! a session, and the common update applied. The models and layers stand on candle, which only this module knows.

mod agreement;
mod arguments;
mod checkpoint;
mod data;
mod error;
mod evaluation;
mod layers;
mod models;
mod optimizer;
mod parameters;
mod random;
mod standin;
mod summary;
mod worker;

pub use arguments::TrainArgs;
pub use error::TrainError;
pub use summary::{Progress, Summary};
pub use worker::worker;

use standin as runtime;
