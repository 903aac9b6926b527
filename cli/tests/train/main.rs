//! `gleaner train` as a user runs it: several processes, and a run that is interrupted.
#![cfg(feature = "train")]
#![allow(clippy::unwrap_used)]

mod written;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use gleaner_processes::{Process, with_environment};
use serde_json::Value;

fn train(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.arg("train").args(options).stdin(Stdio::null());
    command
}

fn summary(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object on standard output, and nothing else")
}

#[test]
fn four_workers_learn_the_documentation() {
    // The run of the README: early in it the loss still wavers, and how far depends on every word of the text.
    let summary = summary(&train(&["--json"]).output().unwrap());
    let number =
        |field: &str| summary[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {summary}"));
    assert_eq!((number("steps"), number("workers")), (320.0, 4.0));
    // Before the first step all characters are about equally likely; English letter by letter, without any context,
    // has an entropy of 4.1 bits, which is 2.8 nats.
    assert!(number("held_out_loss_first") > 4.0, "{summary}");
    assert!(number("held_out_loss") < 2.8, "{summary}");
    assert!(number("seconds_run") > 0.0);
    assert!(number("seconds_iteration") > 0.0 && number("seconds_expected_iteration") > 0.0, "{summary}");
    // At density 5% SparDL receives 2k(P − 1)/P entries with k = n/20.
    let entries = 2.0 * (number("params") / 20.0).round() * 3.0 / 4.0;
    let bytes = number("bytes_received") / 320.0;
    // A value takes half a byte, and most indices less than one.
    assert!(bytes > 1.1 * entries && bytes < 1.4 * entries, "{bytes} bytes a step for {entries} entries");
    assert_eq!(summary["parameters_digest"].as_str().map(str::len), Some(64));
}

/// The process of one rank of the run that writes its checkpoints to `folder`.
fn pid_of(rank: &str, folder: &Path) -> Option<u32> {
    let is_it = |process: &Process| {
        let words = process.command();
        words.first().is_some_and(|program| program == env!("CARGO_BIN_EXE_gleaner"))
            && words.iter().any(|word| Path::new(word) == folder)
    };
    with_environment(&[format!("GLEANER_RANK={rank}")]).find(is_it).map(Process::number)
}

/// Every parameter is a group by itself, so several are in flight when the worker is killed.
#[test]
fn a_killed_run_resumes_to_the_same_bits() {
    let options = |folder: &Path| {
        let text = "--data synthetic --model mlp --workers 3 --steps 300 --batch 4 --evaluate-every 300 --merge layer-wise --json";
        let mut options: Vec<String> = text.split(' ').map(str::to_owned).collect();
        options.extend(["--checkpoint-every", "5", "--checkpoint"].map(str::to_owned));
        options.push(folder.to_str().unwrap().to_owned());
        options
    };
    let run = |folder: &Path, more: &[&str]| {
        let options = options(folder);
        let options: Vec<&str> = options.iter().map(String::as_str).chain(more.iter().copied()).collect();
        train(&options)
    };
    let (whole, cut) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let uninterrupted = summary(&run(whole.path(), &[]).output().unwrap());

    let job = run(cut.path(), &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    // It is found before it is to be killed, so that it does not end meanwhile.
    let pid = loop {
        if let Some(pid) = pid_of("1", cut.path()) {
            break pid;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "the worker of rank 1 does not start");
        std::thread::sleep(Duration::from_millis(5));
    };
    let reached = |step: u32| {
        fs::read_dir(cut.path()).unwrap().flatten().any(|entry| {
            let name = entry.file_name().into_string().unwrap();
            let found = name.strip_prefix("rank-1.step-").and_then(|rest| rest.split('.').next());
            found.and_then(|found| found.parse::<u32>().ok()).is_some_and(|found| found >= step)
        })
    };
    while !reached(20) {
        assert!(started.elapsed() < Duration::from_secs(120), "no checkpoint of step 20 appears");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    let killed = job.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&killed.stderr);
    assert_eq!(killed.status.code(), Some(137), "{said}");
    assert!(killed.stdout.is_empty(), "no half report");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("rank 1 failed at step") && last.contains("SIGKILL"), "{said}");

    let resumed = summary(&run(cut.path(), &["--resume"]).output().unwrap());
    assert!(resumed["first_step"].as_u64().is_some_and(|step| (15..300).contains(&step)), "{resumed}");
    assert_eq!(resumed["parameters_digest"], uninterrupted["parameters_digest"]);
    assert_eq!(resumed["held_out_loss"], uninterrupted["held_out_loss"]);
}

#[test]
fn bad_data_is_refused_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.txt");
    fs::write(&empty, "").unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let cases = [
        (format!("text:{}", path(&folder.path().join("none.txt"))), "none.txt"),
        (format!("text:{}", path(&empty)), "empty.txt"),
        (format!("mnist:{}", path(folder.path())), "train-images-idx3-ubyte"),
        (format!("cifar10:{}", path(folder.path())), "data_batch_1.bin"),
        ("parquet:x".to_owned(), "parquet:x"),
    ];
    for (data, named) in cases {
        let output = train(&["--workers", "2", "--steps", "5", "--data", &data]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let code = if data.starts_with("parquet") { 2 } else { 1 };
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{data}");
        assert!(said.contains(named) && said.contains("expected"), "{data}: {said}");
        assert_eq!(said.lines().count(), 1, "it is said once, before there are workers: {said}");
    }
}

/// The exit code of refused arguments is the same where the parser refuses them, the command, or its workers.
#[test]
fn values_that_cannot_be_end_with_one_exit_code() {
    for (options, words) in [
        (["--lr", "-1"], "--lr: expected a number above 0, found -1"),
        (["--lr", "fast"], "fast"),
        (["--momentum", "1"], "--momentum"),
        (["--method", "magic"], "'magic'"),
        (["--selector", "magic"], "'magic'"),
        (["--density", "0"], "density is 0"),
        (["--density", "1.5"], "density is 1.5"),
        (["--density", "NaN"], "density is NaN"),
        (["--k", "99999999"], "99999999"),
        (["--synchrony", "ssp/-1"], "synchrony ssp takes no '-1'"),
        (["--merge", "magic"], "magic"),
        (["--data", "parquet:x"], "parquet:x"),
    ] {
        let output = train(&options).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        assert!(said.contains(words) && output.stdout.is_empty(), "{options:?}: {said}");
    }
}

/// What all workers would refuse is refused once, before they are started.
#[test]
fn what_no_worker_can_do_is_said_once() {
    for (options, words) in [
        ("--balance 1,2", "--balance: expected the samples of each of 4 workers, 64 together, found 1,2"),
        ("--pace 1ms --slow 9=2", "--slow: there is no rank 9 to be slow; choose one from 0 to 3"),
        ("--data digits --model lstm", "--model lstm needs text, found images of 8 × 8"),
        ("--data synthetic --model lstm", "--model lstm needs text, found images of 32 × 32"),
        ("--data digits --batch 100000", "one batch of 100000 for each of 4 workers, found 1437 examples"),
        ("--record /proc/x", "/proc/x: could not be written"),
        ("--checkpoint /proc/ck", "/proc/ck: could not be written"),
        ("--metrics /nonexistent/a.csv", "/nonexistent/a.csv: could not be written"),
        ("--timeline /nonexistent/a.json", "/nonexistent/a.json cannot be written"),
        ("--layer-times /nonexistent/a.json", "/nonexistent/a.json cannot be written"),
    ] {
        let output = train(&options.split(' ').collect::<Vec<_>>()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let code = if words.starts_with('/') { 1 } else { 2 };
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{options}");
        assert!(said.contains(words) && said.lines().count() == 1, "{options}: {said}");
    }
}

/// What workers select from in the last step is what the model of overlap is fitted to. The text is one that no page of the book
/// changes, and the groups do not depend on times.
#[test]
fn recorded_gradients_fit_the_model_of_overlap() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("grads");
    let text = concat!("text:", env!("CARGO_MANIFEST_DIR"), "/../LICENSE-APACHE");
    let (run, record_in) = (["--workers", "3", "--steps", "20", "--json"], record.to_str().unwrap());
    let options = [&run[..], &["--data", text, "--merge", "single", "--record", record_in]].concat();
    let n = summary(&train(&options).output().unwrap())["params"].as_u64().unwrap();
    let mut names: Vec<String> = fs::read_dir(&record)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["gradient-0.npy", "gradient-1.npy", "gradient-2.npy"]);

    let fit = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
        command.current_dir(&record).args(["simulate", "--fit"]).args(&names).args(options).output().unwrap()
    };
    let fitted = summary(&fit(&["--json"]));
    assert_eq!((fitted["params"].as_u64(), fitted["workers"].as_u64()), (Some(n), Some(3)));
    let numbers = |field: &str| -> Vec<f64> {
        fitted[field].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let (unions, models) = (numbers("unions"), numbers("models"));
    assert_eq!(unions[0], fitted["k"].as_f64().unwrap());
    for (union, model) in unions.iter().zip(&models) {
        assert!((model / union - 1.0).abs() < 0.03, "{fitted}");
    }
    let shared = fitted["overlap"]["shared"].as_f64().unwrap();
    let support = fitted["overlap"]["support"].as_f64().unwrap();
    let said = String::from_utf8(fit(&[]).stdout).unwrap();
    assert!(said.ends_with(&format!("--overlap {shared:.4},{support:.4}\n")), "{said}");

    // The directory of a run is not written again, and what cannot be written is refused before the first step.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for (directory, words) in [
        (&record, ["without recorded gradients", "choose another"]),
        (&file, ["file", "could not be written"]),
    ] {
        let directory = directory.to_str().unwrap();
        let clock = Instant::now();
        let output = train(&["--workers", "2", "--steps", "100000", "--record", directory]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert!(clock.elapsed() < Duration::from_secs(60), "{:?}", clock.elapsed());
    }
}

/// A short run of three workers with checkpoints of steps 5, 10, and so on in the folder.
fn short_run(folder: &Path, steps: u32, more: &[&str]) -> Output {
    let text = format!(
        "--data synthetic --model mlp --workers 3 --steps {steps} --batch 4 --evaluate-every 100 --json --checkpoint-every 5"
    );
    let folder = ["--checkpoint", folder.to_str().unwrap()];
    let options: Vec<&str> = text.split(' ').chain(folder).chain(more.iter().copied()).collect();
    train(&options).output().unwrap()
}

#[test]
fn momentum_that_adam_does_not_need_is_named() {
    let said = |more: &[&str]| {
        let text = "--data synthetic --model mlp --workers 2 --steps 2 --batch 4 --evaluate-every 2 --optimizer adam";
        let options: Vec<&str> = text.split(' ').chain(more.iter().copied()).collect();
        let output = train(&options).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap().matches("acts as a momentum for adam").count()
    };
    assert_eq!(said(&["--momentum", "0.9"]), 1);
    assert_eq!(said(&[]), 0);
    assert_eq!(said(&["--momentum", "0.9", "--method", "ring"]), 0);
}

/// Where it counts how long entries have waited, nothing is said; and neither is of a worker's own momentum in local steps, whose gradients do not wait.
#[test]
fn momentum_that_does_not_count_waiting_is_named() {
    for (options, times) in [
        ("--servers 1", 1),
        ("--servers 1 --momentum 0", 0),
        ("--servers 1 --method ring", 0),
        ("--synchrony osp/budget=0.5", 1),
        ("--synchrony local/1", 0),
        ("--synchrony local/1,0.7,0.9", 1),
        ("--synchrony bsp", 0),
    ] {
        let text = format!(
            "--data synthetic --model mlp --workers 2 --steps 2 --batch 4 --evaluate-every 2 {options}"
        );
        let output = train(&text.split(' ').collect::<Vec<_>>()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{options}: {said}");
        assert_eq!(
            said.matches("does not count how long entries have waited").count(),
            times,
            "{options}: {said}"
        );
    }
}

/// Nothing is looked at before the 17th step, and with a dense method never.
#[test]
fn how_long_values_wait_is_in_the_summary() {
    let waits = |more: &str| {
        let text =
            format!("--data synthetic --model mlp --workers 2 --batch 1 --evaluate-every 18 --json {more}");
        let summary = summary(&train(&text.split(' ').collect::<Vec<_>>()).output().unwrap());
        summary["steps_waiting"].as_f64()
    };
    assert!(waits("--steps 18 --density 0.01").is_some_and(|steps| (1.0..100.0).contains(&steps)));
    assert_eq!(waits("--steps 9 --density 0.01"), None);
    assert_eq!(waits("--steps 18 --method ring"), None);
}

#[test]
fn a_checkpoint_that_is_not_what_its_name_says_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(format!("{name}.safetensors"));
    summary(&short_run(folder.path(), 10, &[]));
    let whole: Vec<(std::path::PathBuf, Vec<u8>)> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    assert_eq!(whole.len(), 6);
    let refused_by = |ranks: usize, words: &[&str]| {
        let output = short_run(folder.path(), 15, &["--resume"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(words.iter().all(|word| last.contains(word)), "expected {words:?} in {last}");
        // The reason is given by the ranks that found it and by the launcher, and not by those that are only notified.
        let count = said.lines().filter(|line| words.iter().skip(1).all(|word| line.contains(word))).count();
        assert!((1..=ranks + 1).contains(&count), "{said}");
        whole.iter().for_each(|(path, content)| fs::write(path, content).unwrap());
    };
    let refused = |words: &[&str]| refused_by(1, words);
    let copy = |from: &str, to: &str| assert!(fs::copy(path(from), path(to)).unwrap() > 0);
    // Another rank's and another step's.
    copy("rank-0.step-10", "rank-1.step-10");
    refused(&["rank 1 failed", "rank-1.step-10", "its rank is 0, here it is 1"]);
    copy("rank-1.step-5", "rank-1.step-10");
    refused(&["rank 1 failed", "rank-1.step-10", "its step is 5, here it is 10"]);
    // All ranks alike.
    for rank in 0..3 {
        copy(&format!("rank-{rank}.step-5"), &format!("rank-{rank}.step-10"));
    }
    refused_by(3, &["failed", "step-10", "its step is 5, here it is 10"]);
    // Another run's.
    let other = tempfile::tempdir().unwrap();
    summary(&short_run(other.path(), 10, &[]));
    fs::copy(other.path().join("rank-2.step-10.safetensors"), path("rank-2.step-10")).unwrap();
    refused(&["rank 2 failed", "rank 0's is of step 10", "rank 2's of step 10"]);
    // One bit.
    let mut flipped = fs::read(path("rank-2.step-10")).unwrap();
    let last = flipped.len() - 2;
    flipped[last] ^= 1;
    fs::write(path("rank-2.step-10"), flipped).unwrap();
    refused(&["rank 2 failed", "rank-2.step-10.safetensors", "its checksum is"]);
    summary(&short_run(folder.path(), 15, &["--resume"]));
}

#[test]
fn what_a_killed_worker_left_of_a_checkpoint_is_named_and_removed_with_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    summary(&short_run(folder.path(), 5, &[]));
    let left = [
        ".rank-0.step-4.safetensors.0123456789abcdef.partial",
        ".rank-1.step-5.safetensors.0123456789abcdef.partial",
    ];
    let others = [
        "rank-1.step-3.half.safetensors",
        "rank-1.step-03.safetensors",
        "rank-1.step-x.safetensors",
        "rank-7.step-3.safetensors",
        ".rank-0.step-4.0123456789abcdef.partial",
        "notes.txt",
    ];
    for name in left.iter().chain(&others) {
        fs::write(path(name), "half").unwrap();
    }
    let output = short_run(folder.path(), 10, &["--resume"]);
    summary(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    for name in left {
        assert!(!path(name).exists(), "{name}");
        assert!(said.lines().any(|line| line.contains("removed") && line.contains(name)), "{name}: {said}");
    }
    for name in others {
        assert!(path(name).exists(), "{name}");
        assert!(!said.contains(&format!("/{name}")), "{name}: {said}");
    }
}

/// The seven parameters of the language model are four layers, of which the recurrent ones have the larger gradients.
#[test]
fn groups_that_compete_for_k_end_with_the_same_parameters_on_all_ranks() {
    let run = |options: &[&str]| {
        let text = ["--steps", "24", "--evaluate-every", "24", "--workers", "3", "--json"];
        summary(&train(&[&text[..], options].concat()).output().unwrap())
    };
    let single = |over: &str| run(&["--merge", "single", "--select-over", over]);
    let layers = |over: &str| run(&["--merge", "layer-wise", "--select-over", over]);
    let (group, gradient) = (layers("group"), layers("gradient"));
    assert_eq!(
        (group["select_over"].as_str(), gradient["select_over"].as_str()),
        (Some("group"), Some("gradient"))
    );
    assert_eq!(gradient["groups"], 5);
    assert_ne!(group["parameters_digest"], gradient["parameters_digest"]);
    assert_eq!(single("group")["parameters_digest"], single("gradient")["parameters_digest"]);
    let refused = train(&["--select-over", "gradient", "--method", "ring"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("needs a method that selects its k largest entries"),
        "{said}"
    );
}

/// A learning rate that is far too high: the summary is printed, and the run fails with a sentence.
#[test]
fn a_training_that_diverges_says_so_and_fails() {
    let options = "--workers 2 --data synthetic --model mlp --batch 4 --steps 4 --lr 10 --momentum 0 --method ring --merge single --json";
    let output = train(&options.split(' ').collect::<Vec<_>>()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the training diverged: the held-out loss was") && said.contains("lower --lr"),
        "{said}"
    );
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["steps"], 4);
}
