//! The testbed: networks that are emulated by namespaces and by a machine, networks that are simulated, experiments from
//! files, and reports to look at.

pub mod network;
pub mod quantity;
pub mod record;
pub mod simulation;
pub mod topology;
