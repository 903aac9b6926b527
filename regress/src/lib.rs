//! Linear models on sparse data, trained by several workers that exchange sparse gradients: logistic regression, support vector
//! machines and least squares with L1 and L2, as SparCML's MPI-OPT trains them.
//!
//! Every worker holds its samples in main memory as rows of indices and values, eight bytes for each non-zero entry, and a model of
//! four bytes for each feature, or twelve with L1; each thread has 16 bytes for each feature that occurs. What a step takes beyond
//! that grows with the entries of its batch alone.

pub mod data;
pub mod evaluation;
pub mod model;
pub mod objective;
pub mod settings;

mod agreement;
mod columns;
mod compact;
mod coordinates;
mod error;
mod exchange;
mod gradient;
mod job;
mod order;
mod prediction;
mod scoring;
mod sgd;
mod weights;

pub use error::RegressError;
pub use job::{Epoch, Trained, train};
pub use prediction::{Predicted, predict};
