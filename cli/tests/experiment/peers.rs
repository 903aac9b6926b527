//! All-reduces of other libraries beside ours.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::{can_emulate, named, namespaces, told};

/// A program that neither ends nor hears, in place of Gloo's.
#[test]
fn a_peer_that_hangs_is_ended_at_its_limit() {
    if !can_emulate() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let file = directory.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    };
    script("mpicc.openmpi", "exit 1");
    script("mpicc.mpich", "exit 1");
    let python = script("python", "[ \"$1\" = -c ] && exit\ntrap '' TERM\nwhile :; do sleep 1; done");
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.args(["testbed", "peers", "--hosts", "2", "--params", "1_000", "--turns", "1", "--limit", "6s"]);
    command.args(["--json", "--name", &named("peerhang"), "--python"]).arg(python).env("PATH", path);
    let output = command.arg("--out").arg(directory.path().join("out")).output().unwrap();
    let (code, said) = told(&output);
    let sentence = "failed: gloo, 2 workers: it took longer than its limit of 6 s and was ended before it reported any step";
    assert!(code == 1 && said.contains(sentence), "{code}: {said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let measured: Vec<&Value> =
        report["methods"].as_array().unwrap().iter().map(|row| &row["method"]).collect();
    assert_eq!(measured, ["spardl", "ring"]);
    assert_eq!(namespaces(&named("peerhang")), [""; 0]);

    let output = Command::new(env!("CARGO_BIN_EXE_gleaner"))
        .args(["testbed", "peers", "--params", "1_000", "--limit", "never"])
        .output()
        .unwrap();
    let (code, said) = told(&output);
    assert!(
        code == 2 && said.contains("'never' is no limit; expected a number above 0 and a unit"),
        "{said}"
    );
}

#[test]
fn more_entries_than_mpi_counts_are_refused_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    for params in ["2_147_483_648", "0"] {
        let output = Command::new(env!("CARGO_BIN_EXE_gleaner"))
            .args(["testbed", "peers", "--name", &named("toomany"), "--params", params, "--out"])
            .arg(directory.path().join("out"))
            .output()
            .unwrap();
        let (code, said) = told(&output);
        assert!(
            code == 1 && said.contains("entries cannot be compared; expected from 1 to 2147483647"),
            "{said}"
        );
        // Not even what is missing was looked for.
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!directory.path().join("out").exists());
    }
}

#[test]
fn peers_are_measured_or_said_to_be_missing() {
    if !can_emulate() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.args([
        "testbed",
        "peers",
        "--hosts",
        "2",
        "--bandwidth",
        "1gbit",
        "--params",
        "50_000",
        "--steps",
        "3",
    ]);
    command
        .args(["--turns", "1", "--name", &named("peertest"), "--json", "--out"])
        .arg(directory.path().join("out"));
    let output = command.output().unwrap();
    let (code, said) = told(&output);
    assert_eq!(code, 0, "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names = |list: &str| -> Vec<String> {
        report[list]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["method"].as_str().unwrap().to_owned())
            .collect()
    };
    let mut all = [names("methods"), names("missing")].concat();
    all.sort_unstable();
    assert_eq!(all, ["gloo", "mpich", "open-mpi", "ring", "spardl"]);
    for row in report["methods"].as_array().unwrap() {
        // A dense method has to receive a sum over the wire.
        let least = if row["method"] == "spardl" { 1000.0 } else { 200_000.0 };
        assert!(row["bytes_per_step"].as_f64().unwrap() > least, "{row}");
        assert!(
            row["seconds"].as_f64().unwrap() > 0.0 && row["seconds_to_ring"].as_f64().unwrap() > 0.0,
            "{row}"
        );
    }
    for name in names("missing") {
        assert!(said.contains(&format!("{name} is not measured")) && said.contains("install"), "{said}");
    }
    assert_eq!(namespaces(&named("peertest")), [""; 0]);
}

/// PyTorch's DDP has the layers of a model that ours trains, or is said to be missing.
#[test]
fn an_iteration_is_measured_beside_ddp() {
    if !can_emulate() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (layers, out) = (directory.path().join("times.json"), directory.path().join("out"));
    let gleaner = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
        command.args(words.split(' '));
        command
    };
    let measure = "train --workers 1 --data synthetic --model mlp --batch 4 --steps 6 --merge layer-wise --method ring --layer-times";
    assert!(gleaner(measure).arg(&layers).output().unwrap().status.success());
    let told: Value = serde_json::from_slice(&fs::read(&layers).unwrap()).unwrap();
    let told =
        |key: &str| told["layers"].as_array().unwrap().iter().map(|l| l[key].as_f64().unwrap()).sum::<f64>();
    let peers = |name: &str, train: &str, more: &[&str]| {
        let mut command =
            gleaner("testbed peers --hosts 2 --bandwidth 1gbit --steps 4 --warmup 1 --turns 1 --json");
        command.args(["--name", &named(name), "--train", train, "--layers"]).arg(&layers);
        command.arg("--out").arg(out.join(name)).args(more).output().unwrap()
    };
    let output = peers("ddptest", "data=synthetic,model=mlp,batch=4,merge=layer-wise", &[]);
    let (code, said) = super::told(&output);
    assert_eq!(code, 0, "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["params"].as_f64().unwrap(), told("entries"));
    let row = |name: &str| {
        let rows = report["methods"].as_array().unwrap();
        rows.iter().find(|row| row["method"] == name).cloned()
    };
    assert!(row("spardl").is_some() && row("ring").is_some(), "{report}");
    match row("ddp") {
        Some(ddp) => {
            let number = |key: &str| ddp[key].as_f64().unwrap();
            assert!(number("seconds") >= told("seconds"), "its compute is emulated: {ddp}");
            assert!(number("bytes_per_step") > 4.0 * told("entries"), "{ddp}");
            assert!(ddp["library"].as_str().unwrap().contains("compute emulated"), "{ddp}");
        }
        None => {
            assert!(said.contains("ddp is not measured") && said.contains("PyTorch"), "{said}");
            gleaner_skips::skip("torch", "DDP needs a Python with PyTorch: apt-get install python3-torch");
        }
    }
    let without = peers("ddpless", "data=synthetic,model=mlp,batch=4", &["--python", "/bin/false"]);
    let (code, said) = super::told(&without);
    assert!(code == 0 && said.contains("ddp is not measured: /bin/false has no PyTorch"), "{said}");
    let other = peers("ddpother", "data=text,batch=4", &["--python", "/bin/false"]);
    let (code, said) = super::told(&other);
    assert!(code == 1 && said.contains("expected the layer times of that model"), "{said}");
    for name in ["ddptest", "ddpless", "ddpother"] {
        assert_eq!(namespaces(&named(name)), [""; 0]);
    }
}
