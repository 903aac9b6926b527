//! The actor system of one worker, the session that a trainer holds, and the launcher.
//!
//! A [`Session`] is a worker's membership in a job. Behind its blocking calls runs a tokio runtime with a small actor
//! system (ractor): a `Worker` that supervises one `Link` for each peer and an `Algorithm`. Actors own lifecycle
//! and control; payload never passes through a mailbox, it goes as `Bytes` between socket and merge in tasks.
//! The runtime names no method: it runs any schedule that the checker accepts.

mod algorithm;
mod auto;
mod checkpoint;
mod environment;
mod failure;
mod gradients;
mod group;
mod inbox;
pub mod launcher;
mod layout;
mod link;
mod memory;
mod notes;
mod post;
mod probe;
mod reducer;
pub mod report;
mod session;
mod silence;
pub mod staged;
mod steps;
mod tag;
mod update;
mod worker;

pub use auto::{Chosen, Tried};
pub use checkpoint::CheckpointError;
pub use environment::{Config, ConfigError};
pub use failure::{Cancelled, Error, Failure};
pub use gradients::{Gradients, StepTimes};
pub use layout::{Layout, LayoutError};
pub use memory::keep_freed_memory;
pub use probe::Probed;
pub use reducer::{Handle, Reducer};
pub use session::Session;
pub use update::{Skipped, Update};
