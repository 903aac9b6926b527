//! `gleaner testbed`: emulated networks, experiments on them, reports, and campaigns of faults.

mod chaos;
mod down;
mod exec;
mod pages;
mod relay;
mod report;
mod run;
mod status;
mod up;
mod vm;

use std::process::ExitCode;

use clap::Subcommand;

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
    #[command(hide = true)]
    Relay(relay::Relay),
    #[command(hide = true)]
    ChaosWorker(chaos::ChaosWorker),
}

/// Runs the subcommand.
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
        Testbed::Relay(arguments) => relay::run(arguments),
        Testbed::ChaosWorker(arguments) => chaos::work(arguments),
    }
}
