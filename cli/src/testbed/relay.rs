//! `gleaner testbed relay`, which `up` starts where the kernel cannot delay or lose packets.

use std::process::ExitCode;

use clap::Args;
use gleaner_testbed::network;

/// Carry the packets of a network that `up` makes
#[derive(Debug, Args)]
pub struct Relay {
    /// Which network
    name: String,
}

/// Runs it.
pub fn run(relay: &Relay) -> Result<ExitCode, String> {
    network::relay(&relay.name).map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string())
}
