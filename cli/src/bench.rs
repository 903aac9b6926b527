//! `gleaner bench`: how long real workers need to synchronise gradients.

mod floor;
pub mod gradient;
mod lineup;
mod mass;
pub mod measure;
pub mod picture;
mod summary;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use gleaner_algorithms::Method;
use gleaner_algorithms::residual::Collection;
use gleaner_runtime::{Config, Roles};

use crate::choice::Choice;
use crate::crew;
use crate::report::{self, CommandError};
use gleaner_units::{self as units, Rate};
use summary::Report;

pub use summary::AutoReport;

const EXAMPLES: &str = "\
Examples:
  gleaner bench --workers 6 --params 14728266 --density 0.01 --method spardl --steps 10
  gleaner bench --params 269722 --method ring --json
  gleaner bench --params 269722 --method spardl,ring --steps 50
  gleaner bench --workers 6 --params 269722 --method spardl,spardl/2,spardl/3,gtopk   (SparDL with 1, 2 and 3 teams)
  gleaner bench --workers 6 --params 1000000 --method all --svg bench.svg
  gleaner bench --workers 6 --params 14728266 --bandwidth 1gbit       (beside the least that a step could take)
  gleaner launch --hostfile hosts -- gleaner bench --params 14728266 --method spardl
  mpirun -n 4 -x GLEANER_SECRET_FILE gleaner bench --params 1000000 --method spardl

Gradients are heavy-tailed (cubes of normal numbers), a part of them shared between the ranks, fresh in every step, and
made outside the clock. All times are medians over the steps of the maximum over the ranks. Several methods take turns:
in every step each of them synchronises the same gradients, with residuals of its own.";

/// Synchronise synthetic gradients between real processes and report what a step costs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("method", several))]
pub struct Bench {
    /// How many workers to start on this machine; ignored under gleaner launch, mpirun, srun and torchrun
    #[arg(long, value_name = "P", default_value_t = 4, value_parser = units::within::<u32>(1..=1024))]
    workers: u32,
    /// Entries of the gradient, n, such as 14_728_266
    #[arg(long, value_name = "N", value_parser = units::count)]
    params: usize,
    #[command(flatten)]
    choice: Choice,
    /// Which dropped entries are collected: global, partial or local
    #[arg(long, default_value = "global", value_name = "WHICH")]
    residual: Collection,
    /// Once the entries of an update are agreed on, let every worker add what it has there, in a second exchange
    #[arg(long)]
    complete_sums: bool,
    /// Measured steps
    #[arg(long, value_name = "STEPS", default_value_t = 10, value_parser = units::within::<u32>(1..))]
    steps: u32,
    /// Warm-up steps, which are not measured
    #[arg(long, value_name = "STEPS", default_value_t = 3, value_parser = units::within::<u32>(..))]
    warmup: u32,
    /// Random seed
    #[arg(long, default_value_t = 1, value_parser = units::within::<u64>(..))]
    seed: u64,
    /// How long a silent worker counts as alive [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = crew::timeout)]
    timeout: Option<Duration>,
    /// Bandwidth of a worker's link in each direction: also measure and print the least that a step could take
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    bandwidth: Option<Rate>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Draw a bar for each method into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Here, several methods may be named.
fn several(method: clap::Arg) -> clap::Arg {
    let more = |help: &clap::builder::StyledStr| {
        format!("{help}\nSeveral take turns: name them with commas between, or all of them by 'all'")
    };
    let (short, long) = (method.get_help().map(more), method.get_long_help().map(more));
    method.value_name("METHODS").help(short.unwrap_or_default()).long_help(long.unwrap_or_default())
}

impl Bench {
    /// Whether all its methods can run among so many workers.
    pub fn check(&self, workers: u32) -> Result<(), CommandError> {
        lineup::enlist(&self.choice, |method| self.set(method), workers, self.params).map(drop)
    }

    /// A method with the options that are not of the choice.
    fn set(&self, method: Method) -> Method {
        let method = method.residual(self.residual);
        if self.complete_sums { method.complete_sums() } else { method }
    }
}

/// Runs it, as a worker or as the launcher of workers; gives the exit code.
pub fn run(bench: &Bench) -> Result<ExitCode, CommandError> {
    if !Config::is_worker() {
        bench.check(bench.workers)?;
        bench.svg.as_deref().map_or(Ok(()), report::probe)?;
    }
    if let Some(code) = crew::assemble(bench.workers, Roles::default(), "bench", bench.timeout)? {
        return Ok(code);
    }
    let Some(report) = measure::measure(bench)? else { return Ok(ExitCode::SUCCESS) };
    // Before the picture: what took long to measure is not lost with a file.
    report::print(&text(bench, &report))?;
    if let Some(path) = &bench.svg {
        report::save(path, &picture::svg(&report)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One method stands by itself, unless it is what remains of all.
fn text(bench: &Bench, report: &Report) -> String {
    match (&report.methods[..], bench.json) {
        ([one], true) if !bench.choice.is_all() => report::json(one),
        ([one], false) if !bench.choice.is_all() => table::one(one),
        (_, true) => report::json(report),
        (_, false) => table::several(report),
    }
}
