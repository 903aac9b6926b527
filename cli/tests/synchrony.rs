//! `gleaner train --synchrony` as a user runs it: several processes, whose passes and exchanges overlap, or which go on by themselves.
#![cfg(feature = "train")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const RUN: &str =
    "train --data digits --model mlp --steps 60 --batch 8 --lr 0.02 --evaluate-every 20 --json --workers";

fn train(workers: u32, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.args(RUN.split(' ')).arg(workers.to_string()).args(options).stdin(Stdio::null()).output().unwrap()
}

/// Of a run that ends well: which it does only if all ranks have the same parameters.
fn summary(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object on standard output, and nothing else")
}

fn number(summary: &Value, field: &str) -> f64 {
    summary[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {summary}"))
}

#[test]
fn every_synchrony_without_servers_learns() {
    for (workers, method) in [(2, "ring"), (3, "spardl")] {
        for synchrony in [
            "bsp",
            "osp",
            "osp/budget=0.8",
            "osp/budget=bound",
            "osp/lgp=ema:0.5,budget=0.5",
            "local/4",
            "local/5,0.7,0.3,after=10",
        ] {
            let summary =
                summary(&train(workers, &["--method", method, "--density", "0.1", "--synchrony", synchrony]));
            assert_eq!(summary["synchrony"], synchrony);
            let (first, last) = (number(&summary, "held_out_loss_first"), number(&summary, "held_out_loss"));
            assert!(
                last < 0.8 * first,
                "{workers} workers, {method} under {synchrony}: from {first} to {last}"
            );
            let best = number(&summary, "best_held_out_accuracy");
            assert!(best >= number(&summary, "held_out_accuracy") && number(&summary, "best_step") <= 60.0);
            assert!(number(&summary, "throughput") > 0.0);
            assert!(number(&summary, "seconds_batch_computation") > 0.0);
            let background = number(&summary, "background_share");
            match synchrony {
                // At least a layer of the three fits into half of the model, or 80%: never all.
                "osp/budget=0.8" | "osp/lgp=ema:0.5,budget=0.5" => {
                    assert!(background > 0.0 && background <= 0.8, "{summary}");
                    assert!(number(&summary, "seconds_background") > 0.0);
                }
                "osp" | "osp/budget=bound" => assert!(background <= 0.8),
                _ => assert_eq!(background, 0.0),
            }
            let waited = summary["seconds_waited"].as_array().unwrap();
            assert_eq!(waited.len(), workers as usize);
            assert!(
                waited.iter().enumerate().all(|(rank, row)| row[rank] == 0.0),
                "no worker waits for itself"
            );
        }
    }
}

/// Local steps exchange once in many: so much less is received.
#[test]
fn local_steps_save_bytes() {
    let bytes = |synchrony| {
        number(&summary(&train(2, &["--method", "ring", "--synchrony", synchrony])), "bytes_received")
    };
    let (each, fourth) = (bytes("local/1"), bytes("local/4"));
    assert!((3.9..4.1).contains(&(each / fourth)), "{each} against {fourth}");
}

/// Everything in the routine stage, by the same layers: the parameters of BSP with two workers, whose sums have one order.
#[test]
fn osp_with_nothing_in_the_background_is_bsp() {
    let digest = |options: &[&str]| summary(&train(2, options))["parameters_digest"].clone();
    let bsp = digest(&["--method", "ring", "--merge", "layer-wise"]);
    assert_eq!(digest(&["--method", "ring", "--synchrony", "osp/budget=0"]), bsp);
    assert_ne!(digest(&["--method", "ring", "--synchrony", "osp/budget=0.8"]), bsp);
}

/// As if a run had been interrupted after its checkpoint of step 40, while layers were under way and between two exchanges.
#[test]
fn a_resumed_run_has_the_bits_of_an_uninterrupted_one() {
    for synchrony in ["osp/budget=0.8", "local/7,0.7,0.9"] {
        let options = |folder: &Path, more: &[&str]| {
            let folder = folder.to_str().unwrap();
            let options = [
                "--synchrony",
                synchrony,
                "--density",
                "0.1",
                "--checkpoint-every",
                "40",
                "--checkpoint",
                folder,
            ];
            summary(&train(3, &[&options[..], more].concat()))
        };
        let whole = summary(&train(3, &["--synchrony", synchrony, "--density", "0.1"]));
        let folder = tempfile::tempdir().unwrap();
        let saved = options(folder.path(), &[]);
        assert_eq!(saved["parameters_digest"], whole["parameters_digest"], "{synchrony}");
        for rank in 0..3 {
            fs::remove_file(folder.path().join(format!("rank-{rank}.step-60.safetensors"))).unwrap();
        }
        let resumed = options(folder.path(), &["--resume"]);
        assert_eq!(resumed["first_step"], 40);
        assert_eq!(resumed["parameters_digest"], whole["parameters_digest"], "{synchrony}");
        assert_eq!(resumed["held_out_loss"], whole["held_out_loss"], "{synchrony}");
        // Another synchrony cannot go on from it.
        let folder = folder.path().to_str().unwrap();
        let other = train(
            3,
            &["--density", "0.1", "--checkpoint", folder, "--resume", "--synchrony", "osp/budget=0.5"],
        );
        let said = String::from_utf8_lossy(&other.stderr).into_owned();
        assert!(!other.status.success() && said.contains(&format!("its synchrony is {synchrony}")), "{said}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_starts() {
    for (options, expected) in [
        (&["--synchrony", "ssp/-1"][..], "--synchrony: synchrony ssp takes no '-1'"),
        (&["--synchrony", "local/0"], "synchrony local takes no '0'"),
        (&["--synchrony", "osp", "--merge", "optimal"], "--merge: expected nothing beside"),
        (&["--synchrony", "local/4", "--momentum-correction", "0.9"], "--momentum-correction: expected 0"),
        (&["--synchrony", "asp"], "the synchrony asp needs parameter servers"),
    ] {
        let output = train(2, options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{options:?}: {said}");
    }
}
