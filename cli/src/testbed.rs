//! `gleaner testbed`: emulated networks, experiments on them, reports, and campaigns of faults.

mod chaos;
mod down;
mod exec;
mod pages;
mod report;
mod run;
mod status;
mod up;
mod vm;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use gleaner_testbed::campaign::worker;
use gleaner_testbed::network;

use crate::report::CommandError;

/// Emulate networks, run experiments on them, and report
#[derive(Debug, Subcommand)]
pub enum Testbed {
    Up(up::Up),
    Down(down::Down),
    Exec(exec::Exec),
    Status(status::Status),
    Vm(vm::Vm),
    Run(run::Run),
    Report(report::Report),
    Pages(pages::Pages),
    Chaos(chaos::Chaos),
    /// Carry the packets of a network that `up` makes
    #[command(hide = true)]
    Relay {
        /// Which network
        name: String,
    },
    /// A worker of these jobs
    #[command(hide = true)]
    ChaosWorker {
        /// Where it reports what it does
        folder: PathBuf,
    },
}

pub fn run(testbed: &Testbed) -> Result<ExitCode, CommandError> {
    match testbed {
        Testbed::Up(arguments) => up::run(arguments),
        Testbed::Down(arguments) => down::run(arguments),
        Testbed::Exec(arguments) => exec::run(arguments),
        Testbed::Status(arguments) => status::run(arguments),
        Testbed::Vm(arguments) => vm::run(arguments),
        Testbed::Run(arguments) => run::run(arguments),
        Testbed::Report(arguments) => report::run(arguments),
        Testbed::Pages(arguments) => pages::run(arguments),
        Testbed::Chaos(arguments) => chaos::run(arguments),
        // Where the kernel cannot delay or lose packets, `up` starts it.
        Testbed::Relay { name } => Ok(network::relay(name).map(|()| ExitCode::SUCCESS)?),
        Testbed::ChaosWorker { folder } => Ok(worker::run(folder).map(|()| ExitCode::SUCCESS)?),
    }
}
