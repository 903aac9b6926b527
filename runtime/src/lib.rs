//! The actor system of one worker, the session that a trainer holds, and the launcher.
//!
//! A [`Session`] is a worker's membership in a job. Behind its calls runs one I/O thread, which owns the links and the actors
//! that answer to messages, and a few compute threads, which choose entries, merge and commit. A bag goes from the socket into
//! the execution that waits for it, and what comes out of that goes to the socket, without a hand-off in between.
//! The runtime names no method: it runs any schedule that the checker accepts.

pub mod agreement;
mod algorithm;
mod auto;
mod checkpoint;
pub mod checksum;
mod compute;
mod engine;
mod environment;
mod exchange;
mod failure;
#[doc(hidden)]
pub mod fuzzing;
mod gradients;
mod group;
mod health;
mod inbox;
mod inherited;
mod io;
pub mod launcher;
mod layout;
mod link;
mod local_rank;
mod mailbox;
mod memory;
mod notes;
pub mod planner;
mod positions;
mod probe;
mod reducer;
mod replica;
pub mod report;
mod roles;
mod seat;
#[cfg(test)]
mod sentence;
mod server;
mod session;
mod silence;
mod squares;
pub mod staged;
mod steps;
mod tag;
mod timeline;
mod update;
mod waits;
mod worker;

pub use auto::{AutoChoice, Tried};
pub use checkpoint::CheckpointError;
pub use environment::{Config, ConfigError, TIMEOUTS};
pub use failure::{Cancelled, Error, Failure, OutOfMemory};
pub use gradients::{Gradients, StepTimes};
pub use health::{Finding, Health};
pub use layout::{Layout, LayoutError};
pub use local_rank::local_rank;
pub use memory::keep_freed_memory;
pub use probe::Probed;
pub use reducer::{Handle, Reducer, SparseReducer};
pub use replica::{Options, Pass, Replica, ReplicaError, Stepped};
pub use roles::{OnFailure, Roles};
pub use session::Session;
pub use timeline::Timeline;
pub use update::{Skipped, Update};
pub use waits::{Awaited, Waits};

pub use gleaner_transport::{Congestion, Preference, Sockets, Transport, TransportChoice, VerbsDevice};
