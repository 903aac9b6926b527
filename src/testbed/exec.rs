//! `gleaner testbed exec`.

use std::process::ExitCode;

use clap::Args;

/// Run a command on an emulated host
#[derive(Debug, Args)]
pub struct Exec {}

/// Runs it.
pub fn run(_: &Exec) -> Result<ExitCode, String> {
    Err("not there yet".into())
}
