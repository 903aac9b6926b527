//! Replicas as a trainer uses them: several workers over memory networks, with random delays, beside oracles that are written out.

#![allow(clippy::unwrap_used)]

#[path = "../session/job.rs"]
mod job;

mod failures;
mod local;
mod osp;
mod plain;
mod problem;
mod refused;
mod saving;
mod traced;
