//! Which rank failed, why, and at which step.

use std::collections::BTreeMap;

use crate::algorithm::left;
use crate::failure::Failure;

/// How a worker ended badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// Its exit code, as a shell reports it: 128 + n after signal n; and its last line on standard error.
    Exit { code: u8, said: String },
    /// In another way: what connected it to the launcher ended first, or it was stopped. With this exit code for the job.
    Otherwise { code: u8, reason: String },
}

/// How the workers ended.
#[derive(Default)]
pub(super) struct Record {
    /// How many workers the job has.
    world: u32,
    /// Workers that ended badly of their own accord, in the order of time.
    bad: Vec<(u32, Bad)>,
    /// Workers that had to be stopped after a failure.
    stopped: Vec<u32>,
    /// Workers that ended with exit code 0.
    well: Vec<u32>,
    /// Which worker blamed which, in the order of time.
    reports: Vec<(u32, Failure)>,
}

impl Record {
    /// Of this many workers.
    pub fn of(world: u32) -> Self {
        Self { world, ..Self::default() }
    }

    /// A worker ended badly of its own accord.
    pub fn ended(&mut self, rank: u32, bad: Bad) {
        self.bad.push((rank, bad));
    }

    /// A worker ended with exit code 0.
    pub fn ended_well(&mut self, rank: u32) {
        self.well.push(rank);
    }

    /// A worker still ran when the launcher ended the job.
    pub fn stopped(&mut self, rank: u32) {
        self.stopped.push(rank);
    }

    /// A worker said who is to blame.
    pub fn reported(&mut self, by: u32, failure: Failure) {
        self.reports.push((by, failure));
    }

    /// Whether anyone said that a rank of these is to blame.
    pub fn blames(&self, among: impl Fn(u32) -> bool) -> bool {
        self.reports.iter().any(|(_, report)| among(report.rank))
    }

    /// Whether anyone ended badly.
    pub fn failed(&self) -> bool {
        !self.bad.is_empty()
    }

    /// The failure, and the exit code of the job: the worker's own. None while no worker ended badly.
    ///
    /// One failure makes others fail, in no particular order, so time alone does not decide. The rank at fault is the one that most
    /// workers blame, be it that it ended badly, hung until it was stopped, or ended well and too early; if they blame none,
    /// the first to end badly. It speaks for itself, unless it blames another: then those speak who blame it.
    pub fn diagnosis(&self) -> Option<(Failure, u8)> {
        let (first, _) = self.bad.first()?;
        let rank = self.most_blamed().unwrap_or(*first);
        let own = self.reports.iter().find(|(by, _)| *by == rank).map(|(_, report)| report);
        let others = || self.reports.iter().map(|(_, report)| report).filter(|report| report.rank == rank);
        let step = own.and_then(|report| report.step).or_else(|| others().find_map(|report| report.step));
        let bad = self.bad.iter().find(|(ended, _)| *ended == rank);
        let of_others = || others().map(|report| one_line(&report.reason)).find(|reason| !reason.is_empty());
        let said = match (own.filter(|own| !own.reason.is_empty()), of_others()) {
            (Some(own), Some(reason)) if own.rank != rank => {
                Some(format!("{reason}; it says itself: {}", one_line(&own.to_string())))
            }
            // That it left is what others could see; how it ended says why.
            (own, _) => own
                .filter(|own| bad.is_none() || own.reason != left(rank).reason)
                .map(|own| one_line(&own.reason)),
        };
        let (reason, code) = match bad {
            Some((_, bad)) => (bad.reason(said), bad.code()),
            None => {
                let reason = said.or_else(of_others);
                let mut reason = reason.unwrap_or_else(|| "it did not end by itself".to_owned());
                if self.well.contains(&rank) {
                    reason.push_str(" (exit code 0)");
                }
                (reason, self.bad[0].1.code())
            }
        };
        Some((Failure { rank, step, reason }, code))
    }

    fn most_blamed(&self) -> Option<u32> {
        // Those who do not reach rank 0 blame it, and it decides: if it lives to blame another, it was not the cause, unless
        // most of the others do not reach it. Then its own word does not count. Those that know from it which one is missing blame none.
        let decides = self.reports.iter().any(|(by, report)| *by == 0 && report.rank != 0);
        let against = self.reports.iter().filter(|(by, report)| *by != 0 && report.rank == 0).count();
        let is_cut_off = 2 * against >= self.world as usize;
        let counts = |by: u32, report: &Failure| if is_cut_off { by != 0 } else { report.rank != 0 };
        let mut blame: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (by, report) in self.reports.iter().filter(|(by, report)| !decides || counts(*by, report)) {
            let voters = blame.entry(report.rank).or_default();
            if !voters.contains(by) {
                voters.push(*by);
            }
        }
        let ended = self.bad.iter().map(|(rank, _)| rank);
        let suspects: Vec<u32> = ended.chain(&self.stopped).chain(&self.well).copied().collect();
        let votes = |rank: &u32| blame.get(rank).map_or(0, Vec::len);
        // Of equals, max_by_key takes the last: going backwards, that is the first to end.
        suspects.iter().rev().filter(|rank| votes(rank) > 0).max_by_key(|rank| votes(rank)).copied()
    }
}

impl Bad {
    fn code(&self) -> u8 {
        match self {
            Bad::Exit { code, .. } | Bad::Otherwise { code, .. } => *code,
        }
    }

    /// How it ended, by what the launcher knows itself.
    pub fn in_words(&self) -> String {
        self.reason(None)
    }

    /// `report` is the worker's own account. A program that ends by itself without one has often printed its error.
    fn reason(&self, report: Option<String>) -> String {
        match (report, self) {
            (Some(report), Bad::Exit { code, .. }) if *code <= 128 => format!("{report} (exit code {code})"),
            (Some(report), Bad::Exit { code, .. }) => format!("{report} ({})", ended(*code)),
            (Some(report), Bad::Otherwise { reason, .. }) => format!("{report} ({reason})"),
            (None, Bad::Exit { code, said }) if *code <= 128 && !said.is_empty() => {
                format!("{}; its last line: {said}", ended(*code))
            }
            (None, Bad::Exit { code, .. }) => ended(*code),
            (None, Bad::Otherwise { reason, .. }) => reason.clone(),
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
        let exit = |code| Bad::Exit { code, said: String::new() };
        let bad = bad.iter().map(|&(rank, code)| (rank, exit(code))).collect();
        let failed = |&(by, rank, step, reason): &(u32, u32, Option<u64>, &str)| {
            (by, Failure { rank, step, reason: reason.to_owned() })
        };
        let reports = reports.iter().map(failed).collect();
        Record { world: 6, bad, stopped: stopped.to_vec(), reports, ..Record::default() }
    }

    fn line(record: &Record) -> (String, u8) {
        let (failure, code) = record.diagnosis().unwrap();
        (failure.to_string(), code)
    }

    #[test]
    fn without_reports_the_first_to_end_failed() {
        let (line, code) = line(&record(&[(3, 7), (1, 137)], &[0], &[]));
        assert_eq!((line.as_str(), code), ("rank 3 failed: exited with code 7", 7));
        assert_eq!(record(&[], &[], &[]).diagnosis(), None);
    }

    #[test]
    fn without_a_report_the_last_line_tells_why() {
        let said = |code| {
            let said = "Error: no secret".to_owned();
            let record = Record { bad: vec![(1, Bad::Exit { code, said })], ..Record::default() };
            record.diagnosis().unwrap().0.to_string()
        };
        assert_eq!(said(1), "rank 1 failed: exited with code 1; its last line: Error: no secret");
        assert_eq!(said(137), "rank 1 failed: killed by signal 9 (SIGKILL)");
    }

    #[test]
    fn how_one_ended_says_why_it_left() {
        let said = "Error: no batch 3".to_owned();
        let mut record = Record { bad: vec![(1, Bad::Exit { code: 1, said })], ..Record::of(3) };
        (0..3).for_each(|by| record.reported(by, Failure { step: Some(3), ..left(1) }));
        let expected = "rank 1 failed at step 3: exited with code 1; its last line: Error: no batch 3";
        assert_eq!(line(&record).0, expected);
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
    fn one_that_ended_well_is_named_if_most_blame_it() {
        let left = "it left the job while others still needed it";
        let mut unequal = record(&[(0, 1), (2, 1)], &[], &[(0, 1, Some(4), left), (2, 1, Some(4), left)]);
        unequal.ended_well(1);
        unequal.ended_well(3);
        let expected = format!("rank 1 failed at step 4: {left} (exit code 0)");
        assert_eq!(line(&unequal), (expected, 1));
        // As many blame one that ended badly.
        unequal.reported(1, Failure { rank: 2, step: None, reason: "gone".to_owned() });
        unequal.reported(3, Failure { rank: 2, step: None, reason: "gone".to_owned() });
        let own = format!("it says itself: rank 1 failed at step 4: {left}");
        assert_eq!(line(&unequal).0, format!("rank 2 failed at step 4: gone; {own} (exit code 1)"));
    }

    #[test]
    fn rank_0_that_blames_another_is_not_blamed_by_those_who_do_not_reach_it() {
        let gone = "could not reach rank 0";
        let late = "rank 2 did not come";
        let reports = [
            (2, 0, None, gone),
            (3, 0, None, gone),
            (0, 2, None, late),
            (1, 2, None, late),
            (4, 2, None, late),
        ];
        let (line_of_two, code) = line(&record(&[(2, 1), (0, 1), (3, 1)], &[], &reports));
        let own = "it says itself: rank 0 failed: could not reach rank 0";
        let expected = format!("rank 2 failed: rank 2 did not come; {own} (exit code 1)");
        assert_eq!((&line_of_two, code), (&expected, 1));
        // Nor if all others were told by rank 0, and blame none.
        let (line_of_one, code) = line(&record(&[(2, 1), (0, 1)], &[], &[reports[0], reports[2]]));
        assert_eq!((line_of_one, code), (expected, 1));
        // If most of the others do not reach it, it is the one that is cut off.
        let most = [&reports[..3], &[(5, 0, None, gone), (1, 2, None, late), (4, 2, None, late)]].concat();
        let (line_of_most, code) = line(&record(&[(2, 1), (0, 1), (3, 1), (5, 1)], &[], &most));
        let expected = format!("rank 0 failed: {gone}; it says itself: rank 2 failed: {late} (exit code 1)");
        assert_eq!((line_of_most, code), (expected, 1));
        // One that is dead blames none.
        let (line, code) = line(&record(&[(0, 137), (2, 1), (3, 1)], &[], &reports[..2]));
        assert_eq!((line.as_str(), code), ("rank 0 failed: killed by signal 9 (SIGKILL)", 137));
    }

    #[test]
    fn one_that_hung_is_named_with_the_code_of_the_first_that_ended() {
        let reports = [(0, 2, Some(4), "no answer for 10 s"), (1, 2, Some(4), "no answer for 10 s")];
        let (line, code) = line(&record(&[(1, 5), (0, 1)], &[2], &reports));
        assert_eq!((line.as_str(), code), ("rank 2 failed at step 4: no answer for 10 s", 5));
    }
}
