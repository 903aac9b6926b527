//! Sessions as a trainer uses them: several workers, each in its own thread, over memory and over real sockets.

#![allow(clippy::unwrap_used)]

mod agreement;
mod auto;
mod cancel;
mod changed;
mod checkpoint;
mod completed;
mod corrections;
mod embedded;
mod failures;
mod following;
mod handles;
mod health;
mod job;
mod joining;
mod kept;
mod lagging;
mod nonfinite;
mod panics;
mod past;
mod reductions;
mod regroup;
mod servers;
mod shares;
mod sparse;
mod stale;
mod timeline;
mod together;
mod unknown_schedule;
mod updates;
mod whole;
