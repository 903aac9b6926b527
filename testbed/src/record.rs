//! A measurement as it is stored: one line of JSON, which says what was measured, where, and by which command.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::network::Crossed;

/// The version of the format that this program writes.
pub const VERSION: u32 = 1;

/// The name of the file with the records of a run, inside its directory.
pub const FILE: &str = "measurements.jsonl";

/// A line of that file.
#[derive(Debug)]
pub struct Line<'a> {
    /// Which, from 1.
    pub number: usize,
    /// The line, with its end if it has one.
    pub bytes: &'a [u8],
    /// How many bytes of the file there are up to its end.
    pub until: usize,
    /// What it holds.
    pub record: Result<Record, Unread>,
}

/// Why a line is no record.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    /// A later version of the program wrote it.
    #[error(
        "format {0} of measurements, but this program reads formats up to {VERSION}; use a newer gleaner"
    )]
    Newer(u64),
    /// It is the last one and has no end: its writer was interrupted.
    #[error("it is torn: the run was interrupted while writing it")]
    Torn,
    /// It is something else.
    #[error("{0}")]
    Other(String),
}

/// All lines of a file of measurements that are not blank, in their order.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let mut until = 0;
    let numbered = bytes.split_inclusive(|byte| *byte == b'\n').zip(1..).map(move |(bytes, number)| {
        until += bytes.len();
        (bytes, number, until)
    });
    numbered.filter(|(bytes, ..)| !bytes.trim_ascii().is_empty()).map(|(bytes, number, until)| {
        let record = match Record::parse(bytes) {
            Err(Unread::Newer(version)) => Err(Unread::Newer(version)),
            Err(_) if !bytes.ends_with(b"\n") => Err(Unread::Torn),
            other => other,
        };
        Line { number, bytes, until, record }
    })
}

/// One job of an experiment, or what one method did in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// The name of the experiment.
    pub experiment: String,
    /// What was measured, by the names of the axes: `command` (bench, train or regress), `method`, `workers`, `seed`, `params`
    /// or `model`, `density`, `bandwidth` and whatever else the experiment's file varies.
    pub case: BTreeMap<String, Value>,
    /// Which repetition, from 0.
    pub turn: u32,
    /// When it began: seconds since 1970.
    pub started: f64,
    /// How long the job ran, from starting its processes to their end.
    pub seconds: f64,
    /// Where it ran.
    pub machine: Machine,
    /// The commit of the checkout that the experiment was started in, with `-dirty` behind it where files differed.
    pub commit: Option<String>,
    /// The commit of the checkout that a prediction was added in; none without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_commit: Option<String>,
    /// What was run, as one would type it.
    pub command: Vec<String>,
    /// What was done to the network and the workers on purpose, in order; empty without chaos.
    #[serde(default)]
    pub chaos: Vec<String>,
    /// What was planned to be done and did not happen, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missed: Vec<String>,
    /// Whether what was done on purpose is a reason for the job to fail, and it did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed_on_purpose: bool,
    /// What crossed the interface of each host while the job ran.
    pub traffic: Vec<Traffic>,
    /// Where a process of ours relays packets, what crossed all links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<Relayed>,
    /// The outcome.
    pub outcome: Outcome,
}

/// What shows whether links that a process of ours makes were what held a job up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Relayed {
    /// What crossed all links.
    #[serde(flatten)]
    pub crossed: Crossed,
    /// The share of all processors' time in which they were busy while the job ran, where the kernel says that.
    #[serde(default)]
    pub busy: Option<f64>,
}

/// Processors that are busy for more than this share of a job that exchanges and does nothing else held it up.
const BUSY: f64 = 0.9;

impl Record {
    /// The record in a line.
    fn parse(line: &[u8]) -> Result<Self, Unread> {
        let other = |error: serde_json::Error| Unread::Other(error.to_string());
        let value: Value = serde_json::from_slice(line).map_err(other)?;
        // The version comes first: what else a newer record holds is unknown.
        match value.get("version").and_then(Value::as_u64) {
            Some(version) if version > u64::from(VERSION) => Err(Unread::Newer(version)),
            _ => serde_json::from_value(value).map_err(other),
        }
    }

    /// Why it is no measurement of the links: the processors, which carry packets as well, had too much to do. Training may keep them
    /// busy by itself.
    pub fn processors_bound(&self) -> Option<String> {
        let Relayed { crossed, busy } = self.relay?;
        let share = |part: f64| format!("{:.1}%", 100.0 * part);
        if crossed.is_late() {
            let late = crossed.late as f64 / crossed.carried as f64;
            return Some(format!("the relay brought {} of the frames late", share(late)));
        }
        let busy = busy.filter(|busy| *busy > BUSY && self.case.get("command") == Some(&"bench".into()))?;
        Some(format!("the processors were busy for {} of the time", share(busy)))
    }

    /// Why it is no measurement of its case, though it came to an end: something was planned and did not happen.
    pub fn unlike_its_case(&self) -> Option<String> {
        let is_done = matches!(self.outcome, Outcome::Done(_));
        (is_done && !self.missed.is_empty()).then(|| self.missed.join("; "))
    }

    /// Steps before those that count, if its case or its command says that.
    pub fn warm_up(&self) -> Option<u32> {
        if let Some(steps) = self.case.get("warmup").and_then(Value::as_u64) {
            return steps.try_into().ok();
        }
        let mut words = self.command.iter().skip_while(|word| *word != "--warmup");
        let beside = self.command.iter().find_map(|word| word.strip_prefix("--warmup="));
        beside.or(words.nth(1).map(String::as_str))?.parse().ok()
    }
}

/// The seed of whatever says no other.
pub const SEED: u64 = 1;

/// The machine that everything ran on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors that could be used.
    pub cores: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// The kernel's release.
    pub kernel: String,
    /// How its TCP finds its speed, such as `cubic`: what the emulated hosts do, too.
    #[serde(default)]
    pub congestion: String,
}

/// Bytes and packets on one host's interface, headers included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// The host's name.
    pub host: String,
    /// Bytes that it received.
    pub received: u64,
    /// Bytes that it sent.
    pub sent: u64,
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The object that `gleaner bench --json`, `gleaner train --json` or a peer's program printed, of one method.
    Done(Value),
    /// It failed.
    Failed {
        /// The exit code.
        exit_code: i32,
        /// The last thing it said.
        reason: String,
    },
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A record of a case, for tests of what reads and writes them.
    pub(crate) fn record(case: &Value, outcome: Value) -> Record {
        let line = json!({
            "version": VERSION, "experiment": "e", "case": case, "turn": 0, "started": 0.0, "seconds": 1.0,
            "machine": { "processor": "P", "cores": 2, "memory": 1, "kernel": "6.1" },
            "commit": null, "command": [], "traffic": [], "outcome": outcome,
        });
        Record::parse(line.to_string().as_bytes()).unwrap_or_else(|_| panic!("{line}"))
    }
}
