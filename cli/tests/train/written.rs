//! What a training writes beside its summary: timelines, metrics of steps, times of layers.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{summary, train};

/// Every rank and step has its passes, layer by layer, and what the exchange did.
#[test]
fn a_timeline_shows_what_each_rank_does_when() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("timeline.json");
    let run = |file: &Path| {
        let options =
            "--workers 2 --data synthetic --model mlp --steps 6 --merge layer-wise --json --timeline";
        let options: Vec<&str> = options.split(' ').collect();
        train(&options).arg(file).output().unwrap()
    };
    let groups = summary(&run(&file))["groups"].as_u64().unwrap();
    let trace: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for rank in 0..2 {
        for step in 0..6 {
            let of = |event: &&Value| event["pid"] == rank && event["args"]["step"] == step;
            let names: Vec<&str> = events.iter().filter(of).map(|e| e["name"].as_str().unwrap()).collect();
            for name in ["forward", "accumulate", "select", "merge", "commit", "apply", "wait"] {
                assert!(names.contains(&name), "{name} of rank {rank} in step {step}: {names:?}");
            }
            assert!(names.contains(&format!("receive from {}", 1 - rank).as_str()), "{names:?}");
            let of = |what: &str| names.iter().filter(|name| name.starts_with(what)).count() as u64;
            // Three layers with weights and biases.
            assert_eq!((of("backward "), of("commit")), (6, groups), "{names:?}");
        }
    }

    let nowhere = run(&folder.path().join("missing/timeline.json"));
    let said = String::from_utf8_lossy(&nowhere.stderr);
    assert!(!nowhere.status.success() && said.contains("missing/timeline.json cannot be written"), "{said}");
    assert!(nowhere.stdout.is_empty(), "it is refused before the first step");
}

/// A folder that goes while the job trains: what else it was asked for is there, and one sentence says what is not.
#[test]
fn a_trace_that_cannot_be_written_at_the_end_takes_nothing_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let [gone, checkpoints] = ["gone", "checkpoints"].map(|name| folder.path().join(name));
    fs::create_dir(&gone).unwrap();
    let layers = folder.path().join("layers.json");
    let options = "--workers 2 --data synthetic --model mlp --batch 4 --steps 400 --evaluate-every 400 --merge layer-wise --json";
    let options: Vec<&str> = options.split(' ').chain(["--checkpoint-every", "5"]).collect();
    let mut command = train(&options);
    command.arg("--checkpoint").arg(&checkpoints).arg("--timeline").arg(gone.join("trace.json"));
    command.arg("--layer-times").arg(&layers);
    let job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    let is_written = |name: &str| name.starts_with("rank-") && name.ends_with(".safetensors");
    let begun = || {
        let files = fs::read_dir(&checkpoints).into_iter().flatten().flatten();
        files.map(|file| file.file_name()).any(|name| name.to_str().is_some_and(is_written))
    };
    while !begun() {
        assert!(started.elapsed() < Duration::from_secs(120), "no checkpoint appears");
        std::thread::sleep(Duration::from_millis(2));
    }
    fs::remove_dir_all(&gone).unwrap();
    let output = job.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    // The launcher says so once more, with the rank.
    let own = |line: &&str| line.starts_with("gleaner: ") && line.contains("trace.json cannot be written");
    assert_eq!(said.lines().filter(own).count(), 1, "{said}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&summary["steps"], summary["parameters_digest"].as_str().map(str::len)),
        (&400.into(), Some(64))
    );
    let stored: Value = serde_json::from_slice(&fs::read(&layers).unwrap()).unwrap();
    assert!(stored["layers"].as_array().is_some_and(|layers| !layers.is_empty()), "{stored}");
    let last = fs::read_dir(&checkpoints).unwrap().flatten();
    assert!(last.map(|file| file.file_name().into_string().unwrap()).any(|name| name.contains("step-400")));
}

#[test]
fn each_step_has_a_line_with_its_loss_times_and_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let [csv, jsonl] = ["steps.csv", "steps.jsonl"].map(|name| folder.path().join(name));
    let checkpoints = folder.path().join("checkpoints");
    let run = |steps: &str, file: &Path, more: &[&str]| {
        let options = [
            "--workers",
            "2",
            "--data",
            "digits",
            "--batch",
            "4",
            "--lr-drops",
            "0.5",
            "--json",
            "--steps",
            steps,
        ];
        let mut command = train(&[&options[..], more].concat());
        command.arg("--metrics").arg(file).arg("--checkpoint").arg(&checkpoints).output().unwrap()
    };
    let summary = summary(&run("6", &jsonl, &[]));
    let lines: Vec<Value> =
        fs::read_to_string(&jsonl).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sum = |field: &str| lines.iter().map(|line| line[field].as_f64().unwrap()).sum::<f64>();
    assert_eq!(
        lines.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5]
    );
    assert!((sum("entries_per_step") / 6.0 - summary["entries_per_step"].as_f64().unwrap()).abs() < 1e-9);
    // The other worker may have received more.
    assert!((1.0..=summary["bytes_received"].as_f64().unwrap()).contains(&sum("rank0_bytes_per_step")));
    assert!((sum("seconds") - summary["evaluations"][1]["seconds"].as_f64().unwrap()).abs() < 1.0);
    assert!(
        lines.iter().all(|line| line["seconds"].as_f64() >= line["seconds_backward"].as_f64()),
        "{lines:?}"
    );
    assert!(
        (lines[5]["learning_rate"].as_f64().unwrap() / lines[0]["learning_rate"].as_f64().unwrap() - 0.1)
            .abs()
            < 1e-6
    );

    fs::remove_dir_all(&checkpoints).unwrap();
    self::summary(&run("3", &csv, &[]));
    self::summary(&run("5", &csv, &["--resume"]));
    let text = fs::read_to_string(&csv).unwrap();
    let first: Vec<&str> = text.lines().map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(first, ["step", "0", "1", "2", "3", "4"]);
    assert!(text.lines().all(|line| line.split(',').count() == 10), "{text}");

    let refused = run("3", &folder.path().join("steps.txt"), &[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("--metrics: expected the name of a file that ends with .csv or .jsonl, found"),
        "{said}"
    );
    fs::remove_dir_all(&checkpoints).unwrap();
    let refused = run("3", &folder.path().join("none/steps.csv"), &[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("none/steps.csv: could not be written"), "{said}");
}

/// What a worker measured is what the planners read: a model of one's own on a network that is described.
#[test]
fn layer_times_are_what_the_planners_take() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("times.json");
    let of = |workers: &str, method: &str, merge: &str| {
        let options = ["--data", "synthetic", "--model", "mlp", "--steps", "6", "--workers", workers];
        let rest = ["--method", method, "--merge", merge, "--json", "--layer-times"];
        let ran = summary(&train(&[&options[..], &rest].concat()).arg(&file).output().unwrap());
        let stored: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let layers = stored["layers"].as_array().unwrap().clone();
        let entries: u64 = layers.iter().map(|layer| layer["entries"].as_u64().unwrap()).sum();
        assert_eq!(ran["params"], entries);
        let seconds = layers.iter().map(|layer| layer["seconds"].as_f64().unwrap());
        let backward: f64 = seconds.inspect(|seconds| assert!(*seconds >= 0.0)).sum();
        let (forward, iteration) =
            (stored["forward"].as_f64().unwrap(), ran["seconds_iteration"].as_f64().unwrap());
        assert!(forward > 0.0 && backward > 0.0 && iteration > 0.0, "{forward}, {backward}, {iteration}");
        layers
    };
    // Three weights and three biases, of which some are too short to be selected from alone.
    assert_eq!(of("2", "spardl", "optimal").len(), 3);
    let layers = of("1", "ring", "layer-wise");
    assert_eq!(layers.len(), 6);
    for planner in ["merge-plan", "simulate"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
        let command = command.args([planner, "--method", "ring", "--workers", "4", "--json", "--layers"]);
        let planned = summary(&command.arg(&file).output().unwrap());
        let found = planned.to_string();
        assert!(found.contains("optimal") || found.contains("iteration"), "{found}");
    }
    let clipped = train(&["--clip", "1", "--layer-times"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&clipped.stderr).into_owned();
    assert!(!clipped.status.success() && said.contains("--layer-times: expected no --clip"), "{said}");
}
