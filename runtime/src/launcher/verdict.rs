//! Which rank failed, why, and at which step.

use std::collections::BTreeMap;
use std::fmt;

use crate::report::Failed;

/// The worker that made a job fail. Its text is the job's last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The worker.
    pub rank: u32,
    /// The step it was in, as far as anybody reported it.
    pub step: Option<u64>,
    /// What happened, in words.
    pub reason: String,
    /// The exit code of the job: the worker's own, 128 + n after signal n.
    pub code: u8,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "rank {} failed", self.rank)?;
        if let Some(step) = self.step {
            write!(f, " at step {step}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// How a worker ended badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// Its exit code, as a shell tells it: 128 + n after signal n.
    Exit(u8),
    /// Whatever connected it to the launcher ended first, with this exit code.
    Lost { code: u8, reason: String },
}

/// What became of the workers.
#[derive(Default)]
pub(super) struct Record {
    /// Who ended badly of their own accord, in the order of time.
    bad: Vec<(u32, Bad)>,
    /// Who had to be stopped after a failure.
    stopped: Vec<u32>,
    /// Who blamed whom, in the order of time.
    reports: Vec<(u32, Failed)>,
}

impl Record {
    /// A worker ended badly of its own accord.
    pub fn ended(&mut self, rank: u32, bad: Bad) {
        self.bad.push((rank, bad));
    }

    /// A worker still ran when the launcher ended the job.
    pub fn stopped(&mut self, rank: u32) {
        self.stopped.push(rank);
    }

    /// A worker said who is to blame.
    pub fn reported(&mut self, by: u32, failed: Failed) {
        self.reports.push((by, failed));
    }

    /// Whether anyone ended badly.
    pub fn failed(&self) -> bool {
        !self.bad.is_empty()
    }

    /// The failure; none while nobody ended badly.
    ///
    /// One failure makes others fail, in no particular order, so time alone does not tell. The culprit is whom most
    /// workers blame, provided that it ended badly or hung until it was stopped; without such a rank, the first to end.
    pub fn verdict(&self) -> Option<Failure> {
        let (first, _) = self.bad.first()?;
        let rank = self.most_blamed().unwrap_or(*first);
        let own = self.reports.iter().find(|(by, _)| *by == rank).map(|(_, report)| report);
        let others = || self.reports.iter().map(|(_, report)| report).filter(|report| report.culprit == rank);
        let step = own.and_then(|report| report.step).or_else(|| others().find_map(|report| report.step));
        let bad = self.bad.iter().find(|(ended, _)| *ended == rank);
        let said = own.map(|report| one_line(&report.reason)).filter(|reason| !reason.is_empty());
        let (reason, code) = match bad {
            Some((_, bad)) => (bad.reason(said), bad.code()),
            None => {
                let said = said.or_else(|| others().map(|report| one_line(&report.reason)).next());
                let reason = said.filter(|reason| !reason.is_empty());
                (reason.unwrap_or_else(|| "it did not end by itself".to_owned()), self.bad[0].1.code())
            }
        };
        Some(Failure { rank, step, reason, code })
    }

    fn most_blamed(&self) -> Option<u32> {
        let mut blame: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (by, report) in &self.reports {
            let voters = blame.entry(report.culprit).or_default();
            if !voters.contains(by) {
                voters.push(*by);
            }
        }
        let ended = self.bad.iter().map(|(rank, _)| rank);
        let suspects: Vec<u32> = ended.chain(&self.stopped).copied().collect();
        let votes = |rank: &u32| blame.get(rank).map_or(0, Vec::len);
        // Of equals, max_by_key takes the last: going backwards, that is the first to end.
        suspects.iter().rev().filter(|rank| votes(rank) > 0).max_by_key(|rank| votes(rank)).copied()
    }
}

impl Bad {
    fn code(&self) -> u8 {
        match self {
            Bad::Exit(code) | Bad::Lost { code, .. } => *code,
        }
    }

    /// `said` is the worker's own account.
    fn reason(&self, said: Option<String>) -> String {
        let bare = match self {
            Bad::Exit(code) => ended(*code),
            Bad::Lost { reason, .. } => reason.clone(),
        };
        match (said, self) {
            (Some(said), Bad::Exit(code)) if *code <= 128 => format!("{said} (exit code {code})"),
            (Some(said), _) => format!("{said} ({bare})"),
            (None, _) => bare,
        }
    }
}

/// What a shell's exit code means.
fn ended(code: u8) -> String {
    let signal = code.wrapping_sub(128);
    match code {
        126 => "exited with code 126, as when a program cannot be executed".to_owned(),
        127 => "exited with code 127, as when a program is not found".to_owned(),
        129..=192 => match signal_name(signal) {
            Some(name) => format!("killed by signal {signal} ({name})"),
            None => format!("killed by signal {signal}"),
        },
        code => format!("exited with code {code}"),
    }
}

/// The names of the signals that have the same number everywhere, and of two more on Linux.
fn signal_name(signal: u8) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 if cfg!(target_os = "linux") => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        31 if cfg!(target_os = "linux") => "SIGSYS",
        _ => return None,
    })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bad: &[(u32, u8)], stopped: &[u32], reports: &[(u32, u32, Option<u64>, &str)]) -> Record {
        let bad = bad.iter().map(|&(rank, code)| (rank, Bad::Exit(code))).collect();
        let failed = |&(by, culprit, step, reason): &(u32, u32, Option<u64>, &str)| {
            (by, Failed { culprit, step, reason: reason.to_owned() })
        };
        Record { bad, stopped: stopped.to_vec(), reports: reports.iter().map(failed).collect() }
    }

    fn line(record: &Record) -> (String, u8) {
        let failure = record.verdict().unwrap();
        (failure.to_string(), failure.code)
    }

    #[test]
    fn without_reports_the_first_to_end_failed() {
        let (line, code) = line(&record(&[(3, 7), (1, 137)], &[0], &[]));
        assert_eq!((line.as_str(), code), ("rank 3 failed: exited with code 7", 7));
        assert_eq!(record(&[], &[], &[]).verdict(), None);
    }

    #[test]
    fn whom_most_blame_failed_even_if_others_ended_before() {
        let reports =
            [(0, 2, Some(17), "rank 2 is gone"), (1, 2, None, "gone"), (3, 0, None, "rank 0 is gone")];
        let (line, code) = line(&record(&[(0, 1), (3, 1), (2, 137), (1, 1)], &[], &reports));
        assert_eq!(line, "rank 2 failed at step 17: killed by signal 9 (SIGKILL)");
        assert_eq!(code, 137);
    }

    #[test]
    fn a_worker_speaks_for_itself() {
        let (line, code) = line(&record(&[(1, 1)], &[], &[(1, 1, Some(3), "the loss is\nnot a number")]));
        assert_eq!(line, "rank 1 failed at step 3: the loss is not a number (exit code 1)");
        assert_eq!(code, 1);
    }

    #[test]
    fn blame_for_one_that_ended_well_does_not_count() {
        let (line, _) = line(&record(&[(0, 1)], &[], &[(0, 2, Some(4), "rank 2 closed its link")]));
        assert_eq!(line, "rank 0 failed at step 4: rank 2 closed its link (exit code 1)");
    }

    #[test]
    fn one_that_hung_is_named_with_the_code_of_the_first_that_ended() {
        let reports = [(0, 2, Some(4), "no answer for 10 s"), (1, 2, Some(4), "no answer for 10 s")];
        let (line, code) = line(&record(&[(1, 5), (0, 1)], &[2], &reports));
        assert_eq!((line.as_str(), code), ("rank 2 failed at step 4: no answer for 10 s", 5));
    }
}
