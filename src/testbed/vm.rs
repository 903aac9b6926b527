//! `gleaner testbed vm`.

use std::process::ExitCode;

use clap::Args;

/// Run a command in an emulated machine whose kernel has netem and Soft-RoCE
#[derive(Debug, Args)]
pub struct Vm {}

/// Runs it.
pub fn run(_: &Vm) -> Result<ExitCode, String> {
    Err("not there yet".into())
}
