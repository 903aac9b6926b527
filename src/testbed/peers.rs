//! `gleaner testbed peers`.

use std::process::ExitCode;

use clap::Args;

/// Measure dense all-reduces of other libraries beside ours
#[derive(Debug, Args)]
pub struct Peers {}

/// Runs it.
pub fn run(_: &Peers) -> Result<ExitCode, String> {
    Err("not there yet".into())
}
