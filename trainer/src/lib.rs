//! What `gleaner train` trains: models and their layers, data, and the optimizer. It stands on candle; nothing of it knows of workers
//! but that each has its share of the data.

pub mod data;
pub mod dct;
pub mod device;
pub mod layers;
pub mod models;
pub mod optimizer;
pub mod parameters;

mod error;

pub use error::TrainerError;
