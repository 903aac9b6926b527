//! `gleaner reduce`: one all-reduce of recorded gradients, with all workers in one thread.

mod memory;
pub mod npy;
mod step;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gleaner_algorithms::Method;
use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::collectives::{Ensemble, RoutineError};
use gleaner_algorithms::residual::Collection;
use gleaner_runtime::staged::Staged;

use crate::choice::{self, Choice};
use crate::report::{self, CommandError};
use gleaner_units::grouped;
use npy::Vector;
use step::Reduced;

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
    /// Which dropped entries are collected: global (all of them), partial or local; the others are lost
    #[arg(long, value_name = "WHICH", default_value = "global")]
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

/// What is reported; the names are those of the JSON object.
#[derive(serde::Serialize)]
struct Report {
    method: &'static str,
    workers: usize,
    params: usize,
    k: usize,
    rounds: u64,
    messages: u64,
    words_received: u64,
    words_critical: u64,
    entries_received: u64,
    payload_bytes_per_step: u64,
    entries_per_step: usize,
    lost: f64,
}

pub fn run(arguments: &Reduce) -> Result<ExitCode, CommandError> {
    let method = arguments.choice.method()?.residual(arguments.residual);
    if arguments.out.exists() && !arguments.out.is_dir() {
        return Err(
            format!("{} is no directory; choose another one for --out", arguments.out.display()).into()
        );
    }
    let gradients = open_gradients(&arguments.gradients)?;
    let before =
        arguments.residuals.as_deref().map(|folder| open_residuals(folder, &gradients)).transpose()?;
    let n = gradients[0].len;
    let workers = gradients.len() as u32;
    let k = choice::k(&method, workers, n)?;
    let read = |folder| memory::read(folder, &method, gradients.len());
    let learnt = arguments.residuals.as_deref().map(read).transpose()?;
    let prepared = Ensemble::new(method.clone(), workers, n).and_then(|mut ensemble: Ensemble| {
        learnt.flatten().map_or(Ok(()), |memories| ensemble.restore(memories))?;
        Ok(ensemble)
    });
    let mut ensemble = prepared.map_err(|error| match (error, &arguments.residuals) {
        (error @ RoutineError::Memory { .. }, Some(folder)) => memory::refused(
            &folder.join(memory::NAME),
            &format!("{error}; remove it to start on these residuals afresh"),
        ),
        (RoutineError::Method(error), _) => error.into(),
        (error, _) => error.into(),
    })?;
    step::accumulate(&mut ensemble, &gradients, before.as_deref())?;
    let cost = ensemble.cost();
    let reduced = step::all_reduce(&mut ensemble, method.collection())?;
    write(&arguments.out, &gradients[0].shape, (&method, &ensemble), &reduced)?;
    let report = Report {
        method: method.collective().name(),
        workers: gradients.len(),
        params: n,
        k,
        rounds: cost.rounds,
        messages: cost.messages,
        words_received: cost.words_received,
        words_critical: cost.words_critical,
        entries_received: reduced.entries_received,
        payload_bytes_per_step: reduced.bytes_received,
        entries_per_step: reduced.update.iter().map(Bag::nonzeros).sum(),
        lost: reduced.lost,
    };
    report::print(&if arguments.json { report::json(&report) } else { as_text(&report, &arguments.out) })?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the gradients of all ranks, which must be alike.
///
/// # Errors
/// Files that cannot be read, and gradients of different shapes.
pub fn open_gradients(paths: &[PathBuf]) -> Result<Vec<Vector>, CommandError> {
    let opened = paths.iter().enumerate().map(|(rank, path)| Vector::open(rank, path));
    let gradients = opened.collect::<Result<Vec<_>, _>>()?;
    let Vector { path, len, shape, .. } = &gradients[0];
    let Some(other) = gradients.iter().find(|other| other.shape != *shape) else { return Ok(gradients) };
    let found = format!("{} has {len} entries of shape {shape:?}", path.display());
    let Vector { path, len, shape, .. } = other;
    let other = format!("{} has {len} of shape {shape:?}", path.display());
    Err(format!("{found}, but {other}; expected the gradients of one model from all ranks").into())
}

fn residual_name(rank: usize) -> String {
    format!("residual-{rank}.npy")
}

/// One residual for every gradient, and none besides: what is left behind would never be delivered.
fn open_residuals(folder: &Path, gradients: &[Vector]) -> Result<Vec<Vector>, CommandError> {
    let (workers, expected) = (gradients.len(), gradients[0].len);
    let mut residuals = Vec::with_capacity(workers);
    for rank in 0..workers {
        let path = folder.join(residual_name(rank));
        let shown = path.display();
        if !path.exists() {
            return Err(format!(
                "{shown} does not exist; expected residual-0.npy to residual-{}.npy, one for each of the {workers} gradients: leave \
                 --residuals out to start from zero",
                workers - 1
            )
            .into());
        }
        let residual = Vector::open(rank, &path)?;
        let found = residual.len;
        if found != expected {
            return Err(format!(
                "{shown} has {found} entries, but the gradients have {expected}; expected the residuals that an earlier step of the same \
                 model wrote"
            )
            .into());
        }
        residuals.push(residual);
    }
    let path = folder.join(residual_name(workers));
    if path.exists() {
        return Err(format!(
            "{} belongs to another worker than the {workers} whose gradients are given, and would be left behind: give the \
             gradients of all workers, or remove that file",
            path.display()
        )
        .into());
    }
    Ok(residuals)
}

/// Writes the residuals and then the update: where the update is, all is.
fn write(
    out: &Path,
    shape: &[u64],
    (method, ensemble): (&Method, &Ensemble),
    reduced: &Reduced,
) -> Result<(), CommandError> {
    let n = shape.iter().product::<u64>() as usize;
    fs::create_dir_all(out)
        .map_err(|error| format!("the directory {} cannot be made: {error}", out.display()))?;
    let mut staged = Staged::default();
    for (rank, residual) in ensemble.residuals.iter().enumerate() {
        let pieces = (0..n).step_by(PIECE).map(|from| from..n.min(from + PIECE));
        staged.write(&out.join(residual_name(rank)), |file| {
            let mut read = Ok(());
            let values =
                pieces.map_while(|piece| residual.read(piece).map_err(|error| read = Err(error)).ok());
            let written = npy::write(file, shape, values.flatten());
            read.map_err(io::Error::other).and(written)
        })?;
    }
    let text = memory::text(method, &ensemble.memories());
    staged.write(&out.join(memory::NAME), |file| file.write_all(text.as_bytes()))?;
    staged.write(&out.join("update.npy"), |file| npy::write(file, shape, reduced.mean()))?;
    Ok(staged.publish()?)
}

/// Values of a residual that are copied at once.
const PIECE: usize = 1 << 18;

fn as_text(report: &Report, out: &Path) -> String {
    let mut text = String::new();
    let Report { method, workers, params, k, .. } = report;
    let (n, k, workers) = (grouped(*params as u64), grouped(*k as u64), report::counted(*workers, "worker"));
    let _ = writeln!(text, "{method} among {workers}: n = {n}, k = {k}\n");
    let mut row = |name: &str, count: String| {
        let _ = writeln!(text, "  {name:34}{count:>16}");
    };
    row("entries delivered", grouped(report.entries_per_step as u64));
    row("entries received, at most", grouped(report.entries_received));
    row("payload bytes received, at most", grouped(report.payload_bytes_per_step));
    row("rounds", grouped(report.rounds));
    row("messages, at most", grouped(report.messages));
    row("words received, by the schedule", grouped(report.words_received));
    row("words on the critical path", grouped(report.words_critical));
    row("lost, sum of magnitudes", format!("{}", report.lost));
    let _ =
        writeln!(text, "\nThe mean is in {}, the residuals are beside it.", out.join("update.npy").display());
    text
}
