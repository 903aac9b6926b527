//! The command.

use std::process::ExitCode;

fn main() -> ExitCode {
    gleaner::cli::main_with([])
}
