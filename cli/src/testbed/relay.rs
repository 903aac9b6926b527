//! `gleaner testbed relay`, which `up` starts where the kernel cannot delay or lose packets.

use std::process::ExitCode;

use clap::Args;
use gleaner_testbed::network;

use crate::report::CommandError;

/// Carry the packets of a network that `up` makes
#[derive(Debug, Args)]
pub struct Relay {
    /// Which network
    name: String,
}

/// Runs it.
pub fn run(relay: &Relay) -> Result<ExitCode, CommandError> {
    network::relay(&relay.name)?;
    Ok(ExitCode::SUCCESS)
}
