//! The command.

use std::process::ExitCode;

fn main() -> ExitCode {
    gleaner_cli::main_with([])
}
