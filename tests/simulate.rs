//! `gleaner simulate` as its users see it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn simulate(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.current_dir(folder).arg("simulate").args(arguments.split_whitespace()).output().unwrap()
}

fn text(folder: &Path, arguments: &str) -> String {
    let output = simulate(folder, arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &str) -> Value {
    serde_json::from_str(&text(Path::new("."), &format!("{arguments} --json"))).unwrap()
}

fn refused(arguments: &str) -> String {
    let output = simulate(Path::new("."), arguments);
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn all_methods_are_predicted_or_refused_for_a_reason() {
    let all = json("--method all --workers 3 --params 20_000");
    let methods = all["methods"].as_array().unwrap();
    assert_eq!(methods.len() + all["refused"].as_array().unwrap().len(), 15);
    for row in methods {
        let part = |name: &str| row[name].as_f64().unwrap();
        let sum = part("select") + part("exchange") + part("merge");
        assert!((sum - part("seconds")).abs() < 1e-9, "{row}");
    }
    let table = text(Path::new("."), "--method all --workers 3 --params 20_000");
    assert!(methods.iter().all(|row| table.contains(row["method"].as_str().unwrap())), "{table}");
}

/// The same command gives the same numbers, with losses too.
#[test]
fn predictions_repeat() {
    let command = "--method ring,spardl --workers 4 --params 50_000 --loss 1% --latency 1ms --seed 7";
    assert_eq!(json(command), json(command));
    assert_ne!(json(command), json(&command.replace("--seed 7", "--seed 8")));
}

/// A thousand workers with SparDL: 2⌈log2 P⌉ rounds, within ten seconds and 4 GiB. The time is that of the processors: how
/// long they had other things to do does not matter.
#[test]
fn a_thousand_workers() {
    let arguments = "simulate --method spardl --workers 1024 --params 14_728_266 --json";
    // The second line of `times` is about the shell's children.
    let script = r#"ulimit -v 4194304 && "$@" && times >&2"#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_gleaner")]).args(arguments.split_whitespace());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["methods"][0]["rounds"], 20);
    let times = said.lines().last().unwrap().split_whitespace().map(|time| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        60.0 * minutes.parse::<f64>().unwrap() + seconds.parse::<f64>().unwrap()
    });
    let times: Vec<f64> = times.collect();
    assert!(times.len() == 2 && times.iter().sum::<f64>() < 10.0, "{times:?} s for the user and the system");
}

#[test]
fn a_straggler_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    text(folder.path(), "--workers 6 --params 100_000 --slow 3=2 --svg steps.svg");
    let picture = fs::read_to_string(folder.path().join("steps.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("3 (2× slower)"));
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    for (arguments, words) in [
        ("--workers 0 --params 10", "0"),
        ("--workers 5000 --params 10", "5000"),
        ("--workers 4", "--params"),
        ("--workers 4 --params 0", "expected at least one"),
        ("--workers 4 --params 100 --rate fast", "no rate"),
        ("--workers 4 --params 100 --loss 0.9", "carries no job"),
        ("--workers 4 --params 100 --slow 9=2", "no rank 9"),
        ("--workers 4 --params 100 --slow 1=0", "no slow host"),
        ("--workers 4 --params 100 --cores 0", "no number of cores"),
        ("--workers 4 --params 100 --machine nowhere.json", "cannot be read"),
        ("--workers 4 --params 100 --machine Cargo.toml", "no speeds"),
        ("--workers 4 --params 100 --topology nowhere.toml", "cannot be read"),
        ("--workers 4 --params 100 --overlap 2,1", "no overlap"),
        ("--workers 65 --params 1000 --svg x.svg", "cannot be drawn"),
        ("--method nothing --workers 4 --params 100", "no method"),
        ("--method auto --workers 4 --params 100", "auto is a choice"),
        ("--method ring --workers 4096 --params 100000", "choose fewer workers"),
        ("--workers 2000 --params 1000000 --bags real", "do not fit"),
        ("--against nowhere.jsonl", "cannot be read"),
        ("--against Cargo.toml", "no measurement"),
        ("--calibrate speeds.json", "--against"),
    ] {
        let sentence = refused(arguments);
        assert!(sentence.contains(words), "{arguments}: {sentence}");
    }
}
