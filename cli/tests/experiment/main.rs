//! Experiments from files, as a user runs them: real jobs, on the loopback and on emulated networks, disturbed and
//! interrupted.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod faults;
mod links;
mod peers;
mod runs;

use gleaner_testbed::record::{Outcome, Record};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gleaner_processes::{Process, with_environment};
use tempfile::TempDir;

/// An experiment of one short job on the loopback, without its last line.
const SHORT: &str = "title = 'short'\nturns = 1\n[workload]\ncommand = 'bench'\nworkers = 3\nparams = 2000\nsteps = 3\nwarmup = 0\n";

/// A directory with one experiment's file, and where its measurements go.
struct Bed {
    directory: TempDir,
}

impl Bed {
    fn new(text: &str) -> Self {
        let bed = Self { directory: tempfile::tempdir().unwrap() };
        bed.write(text);
        bed
    }

    fn write(&self, text: &str) {
        fs::write(self.file(), text).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("test.toml")
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
        command.args(["testbed", "run"]).arg(self.file()).arg("--out").arg(self.out()).args(more);
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    #[track_caller]
    fn run(&self, more: &[&str]) -> (i32, String) {
        outcome(&self.command(more).output().unwrap())
    }

    /// What it prints on standard output.
    fn printed(&self, more: &[&str]) -> String {
        String::from_utf8(self.command(more).output().unwrap().stdout).unwrap()
    }

    fn records(&self) -> Vec<Record> {
        let text = fs::read_to_string(self.out().join("measurements.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The exit code and what stood on standard error.
fn outcome(output: &Output) -> (i32, String) {
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Times of the steps of a job that ended well.
#[track_caller]
fn steps(record: &Record) -> Vec<f64> {
    let Outcome::Done(report) = &record.outcome else { panic!("{record:?}") };
    report["seconds_steps"].as_array().unwrap().iter().map(|step| step.as_f64().unwrap()).collect()
}

#[track_caller]
fn reason(record: &Record) -> &str {
    let Outcome::Failed { reason, .. } = &record.outcome else { panic!("{record:?}") };
    reason
}

/// Whether emulated networks can be made here; if not, the test says so and passes.
fn can_emulate() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    let root = String::from_utf8_lossy(&id.stdout).trim() == "0";
    let possible =
        root && Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success());
    if !possible {
        gleaner_skips::skip("netns", "network namespaces need root, and a kernel that has them");
    }
    possible
}

/// The name of a network that no other test and no other run of the tests has.
fn named(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn namespaces(of: &str) -> Vec<String> {
    let output = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.filter(|name| *name == of || name.starts_with(&format!("{of}."))).map(str::to_owned).collect()
}

fn signal(id: u32, signal: &str) {
    assert!(Command::new("kill").args(["-s", signal, &id.to_string()]).status().unwrap().success());
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        sleep(Duration::from_millis(20));
    }
}

/// Workers of that rank of jobs started by this process: the launcher's own descendants with that rank.
fn workers(of: &Child, rank: u32) -> Vec<u32> {
    let mark = format!("GLEANER_TESTBED_JOB={}-", of.id());
    let rank = [format!("GLEANER_RANK={rank}")];
    let of_rank = with_environment(&rank);
    let is_ours =
        |worker: &Process| worker.environment().iter().any(|entry| entry.starts_with(mark.as_bytes()));
    of_rank.filter(is_ours).map(Process::number).collect()
}
