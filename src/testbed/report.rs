//! `gleaner testbed report`.

use std::process::ExitCode;

use clap::Args;

/// Make one HTML page of measurements
#[derive(Debug, Args)]
pub struct Report {}

/// Runs it.
pub fn run(_: &Report) -> Result<ExitCode, String> {
    Err("not there yet".into())
}
