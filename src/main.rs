//! The command.

mod bench;
mod choice;
mod crew;
mod launch;
mod plan;
mod reduce;
mod report;
mod select;
mod simulate;
mod testbed;
#[cfg(feature = "train")]
mod train;

use std::process::ExitCode;

use clap::Parser;
use gleaner::algorithms::select::Simd;

/// Data-parallel training that exchanges the entries that matter and gathers the rest as residuals.
#[derive(Parser)]
#[command(name = "gleaner", version)]
enum Command {
    #[cfg(feature = "train")]
    Train(train::TrainArgs),
    Bench(bench::Bench),
    Reduce(reduce::Reduce),
    Select(select::Select),
    Plan(plan::Plan),
    Launch(launch::Launch),
    Simulate(simulate::Simulate),
    #[command(subcommand)]
    Testbed(testbed::Testbed),
}

fn main() -> ExitCode {
    gleaner::keep_freed_memory();
    let command = Command::parse();
    if let Err(unknown) = Simd::asked() {
        eprintln!("gleaner: {unknown}");
        return ExitCode::FAILURE;
    }
    let done = match command {
        #[cfg(feature = "train")]
        Command::Train(arguments) => train::run(&arguments).map(ExitCode::from).map_err(|e| e.to_string()),
        Command::Bench(arguments) => bench::run(&arguments).map(ExitCode::from).map_err(|e| e.to_string()),
        Command::Reduce(arguments) => {
            reduce::run(&arguments).map(|()| ExitCode::SUCCESS).map_err(|e| e.to_string())
        }
        Command::Select(arguments) => {
            select::run(&arguments).map(|()| ExitCode::SUCCESS).map_err(|e| e.to_string())
        }
        Command::Plan(arguments) => {
            plan::run(&arguments).map(|()| ExitCode::SUCCESS).map_err(|e| e.to_string())
        }
        Command::Launch(arguments) => Ok(launch::run(arguments)),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Testbed(testbed) => testbed::run(&testbed),
    };
    done.unwrap_or_else(|sentence| {
        eprintln!("gleaner: {sentence}");
        ExitCode::FAILURE
    })
}
