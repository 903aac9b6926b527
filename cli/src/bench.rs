//! `gleaner bench`: how long real workers need to synchronise gradients.

pub mod gradient;
mod mass;
pub mod measure;
mod summary;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use gleaner_algorithms::residual::Collection;
use gleaner_algorithms::{Method, Rank};
use gleaner_runtime::{Config, Roles};

use crate::choice::{self, Choice, Refusal};
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
        enlist(&self.choice, |method| self.set(method), workers, self.params).map(drop)
    }

    /// A method with the options that are not of the choice.
    fn set(&self, method: Method) -> Method {
        let method = method.residual(self.residual);
        if self.complete_sums { method.complete_sums() } else { method }
    }
}

/// A method that is measured.
#[derive(Clone, Debug)]
pub struct Entrant {
    pub method: Method,
    /// The entries that it selects in a step; n for dense methods.
    pub k: usize,
}

/// The methods that were chosen, with the options that `set` gives them, and can run among so many workers with n entries; where all were
/// asked for, the others too.
///
/// # Errors
/// A method that was named and cannot run. Where all were asked for, the first one's reason if none of them can.
pub fn enlist(
    choice: &Choice,
    set: impl Fn(Method) -> Method,
    workers: u32,
    n: usize,
) -> Result<(Vec<Entrant>, Vec<Refusal>), CommandError> {
    choice.each(|_, method| {
        let method = set(method);
        let k = choice::k(&method, workers, n)?;
        if method.is_auto() {
            method.candidates(workers, n)?;
        } else {
            method.schedule(Rank(0), workers, n)?;
        }
        Ok(Entrant { method, k })
    })
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
        report::save(path, &table::svg(&report)?)?;
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        choice: Choice,
    }

    type Lineup = (Vec<Entrant>, Vec<Refusal>);

    fn enlisted(arguments: &str, workers: u32, n: usize) -> Result<Lineup, String> {
        let command = Command::parse_from(["bench"].into_iter().chain(arguments.split(' ')));
        enlist(&command.choice, |method| method, workers, n).map_err(|reason| reason.to_string())
    }

    fn names(entrants: &[Entrant]) -> Vec<&str> {
        entrants.iter().map(|entrant| entrant.method.collective().name()).collect()
    }

    /// So many entries that a method with one block cannot number them, and one with 16 can.
    const LONG: usize = 1 << 33;

    #[test]
    fn every_listed_method_takes_part_or_is_refused_for_a_reason() {
        for (workers, n) in [(1, 0), (1, 100), (6, 100), (7, 3), (16, LONG)] {
            let (entrants, refused) = enlisted("--method all", workers, n).unwrap();
            let mut all = names(&entrants);
            all.extend(refused.iter().map(|refusal| &*refusal.method));
            let mut known: Vec<&str> = Method::all().map(|m| m.collective().name()).collect();
            all.sort_unstable();
            known.sort_unstable();
            assert_eq!(all, known, "{workers} workers, {n} entries");
            for Refusal { method, reason } in &refused {
                assert_eq!(enlisted(&format!("--method {method}"), workers, n).unwrap_err(), *reason);
            }
        }
    }

    #[test]
    fn a_method_that_does_not_fit_is_passed_over_only_where_all_are_asked_for() {
        let (entrants, refused) = enlisted("--method all", 16, LONG).unwrap();
        assert!(names(&entrants).contains(&"ring"));
        assert!(refused.iter().any(|refusal| refusal.method == "recursive-doubling"));
        let error = enlisted("--method ring,recursive-doubling", 16, LONG).unwrap_err();
        assert!(error.contains("recursive-doubling cuts 8589934592 entries"), "{error}");
    }

    #[test]
    fn names_stand_in_the_order_given_and_may_be_repeated() {
        let (entrants, _) = enlisted("--method ring,spardl,ring --k 5", 3, 100).unwrap();
        assert_eq!(names(&entrants), ["ring", "spardl", "ring"]);
        assert_eq!(entrants.iter().map(|entrant| entrant.k).collect::<Vec<_>>(), [100, 5, 100]);
    }

    #[test]
    fn what_fits_no_method_is_an_error_for_all_of_them_too() {
        for (arguments, words) in [
            ("--method all --k 101", "k is 101"),
            ("--method all --density 2", "the density is 2"),
            ("--method ring,,spardl", "no method ''"),
            ("--method ring,all", "no method 'all'"),
        ] {
            let error = enlisted(arguments, 3, 100).unwrap_err();
            assert!(error.contains(words), "{arguments}: {error}");
        }
    }
}
