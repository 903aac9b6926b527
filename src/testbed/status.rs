//! `gleaner testbed status`.

use std::process::ExitCode;

use clap::Args;

/// Show the emulated hosts and what crosses their links
#[derive(Debug, Args)]
pub struct Status {}

/// Runs it.
pub fn run(_: &Status) -> Result<ExitCode, String> {
    Err("not there yet".into())
}
