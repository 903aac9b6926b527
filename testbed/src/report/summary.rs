//! What surrounds the numbers: which runs, on which machine, at which commit, and what failed or was done on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;

use super::figure::Figure;
use super::read::Run;
use crate::experiment::{Case, LINK, words};
use crate::record::{Machine, Outcome, Record};

/// All that a report says.
#[derive(Debug, Serialize)]
pub struct Summary<'a> {
    /// The runs, in the order in which they were given.
    pub runs: Vec<RunSummary<'a>>,
    /// The numbers.
    pub figures: &'a [Figure],
    /// Jobs that failed.
    pub failures: Vec<Failure<'a>>,
    /// Jobs in which something was done to the network or the workers.
    pub chaos: Vec<Chaos<'a>>,
}

/// A run.
#[derive(Debug, Serialize)]
pub struct RunSummary<'a> {
    /// What it is called and is for, where it lies, and what was left out.
    #[serde(flatten)]
    pub of: &'a Run,
    /// The names of its experiments; one, unless files were put together by hand.
    pub experiments: BTreeSet<&'a str>,
    /// How many measurements came to an end.
    pub done: usize,
    /// How many failed, though nothing that was done on purpose is a reason for it.
    pub failed: usize,
    /// How many failed as what was done on purpose was to make them.
    pub failed_on_purpose: usize,
    /// When the first began and the last ended, in UTC.
    pub began: String,
    /// See `began`.
    pub ended: String,
    /// The commits that it was made at.
    pub commits: BTreeSet<&'a str>,
    /// The machines that it was made on.
    pub machines: Vec<&'a Machine>,
}

/// A job that failed.
#[derive(Debug, Serialize)]
pub struct Failure<'a> {
    /// The run's name.
    pub run: &'a str,
    /// What was to be measured.
    pub case: &'a BTreeMap<String, Value>,
    /// Which repetition.
    pub turn: u32,
    /// Its exit code.
    pub exit_code: i32,
    /// The last thing it said.
    pub reason: &'a str,
}

/// A job in which something was done on purpose.
#[derive(Debug, Serialize)]
pub struct Chaos<'a> {
    /// The run's name.
    pub run: &'a str,
    /// What was measured.
    pub case: &'a BTreeMap<String, Value>,
    /// Which repetition.
    pub turn: u32,
    /// What was done, in order.
    pub events: &'a [String],
    /// What was planned and did not happen, and why.
    pub missed: &'a [String],
}

/// Puts it together.
pub fn summary<'a>(runs: &'a [Run], figures: &'a [Figure]) -> Summary<'a> {
    let records =
        || runs.iter().flat_map(|run| run.records.iter().map(move |record| (run.name.as_str(), record)));
    let failures = records().filter_map(|(run, record)| match &record.outcome {
        Outcome::Failed { exit_code, reason } if !record.failed_on_purpose => {
            Some(Failure { run, case: &record.case, turn: record.turn, exit_code: *exit_code, reason })
        }
        Outcome::Done(_) | Outcome::Failed { .. } => None,
    });
    let chaos = records().filter(|(_, record)| !record.chaos.is_empty() || !record.missed.is_empty()).map(
        |(run, record)| Chaos {
            run,
            case: &record.case,
            turn: record.turn,
            events: &record.chaos,
            missed: &record.missed,
        },
    );
    Summary {
        runs: runs.iter().map(of_run).collect(),
        figures,
        failures: failures.collect(),
        chaos: chaos.collect(),
    }
}

fn of_run(run: &Run) -> RunSummary<'_> {
    let records = &run.records;
    let done = records.iter().filter(|r| matches!(r.outcome, Outcome::Done(_))).count();
    let failed_on_purpose = records.iter().filter(|r| r.failed_on_purpose).count();
    let began = records.iter().map(|r| r.started).fold(f64::INFINITY, f64::min);
    let ended = records.iter().map(|r| r.started + r.seconds).fold(f64::NEG_INFINITY, f64::max);
    let mut machines: Vec<&Machine> = Vec::new();
    for record in records {
        if !machines.contains(&&record.machine) {
            machines.push(&record.machine);
        }
    }
    RunSummary {
        of: run,
        experiments: records.iter().map(|r| r.experiment.as_str()).collect(),
        done,
        failed: records.len() - done - failed_on_purpose,
        failed_on_purpose,
        began: date(began),
        ended: date(ended),
        commits: records.iter().filter_map(|r| r.commit.as_deref()).collect(),
        machines,
    }
}

/// A time in UTC to the second; a dash for what is none.
pub fn date(seconds_since_1970: f64) -> String {
    const YEAR_9999: f64 = 253_402_300_799.0;
    let since = Duration::try_from_secs_f64(seconds_since_1970).ok().filter(|d| d.as_secs_f64() < YEAR_9999);
    let time = since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
    let words =
        |time| humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC");
    time.map_or("–".into(), words)
}

/// A command as one would type it. Where it names a file of hosts, it follows what makes these hosts and that file.
pub fn command(record: &Record) -> String {
    let line = typed(&record.command);
    let has_hosts = record.command.iter().any(|word| word == "--hostfile");
    if !has_hosts || record.case.contains_key("topology") || !record.case.contains_key("workers") {
        return line;
    }
    let hosts = Case(record.case.clone()).hosts().to_string();
    let links = LINK.iter().filter_map(|key| Some(words(key, record.case.get(*key)?))).flatten();
    let up = ["gleaner", "testbed", "up", "--hosts"].map(String::from).into_iter();
    let up: Vec<String> = up.chain([hosts]).chain(links).collect();
    // Where there is a network already, it is left alone.
    format!("{} > hosts && {{ {line}; gleaner testbed down; }}", typed(&up))
}

/// Words for a shell.
pub fn typed(words: &[String]) -> String {
    let Ok(line) = shlex::Quoter::new().allow_nul(true).join(words.iter().map(String::as_str)) else {
        unreachable!("NUL is all that could not be quoted, and it is allowed")
    };
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn commands_can_be_typed_again() {
        let record = |case: Value, command: &[String]| {
            let command = command.to_vec();
            Record { command, ..crate::record::tests::record(&case, json!({ "done": {} })) }
        };
        let launch = "gleaner launch --hostfile hosts --agent 'ip netns exec' -- \"it's\" '' --density=0.01";
        let launch = shlex::split(launch).unwrap();
        assert_eq!((launch.len(), &*launch[5], &*launch[7], &*launch[8]), (10, "ip netns exec", "it's", ""));
        let case = json!({ "workers": 3, "bandwidth": "1 gbit", "link_latency": "1ms" });
        let typed = command(&record(case, &launch));
        let (up, rest) = typed.split_once(" && { ").unwrap();
        assert_eq!(
            shlex::split(up).unwrap()[3..],
            ["--hosts", "3", "--bandwidth", "1 gbit", "--link-latency", "1ms", ">", "hosts"]
        );
        let (line, down) = rest.split_once("; ").unwrap();
        assert_eq!((shlex::split(line).unwrap(), down), (launch.clone(), "gleaner testbed down; }"));
        // Without emulated hosts of equal links there is nothing to make.
        let racks = json!({ "workers": 3, "topology": "racks.toml" });
        assert!(command(&record(racks, &launch)).starts_with("gleaner launch "));
        assert_eq!(command(&record(json!({}), &["a b", "c"].map(String::from))), "'a b' c");
    }

    #[test]
    fn dates() {
        assert_eq!(date(0.0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(1_700_000_000.4), "2023-11-14 22:13:20 UTC");
        for none in [-1.0, f64::NAN, f64::INFINITY, 1e300, 253_402_300_800.0] {
            assert_eq!(date(none), "–");
        }
    }
}
