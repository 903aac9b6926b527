//! The command.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod choice;
mod plan;
mod quantity;
mod reduce;
mod report;
mod staged;

use std::process::ExitCode;

use clap::Parser;

/// Data-parallel training that exchanges the entries that matter and gathers the rest as residuals.
#[derive(Parser)]
#[command(name = "gleaner", version)]
enum Command {
    Reduce(reduce::Reduce),
    Plan(plan::Plan),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Reduce(arguments) => reduce::run(&arguments).map_err(|e| e.to_string()),
        Command::Plan(arguments) => plan::run(&arguments).map_err(|e| e.to_string()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("gleaner: {sentence}");
            ExitCode::FAILURE
        }
    }
}
