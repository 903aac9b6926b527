//! `gleaner train` and `gleaner launch` with parameter servers, as a user runs them: real processes, of which some are killed.
#![cfg(all(feature = "train", target_os = "linux"))]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gleaner_processes::{Process, with_environment};
use serde_json::Value;

const GLEANER: &str = env!("CARGO_BIN_EXE_gleaner");

const RUN: &str = "train --data digits --model mlp --batch 8 --lr 0.02 --evaluate-every 20 --json";

/// In the environment of all processes of a run.
const MARK: &str = "SERVERS_TEST_RUN";

fn gleaner(options: &[&str]) -> Command {
    let mut command = Command::new(GLEANER);
    command.args(options).stdin(Stdio::null()).env("GLEANER_TIMEOUT", "10s");
    command
}

fn train(options: &[&str]) -> Output {
    gleaner(&[&RUN.split(' ').collect::<Vec<_>>(), options].concat()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Of a run that ends well: which it does only if all ranks have the same parameters.
fn summary(output: &Output) -> Value {
    assert!(output.status.success(), "{}", said(output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let object = text.find('{').unwrap_or_else(|| panic!("no object in {text}"));
    serde_json::from_str(&text[object..]).unwrap()
}

fn number(summary: &Value, field: &str) -> f64 {
    summary[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {summary}"))
}

#[test]
fn every_synchrony_learns_over_servers() {
    let roles: [&[&str]; 3] = [&["--servers", "1"], &["--servers", "2"], &["--servers", "2", "--colocate"]];
    for (number_of, synchrony) in
        ["bsp", "asp", "ssp/2", "dssp/1-3", "r2sp", "osp/budget=0.8", "osp/budget=bound", "local/4"]
            .into_iter()
            .enumerate()
    {
        for method in ["ring", "spardl"] {
            let roles = roles[number_of % roles.len()];
            let options = ["--workers", "3", "--steps", "88", "--synchrony", synchrony, "--method", method];
            // Each of three updates in a round is by the velocity of all: momentum counts more where no worker waits.
            let options = [&options[..], &["--density", "0.1", "--momentum", "0.5"], roles].concat();
            let summary = summary(&train(&options));
            assert_eq!(summary["synchrony"], synchrony);
            let (first, last) = (number(&summary, "held_out_loss_first"), number(&summary, "held_out_loss"));
            assert!(last < 0.8 * first, "{method} under {synchrony} with {roles:?}: from {first} to {last}");
            let background = number(&summary, "background_share");
            if synchrony == "osp/budget=0.8" {
                assert!(background > 0.0 && background <= 0.8, "{summary}");
            }
            let waited = summary["seconds_waited"].as_array().unwrap();
            assert_eq!(waited.len(), 3);
            assert!(
                waited.iter().enumerate().all(|(rank, row)| row[rank] == 0.0),
                "no worker waits for itself"
            );
        }
    }
}

/// The sums of two workers have one order, so a barrier has the bits of an all-reduce, under either launcher, with servers apart or co-located.
#[test]
fn a_barrier_over_servers_has_the_bits_of_an_all_reduce() {
    let options = ["--workers", "2", "--steps", "40", "--method", "ring"];
    let run = |more: &[&str]| summary(&train(&[&options[..], more].concat()))["parameters_digest"].clone();
    let reduced = run(&["--merge", "layer-wise"]);
    for synchrony in ["bsp", "ssp/0"] {
        for servers in [&["--servers", "1"][..], &["--servers", "3"], &["--servers", "2", "--colocate"]] {
            assert_eq!(
                run(&[&["--synchrony", synchrony][..], servers].concat()),
                reduced,
                "{synchrony}, {servers:?}"
            );
        }
    }
    let launch = ["launch", "--workers", "2", "--servers", "2", "--", GLEANER];
    let program = RUN.split(' ').chain(["--steps", "40", "--method", "ring"]).collect();
    let launched = gleaner(&[launch.to_vec(), program].concat()).output().unwrap();
    assert_eq!(summary(&launched)["parameters_digest"], reduced);
}

/// A run under way, of which one process is to be killed.
struct Running {
    child: Child,
    victim: u32,
}

impl Running {
    /// The victim, of this rank, is found before it is to be killed, so that it does not end meanwhile.
    fn start(mark: &str, rank: u32, options: &[&str]) -> Self {
        let mark = format!("{mark}-{}", std::process::id());
        let mut command = gleaner(&[&RUN.split(' ').collect::<Vec<_>>(), options].concat());
        let child = command.env(MARK, &mark).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let victim = Self::found(&[format!("{MARK}={mark}"), format!("GLEANER_RANK={rank}")]);
        Self { child, victim }
    }

    /// The process of this command with these variables.
    fn found(marks: &[String; 2]) -> u32 {
        let is_it =
            |process: &Process| fs::read_link(process.file("exe")).is_ok_and(|exe| exe == Path::new(GLEANER));
        let since = Instant::now();
        loop {
            if let Some(process) = with_environment(marks).find(is_it) {
                return process.number();
            }
            assert!(since.elapsed() < Duration::from_secs(60), "it does not start: {marks:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until that is so.
    fn until(&mut self, is_so: impl Fn() -> bool) {
        let since = Instant::now();
        while !is_so() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && since.elapsed() < Duration::from_secs(60), "it has ended: {ended:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the victim, and gives the output of the run.
    fn kill(self) -> Output {
        assert!(Command::new("kill").args(["-9", &self.victim.to_string()]).status().unwrap().success());
        self.child.wait_with_output().unwrap()
    }
}

/// Whether a rank has a checkpoint of this step or a later one.
fn has_saved(folder: &Path, rank: u32, step: u64) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rest = name.strip_prefix(&format!("rank-{rank}.step-"));
        let saved = rest.and_then(|rest| rest.strip_suffix(".safetensors")?.parse::<u64>().ok());
        saved.is_some_and(|saved| saved >= step)
    })
}

#[test]
fn a_killed_server_ends_the_job_by_name_and_nothing_that_was_applied_is_lost() {
    let common = ["--workers", "2", "--steps", "700", "--method", "ring"];
    let whole = summary(&train(&[&common[..], &["--servers", "1"]].concat()));
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("run");
    let kept = |servers: &'static str, more: &[&'static str]| {
        let checkpoint = ["--servers", servers, "--checkpoint", folder.to_str().unwrap()];
        [&common[..], &checkpoint, more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    fn words(options: &[String]) -> Vec<&str> {
        options.iter().map(String::as_str).collect()
    }
    // Before any worker has a checkpoint: what the servers have applied is there all the same.
    let mut running = Running::start("first", 3, &words(&kept("2", &[])));
    running.until(|| folder.join("servers/server-1-of-2.state").exists());
    thread::sleep(Duration::from_millis(150));
    let output = running.kill();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(137), "{text}");
    assert!(
        text.contains("gleaner train: rank 3 (server 1) failed") && text.contains("killed by signal 9"),
        "{text}"
    );
    assert!(text.contains("what the parameter servers have applied is in"), "{text}");
    // No other server starts in its place.
    let again = train(&words(&kept("2", &[])));
    assert!(
        said(&again).contains("expected a directory without checkpoints for a new run"),
        "{}",
        said(&again)
    );
    // Neither do other workers go on from it.
    let mut others = kept("2", &["--resume"]);
    others[1] = "3".into();
    let others = train(&words(&others));
    assert!(
        !others.status.success() && said(&others).contains("was written for 2 workers"),
        "{}",
        said(&others)
    );
    // One server takes the place of two, and is killed in its turn; three end what they began.
    let mut running =
        Running::start("second", 2, &words(&kept("1", &["--resume", "--checkpoint-every", "20"])));
    running.until(|| has_saved(&folder, 0, 200) && has_saved(&folder, 1, 200));
    let output = running.kill();
    assert!(said(&output).contains("rank 2 (server 0) failed"), "{}", said(&output));
    let resumed = summary(&train(&words(&kept("3", &["--resume"]))));
    assert!((200.0..700.0).contains(&number(&resumed, "first_step")), "{resumed}");
    assert_eq!(resumed["parameters_digest"], whole["parameters_digest"]);
    assert_eq!(resumed["held_out_loss"], whole["held_out_loss"]);
}

/// In two stages layers are under way when the server dies: they were applied, or are pushed again.
#[test]
fn osp_goes_on_after_its_server_was_killed() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().to_str().unwrap();
    let options = [
        "--workers",
        "2",
        "--steps",
        "400",
        "--method",
        "spardl",
        "--density",
        "0.1",
        "--checkpoint",
        folder,
    ];
    let options =
        [&options[..], &["--servers", "2", "--synchrony", "osp/budget=0.8", "--checkpoint-every", "20"]]
            .concat();
    let mut running = Running::start("osp", 2, &options);
    running.until(|| has_saved(directory.path(), 0, 100) && has_saved(directory.path(), 1, 100));
    let output = running.kill();
    assert!(said(&output).contains("rank 2 (server 0) failed"), "{}", said(&output));
    let resumed = summary(&train(&[&options[..], &["--resume"]].concat()));
    assert!(number(&resumed, "first_step") >= 100.0);
    assert!(number(&resumed, "held_out_loss") < 0.8 * number(&resumed, "held_out_loss_first"), "{resumed}");
}

#[test]
fn a_killed_worker_ends_the_job_unless_the_others_go_on() {
    for (on_failure, synchrony) in [("continue", "bsp"), ("continue", "ssp/2"), ("stop", "ssp/2")] {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().to_str().unwrap();
        let options = ["--workers", "3", "--servers", "1", "--steps", "400", "--method", "ring"];
        let checkpoint = ["--checkpoint", folder, "--checkpoint-every", "20"];
        let chosen = ["--synchrony", synchrony, "--on-failure", on_failure];
        let mut running = Running::start(on_failure, 2, &[&options[..], &checkpoint, &chosen].concat());
        running.until(|| has_saved(directory.path(), 2, 60));
        let output = running.kill();
        let text = said(&output);
        assert!(text.contains("rank 2 failed"), "{text}");
        if on_failure == "stop" {
            assert_eq!(output.status.code(), Some(137), "{text}");
            continue;
        }
        assert!(text.contains("the others go on without it"), "{text}");
        let ended = summary(&output);
        assert!(number(&ended, "held_out_loss") < 0.8 * number(&ended, "held_out_loss_first"), "{ended}");
        // A resumed run does not go back to the step in which the worker died.
        let more = train(&[&options[..], &checkpoint, &chosen, &["--resume"]].concat());
        assert_eq!(number(&summary(&more), "first_step"), 400.0);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (options, expected) in [
        (
            &["--servers", "3", "--colocate"][..],
            "3 parameter servers in 2 processes, each co-located with a worker",
        ),
        (&["--servers", "1", "--merge", "optimal"], "--merge: expected nothing beside --servers"),
        (&["--servers", "1", "--record", "x"], "--record: expected nothing beside --servers"),
        (&["--servers", "1", "--synchrony", "ssp/-1"], "synchrony ssp takes no '-1'"),
        (&["--servers", "1", "--synchrony", "dssp/3-1"], "synchrony dssp takes no '3-1'"),
        (&["--servers", "1", "--synchrony", "local/0"], "synchrony local takes no '0'"),
        (
            &["--servers", "1", "--synchrony", "osp", "--select-over", "gradient", "--method", "topka"],
            "--select-over: expected group beside --servers",
        ),
        (&["--colocate"], "--servers"),
        (&["--servers", "-1"], "-1"),
    ] {
        let output = train(&[&["--workers", "2"], options].concat());
        assert!(
            !output.status.success() && said(&output).contains(expected),
            "{options:?}: {}",
            said(&output)
        );
    }
    let launch = ["launch", "--workers", "2", "--servers", "1", "--", GLEANER, "train", "--servers", "2"];
    let output = gleaner(&launch).output().unwrap();
    assert!(
        said(&output).contains("--servers: expected nothing, or as many servers as"),
        "{}",
        said(&output)
    );
}
