//! `gleaner select` as its users see it: the real command on real files.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A folder with gradients as numpy.save writes them.
fn folder(gradients: &[Vec<f32>]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (rank, values) in gradients.iter().enumerate() {
        let mut header =
            format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", values.len());
        while !(header.len() + 11).is_multiple_of(64) {
            header.push(' ');
        }
        header.push('\n');
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        fs::write(folder.path().join(format!("g{rank}.npy")), file).unwrap();
    }
    folder
}

fn run(folder: &TempDir, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gleaner"))
        .current_dir(folder.path())
        .arg("select")
        .args(arguments.split_whitespace())
        .output()
        .unwrap()
}

fn json(folder: &TempDir, arguments: &str) -> Value {
    let output = run(folder, &format!("{arguments} --json"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(folder: &TempDir, arguments: &str, code: i32) -> String {
    let output = run(folder, arguments);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(code), &b""[..]), "{arguments}");
    String::from_utf8(output.stderr).unwrap()
}

/// Two workers that share the largest entry and differ in the next.
fn pair() -> TempDir {
    let entry = |i: usize, large: usize| {
        if i == 7 {
            9.0
        } else if i == large {
            -8.0
        } else {
            0.01 * i as f32
        }
    };
    folder(&[50, 60].map(|large| (0..100).map(|i| entry(i, large)).collect()))
}

fn row<'a>(report: &'a Value, selector: &str) -> &'a Value {
    report["selectors"].as_array().unwrap().iter().find(|row| row["selector"] == selector).unwrap()
}

#[test]
fn columns_are_those_of_an_estimate_by_hand() {
    let folder = pair();
    let report = json(&folder, "--density 0.02 --selector top,threshold=8.5,exdyna,clt-k g0.npy g1.npy");
    assert_eq!((&report["workers"], &report["params"], &report["k"]), (&2.into(), &100.into(), &2.into()));
    let squares = |large: usize| -> f64 {
        (0..100).filter(|i| *i != 7 && *i != large).map(|i| f64::from(0.01 * i as f32).powi(2)).sum::<f64>()
    };
    let all = [50, 60].map(|large| 81.0 + 64.0 + squares(large));
    let close = |found: &Value, expected: f64| {
        assert!((found.as_f64().unwrap() - expected).abs() < 1e-6, "{found} instead of {expected}");
    };
    let top = row(&report, "top");
    close(&top["l2_share"], (145.0 / all[0] + 145.0 / all[1]) / 2.0);
    // {7, 50} and {7, 60}.
    close(&top["jaccard"], 1.0 / 3.0);
    close(&top["build_up"], 3.0 / 4.0);
    close(&top["threshold_error"], 0.0);
    let threshold = row(&report, "threshold=8.5");
    close(&threshold["times_k"], 0.5);
    close(&threshold["jaccard"], 1.0);
    close(&threshold["threshold_error"], 0.5 / 8.0);
    // Worker 0 owns the first half and has 9 there; worker 1 has -8 at 60 in the second.
    let exdyna = row(&report, "exdyna");
    close(&exdyna["build_up"], 0.5);
    close(&exdyna["padding"], 1.0);
    close(&exdyna["l2_share"], (81.36 / all[0] + 145.0 / all[1]) / 2.0);
    // Worker 0 chooses 7 and 50, where worker 1 has 0.5.
    let clt_k = row(&report, "clt-k");
    close(&clt_k["l2_share"], (145.0 / all[0] + 81.25 / all[1]) / 2.0);
    close(&clt_k["padding"], 2.0);
}

#[test]
fn all_are_printed_and_drawn() {
    let folder = pair();
    let output = run(&folder, "--lengths 40,60 --svg all.svg g0.npy g1.npy");
    let table = String::from_utf8(output.stdout).unwrap();
    let picture = fs::read_to_string(folder.path().join("all.svg")).unwrap();
    for name in [
        "top",
        "layers",
        "blocks=16",
        "bucketed=512",
        "random",
        "sampled",
        "gaussian",
        "sidco-exp",
        "sidco-gamma",
        "sidco-gp",
        "threshold=",
        "exdyna",
        "clt-k",
    ] {
        assert!(table.lines().any(|line| line.starts_with(name)), "{name}: {table}");
        assert!(picture.contains(name), "{name}");
    }
    let zeros = self::folder(&[vec![0.0; 10], vec![0.0; 10]]);
    for row in json(&zeros, "g0.npy g1.npy")["selectors"].as_array().unwrap() {
        assert_eq!(row["entries"].as_f64().unwrap(), 0.0);
        assert_eq!(row["jaccard"], Value::Null);
    }
}

#[test]
fn bad_input_gets_a_sentence() {
    let folder = folder(&[vec![1.0; 10], vec![1.0; 11], vec![1.0, f32::NAN, 3.0, f32::INFINITY]]);
    for (arguments, parts) in [
        ("missing.npy", &["rank 0: missing.npy cannot be read"][..]),
        ("g0.npy g1.npy", &["g0.npy has 10 entries", "g1.npy has 11"]),
        ("g2.npy g2.npy", &["rank 0: g2.npy holds NaN at entry 1, the first of 2"]),
        ("--selector topk g0.npy", &["there is no selector 'topk'"]),
        ("--selector layers g0.npy", &["--lengths"]),
        ("--lengths 4,5 g0.npy", &["--lengths has 9 entries", "have 10"]),
        ("--density 0 g0.npy", &["the density is 0"]),
        ("--density 2 g0.npy", &["the density is 2"]),
        ("--svg none/a.svg g0.npy", &["none"]),
    ] {
        let is_of_options = ["--selector", "--density"].iter().any(|o| arguments.starts_with(o));
        let sentence = refused(&folder, arguments, if is_of_options { 2 } else { 1 });
        for part in parts {
            assert!(sentence.contains(part), "{arguments}: {sentence}");
        }
    }
}
