//! The command `gleaner`, for programs with methods of their own: [`main_with`].

mod bench;
mod calibrate;
mod choice;
mod cli;
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

pub use cli::main_with;
