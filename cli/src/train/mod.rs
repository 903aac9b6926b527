//! `gleaner train`: a trainer for several workers that exchange sparse gradients.
//!
//! [`worker`] is what each rank runs: the same model from the same seed, its own share of the data, gradients handed to
//! a session, and the common update applied. The models, layers and data are those of `gleaner_trainer`.

mod arguments;
mod checkpoint;
mod error;
mod exchange;
mod levers;
mod picture;
mod record;
mod settings;
mod summary;
mod uneven;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use crate::crew::{self, Display};
use crate::merge_plan::layers::{File, NamedLayer};
use crate::report::{self, CommandError};
use gleaner_candle::{LayerTime, OverlapError, PassTimes};
use gleaner_runtime::{Config, Error};
use gleaner_trainer::TrainerError;
use gleaner_units as units;

pub use arguments::TrainArgs;

use summary::{Summary, Together};

/// Trains, as a worker or as the launcher of workers; gives the exit code.
pub fn run(args: &TrainArgs) -> Result<ExitCode, CommandError> {
    let settings = args.settings().map_err(report::refused)?;
    if !Config::is_worker() {
        settings.expect_start().map_err(of_run)?;
    }
    let (processes, roles) = (args.servers.processes(args.workers), args.servers.roles());
    if let Some(code) = crew::assemble(processes, roles, "train", args.timeout)? {
        return Ok(code);
    }
    let display = Display::new();
    let (code, summary) = worker::worker(args, |progress| display.show(&progress)).map_err(of_run)?;
    drop(display);
    if let Some(summary) = summary {
        let text = if args.json { report::json(&summary) } else { table(&summary) };
        // Of a run whose files cannot be written, the rest is not lost.
        let written = args.timeline.as_deref().map(|file| write_timeline(file, &summary)).transpose();
        let layers = args.layer_times.as_deref().map(|file| write_layer_times(file, &summary)).transpose();
        report::print(&text)?;
        written?;
        layers?;
        summary.converged()?;
    }
    Ok(code)
}

/// What ends a run: what is found of its arguments once the workers or the servers are known is said as any other of them.
fn of_run(error: CommandError) -> CommandError {
    use TrainerError::{ModelAndData, TooFewExamples};
    let is_of_arguments = matches!(error.downcast_ref::<Error>(), Some(Error::Method(_)))
        || matches!(error.downcast_ref::<OverlapError>(), Some(OverlapError::Runtime(Error::Method(_))))
        || matches!(error.downcast_ref::<TrainerError>(), Some(ModelAndData { .. } | TooFewExamples { .. }));
    if is_of_arguments { report::refused(error) } else { error }
}

/// The trace, or where the file is to be a picture, a step of it.
fn write_timeline(file: &Path, summary: &Summary) -> Result<(), CommandError> {
    let Summary { timeline: Some(trace), model, account, method, .. } = summary else { return Ok(()) };
    if file.extension().is_none_or(|extension| extension != "svg") {
        return Ok(report::save(file, trace)?);
    }
    let heading = format!("{model}, {} groups by {}, {method}", account.groups, account.merge);
    let picture = picture::svg(&heading, trace)?;
    Ok(picture.map_or(Ok(()), |picture| report::save(file, &picture))?)
}

/// As layers are read elsewhere.
fn write_layer_times(file: &Path, summary: &Summary) -> Result<(), CommandError> {
    let Some(PassTimes { forward, layers }) = &summary.account.pass_times else { return Ok(()) };
    let layer = |LayerTime { parameters, entries, seconds }: &LayerTime| NamedLayer {
        name: parameters.join(" + "),
        entries: *entries,
        seconds: Some(*seconds),
    };
    let layers = File { forward: Some(*forward), layers: layers.iter().map(layer).collect() };
    Ok(report::save(file, &format!("{:#}\n", serde_json::json!(layers)))?)
}

fn table(s: &Summary) -> String {
    let Summary { model, data, workers, method, held_out_loss_first, held_out_loss, account, .. } = s;
    let (params, accuracy) = (units::grouped(s.params as u64), s.held_out_accuracy.map(|a| a * 100.0));
    let accuracy = accuracy.map_or(String::new(), |percent| format!(", accuracy {percent:.1}%"));
    let (servers, under, blocked) = (servers(s.servers), under(s), blocked(s.together.seconds_blocked));
    let (done, skipped) = (s.steps - s.first_step, skipped(account.steps_skipped));
    let [waiting, hidden] = [s.together.waiting_share, s.together.hidden_share].map(|share| share * 100.0);
    let [received, dense] = [s.bytes_per_step, s.dense_bytes_per_step].map(units::bytes);
    let times = s.dense_bytes_per_step / s.bytes_per_step.max(1.0);
    let rows = [
        ("model", format!("{model} with {params} parameters, on {data}")),
        ("workers", format!("{workers}{servers}, exchanging by {method}{under}")),
        ("steps", format!("{done} in {:.1} s, {waiting:.0}% of it waiting{skipped}", s.seconds_run)),
        ("iteration", iteration(s)),
        ("throughput", throughput(s)),
        ("batches", batches(s)),
        ("paced", paced(s)),
        ("stragglers", stragglers(&s.seconds_waited)),
        (
            "groups",
            format!("{} by {}, {hidden:.0}% of the exchange hidden{blocked}", account.groups, account.merge),
        ),
        ("held-out loss", format!("{held_out_loss_first:.4} at first, {held_out_loss:.4} now{accuracy}")),
        ("training loss", training_loss(s)),
        ("best", best(s)),
        ("target", s.reached.words().unwrap_or_default()),
        (
            "received",
            format!("{received} per worker and step; a dense ring: {dense} ({times:.1} times as many)"),
        ),
        ("density", mean_density(s)),
        ("parameters", format!("{}… on every rank", &s.parameters_digest[..16])),
    ];
    let rows = rows.into_iter().filter(|(_, value)| !value.is_empty());
    rows.map(|(name, value)| format!("{name:14} {value}\n")).collect()
}

fn mean_density(s: &Summary) -> String {
    let Some(mean) = s.account.mean_density else { return String::new() };
    let delivered = s.account.delivered_norm_share.map_or(String::new(), |share| {
        format!("; {:.1}% of the squared norm delivered at last", 100.0 * share)
    });
    format!("{:.2}% in the mean over all steps, {:.2}% allowed{delivered}", 100.0 * mean, 100.0 * s.density)
}

/// Waiting of less than so many seconds in all is not worth a word.
const SHOWN: f64 = 0.05;

fn throughput(s: &Summary) -> String {
    let Together { throughput, seconds_batch_computation, seconds_batch_synchronisation, .. } = s.together;
    let bound = s.together.throughput_at_bound.filter(|_| s.background_share > 0.0);
    let bound =
        bound.map_or(String::new(), |bound| format!(" ({bound:.1} at the bound of what the passes hide)"));
    let background = match s.background_share {
        0.0 => String::new(),
        share => format!("; {:.0}% of the gradient during the next pass", 100.0 * share),
    };
    let beside = s.seconds_batch_computation_colocated.zip(s.seconds_batch_computation_apart);
    let beside = beside.map_or(String::new(), |(with, apart)| {
        format!(" ({:.1} beside a server, {:.1} elsewhere)", 1e3 * with, 1e3 * apart)
    });
    let [computing, waiting] = [seconds_batch_computation, seconds_batch_synchronisation].map(|s| 1e3 * s);
    format!(
        "{throughput:.1} samples/s{bound}: {computing:.1} ms computing{beside} and {waiting:.1} ms synchronising a step{background}"
    )
}

/// Of batches that differ, those of each rank and what its passes took.
fn batches(s: &Summary) -> String {
    if s.batches.iter().all(|&samples| samples == s.batches[0]) {
        return String::new();
    }
    let of = s.batches.iter().zip(&s.together.seconds_batch_computation_by_rank);
    let of: Vec<String> =
        of.map(|(samples, seconds)| format!("{samples} in {:.1} ms", 1e3 * seconds)).collect();
    format!("by rank: {} of computing", of.join(", "))
}

/// Times that are not this machine's are said to be none.
fn paced(s: &Summary) -> String {
    let words =
        |seconds| format!("passes were made to take {:.1} ms or more; they would be shorter", 1e3 * seconds);
    s.seconds_paced.map_or(String::new(), words)
}

/// For whom the others waited, and who they were; the two that were waited for longest.
fn stragglers(waited: &[Vec<f64>]) -> String {
    let of = |rank: usize| waited.iter().map(|row| row[rank]).sum::<f64>();
    let mut all: Vec<(usize, f64)> = (0..waited.len()).map(|rank| (rank, of(rank))).collect();
    all.retain(|(_, seconds)| *seconds >= SHOWN);
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let longest = all.iter().take(2).map(|&(rank, seconds)| {
        let longest = (0..waited.len()).max_by(|&a, &b| waited[a][rank].total_cmp(&waited[b][rank]));
        let longest = longest.filter(|_| waited.len() > 2);
        let longest =
            longest.map_or(String::new(), |by| format!(", rank {by} {:.2} s of it", waited[by][rank]));
        format!("{seconds:.2} s for rank {rank}{longest}")
    });
    let longest: Vec<String> = longest.collect();
    if longest.is_empty() {
        "no worker waited for another".into()
    } else {
        format!("the others waited {}", longest.join("; "))
    }
}

fn training_loss(s: &Summary) -> String {
    let since = s.evaluations.iter().rev().nth(1).map_or(s.first_step, |before| before.step);
    s.training_loss.map_or(String::new(), |loss| format!("{loss:.4} since step {since}"))
}

fn best(s: &Summary) -> String {
    let steps = report::counted(s.best_step as usize, "step");
    match s.best_held_out_accuracy {
        Some(accuracy) => format!("accuracy {:.1}% after {steps}", 100.0 * accuracy),
        None => format!("held-out loss {:.4} after {steps}", s.best_held_out_loss),
    }
}

fn servers(servers: usize) -> String {
    match servers {
        0 => String::new(),
        1 => " with a parameter server".into(),
        _ => format!(" with {servers} parameter servers"),
    }
}

/// What is not every step by itself.
fn under(s: &Summary) -> String {
    if s.synchrony == "bsp" { String::new() } else { format!(", under {}", s.synchrony) }
}

fn iteration(s: &Summary) -> String {
    let words = |iteration: Option<f64>, hidden: Option<f64>| {
        let (ms, percent) = (1e3 * iteration?, 100.0 * hidden?);
        Some(format!("{ms:.1} ms and {percent:.0}% hidden"))
    };
    let expected = words(s.account.seconds_expected_iteration, s.account.expected_hidden_share);
    let planned = words(s.account.seconds_planned_iteration, s.account.planned_hidden_share);
    let expects = match expected.zip(planned) {
        Some((expected, planned)) if planned == expected => format!("; the plan expects {expected}"),
        Some((expected, planned)) => {
            format!("; the plan expects {expected}, and expected {planned} at first")
        }
        None => String::new(),
    };
    format!("{:.1} ms{expects}", 1e3 * s.together.seconds_iteration)
}

fn blocked(seconds: f64) -> String {
    let words = format!("; {seconds:.2} s blocked while handing gradients over");
    if seconds == 0.0 { String::new() } else { words }
}

fn skipped(steps: u64) -> String {
    let words = format!("; {steps} skipped for gradients that were not finite");
    if steps == 0 { String::new() } else { words }
}
