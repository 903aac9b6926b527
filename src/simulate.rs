//! `gleaner simulate`.

use std::process::ExitCode;

use clap::Args;

/// Predict what a step takes on a network that is described
#[derive(Debug, Args)]
pub struct Simulate {}

/// Runs it.
pub fn run(_: &Simulate) -> Result<ExitCode, String> {
    Err("not there yet".into())
}
