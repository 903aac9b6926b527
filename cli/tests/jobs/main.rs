//! Jobs as a user meets them: real processes of the command, real sockets, real signals.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod contests;
mod deaths;
mod floods;
mod job;
mod lacks;
mod listeners;
mod misfits;
mod partial;
mod process;
mod refusals;
mod relays;
mod reports;
mod secrets;
mod starters;
mod transports;
mod unauthenticated;
mod unread;
