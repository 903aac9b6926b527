//! `gleaner testbed up`.

use std::process::ExitCode;

use clap::Args;

/// Make an emulated network of hosts on this machine
#[derive(Debug, Args)]
pub struct Up {}

/// Runs it.
pub fn run(_: &Up) -> Result<ExitCode, String> {
    Err("not there yet".into())
}
