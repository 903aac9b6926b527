//! The testbed: networks that are emulated by namespaces and by a machine, networks that are simulated, experiments from
//! files, and reports to look at.

pub mod campaign;
pub mod experiment;
pub mod machine;
pub mod network;
mod ongoing;
pub mod peers;
pub mod record;
pub mod report;
pub mod simulation;
pub mod topology;

/// Why something was not done: a sentence that says what was expected, what was found, and what to do.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
