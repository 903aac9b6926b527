//! Sessions as a trainer uses them: several workers, each in its own thread, over memory and over real sockets.

#![allow(clippy::unwrap_used)]

mod agreement;
mod auto;
mod cancel;
mod checkpoint;
mod corrections;
mod failures;
mod handles;
mod job;
mod nonfinite;
mod reductions;
mod regroup;
mod stranger_schedule;
mod updates;
