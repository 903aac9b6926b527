//! Measurements that are kept beside the pages that show them: of each only the numbers that are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::read::Run;
use super::super::sample::{Sample, samples};
use super::super::summary::date;
use crate::Error;
use crate::record::{Machine, Outcome, Record};

/// The version of the format that this program writes.
const VERSION: u32 = 1;

/// Where measurements come from, and what their cases have in common: the first line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamp {
    version: u32,
    /// The experiment's name.
    pub experiment: String,
    /// The commit of the checkout, with `-dirty` behind it where files differed; none outside one.
    pub commit: Option<String>,
    /// The commit of the checkout that predictions were added in; none without them, and in earlier files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_commit: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// The day on which the first of them began, in UTC.
    pub date: String,
    /// How often each case was measured.
    pub turns: u32,
    case: BTreeMap<String, Value>,
}

/// One measurement: a line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured; in the file without what all cases have in common.
    pub case: BTreeMap<String, Value>,
    /// Which repetition, from 0.
    pub turn: u32,
    /// Numbers by their names; empty where the job failed.
    pub values: BTreeMap<String, f64>,
}

/// The measurements of one experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Where they come from.
    pub stamp: Stamp,
    /// In the order of the run.
    pub rows: Vec<Row>,
}

impl Stored {
    /// Of a run the numbers with these names. Where a measurement has none of that name, it is left out; so is one of which something was
    /// planned that did not happen.
    ///
    /// # Errors
    /// A run with measurements of several commits or machines, or of a checkout whose files differed from its commit.
    pub fn of(run: &Run, names: &BTreeSet<String>) -> Result<Self, Error> {
        let Some(first) = run.records.first() else { unreachable!("a run that was read has a measurement") };
        let one = |what, of: &dyn Fn(&Record) -> String| -> Result<(), String> {
            let found: BTreeSet<String> = run.records.iter().map(of).collect();
            if found.len() <= 1 {
                return Ok(());
            }
            let (directory, found) = (run.directory.display(), Vec::from_iter(found).join(" and "));
            Err(format!(
                "'{directory}' mixes {what}: {found}; expected measurements of one build on one machine: measure all of it again in a \
                 new directory"
            ))
        };
        one("commits", &|record| record.commit.clone().unwrap_or_else(|| "no commit".into()))?;
        one("commits of predictions", &|record| {
            record.predicted_commit.clone().unwrap_or_else(|| "no commit".into())
        })?;
        one("machines", &|record| format!("{:?}", record.machine))?;
        if let Some(commit) = first.commit.as_deref().and_then(|commit| commit.strip_suffix("-dirty")) {
            return Err(format!(
                "'{}' was measured where files differed from commit {commit}; expected measurements of a commit, which others can build: \
                 commit or undo the changes, and measure all of it again in a new directory",
                run.directory.display()
            )
            .into());
        }
        let common = |(key, value): &(&String, &Value)| {
            run.records.iter().all(|record| record.case.get(*key) == Some(*value))
        };
        let case: BTreeMap<String, Value> =
            first.case.iter().filter(common).map(|(key, value)| (key.clone(), value.clone())).collect();
        let samples = samples(std::slice::from_ref(run));
        let row = |(place, record): (usize, &Record)| {
            let values = match (&record.outcome, samples.iter().find(|sample| sample.record == place)) {
                (Outcome::Done(Value::Object(object)), Some(sample)) => names
                    .iter()
                    .filter_map(|name| Some((name.clone(), short(number(name, object, sample)?)?)))
                    .collect(),
                _ => BTreeMap::new(),
            };
            let varies = record.case.iter().filter(|(key, _)| !case.contains_key(*key));
            Row {
                case: varies.map(|(key, value)| (key.clone(), value.clone())).collect(),
                turn: record.turn,
                values,
            }
        };
        let as_planned = |(_, record): &(usize, &Record)| record.unlike_its_case().is_none();
        let rows: Vec<Row> = run.records.iter().enumerate().filter(as_planned).map(row).collect();
        let began = run.records.iter().map(|record| record.started).fold(f64::INFINITY, f64::min);
        let stamp = Stamp {
            version: VERSION,
            experiment: first.experiment.clone(),
            commit: first.commit.clone(),
            predicted_commit: first.predicted_commit.clone(),
            machine: first.machine.clone(),
            date: date(began).chars().take(10).collect(),
            turns: rows.iter().map(|row| row.turn + 1).max().unwrap_or(0),
            case,
        };
        Ok(Self { stamp, rows })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// One that is not there, or holds something else.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path).map_err(|source| {
            let name = path.file_stem().unwrap_or_default().display();
            let advice = format!(
                "measure it by gleaner testbed run experiments/{name}.toml, and store it with --from"
            );
            format!("'{}' cannot be read: {source}; {advice}", path.display())
        })?;
        let refuse = |line: usize, reason: String| {
            Error::from(format!("'{}', line {line}: {reason}; store it again with --from", path.display()))
        };
        let mut lines = text.lines().enumerate();
        let first = lines.next().map(|(_, line)| line).unwrap_or_default();
        let stamp: Stamp = serde_json::from_str(first).map_err(|e| refuse(1, e.to_string()))?;
        if stamp.version != VERSION {
            return Err(refuse(
                1,
                format!("its format is {}, and this program reads {VERSION}", stamp.version),
            ));
        }
        let row = |(i, line): (usize, &str)| -> Result<Row, Error> {
            let mut row: Row = serde_json::from_str(line).map_err(|e| refuse(i + 1, e.to_string()))?;
            row.case.extend(stamp.case.clone());
            Ok(row)
        };
        let rows = lines.map(row).collect::<Result<_, Error>>()?;
        Ok(Self { stamp, rows })
    }

    /// What goes into the file.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        let rows = self.rows.iter().map(serde_json::to_string);
        let lines: Vec<String> =
            [serde_json::to_string(&self.stamp)].into_iter().chain(rows).collect::<Result<_, _>>()?;
        Ok(lines.join("\n") + "\n")
    }
}

/// A number of a measurement: what the program printed under that name; at an evaluation, as in `held_out_loss@100`; or one that follows
/// from several.
fn number(name: &str, object: &Map<String, Value>, sample: &Sample) -> Option<f64> {
    if let Some((name, step)) = name.split_once('@') {
        let step: u64 = step.parse().ok()?;
        let mut evaluations = object.get("evaluations")?.as_array()?.iter();
        let found = evaluations.find(|one| one.get("step").and_then(Value::as_u64) == Some(step))?;
        return found.get(name)?.as_f64();
    }
    match name {
        "epoch_seconds" => sample.seconds.map(|spread| spread.value),
        "epoch_communication_seconds" => sample.parts.map(|[_, communication, _]| communication),
        "epoch_bytes_received" => sample.bytes,
        "loading_and_epoch_seconds" => Some(object.get("seconds_loading")?.as_f64()? + sample.seconds?.value),
        "interface_bytes" => sample.interface_bytes,
        "delivered_share" => sample.delivered,
        "best_seconds" => {
            let best = object.get("best_step")?.as_u64()?;
            sample.evaluations.iter().find(|one| one.step == best).map(|one| one.seconds)
        }
        name => object.get(name)?.as_f64(),
    }
}

/// With six digits, which is more than any page shows.
fn short(number: f64) -> Option<f64> {
    format!("{number:.5e}").parse().ok().filter(|number: &f64| number.is_finite())
}
