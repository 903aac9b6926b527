//! The examples: a method of one's own, short and correct, and a method of its own program; trainers in plain Rust and in an async
//! program; and a model on candle.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of an example, which `cargo test` builds with the tests; `cargo test --test examples` alone does not, so here it is.
fn program(package: &str, name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    if !program.exists() {
        let mut build = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        build.args(["build", "--offline", "--quiet", "--package", package, "--example", name]);
        build.args((!cfg!(debug_assertions)).then_some("--release"));
        build.args((package == "gleaner-cli" && !cfg!(feature = "train")).then_some("--no-default-features"));
        assert!(build.status().unwrap().success());
    }
    program
}

fn output(command: &mut Command) -> (bool, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

fn example(arguments: &str) -> (bool, String, String) {
    output(Command::new(program("gleaner-cli", "own_method")).args(arguments.split_whitespace()))
}

#[test]
fn a_trainer_in_an_async_program_trains_among_several_workers() {
    let mut launch = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    let (success, said, errors) =
        output(launch.args(["launch", "-n", "3", "--"]).arg(program("gleaner", "async_trainer")));
    assert!(success, "{said}{errors}");
    for rank in 0..3 {
        let line =
            said.lines().find(|line| line.contains(&format!("rank {rank} of 3: no weight is further than")));
        let worst = line.and_then(|line| line.split("than ").nth(1)?.split(' ').next()?.parse::<f32>().ok());
        assert!(worst.is_some_and(|worst| worst < 0.05), "{said}");
    }
}

/// A run that has ended goes on from its last checkpoint, and one rank's newest is not there: all take the newest that all have.
#[test]
fn a_perceptron_learns_and_goes_on_from_the_newest_common_step() {
    let folder = tempfile::tempdir().unwrap();
    let run = || {
        let mut launch = Command::new(env!("CARGO_BIN_EXE_gleaner"));
        launch.args(["launch", "-n", "3", "--"]).arg(program("gleaner", "perceptron")).arg(folder.path());
        let (success, said, errors) = output(&mut launch);
        assert!(success, "{said}{errors}");
        said
    };
    let (first, again) = (run(), run());
    for (said, steps) in [(&first, "steps 0 to 1500"), (&again, "steps 1500 to 1500")] {
        for rank in 0..3 {
            let line = said.lines().find(|line| line.contains(&format!("rank {rank} of 3: ")));
            let share = line.and_then(|l| l.split(": ").last()?.split('%').next()?.parse::<f64>().ok());
            assert!(share.is_some_and(|share| share > 95.0) && line.unwrap().contains(steps), "{said}");
        }
    }
    std::fs::remove_file(folder.path().join("step-1500-rank-1.safetensors")).unwrap();
    assert!(run().contains("steps 1000 to 1500"), "{first}");
}

#[cfg(feature = "train")]
#[test]
fn a_model_on_candle_learns_while_its_gradients_are_exchanged() {
    assert!(include_str!("../../candle/examples/overlap.rs").lines().count() < 60);
    let mut launch = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    let (success, said, errors) =
        output(launch.args(["launch", "-n", "3", "--"]).arg(program("gleaner-candle", "overlap")));
    assert!(success, "{said}{errors}");
    for rank in 0..3 {
        let loss = said
            .lines()
            .find_map(|line| line.split_once(&format!("rank {rank} of 3: loss "))?.1.parse::<f32>().ok());
        assert!(loss.is_some_and(|loss| loss < 0.2), "{said}");
    }
    assert!(errors.contains("optimal puts 2 layers into"), "{errors}");
}

#[test]
fn it_is_short() {
    assert!(include_str!("../examples/own_method.rs").lines().count() < 80);
}

#[test]
fn it_keeps_the_invariants() {
    assert_eq!(example(""), (true, "star keeps the invariants\n".into(), String::new()));
}

#[test]
fn it_is_planned_and_measured_like_any_other() {
    let (planned, plan, _) = example("plan --method star/2 --workers 5 --params 1000 --json");
    assert!(
        planned && plan.contains(r#""method":"star""#) && plan.contains(r#""words_received":4000"#),
        "{plan}"
    );
    let (compared, ranking, errors) = example("plan --compare --workers 5 --params 1000 --json");
    let ranking: serde_json::Value = serde_json::from_str(&ranking).unwrap_or_else(|_| panic!("{errors}"));
    let star = ranking["methods"].as_array().unwrap().iter().find(|row| row["method"] == "star").unwrap();
    // Everything to the root and back: two rounds, and four workers' entries in the first.
    assert!(compared && star["rounds"] == 2 && star["words_critical"] == 4 * 1000 + 1000, "{star}");
    assert!(ranking["methods"].as_array().unwrap().len() > 12, "{ranking}");
    // What its schedules are too long to be counted for is left out.
    let (compared, ranking, errors) = example("plan --compare --workers 1000000 --params 4_000_000 --json");
    assert!(compared && !ranking.contains("star") && ranking.contains("ring"), "{ranking}{errors}");
    let (measured, report, errors) =
        example("bench --method star/1,ring --workers 3 --params 1000 --steps 2 --json");
    assert!(measured && report.contains(r#""method":"star/1""#), "{report}{errors}");
    // Its option is a flag, which among several methods is for those that have it.
    for flag in ["star --root 2", "star/2 --root 4"] {
        assert_eq!(
            example(&format!("plan --method {flag} --workers 5 --params 1000 --json")).1,
            plan,
            "{flag}"
        );
    }
    let (measured, report, errors) =
        example("bench --method star,ring --root 1 --workers 3 --params 1000 --steps 2 --json");
    assert!(measured && report.contains(r#""method":"star/1""#), "{report}{errors}");
    let (refused, _, sentence) = example("plan --method ring --root 1 --workers 3 --params 1000");
    assert!(!refused && sentence.contains("ring has no root"), "{sentence}");
    let (refused, _, sentence) = example("plan --method star/5 --workers 5 --params 1000");
    assert!(!refused && sentence.contains("there is no root 5 among 5 workers"), "{sentence}");
    let (refused, _, sentence) = example("plan --method star/x --workers 5 --params 1000");
    assert!(!refused && sentence.contains("star has no root of 'x'; expected a rank"), "{sentence}");
    let (_, help, _) = example("plan --help");
    assert!(help.contains("star"), "{help}");
}
