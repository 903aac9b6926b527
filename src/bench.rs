//! `gleaner bench`: how long real workers need to synchronise gradients.

mod gradient;

use std::io;
use std::time::{Duration, Instant};

use clap::Args;
use gleaner_algorithms::residual::Collection;
use gleaner_runtime::launcher::LaunchError;
use gleaner_runtime::{Config, ConfigError, Error, Layout, Session};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::choice::{self, Choice, ChoiceError};
use crate::crew::{self, Display, Progress, Role};
use crate::{quantity, report};

const EXAMPLES: &str = "\
Examples:
  gleaner bench --workers 6 --params 14728266 --density 0.01 --method spardl --steps 10
  gleaner bench --params 269722 --method ring --json
  gleaner launch --hostfile hosts -- gleaner bench --params 14728266 --method spardl
  mpirun -n 4 -x GLEANER_SECRET_FILE gleaner bench --params 1000000 --method spardl

Gradients are heavy-tailed (cubes of normal numbers), a part of them shared between the ranks, fresh in every step, and
made outside the clock. All times are medians over the steps of the maximum over the ranks.";

/// Synchronise synthetic gradients between real processes and report what a step costs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    /// How many workers to start on this machine; ignored under gleaner launch, mpirun, srun and torchrun
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: u32,
    /// Entries of the gradient
    #[arg(long, value_name = "N", value_parser = quantity::count)]
    params: usize,
    #[command(flatten)]
    choice: Choice,
    /// Which dropped entries are collected: global, partial or local
    #[arg(long, default_value = "global", value_name = "WHICH")]
    residual: Collection,
    /// Steps that are measured
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Steps before them that are not
    #[arg(long, value_name = "S", default_value_t = 3)]
    warmup: u32,
    /// Where the random numbers start
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long a silent worker counts as alive [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration)]
    timeout: Option<Duration>,
    /// One JSON object on standard output instead of a table
    #[arg(long)]
    json: bool,
}

/// Why there is nothing to report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A method that cannot be.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// Workers that cannot be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A job that failed.
    #[error(transparent)]
    Session(#[from] Error),
    /// Updates that are not the same everywhere.
    #[error("the updates differ between the ranks: rank {rank} has digest {theirs}, rank 0 has {ours}")]
    Digest {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Its digest.
        theirs: String,
        /// Rank 0's.
        ours: String,
    },
    /// Other ranks measure something else.
    #[error("rank {rank} runs with {theirs}, rank 0 with {ours}; start all ranks with the same command line")]
    Options {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Its first option that does.
        theirs: String,
        /// Rank 0's.
        ours: String,
    },
    /// No place in a job.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No output.
    #[error("the report cannot be printed: {0}")]
    Print(#[from] io::Error),
}

/// What one rank measured in one step.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Sample {
    seconds: f64,
    select: f64,
    exchange: f64,
    merge: f64,
    bytes: f64,
}

/// The report. The field names are documented in `docs/` and stay as they are.
#[derive(Debug, Serialize)]
struct Summary {
    method: &'static str,
    workers: usize,
    params: usize,
    k: usize,
    steps: u32,
    seconds: f64,
    seconds_select: f64,
    seconds_exchange: f64,
    seconds_merge: f64,
    bytes_received: u64,
    bytes_received_dense: u64,
    rounds: u64,
    entries_delivered: usize,
    lost: f64,
    digest: String,
}

/// Runs it, as a worker or as the launcher of workers; gives the exit code.
pub fn run(bench: &Bench) -> Result<u8, BenchError> {
    let method = bench.choice.method()?.residual(bench.residual);
    if !Config::is_worker() {
        choice::k(&method, bench.workers, bench.params)?;
    }
    if let Role::Launched(code) = crew::assemble(bench.workers, "bench", bench.timeout)? {
        return Ok(code);
    }
    let measured = measure(bench).inspect_err(|error| match error {
        BenchError::Session(Error::Failed(_) | Error::Join(_)) => {}
        _ => crew::confess(None, error),
    });
    if let Some(summary) = measured? {
        let text = if bench.json { format!("{}\n", serde_json::json!(summary)) } else { table(&summary) };
        report::print(&text)?;
    }
    Ok(0)
}

/// What every rank does; rank 0 gets the summary.
fn measure(bench: &Bench) -> Result<Option<Summary>, BenchError> {
    let method = bench.choice.method()?.residual(bench.residual);
    let mut config = Config::from_environment()?;
    config.timeout = bench.timeout.unwrap_or(config.timeout);
    let session = Session::join_as(config)?;
    let (rank, workers) = (session.rank(), session.world_size());
    let n = bench.params;
    let k = choice::k(&method, workers as u32, n)?;
    let mut gradients = session.gradients(&Layout::new().parameter("gradient", n), method)?;
    same_options(&session, bench)?;

    let mut digest = Sha256::new();
    let mut maxima: Vec<Sample> = Vec::new();
    let (mut delivered, mut lost) = (Vec::new(), 0.0);
    let mut gradient = vec![0.0; n];
    let display = (rank == 0).then(Display::new);
    let steps = bench.warmup + bench.steps;
    for step in 0..steps {
        gradient::fill(&mut gradient, bench.seed, rank as u64, u64::from(step));
        // Before the barrier: who has passed it sends at once, and that is to be counted.
        let received = session.traffic().bytes_received;
        session.barrier()?;
        let clock = Instant::now();
        gradients.ready("gradient", &gradient)?;
        let update = gradients.wait()?;
        let seconds = clock.elapsed().as_secs_f64();
        let times = gradients.times();
        let sample = Sample {
            seconds,
            select: times.select.as_secs_f64(),
            exchange: times.exchange.as_secs_f64(),
            merge: times.merge.as_secs_f64(),
            bytes: (session.traffic().bytes_received - received) as f64,
        };
        update.digest(|bytes| digest.update(bytes));
        let samples = gather(&session, &sample)?;
        if step >= bench.warmup {
            maxima.push(largest(&samples));
            delivered.push(update.entries() as f64);
            lost += gradients.lost();
        }
        if let Some(display) = &display {
            let note = format!("{:.1} ms a step", seconds * 1e3);
            display.show(&Progress { done: u64::from(step) + 1, of: u64::from(steps), note });
        }
    }
    let digest: String = digest.finalize().iter().map(|b| format!("{b:02x}")).collect();
    let digests = session.all_gather(digest.as_bytes())?;
    if let Some(rank) = digests.iter().position(|other| *other != digests[0]) {
        let text = |rank: usize| String::from_utf8_lossy(&digests[rank]).into_owned();
        return Err(BenchError::Digest { rank, theirs: text(rank), ours: text(0) });
    }
    let lost: f64 = gather(&session, &lost)?.iter().sum::<f64>() / f64::from(bench.steps);
    let median_of = |field: fn(&Sample) -> f64| median(maxima.iter().map(field).collect());
    Ok((rank == 0).then(|| Summary {
        method: method.collective().name(),
        workers,
        params: n,
        k,
        steps: bench.steps,
        seconds: median_of(|s| s.seconds),
        seconds_select: median_of(|s| s.select),
        seconds_exchange: median_of(|s| s.exchange),
        seconds_merge: median_of(|s| s.merge),
        bytes_received: median_of(|s| s.bytes) as u64,
        bytes_received_dense: (8.0 * n as f64 * (workers - 1) as f64 / workers as f64) as u64,
        rounds: gradients.rounds(),
        entries_delivered: median(delivered) as usize,
        lost,
        digest,
    }))
}

/// The options that `gradients` does not compare.
fn same_options(session: &Session, bench: &Bench) -> Result<(), BenchError> {
    let options = format!("--steps {}\n--warmup {}\n--seed {}", bench.steps, bench.warmup, bench.seed);
    let notes = session.all_gather(options.as_bytes())?;
    let texts: Vec<_> = notes.iter().map(|note| String::from_utf8_lossy(note)).collect();
    for (rank, text) in texts.iter().enumerate() {
        if let Some((theirs, ours)) = text.lines().zip(texts[0].lines()).find(|(theirs, ours)| theirs != ours)
        {
            return Err(BenchError::Options { rank, theirs: theirs.into(), ours: ours.into() });
        }
    }
    Ok(())
}

/// One value of every rank.
fn gather<T: Serialize + for<'a> Deserialize<'a>>(session: &Session, value: &T) -> Result<Vec<T>, Error> {
    let note = serde_json::to_vec(value).unwrap_or_default();
    Ok(session.all_gather(&note)?.iter().filter_map(|note| serde_json::from_slice(note).ok()).collect())
}

/// Field by field.
fn largest(samples: &[Sample]) -> Sample {
    samples.iter().fold(Sample::default(), |a, b| Sample {
        seconds: a.seconds.max(b.seconds),
        select: a.select.max(b.select),
        exchange: a.exchange.max(b.exchange),
        merge: a.merge.max(b.merge),
        bytes: a.bytes.max(b.bytes),
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}

fn table(s: &Summary) -> String {
    let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    let ratio = s.bytes_received_dense as f64 / (s.bytes_received as f64).max(1.0);
    let count = |n: u64| quantity::grouped(n);
    let rows = [
        ("method", s.method.to_owned()),
        ("workers", s.workers.to_string()),
        (
            "entries",
            format!(
                "{}, of which {} delivered a step",
                count(s.params as u64),
                count(s.entries_delivered as u64)
            ),
        ),
        (
            "time a step",
            format!(
                "{} (select {}, exchange {}, merge {})",
                ms(s.seconds),
                ms(s.seconds_select),
                ms(s.seconds_exchange),
                ms(s.seconds_merge)
            ),
        ),
        (
            "bytes received",
            format!(
                "{} a worker and step; a dense ring: {} ({ratio:.1} times as many)",
                quantity::bytes(s.bytes_received as f64),
                quantity::bytes(s.bytes_received_dense as f64)
            ),
        ),
        ("rounds", s.rounds.to_string()),
        ("digest", format!("{}… on every rank", &s.digest[..16])),
    ];
    let lost = (s.lost > 0.0).then(|| ("lost", format!("{:.4} a step, over all ranks", s.lost)));
    rows.into_iter().chain(lost).map(|(name, value)| format!("{name:15} {value}\n")).collect()
}
