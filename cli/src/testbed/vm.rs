//! `gleaner testbed vm`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use gleaner_runtime::report::say;
use gleaner_testbed::machine::{self, Machine, MachineError, Wire};
use gleaner_units as units;
use indicatif::ProgressBar;
use serde_json::json;

use crate::report::CommandError;

const EXAMPLES: &str = "\
Examples:
  gleaner testbed vm -- gleaner testbed up --hosts 2 --link-latency 1ms
  gleaner testbed vm -- sh -c 'ip link add v1 type veth peer v2 && tc qdisc add dev v1 root netem delay 5ms && tc qdisc'
  gleaner testbed vm --share results --limit 10m -- ./measure.sh
  gleaner testbed vm --verbose -- dmesg
  gleaner testbed vm --wire a:b -- sh -c 'ip addr add 10.0.0.1/24 dev eth0 && ip link set eth0 up && sleep 60' &
  gleaner testbed vm --wire b:a -- sh -c 'ip addr add 10.0.0.2/24 dev eth0 && ip link set eth0 up && ping -c 3 10.0.0.1'

Inside are this machine's files, at the same places. The command is root there. It starts in the current folder, with
this environment, and with nothing on its standard input. Only the shared folder can be written for good. There is no
network to the outside; --wire joins machines to each other. The clock of the machine runs true, but its processors are slow.

The first time, the kernel and its tools are fetched into $XDG_CACHE_HOME/gleaner or ~/.cache/gleaner; no root is needed.

The exit code is that of the command: 127 if it was not found, 128 + n after signal n. It is 124 after --limit, 130 after
Ctrl-C, and 125 where there is no machine.";

/// Run a command in an emulated machine whose kernel has netem and Soft-RoCE
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Vm {
    /// The folder that the command may write.
    #[arg(long, value_name = "DIR", default_value = ".")]
    share: PathBuf,

    /// End the command after this time, for instance `90s` or `10m`; the start of the machine does not count.
    #[arg(long, value_name = "TIME", value_parser = units::limit)]
    limit: Option<Duration>,

    /// Memory of the machine, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = units::within::<u32>(256..))]
    memory: u32,

    /// Processors of the machine.
    #[arg(long, value_name = "CORES", default_value_t = 2, value_parser = units::within::<u32>(1..=255))]
    cpus: u32,

    /// A network interface, eth0 for the first, wired to one of another machine that has the two sockets the other way round.
    #[arg(long = "wire", value_name = "OURS:THEIRS")]
    wires: Vec<Wire>,

    /// Write kernel messages to standard error.
    #[arg(long)]
    verbose: bool,

    /// End standard output with a line of JSON: exit_code, seconds_starting, seconds_running, reason.
    #[arg(long)]
    json: bool,

    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

pub fn run(vm: &Vm) -> Result<ExitCode, CommandError> {
    let machine = Machine {
        command: vm.command.clone(),
        share: vm.share.clone(),
        timeout: vm.limit,
        memory: vm.memory,
        cpus: vm.cpus,
        verbose: vm.verbose,
        wires: vm.wires.clone(),
    };
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(200));
    let ended = machine::run(&machine, |doing| match doing {
        Some(doing) => spinner.set_message(doing.to_owned()),
        None => spinner.finish_and_clear(),
    });
    spinner.finish_and_clear();
    let exit_code = ended.as_ref().map_or_else(MachineError::exit_code, |ended| ended.exit_code);
    let reason = ended.as_ref().err().map(ToString::to_string);
    // A reader that has seen enough, such as `head`, is no error to speak of.
    if let Some(reason) = reason.as_ref().filter(|_| exit_code != 141) {
        say(format_args!("gleaner testbed vm: {reason}"));
    }
    if vm.json {
        let ended = ended.ok();
        let summary = json!({
            "exit_code": exit_code,
            "seconds_starting": ended.map(|ended| ended.started_in.as_secs_f64()),
            "seconds_running": ended.map(|ended| ended.ran_for.as_secs_f64()),
            "reason": reason,
        });
        crate::report::print(&format!("{summary}\n"))?;
    }
    Ok(ExitCode::from(exit_code))
}
