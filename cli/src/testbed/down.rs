//! `gleaner testbed down`.

use std::process::ExitCode;

use clap::Args;
use gleaner_runtime::report::say;
use gleaner_testbed::network::{NAME, Network};
use gleaner_testbed::topology;

use crate::report::CommandError;

/// Remove what `up` made
///
/// Removes exactly that, also when `up` was killed half-way, and ends what still runs on the hosts. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    gleaner testbed down\n  \
    gleaner testbed down --name slow\n  \
    gleaner testbed down --all")]
pub struct Down {
    /// Which network
    #[arg(long, default_value = NAME, value_parser = topology::name, conflicts_with = "all")]
    name: String,
    /// All networks that `gleaner testbed` made on this machine
    #[arg(long)]
    all: bool,
}

pub fn run(down: &Down) -> Result<ExitCode, CommandError> {
    let names = if down.all { Network::names()? } else { vec![down.name.clone()] };
    // One that cannot be removed does not keep the others.
    let mut refused = Vec::new();
    for name in names {
        match Network::remove(&name) {
            Ok(()) => say(format_args!("removed the network {name}")),
            Err(error) => refused.push(error.to_string()),
        }
    }
    if refused.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(refused.join("; ").into()) }
}
