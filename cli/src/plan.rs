//! `gleaner plan`: a method's schedule, its proof and its cost, without any gradient.

pub mod compare;
mod describe;
pub mod draw;
mod speedup;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use gleaner_algorithms::collectives::RoutineError;
use gleaner_algorithms::forecast::Speed;
use gleaner_algorithms::schedule::{self, Cost, Fault, Program, Proof};
use gleaner_algorithms::{Method, Rank};
use gleaner_units::{self as units, Rate, grouped};
use serde::Serialize;

use crate::calibrate::file::Calibration;
use crate::choice::{self, Choice};
use crate::report::{self, CommandError};
use compare::Comparison;
use draw::MOST_RANKS;
use speedup::Speedup;

/// The most steps and slots, over all ranks, that are checked one by one: 1024 workers of `clt-k` have so many slots.
const MOST: (u64, u64) = (1 << 19, 1 << 21);

/// The most steps of all ranks, and slots of one, where one is checked in place of all: 2048 workers of a ring have so many
/// steps, and 1024 of `oktopk` so many slots where it balances.
const MOST_ROTATED: (u64, u64) = (1 << 23, 1 << 20);

/// How wide pictures of lines are, and how high their axes with what is around them, in pixels.
const WIDTH: i32 = 900;
const HIGH: i32 = 480;

/// Up to so many workers, all programs are printed.
const ALL_PROGRAMS: u32 = 8;

/// Show what a method would send, prove it right and count its cost
///
/// Prints the schedule round by round, checks that it is an all-reduce for so many workers, and counts
/// rounds, messages and words, beside those of a dense ring. Needs no gradients and no network.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    gleaner plan --method spardl --workers 14 --params 14_728_266 --density 0.01\n  \
    gleaner plan --method rabenseifner --workers 8 --params 1_000_000 --latency 1ms --bandwidth 100mbit --svg plan.svg\n  \
    gleaner plan --compare --workers 4096 --params 14_728_266 --density 0.01 --bandwidth 10gbit\n  \
    gleaner plan --speedup --workers 8 --density 1% --svg speedup.svg")]
pub struct Plan {
    #[command(flatten)]
    choice: Choice,
    /// Rank all methods by the time that a step is expected to take on this network, instead of showing one
    #[arg(long, conflicts_with_all = ["rank", "method"])]
    compare: bool,
    /// Instead of one step, print how many times as long a step of the fastest dense method takes, for models and links of many
    /// sizes
    #[arg(long, conflicts_with_all = ["rank", "compare", "params", "k", "bandwidth", "calibration"])]
    speedup: bool,
    /// What a worker takes, with --compare, --speedup and auto: nanoseconds per entry selected from, encoded, merged and (dense) added,
    /// and per message
    #[arg(long, value_name = "NAME=NS,…", default_value_t = compare::SPEED, value_parser = compare::speed)]
    speed: Speed,
    /// The number of workers, P
    #[arg(long, value_name = "P", value_parser = units::within::<u32>(1..))]
    workers: u32,
    /// Entries of the gradient, n, such as 14_728_266
    #[arg(long, value_name = "N", value_parser = units::count, required_unless_present = "speedup")]
    params: Option<usize>,
    /// Latency of a message, α
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = units::duration)]
    latency: Duration,
    /// Bandwidth of a link in each direction
    #[arg(long, value_name = "RATE", default_value = "1gbit", value_parser = units::rate)]
    bandwidth: Rate,
    /// Take both from what gleaner calibrate measured over the links of a job, whatever carried them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["latency", "bandwidth"])]
    calibration: Option<PathBuf>,
    /// Print the program of this rank only, and let it stand out in the picture
    #[arg(long, value_parser = units::within::<u32>(..))]
    rank: Option<u32>,
    /// Draw the schedule of at most 64 workers into this file; with --compare, time against workers; with
    /// --speedup, its lines
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object instead of the schedule
    #[arg(long)]
    json: bool,
}

impl Plan {
    /// The same with the latency and the bandwidth that were measured, if a file has them.
    fn measured(mut self) -> Result<Self, CommandError> {
        if let Some(path) = &self.calibration {
            (self.latency, self.bandwidth) = Calibration::read(path)?.network();
        }
        Ok(self)
    }
}

pub fn run(arguments: Plan) -> Result<ExitCode, CommandError> {
    report::print(&text(arguments)?)?;
    Ok(ExitCode::SUCCESS)
}

fn text(arguments: Plan) -> Result<String, CommandError> {
    let arguments = &arguments.measured()?;
    let mut method = arguments.choice.method()?;
    if arguments.speedup {
        let table = Speedup::new(&method, arguments.workers, arguments.latency, arguments.speed)
            .map_err(report::refused)?;
        let text = if arguments.json { report::json(&table) } else { table.text() };
        return drawn(arguments, text, || Ok(table.svg()?));
    }
    let (workers, n) = (arguments.workers, arguments.params.unwrap_or(0));
    if n == 0 {
        return Err(report::refused("there are 0 parameters; expected at least one"));
    }
    let mut resolved = String::new();
    if arguments.compare || method.is_auto() {
        let choice = if arguments.compare { arguments.choice.auto()? } else { method };
        choice::k(&choice, workers, n)?;
        let network = (arguments.latency, arguments.bandwidth);
        // A job's `auto` takes none of the program's own.
        let methods: Vec<Method> =
            if arguments.compare { choice::all().collect() } else { Method::all().collect() };
        let comparison = Comparison::new(choice, methods, (workers, n), network, arguments.speed)
            .map_err(report::refused)?;
        if arguments.compare {
            let text = if arguments.json { comparison.json() } else { comparison.table() };
            return drawn(arguments, text, || Ok(comparison.svg()?));
        }
        method = comparison.best().method.clone();
        resolved = format!("auto takes {}\n", comparison.best());
    }
    if let Some(rank) = arguments.rank.filter(|&r| r >= workers) {
        let reason = format!("there is no rank {rank}; choose one from 0 to {}", workers - 1);
        return Err(report::refused(reason));
    }
    if arguments.svg.is_some() && !arguments.compare && workers > MOST_RANKS {
        return Err(report::refused(format!(
            "{workers} ranks cannot be drawn legibly; expected at most {MOST_RANKS} with --svg"
        )));
    }
    let k = choice::k(&method, workers, n)?;
    limit(&method, workers, n)?;
    let shape = method.shape(workers, n)?;
    let structure = method.structure(&shape, &method.memory(&shape))?;
    let proof = schedule::check(method.schedules_of(&shape, &structure))
        .map_err(|error| format!("the method's schedules are wrong: {error}"))?;

    let heading = format!(
        "{} among {}: n = {}, k = {}",
        method.collective().name(),
        report::counted(workers as usize, "worker"),
        grouped(n as u64),
        grouped(k as u64),
    );
    let text = if arguments.json {
        let blocks = method.collective().blocks(&shape) as usize;
        as_json(arguments, (&method, n), k, blocks, &proof.cost)
    } else {
        let costs = [proof.cost, ring_cost(workers, n)?];
        let network = (arguments.latency, arguments.bandwidth);
        format!("{resolved}{heading}\n{}\n\n", method.collective().summary())
            + &programs(arguments.rank, &proof)?
            + "\nchecked: every contribution is counted once, all ranks end with the same sums, nothing deadlocks\n\n"
            + &describe::costs(method.collective().name(), costs, network)
    };
    drawn(arguments, text, || {
        let programs: Vec<Program> = (0..workers).map(|rank| proof.program(Rank(rank))).collect();
        let front = Rank(arguments.rank.unwrap_or(0));
        Ok(draw::svg(heading, method.collective().summary().into(), &programs, &proof.cost, front)?)
    })
}

/// A report, once its picture is written where one is asked for.
fn drawn(
    arguments: &Plan,
    mut text: String,
    picture: impl FnOnce() -> Result<String, CommandError>,
) -> Result<String, CommandError> {
    if let Some(path) = &arguments.svg {
        report::save(path, &picture()?)?;
        if !arguments.json {
            let _ = writeln!(text, "\nThe picture is in {}.", path.display());
        }
    }
    Ok(text)
}

/// Refuses what would fill the memory before any of it is made.
fn limit(method: &Method, workers: u32, n: usize) -> Result<(), CommandError> {
    let shape = method.shape(workers, n)?;
    let refused = |steps: u64, slots: u64, most: (u64, u64)| {
        Err(report::refused(format!(
            "{} among {workers} workers has {steps} steps or more and {slots} slots to be checked; at most {} steps and {} slots \
             are: choose fewer workers",
            method.collective().name(),
            most.0,
            most.1
        )))
    };
    let (p, blocks) = (u64::from(workers), u64::from(method.collective().blocks(&shape)));
    if p.max(blocks) > MOST_ROTATED.1 {
        return refused(p, blocks, MOST_ROTATED);
    }
    let schedule = |rank| method.schedule(Rank(rank), workers, n);
    let first = schedule(0)?;
    let rotates = first.can_rotate()
        && first.is_rotated(&schedule(1 % workers)?)
        && first.is_rotated(&schedule(workers - 1)?);
    let (steps, slots) = (p * first.steps.len() as u64, blocks * u64::from(first.lanes));
    let (slots, most) = if rotates { (slots, MOST_ROTATED) } else { (p * slots, MOST) };
    if steps > most.0 || slots > most.1 { refused(steps, slots, most) } else { Ok(()) }
}

fn programs(rank: Option<u32>, proof: &Proof) -> Result<String, Fault> {
    let workers = proof.workers();
    let shown = match rank {
        Some(rank) => rank..rank + 1,
        None if workers <= ALL_PROGRAMS => 0..workers,
        None => 0..1,
    };
    let all = shown.len() == workers as usize;
    let shown: Vec<Program> = shown.map(|rank| proof.program(Rank(rank))).collect();
    let mut text = describe::programs(&shown, proof.cost.rounds)?;
    if !all {
        text += if proof.rotates() {
            "The other ranks do the same, with ranks and blocks shifted by the difference of their numbers.\n"
        } else {
            "The other ranks do the like with other peers; --rank R shows the program of rank R.\n"
        };
    }
    Ok(text)
}

/// What a dense ring costs, by its formula: for many workers its schedule is too long to be made.
fn ring_cost(workers: u32, n: usize) -> Result<Cost, RoutineError> {
    let ring = Method::ring();
    Ok(ring.cost(&ring.shape(workers, n)?)?.high)
}

/// What is reported of one method; the names are those of the JSON object.
#[derive(Serialize)]
struct Planned {
    method: &'static str,
    workers: u32,
    params: usize,
    k: usize,
    blocks: usize,
    rounds: u64,
    messages: u64,
    words_received: u64,
    words_critical: u64,
    checked: bool,
    seconds: f64,
}

fn as_json(arguments: &Plan, (method, n): (&Method, usize), k: usize, blocks: usize, cost: &Cost) -> String {
    report::json(&Planned {
        method: method.collective().name(),
        workers: arguments.workers,
        params: n,
        k,
        blocks,
        rounds: cost.rounds,
        messages: cost.messages,
        words_received: cost.words_received,
        words_critical: cost.words_critical,
        checked: true,
        seconds: cost.time(arguments.latency, arguments.bandwidth.bytes_per_second()).as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_counted_as_the_checker_counts_it() {
        for workers in 1..9 {
            for n in [8, 9, 63, 64, 65, 100, 111] {
                let proof = schedule::check(Method::ring().schedules(workers, n).unwrap()).unwrap();
                assert_eq!(ring_cost(workers, n).unwrap(), proof.cost, "{workers} workers, {n} entries");
            }
        }
    }
}
