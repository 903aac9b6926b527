//! `gleaner testbed exec`.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::Args;
use gleaner_testbed::network::{NAME, Network};
use gleaner_testbed::topology;

use crate::report::CommandError;

/// Run a command on an emulated host
///
/// This process becomes the command: input, output, signals and the exit code are its own. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    gleaner testbed exec host0 -- iperf3 --server\n  \
    gleaner testbed exec --name slow host1 -- ping 10.77.0.1")]
pub struct Exec {
    /// Which network
    #[arg(long, default_value = NAME, value_parser = topology::name)]
    name: String,
    /// Which host, by its name or that of its namespace
    host: String,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

pub fn run(exec: &Exec) -> Result<ExitCode, CommandError> {
    let network = Network::find(&exec.name)?;
    let (program, arguments) = exec.command.split_first().ok_or("expected a command after --")?;
    let mut command = network.command(&exec.host, program)?;
    let error = command.args(arguments).exec();
    Err(format!(
        "`ip netns exec` cannot be run: {error}; install it, on Debian with apt-get install iproute2"
    )
    .into())
}
