//! Predictions beside measurements, and a machine's speeds from them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use gleaner_runtime::staged::Staged;
use gleaner_testbed::experiment::this_commit;
use gleaner_testbed::record::{FILE, Record};
use gleaner_testbed::simulation::calibration::{Prepared, fit, median};
use gleaner_testbed::simulation::measured::{self, Measured};
use gleaner_testbed::simulation::{self, Link, Machine, Network, Op, Steps, Trace, Work, Workload};
use gleaner_units::{bytes, grouped};
use serde::{Deserialize, Serialize};

use super::{Simulate, Way, bench_gradient};
use crate::choice;
use crate::crew::bar;
use crate::report::{CommandError, json, ms, refused, save, table};

/// Predictions are meant to be that near.
const NEAR: f64 = 0.15;

/// The copy of an experiment's file, beside its measurements.
const EXPERIMENT: &str = "experiment.toml";

/// One measured case beside its prediction. The names are those of the JSON object.
#[derive(Debug, Serialize)]
struct Row {
    method: String,
    workers: u32,
    params: usize,
    density: f64,
    /// What each link carried; none if there was no limit.
    bandwidth_bits_per_second: Option<f64>,
    seconds_measured: f64,
    /// By turn; the one above is their median.
    seconds_of_turns: Vec<f64>,
    seconds_predicted: f64,
    ratio: f64,
    bytes_per_step_measured: u64,
    payload_bytes_per_step_predicted: u64,
    seconds_select_measured: f64,
    seconds_select_predicted: f64,
    seconds_merge_measured: f64,
    seconds_merge_predicted: f64,
}

#[derive(Debug, Serialize)]
struct Comparison {
    machine_speeds: Machine,
    cases: Vec<Row>,
    near: usize,
    worst: f64,
}

/// Compares, after fitting if that is asked for.
pub fn run(simulate: &Simulate) -> Result<String, CommandError> {
    if (simulate.turns > 1 || simulate.times.is_some()) && !matches!(simulate.workload, Way::Profiled) {
        return Err(refused(
            "--turns and --times are for what is timed; leave them out, or say --workload profiled",
        ));
    }
    let mut prepared = Vec::new();
    for path in &simulate.against {
        let cases = measured::read(path)?;
        prepared.extend(cases.into_iter().map(|measured| prepare(simulate, measured)));
    }
    let mut commit = None;
    if let Some(folder) = &simulate.predicted {
        commit = commit_of_predictions()?;
        make_room(folder, &prepared)?;
    }
    let bar = bar(u64::from(simulate.turns) * prepared.len() as u64);
    for turn in 0..simulate.turns {
        for case in &mut prepared {
            bar.set_message(format!("{} among {}", case.measured.label, case.measured.workers));
            let timed = traces(simulate, case, turn)?;
            if case.traces.is_empty() {
                case.traces = timed;
            } else if !case.traces.iter_mut().zip(&timed).all(|(trace, again)| trace.shorten(again)) {
                let Measured { label, workers, .. } = &case.measured;
                return Err(format!(
                    "{label} among {workers} workers did something else in turn {turn} than before; expected times of one program: \
                     choose another folder for --times"
                )
                .into());
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut machine = super::machine(simulate.machine.as_deref())?;
    if let Some(path) = &simulate.fit_machine {
        machine = calibrated(&prepared, machine);
        let text = serde_json::to_string_pretty(&machine).unwrap_or_default() + "\n";
        save(path, &text)?;
    }
    let rows: Vec<Row> = prepared.iter().map(|case| row(case, &machine)).collect();
    if let Some(folder) = &simulate.predicted {
        let cases = prepared.iter().zip(&rows);
        let records =
            cases.flat_map(|(case, row)| case.measured.predicted(row.seconds_predicted, commit.as_deref()));
        store(folder, records, &simulate.against)?;
    }
    let off = |row: &Row| (row.ratio - 1.0).abs();
    let near = rows.iter().filter(|row| off(row) <= NEAR).count();
    let worst = rows.iter().map(off).fold(0.0, f64::max);
    let comparison = Comparison { machine_speeds: machine, cases: rows, near, worst };
    Ok(if simulate.json { json(&comparison) } else { comparison.table(simulate) })
}

fn prepare(simulate: &Simulate, measured: Measured) -> Prepared {
    let cores = measured.cores.map_or(simulate.cores, f64::from);
    let link = match &measured.shape {
        Some(shape) => Link::of_shape(shape, simulate.burst),
        None => simulate.link(),
    };
    // What was measured were hosts that one machine emulated.
    let network = Network::star(measured.workers, link, cores, true);
    Prepared { measured, traces: Vec::new(), network }
}

fn traces(simulate: &Simulate, case: &Prepared, turn: u32) -> Result<Vec<Trace>, CommandError> {
    let Measured { ref method, workers, n, steps, .. } = case.measured;
    let refused = |reason: CommandError| format!("{} among {workers} workers: {reason}", case.measured.label);
    let workload = simulate.workload(method, &case.network, n, steps).map_err(refused)?;
    let made = || {
        let traces = simulation::traces(method, (workers, n), workload, &bench_gradient);
        traces.map_err(|error| refused(error).into())
    };
    match (&simulate.times, workload) {
        (Some(folder), Workload::Profiled { steps: Steps { warm_up, counted }, at_once }) => {
            let case = format!(
                "{method}, {workers} workers, {n} entries, {counted} steps after {warm_up}, {at_once} at once"
            );
            kept(folder, case, turn, made)
        }
        _ => made(),
    }
}

/// What was timed, kept in a folder, so that it is timed once for many replays and an interrupted timing goes on.
#[derive(Serialize, Deserialize)]
struct Kept {
    case: String,
    steps: Vec<Trace>,
}

/// The steps of a case in a turn, read from the folder, or timed now and kept in it.
fn kept(
    folder: &Path,
    case: String,
    turn: u32,
    time: impl FnOnce() -> Result<Vec<Trace>, CommandError>,
) -> Result<Vec<Trace>, CommandError> {
    let path = place(folder, &case, turn);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let kept: Kept = serde_json::from_str(&text)
                .map_err(|error| format!("{} has no times: {error}; delete it", path.display()))?;
            if kept.case != case {
                return Err(format!(
                    "{} has the times of '{}'; expected '{case}': choose another folder for --times",
                    path.display(),
                    kept.case
                )
                .into());
            }
            Ok(kept.steps)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::create_dir_all(folder)
                .map_err(|error| format!("the folder {} cannot be made: {error}", folder.display()))?;
            let kept = Kept { case, steps: time()? };
            save(&path, &json(&kept))?;
            Ok(kept.steps)
        }
        Err(error) => Err(format!("{} cannot be read: {error}", path.display()).into()),
    }
}

fn place(folder: &Path, case: &str, turn: u32) -> PathBuf {
    let words: Vec<&str> = case
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '.')
        .filter(|word| !word.is_empty())
        .collect();
    folder.join(format!("{}.{turn}.json", words.join("-")))
}

fn calibrated(cases: &[Prepared], start: Machine) -> Machine {
    let mut workers: Vec<u32> = cases.iter().map(|case| case.measured.workers).collect();
    workers.sort_unstable();
    workers.dedup();
    let workers: Vec<String> = workers.iter().map(u32::to_string).collect();
    let mut ops = cases.iter().flat_map(|case| &case.traces).flat_map(|trace| trace.workers.iter().flatten());
    let timed = ops.any(|op| matches!(op, Op::Work(_, Work::Took(_))));
    // What entries take was not asked of the measurements then.
    let how = if timed { ", profiled, so for --workload profiled" } else { "" };
    let about = format!("fitted to {} measured cases{how}, P = {}", cases.len(), workers.join(", "));
    let bar = bar(0);
    let machine = fit(cases, &Machine { about, ..start }, |done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        bar.set_message("fitting");
    });
    bar.finish_and_clear();
    machine
}

fn row(case: &Prepared, machine: &Machine) -> Row {
    let Prepared { measured, traces, network } = case;
    let replayed = median(traces, machine, network, false);
    let slowest = replayed.slowest();
    let rate = network.links.first().map(|link| 8.0 * link.rate);
    let k = choice::k(&measured.method, measured.workers, measured.n).unwrap_or(measured.n);
    Row {
        method: measured.label.clone(),
        workers: measured.workers,
        params: measured.n,
        density: k as f64 / measured.n.max(1) as f64,
        bandwidth_bits_per_second: rate.filter(|rate| rate.is_finite()),
        seconds_measured: measured.seconds,
        seconds_of_turns: measured.turns.clone(),
        seconds_predicted: slowest.seconds,
        ratio: slowest.seconds / measured.seconds,
        bytes_per_step_measured: measured.bytes_received as u64,
        payload_bytes_per_step_predicted: Trace::middle(traces).map_or(0, |(bytes, _)| bytes),
        seconds_select_measured: measured.select,
        seconds_select_predicted: slowest.select,
        seconds_merge_measured: measured.merge,
        seconds_merge_predicted: slowest.merge,
    }
}

/// From the least to the most, if there are several.
fn range(turns: &[f64]) -> String {
    let (least, most) = turns.iter().fold((f64::INFINITY, 0.0), |(a, b), &t| (t.min(a), t.max(b)));
    if turns.len() > 1 { format!("{} … {}", ms(least), ms(most)) } else { String::new() }
}

impl Comparison {
    fn table(&self, simulate: &Simulate) -> String {
        let headings = "method|P|n|density|Mbit/s|measured|turns|predicted|ratio||select m/p|merge m/p|bytes measured|predicted";
        let rows = self.cases.iter().map(|row| {
            let near = (row.ratio - 1.0).abs() <= NEAR;
            vec![
                row.method.clone(),
                row.workers.to_string(),
                grouped(row.params as u64),
                format!("{:.4}", row.density),
                row.bandwidth_bits_per_second.map_or_else(String::new, |rate| (rate / 1e6).to_string()),
                ms(row.seconds_measured),
                range(&row.seconds_of_turns),
                ms(row.seconds_predicted),
                format!("{:.2}", row.ratio),
                if near { String::new() } else { "off".into() },
                format!("{} / {}", ms(row.seconds_select_measured), ms(row.seconds_select_predicted)),
                format!("{} / {}", ms(row.seconds_merge_measured), ms(row.seconds_merge_predicted)),
                bytes(row.bytes_per_step_measured as f64),
                bytes(row.payload_bytes_per_step_predicted as f64),
            ]
        });
        let written = match &simulate.fit_machine {
            Some(path) => format!("Speeds written to {}.\n", path.display()),
            None => String::new(),
        };
        let with_predictions = match &simulate.predicted {
            Some(folder) => format!("Measurements with predictions written to {}.\n", folder.display()),
            None => String::new(),
        };
        format!(
            "Measured and predicted steps, ms\n\n{}\n{} of {} cases within {:.0}%; the worst is off by {:.0}%. Speeds: {}.\n{written}{with_predictions}",
            table(headings.split('|'), rows),
            self.near,
            self.cases.len(),
            100.0 * NEAR,
            100.0 * self.worst,
            self.machine_speeds.about,
        )
    }
}

/// The commit of the checkout around the current directory, which predictions name on pages; none outside one.
///
/// # Errors
/// A checkout whose files differ from its commit.
fn commit_of_predictions() -> Result<Option<String>, CommandError> {
    let commit = this_commit();
    if let Some(commit) = commit.as_deref().and_then(|commit| commit.strip_suffix("-dirty")) {
        return Err(format!(
            "files differ from commit {commit}; expected with --predicted predictions of a commit, which others can build: commit or undo \
             the changes"
        )
        .into());
    }
    Ok(commit)
}

/// Makes the folder for the measurements of one experiment.
///
/// # Errors
/// Several experiments, cases that none stored, and a folder that has a run already.
fn make_room(folder: &Path, cases: &[Prepared]) -> Result<(), CommandError> {
    let mut experiments = BTreeSet::new();
    for Measured { label, workers, records, .. } in cases.iter().map(|case| &case.measured) {
        if records.is_empty() {
            return Err(format!(
                "{label} among {workers} workers is of no experiment; expected with --predicted what gleaner testbed run stored: leave out \
                 what gleaner bench printed"
            )
            .into());
        }
        experiments.extend(records.iter().map(|record| record.experiment.as_str()));
    }
    if experiments.len() > 1 {
        return Err(format!(
            "--predicted is for one experiment, and --against has {}; give each experiment a command and a folder of its own",
            Vec::from_iter(experiments).join(" and ")
        )
        .into());
    }
    let taken = [FILE, EXPERIMENT].map(|name| folder.join(name)).into_iter().find(|path| path.exists());
    if let Some(path) = taken {
        return Err(format!(
            "{} is there already; expected a folder without a run: name another one with --predicted",
            path.display()
        )
        .into());
    }
    Ok(fs::create_dir_all(folder).map_err(|e| format!("{} cannot be made: {e}", folder.display()))?)
}

/// Writes the records, and the experiment's file if one lies beside the measurements.
fn store(
    folder: &Path,
    records: impl Iterator<Item = Record>,
    against: &[PathBuf],
) -> Result<(), CommandError> {
    let mut staged = Staged::default();
    let lines = records.map(|record| serde_json::to_string(&record)).collect::<Result<Vec<_>, _>>()?;
    staged.write(&folder.join(FILE), |out| out.write_all((lines.join("\n") + "\n").as_bytes()))?;
    let mut beside = against.iter().map(|file| file.with_file_name(EXPERIMENT));
    if let Some(file) = beside.find(|file| file.is_file()) {
        let text = fs::read(&file).map_err(|e| format!("{} cannot be read: {e}", file.display()))?;
        staged.write(&folder.join(EXPERIMENT), |out| out.write_all(&text))?;
    }
    Ok(staged.publish()?)
}
