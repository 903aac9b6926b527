//! Workers that are not equally fast: samples in proportion to speeds, passes that are paced, and how long it takes to a target.
#![cfg(feature = "train")]
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

const RUN: &str = "train --batch 8 --lr 0.02 --evaluate-every 10 --json";

fn train(options: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.args(RUN.split(' ')).args(options.split(' ')).stdin(Stdio::null()).output().unwrap()
}

/// Of a run that ends well: which it does only if all ranks have the same parameters.
fn summary(options: &str) -> Value {
    let output = train(&format!("--data synthetic --model mlp {options}"));
    assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object on standard output, and nothing else")
}

fn number(summary: &Value, field: &str) -> f64 {
    summary[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {summary}"))
}

fn numbers(summary: &Value, field: &str) -> Vec<f64> {
    summary[field].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

/// A step has the same samples, and each counts as much: dense gradients have the same sum, but for how it is rounded. Without the weights
/// the samples of the small batches would count six times as much.
#[test]
fn samples_count_alike_however_they_are_distributed() {
    for how in [
        "--synchrony bsp --merge layer-wise",
        "--synchrony bsp --clip 1000",
        "--synchrony osp/budget=0.5,lgp=off",
    ] {
        let of = |balance: &str| {
            summary(&format!("--workers 3 --steps 20 --method ring {how} --balance {balance}"))
        };
        let (even, uneven) = (of("even"), of("18,3,3"));
        assert_eq!(numbers(&even, "batches"), [8.0, 8.0, 8.0]);
        assert_eq!(numbers(&uneven, "batches"), [18.0, 3.0, 3.0]);
        let (a, b) = (number(&even, "held_out_loss"), number(&uneven, "held_out_loss"));
        assert!((a - b).abs() < 1e-3 * a, "{how}: {a} and {b}");
        let twice = of("18,3,3");
        assert_eq!(twice["parameters_digest"], uneven["parameters_digest"]);
    }
}

/// How often runs are compared. A machine that stands still for a while, or is busy, changes the mean times of a run; what is wrong is so
/// each time.
const ATTEMPTS: usize = 4;

/// Rank 1 takes three times as long for a sample: with a third of the samples both end together, and no rank waits for it.
#[test]
fn batches_in_proportion_to_speed_end_together() {
    let of = |balance: &str| {
        summary(&format!("--workers 2 --steps 20 --pace 80ms --slow 1=3 --synchrony osp --balance {balance}"))
    };
    let ends_together = || {
        let (even, balanced) = (of("even"), of("speed"));
        let batches = numbers(&balanced, "batches");
        assert_eq!(batches.iter().sum::<f64>(), 16.0);
        assert!(
            number(&even, "seconds_batch_computation") >= 0.16 && even["seconds_paced"] == 0.08,
            "{even}"
        );
        let longer = |summary: &Value| {
            let took = numbers(summary, "seconds_batch_computation_by_rank");
            took[1] / took[0]
        };
        // 240 ms a step against 120.
        let faster = number(&balanced, "throughput") / number(&even, "throughput");
        let waited = |summary: &Value| summary["seconds_waited"][0][1].as_f64().unwrap();
        println!("{even}\n{balanced}");
        (11.0..=13.0).contains(&batches[0])
            && (2.5..3.1).contains(&longer(&even))
            && (0.7..1.4).contains(&longer(&balanced))
            && faster > 1.4
            // 160 ms in each of twenty steps.
            && waited(&even) > 2.4
            && waited(&balanced) < 0.5 * waited(&even)
    };
    assert!((0..ATTEMPTS).any(|_| ends_together()));
}

#[test]
fn a_target_is_reported_with_its_steps_and_seconds() {
    let reached = summary("--workers 2 --steps 60 --method ring --target-accuracy 0.2");
    let evaluations = reached["evaluations"].as_array().unwrap();
    let is_there = |evaluated: &&Value| evaluated["held_out_accuracy"].as_f64().unwrap() >= 0.2;
    let first = evaluations.iter().find(is_there).expect("so easy a target is reached");
    assert_eq!(
        (&reached["steps_to_target"], &reached["seconds_to_target"]),
        (&first["step"], &first["seconds"])
    );
    let never = summary("--workers 2 --steps 10 --target-loss 0.000001");
    assert_eq!((&never["steps_to_target"], &never["target_loss"]), (&Value::Null, &Value::from(1e-6)));
}

#[test]
fn what_does_not_fit_is_refused() {
    for (options, expected) in [
        ("--workers 2 --balance 8,4", "expected the samples of each of 2 workers, 16 together, found 8,4"),
        ("--workers 2 --balance 8,4,4", "found 8,4,4"),
        ("--workers 2 --balance fast", "expected even, speed, or the samples of each rank"),
        ("--workers 2 --balance speed --clip-local 1", "--clip-local: expected nothing beside --balance"),
        ("--workers 2 --slow 1=3", "--pace"),
        ("--workers 2 --target-accuracy 0.5", "--target-accuracy: expected images"),
    ] {
        let output = train(&format!("{options} --steps 2"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{options}: {said}");
        assert!(said.contains(expected), "{options}: {said}");
    }
}
