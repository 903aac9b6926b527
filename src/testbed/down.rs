//! `gleaner testbed down`.

use std::process::ExitCode;

use clap::Args;

/// Remove what `up` made
#[derive(Debug, Args)]
pub struct Down {}

/// Runs it.
pub fn run(_: &Down) -> Result<ExitCode, String> {
    Err("not there yet".into())
}
