//! `gleaner testbed run`.

use std::process::ExitCode;

use clap::Args;

/// Run an experiment from a file
#[derive(Debug, Args)]
pub struct Run {}

/// Runs it.
pub fn run(_: &Run) -> Result<ExitCode, String> {
    Err("not there yet".into())
}
