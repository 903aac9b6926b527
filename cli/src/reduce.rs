//! `gleaner reduce`: one all-reduce of recorded gradients, with all workers in one thread.

mod memory;
pub mod npy;
mod step;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use gleaner_algorithms::Rank;
use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::collectives::{MethodError, RoutineError};
use gleaner_algorithms::residual::{AccumulateError, Collection};
use gleaner_algorithms::schedule::ExecutionError;
use gleaner_runtime::staged::{Staged, StagedError};

use crate::choice::{self, Choice, ChoiceError};
use crate::report;
use gleaner_units::grouped;
use npy::{NpyError, Vector};
use step::{Reduced, Step};

/// Sum up recorded gradients, as one step of training would
///
/// Runs one all-reduce over gradients that were recorded, one float32 .npy file of any shape for every rank,
/// with all workers in this process. Writes the mean to update.npy and what each worker held back
/// to residual-0.npy, residual-1.npy and so on.
#[derive(clap::Args, Debug)]
#[command(
    mut_arg("method", choice::without_auto),
    after_help = "Example: two steps; the second one sends also what the first one held back\n  \
    gleaner reduce --method spardl --density 0.01 --out out step1/rank*.npy\n  \
    gleaner reduce --method spardl --density 0.01 --residuals out --out out step2/rank*.npy"
)]
pub struct Reduce {
    #[command(flatten)]
    choice: Choice,
    /// What dropped entries are collected: global (all of them), partial or local; the others are lost
    #[arg(long, value_name = "COLLECTION", default_value = "global")]
    residual: Collection,
    /// Directory for update.npy and the residuals
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Directory with the residuals of the step before, which may be the one that is written to
    #[arg(long, value_name = "DIR")]
    residuals: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// The gradients, in the order of the ranks
    #[arg(required = true, value_name = "GRADIENT")]
    gradients: Vec<PathBuf>,
}

/// Why nothing was reduced.
#[derive(Debug, thiserror::Error)]
pub enum ReduceError {
    /// A choice of method that cannot be.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// A choice of method that cannot be.
    #[error(transparent)]
    Method(#[from] MethodError),
    /// A gradient or a residual that cannot be read.
    #[error("{rank}: {source}")]
    File { rank: Rank, source: NpyError },
    /// Gradients that cannot be added up.
    #[error(
        "{} has {len} entries of shape {shape:?}, but {} has {other_len} of shape {other_shape:?}; \
        expected the gradients of one model from all ranks",
        path.display(), other_path.display()
    )]
    Unlike {
        path: PathBuf,
        len: usize,
        shape: Vec<u64>,
        other_path: PathBuf,
        other_len: usize,
        other_shape: Vec<u64>,
    },
    /// A residual of another gradient.
    #[error(
        "{} has {found} entries, but the gradients have {expected}; expected the residuals that an earlier step \
        of the same model wrote",
        path.display()
    )]
    ResidualLength { path: PathBuf, found: usize, expected: usize },
    /// No residual for a rank.
    #[error(
        "{} does not exist; expected residual-0.npy to residual-{last}.npy, one for each of the {} gradients: \
        leave --residuals out to start from zero",
        path.display(), last + 1
    )]
    ResidualMissing { path: PathBuf, last: usize },
    /// A residual without a rank.
    #[error(
        "{} belongs to another worker than the {workers} whose gradients are given, and would be left \
        behind: give the gradients of all workers, or remove that file",
        path.display()
    )]
    ResidualLeft { path: PathBuf, workers: usize },
    /// Gradient and residual that cannot be added.
    #[error("{rank} ({}): {source}; expected finite sums", path.display())]
    Sum { rank: Rank, path: PathBuf, source: AccumulateError },
    /// A place that is none.
    #[error("{} is no directory; choose another one for --out", path.display())]
    Out { path: PathBuf },
    /// A place that cannot be made.
    #[error("the directory {} cannot be made: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    /// A result that cannot be written.
    #[error(transparent)]
    Staged(#[from] StagedError),
    /// A choice of method that cannot be, or schedules that do not add up.
    #[error(transparent)]
    Routine(#[from] RoutineError),
    /// What the method had learnt cannot be read.
    #[error("{}: {what}; expected what an earlier step of the same method and as many workers wrote", path.display())]
    Memory { path: PathBuf, what: String },
    /// A run that failed.
    #[error("the all-reduce failed: {0}")]
    Run(#[from] ExecutionError),
    /// A broken invariant.
    #[error("{0} and rank 0 ended with different updates: this is a mistake in Gleaner, please report it")]
    Diverged(Rank),
    /// Nobody reads the report.
    #[error("the report cannot be printed: {0}")]
    Print(io::Error),
}

/// What is reported; the names are those of the JSON object.
#[derive(serde::Serialize)]
struct Report {
    method: &'static str,
    workers: usize,
    #[serde(rename = "params")]
    entries: usize,
    k: usize,
    rounds: u64,
    messages: u64,
    words_received: u64,
    words_critical: u64,
    entries_received: u64,
    #[serde(rename = "bytes_per_step")]
    bytes_received: u64,
    #[serde(rename = "entries_per_step")]
    entries_delivered: usize,
    lost: f64,
}

/// Runs the command.
pub fn run(arguments: &Reduce) -> Result<(), ReduceError> {
    let method = arguments.choice.method()?.residual(arguments.residual);
    if arguments.out.exists() && !arguments.out.is_dir() {
        return Err(ReduceError::Out { path: arguments.out.clone() });
    }
    let gradients = open_gradients(&arguments.gradients)?;
    let before =
        arguments.residuals.as_deref().map(|folder| open_residuals(folder, &gradients)).transpose()?;
    let n = gradients[0].len();
    let k = choice::k(&method, gradients.len() as u32, n)?;
    let read = |folder| memory::read(folder, &method, gradients.len());
    let learnt = arguments.residuals.as_deref().map(read).transpose()?;
    let mut step =
        Step::prepare(method.clone(), gradients.len() as u32, n, learnt.flatten()).map_err(|e| {
            match (e, &arguments.residuals) {
                (ReduceError::Routine(e @ RoutineError::Memory { .. }), Some(folder)) => {
                    let what = format!("{e}; remove it to start on these residuals afresh");
                    ReduceError::Memory { path: folder.join(memory::NAME), what }
                }
                (e, _) => e,
            }
        })?;
    step.accumulate(&gradients, before.as_deref())?;
    let reduced = step.all_reduce()?;
    write(arguments, &gradients, &step, &reduced)?;
    let report = Report {
        method: method.collective().name(),
        workers: gradients.len(),
        entries: n,
        k,
        rounds: step.cost.rounds,
        messages: step.cost.messages,
        words_received: step.cost.words_received,
        words_critical: step.cost.words_critical,
        entries_received: reduced.entries_received,
        bytes_received: reduced.bytes_received,
        entries_delivered: reduced.update.iter().map(Bag::nonzeros).sum(),
        lost: reduced.lost,
    };
    let text = if arguments.json { as_json(&report) } else { as_text(&report, &arguments.out) };
    report::print(&text).map_err(ReduceError::Print)
}

/// Opens the gradients of all ranks, which must be alike.
///
/// # Errors
/// Files that cannot be read, and gradients of different shapes.
pub fn open_gradients(paths: &[PathBuf]) -> Result<Vec<Vector>, ReduceError> {
    let open = |(rank, path): (usize, &PathBuf)| {
        Vector::open(path).map_err(|source| ReduceError::File { rank: Rank(rank as u32), source })
    };
    let gradients = paths.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
    let first = &gradients[0];
    match gradients.iter().find(|g| g.shape() != first.shape()) {
        None => Ok(gradients),
        Some(other) => Err(ReduceError::Unlike {
            path: first.path().into(),
            len: first.len(),
            shape: first.shape().into(),
            other_path: other.path().into(),
            other_len: other.len(),
            other_shape: other.shape().into(),
        }),
    }
}

fn residual_name(rank: usize) -> String {
    format!("residual-{rank}.npy")
}

/// One residual for every gradient, and none besides: what is left behind would never be delivered.
fn open_residuals(folder: &Path, gradients: &[Vector]) -> Result<Vec<Vector>, ReduceError> {
    let (workers, expected) = (gradients.len(), gradients[0].len());
    let mut residuals = Vec::with_capacity(workers);
    for rank in 0..workers {
        let path = folder.join(residual_name(rank));
        if !path.exists() {
            return Err(ReduceError::ResidualMissing { path, last: workers - 1 });
        }
        let residual =
            Vector::open(&path).map_err(|source| ReduceError::File { rank: Rank(rank as u32), source })?;
        if residual.len() != expected {
            return Err(ReduceError::ResidualLength { path, found: residual.len(), expected });
        }
        residuals.push(residual);
    }
    let path = folder.join(residual_name(workers));
    if path.exists() { Err(ReduceError::ResidualLeft { path, workers }) } else { Ok(residuals) }
}

/// Writes the residuals and then the update: where the update is, all is.
fn write(
    arguments: &Reduce,
    gradients: &[Vector],
    step: &Step,
    reduced: &Reduced,
) -> Result<(), ReduceError> {
    let (out, shape) = (&arguments.out, gradients[0].shape());
    fs::create_dir_all(out).map_err(|source| ReduceError::Make { path: out.clone(), source })?;
    let mut staged = Staged::default();
    for (rank, residual) in step.ensemble.residuals.iter().enumerate() {
        let pieces = step.entries().step_by(PIECE).map(|from| from..step.entries().end.min(from + PIECE));
        staged.write(&out.join(residual_name(rank)), |file| {
            let mut read = Ok(());
            let values =
                pieces.map_while(|piece| residual.read(piece).map_err(|error| read = Err(error)).ok());
            let written = npy::write(file, shape, values.flatten());
            read.map_err(io::Error::other).and(written)
        })?;
    }
    let text = memory::text(step.method(), &step.ensemble.memories());
    staged.write(&out.join(memory::NAME), |file| file.write_all(text.as_bytes()))?;
    staged.write(&out.join("update.npy"), |file| npy::write(file, shape, step.mean(reduced)))?;
    Ok(staged.publish()?)
}

/// Values of a residual that are copied at once.
const PIECE: usize = 1 << 18;

fn as_json(report: &Report) -> String {
    // A flat object of numbers and a fixed name always serialises.
    serde_json::to_string(report).unwrap_or_default() + "\n"
}

fn as_text(report: &Report, out: &Path) -> String {
    let mut text = String::new();
    let Report { method, workers, entries, k, .. } = report;
    let (n, k, s) = (grouped(*entries as u64), grouped(*k as u64), if *workers == 1 { "" } else { "s" });
    let _ = writeln!(text, "{method} among {workers} worker{s}: n = {n}, k = {k}\n");
    let mut row = |name: &str, count: String| {
        let _ = writeln!(text, "  {name:34}{count:>16}");
    };
    row("entries delivered", grouped(report.entries_delivered as u64));
    row("entries received, at most", grouped(report.entries_received));
    row("payload bytes received, at most", grouped(report.bytes_received));
    row("rounds", grouped(report.rounds));
    row("messages, at most", grouped(report.messages));
    row("words received, by the schedule", grouped(report.words_received));
    row("words on the critical path", grouped(report.words_critical));
    row("lost, sum of magnitudes", format!("{}", report.lost));
    let _ =
        writeln!(text, "\nThe mean is in {}, the residuals are beside it.", out.join("update.npy").display());
    text
}
