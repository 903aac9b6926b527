//! `gleaner testbed report` as its users see it, in a browser too.

#![allow(clippy::unwrap_used)]

mod browser;
mod command;
mod samples;
