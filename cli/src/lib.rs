//! The command `gleaner`, for programs with methods of their own: [`main_with`].

mod bench;
mod calibrate;
mod choice;
mod crew;
mod launch;
mod merge_plan;
mod plan;
mod reduce;
mod regress;
mod report;
mod select;
mod simulate;
mod testbed;
#[cfg(feature = "train")]
mod train;

use std::process::ExitCode;

use clap::Parser;
use gleaner_algorithms::Method;
use gleaner_algorithms::select::Simd;
use gleaner_runtime::report::{say, say_panics};

/// Data-parallel training over slow networks by exchanging sparse gradients.
#[derive(Parser)]
#[command(name = "gleaner", version)]
pub(crate) enum Command {
    #[cfg(feature = "train")]
    Train(train::TrainArgs),
    Bench(bench::Bench),
    Regress(regress::Regress),
    Reduce(reduce::Reduce),
    Select(select::Select),
    Plan(plan::Plan),
    Calibrate(calibrate::Calibrate),
    MergePlan(merge_plan::MergePlan),
    Launch(launch::Launch),
    Simulate(simulate::Simulate),
    #[command(subcommand)]
    Testbed(testbed::Testbed),
}

/// Runs the command line of this process as `gleaner` does, with methods of your own beside the listed ones: they are
/// named, planned and measured like these. To be called first in `main`, before any other thread runs.
pub fn main_with(own: impl IntoIterator<Item = Method>) -> ExitCode {
    gleaner_runtime::keep_freed_memory();
    say_panics();
    choice::add(own);
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(refusal) if refusal.use_stderr() && report::is_left_to_launcher(&report::sentence(&refusal)) => {
            gleaner_runtime::report::finish();
            return ExitCode::from(report::OF_ARGUMENTS);
        }
        Err(refusal) => refusal.exit(),
    };
    if let Err(unknown) = Simd::asked() {
        say(format_args!("gleaner: {unknown}"));
        return ExitCode::FAILURE;
    }
    let done = match command {
        #[cfg(feature = "train")]
        Command::Train(arguments) => train::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Regress(arguments) => regress::run(&arguments),
        Command::Reduce(arguments) => reduce::run(&arguments),
        Command::Select(arguments) => select::run(&arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Calibrate(arguments) => calibrate::run(&arguments),
        Command::MergePlan(arguments) => merge_plan::run(&arguments),
        Command::Launch(arguments) => Ok(launch::run(arguments)),
        Command::Simulate(arguments) => simulate::run(arguments),
        Command::Testbed(testbed) => testbed::run(&testbed),
    };
    let code = done.unwrap_or_else(|error| {
        let code = report::exit_code(&error);
        if code != report::OF_ARGUMENTS || !report::is_left_to_launcher(&error.to_string()) {
            say(format_args!("gleaner: {error}"));
        }
        ExitCode::from(code)
    });
    gleaner_runtime::report::finish();
    code
}
