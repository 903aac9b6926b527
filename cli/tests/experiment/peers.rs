//! Other libraries as methods of experiments.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use gleaner_testbed::record::{Outcome, Record};
use serde_json::Value;

use super::{Bed, can_emulate, named, namespaces, reason};

/// An experiment of all-reduces of these methods on two emulated hosts.
fn all_reduces(methods: &str) -> String {
    format!(
        "title = 'peers'\nturns = 1\nlimit = '120s'\n[network]\nbandwidth = '1gbit'\n[workload]\ncommand = 'bench'\nworkers = 2\n\
         params = 50_000\nsteps = 3\nwarmup = 1\ndensity = 0.01\nplain = true\n[matrix]\nmethod = [{methods}]\n"
    )
}

fn method(record: &Record) -> &str {
    record.case["method"].as_str().unwrap()
}

#[track_caller]
fn done(record: &Record) -> &Value {
    let Outcome::Done(report) = &record.outcome else { panic!("{record:?}") };
    report
}

/// A program that neither ends nor reads, in place of Gloo's.
#[test]
fn a_peer_that_hangs_is_ended_at_its_limit() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::new(&all_reduces("'ring', 'gloo'").replace("120s", "6s"));
    let python = bed.directory.path().join("python");
    fs::write(&python, "#!/bin/sh\n[ \"$1\" = -c ] && exit\ntrap '' TERM\nwhile :; do sleep 1; done\n")
        .unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let name = named("peerhang");
    let (code, said) = bed.run(&["--name", &name, "--python", python.to_str().unwrap()]);
    let sentence = "it took longer than its limit of 6 s and was ended before it reported any step";
    assert!(code == 1 && said.contains(&format!("failed: gloo, 2 workers: {sentence}")), "{code}: {said}");
    let records = bed.records();
    assert_eq!(records.iter().map(method).collect::<Vec<_>>(), ["ring", "gloo"]);
    assert!(done(&records[0])["seconds"].as_f64().unwrap() > 0.0);
    assert!(reason(&records[1]).starts_with(sentence));
    assert_eq!(namespaces(&name), [""; 0]);
}

#[test]
fn peers_are_measured_or_said_to_be_missing() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::new(&all_reduces("'spardl', 'ring', 'open-mpi', 'mpich', 'gloo'"));
    let name = named("peertest");
    let (code, said) = bed.run(&["--name", &name]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    for record in &records {
        assert!(done(record)["seconds"].as_f64().unwrap() > 0.0, "{record:?}");
        // A dense method has to receive a sum over the wire in each of the four steps.
        let least = if method(record) == "spardl" { 4000 } else { 4 * 200_000 };
        assert!(record.traffic.iter().any(|traffic| traffic.received > least), "{record:?}");
    }
    assert_eq!(namespaces(&name), [""; 0]);
    for (peer, need) in [("open-mpi", "open-mpi-dev"), ("mpich", "mpich"), ("gloo", "torch")] {
        let is_missing = said.contains(&format!("{peer} is not measured"));
        assert_ne!(done_or_skipped(&records, peer, need, &said).is_some(), is_missing, "{said}");
    }
}

/// A program that prints times and exchanges nothing, in place of Gloo's.
#[test]
fn a_peer_that_goes_around_the_links_has_failed() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::new(&all_reduces("'gloo'"));
    let python = bed.directory.path().join("python");
    fs::write(&python, "#!/bin/sh\n[ \"$1\" = -c ] || echo '{\"params\": 50000, \"seconds\": 0.001}'\n")
        .unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let (code, said) = bed.run(&["--name", &named("peeraway"), "--python", python.to_str().unwrap()]);
    assert!(code == 1 && said.contains("it went around the emulated links"), "{code}: {said}");
}

/// PyTorch's DDP has the layers of a model that ours trains, or is said to be missing.
#[test]
fn an_iteration_is_measured_beside_ddp() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::new("");
    let layers = bed.directory.path().join("times.json");
    let mut train = std::process::Command::new(env!("CARGO_BIN_EXE_gleaner"));
    train.args("train --workers 1 --data synthetic --model mlp --batch 4 --steps 6".split(' '));
    train.args("--merge layer-wise --method ring --layer-times".split(' ')).arg(&layers);
    assert!(train.output().unwrap().status.success());
    let passes: Value = serde_json::from_slice(&fs::read(&layers).unwrap()).unwrap();
    let all = |key: &str| {
        let layers = passes["layers"].as_array().unwrap().iter();
        layers.map(|layer| layer[key].as_f64().unwrap()).sum::<f64>()
    };
    bed.write(
        "title = 'ddp'\nturns = 1\n[network]\nbandwidth = '1gbit'\n[workload]\ncommand = 'train'\nworkers = 2\nsteps = 8\n\
         data = 'synthetic'\nmodel = 'mlp'\nbatch = 4\nevaluate_every = 8\nlayers = 'times.json'\n[matrix]\nmethod = ['ring', 'ddp']\n",
    );
    let name = named("ddptest");
    let (code, said) = bed.run(&["--name", &name]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    let of = |name: &str| records.iter().find(|record| method(record) == name).map(done);
    assert_eq!(of("ring").unwrap()["params"].as_f64().unwrap(), all("entries"));
    match of("ddp") {
        Some(ddp) => {
            assert!(
                ddp["seconds_iteration"].as_f64().unwrap() >= all("seconds"),
                "its compute is emulated: {ddp}"
            );
            assert_eq!(ddp["params"].as_f64().unwrap(), all("entries"));
            assert!(ddp["library"].as_str().unwrap().contains("compute emulated"), "{ddp}");
        }
        None => {
            assert!(said.contains("ddp is not measured") && said.contains("PyTorch"), "{said}");
            gleaner_skips::skip("torch", "DDP needs a Python with PyTorch: apt-get install python3-torch");
        }
    }
    assert_eq!(namespaces(&name), [""; 0]);
}

/// Trainings with PyTorch's hooks see the images that ours do, and learn; with PowerSGD they receive less, and with a hook that exchanges nothing next to
/// nothing. Gleaner's hook is measured where its package is there.
#[test]
fn a_training_is_measured_with_hooks_of_ddp() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::new("");
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../trainer/data/digits");
    bed.write(&format!(
        "title = 'hooks'\nturns = 1\n[network]\nbandwidth = '1gbit'\n[workload]\ncommand = 'train'\nworkers = 2\nsteps = 60\nlr = 0.02\n\
         data = 'mnist:{digits}'\nmodel = 'mlp'\nbatch = 16\nevaluate_every = 30\n[matrix]\n\
         exchange = [{{ method = ['ring', 'torch', 'powersgd-1', 'torch-noop'] }}, {{ method = 'torch-spardl', density = 0.01 }}]\n"
    ));
    let name = named("hooktest");
    let (code, said) = bed.run(&["--name", &name]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    let of = |name: &str| records.iter().find(|record| method(record) == name).map(done);
    let number = |report: &Value, field: &str| report[field].as_f64().unwrap();
    let ring = of("ring").unwrap();
    let Some((dense, compressed)) = of("torch").zip(of("powersgd-1")) else {
        assert!(said.contains("torch is not measured") && said.contains("PyTorch"), "{said}");
        gleaner_skips::skip(
            "torch",
            "hooks of DDP need a Python with PyTorch: apt-get install python3-torch",
        );
        return;
    };
    for report in [dense, compressed] {
        assert_eq!(number(report, "params"), number(ring, "params"));
        assert_eq!(report["evaluations"].as_array().unwrap().len(), 2);
        assert!(number(report, "held_out_loss") < 1.5, "{report}");
    }
    assert!(number(dense, "bytes_per_step") > number(dense, "dense_bytes_per_step"));
    assert!(number(compressed, "bytes_per_step") < number(dense, "bytes_per_step") / 2.0);
    let apart = of("torch-noop").unwrap();
    assert!(number(apart, "bytes_per_iteration") < number(dense, "bytes_per_iteration") / 50.0, "{apart}");
    if let Some(sparse) = done_or_skipped(&records, "torch-spardl", "gleaner-python", &said) {
        assert!(number(sparse, "bytes_per_iteration") < number(dense, "bytes_per_iteration") / 10.0);
    }
    assert_eq!(namespaces(&name), [""; 0]);
}

/// Samples in a file of this directory, in the shape of URL.
fn generated(bed: &Bed, samples: &str) {
    let mut generate = std::process::Command::new(env!("CARGO_BIN_EXE_gleaner"));
    generate.args(["regress", "--data", "url", "--features", "2000", "--samples", samples, "--generate"]);
    assert!(generate.arg(bed.directory.path().join("x.svm")).output().unwrap().status.success());
}

/// The report of a method; where that is not installed, the test says so.
fn done_or_skipped<'a>(records: &'a [Record], name: &str, need: &str, said: &str) -> Option<&'a Value> {
    let found = records.iter().find(|record| method(record) == name).map(done);
    if found.is_none() {
        let lacks = said.lines().find(|line| line.contains(&format!("{name} is not measured")));
        let lacks = lacks.unwrap_or_else(|| panic!("{said}"));
        assert!(lacks.contains(" install "), "{lacks}");
        gleaner_skips::skip(need, lacks);
    }
    found
}

/// LIBLINEAR and Vowpal Wabbit make passes over the file that one worker of ours reads, without a network.
#[test]
fn a_pass_is_measured_beside_programs_of_one_process() {
    let bed = Bed::new(
        "title = 'linear'\nturns = 1\n[workload]\ncommand = 'regress'\nworkers = 1\ndata = 'x.svm'\nepochs = 5\n[matrix]\n\
         method = ['ring', 'liblinear', 'vowpal-wabbit']\n",
    );
    generated(&bed, "5000");
    let (code, said) = bed.run(&["--python", "python3"]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    let passes = |report: &Value| report["epochs"].as_array().unwrap().len();
    assert_eq!(passes(done_or_skipped(&records, "ring", "", &said).unwrap()), 5);
    for (name, need) in [("liblinear", "liblinear"), ("vowpal-wabbit", "vowpalwabbit")] {
        let Some(report) = done_or_skipped(&records, name, need, &said) else { continue };
        assert_eq!(report["samples"], 5000, "{report}");
        assert!(passes(report) > 1 && report["seconds_loading"].is_f64(), "{report}");
        assert!(name == "liblinear" || passes(report) == 5, "{report}");
    }
}

/// MLlib on a cluster of two emulated hosts lowers the objective as ours does, and its vectors cross the links.
#[test]
fn a_regression_is_measured_beside_mllib() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::new(
        "title = 'mllib'\nturns = 1\n[network]\nbandwidth = '1gbit'\n[workload]\ncommand = 'regress'\nworkers = 2\ndata = 'x.svm'\nbatch = 100\n\
         epochs = 3\nlr = 1\nl2 = 1e-4\n[matrix]\nmethod = ['ring', 'mllib-sgd', 'mllib-lbfgs']\n",
    );
    generated(&bed, "800");
    let name = named("mllibtest");
    let (code, said) = bed.run(&["--name", &name, "--python", "python3"]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    let objective = |report: &Value| report["objective"].as_f64().unwrap();
    let ours = done_or_skipped(&records, "ring", "", &said).unwrap();
    // That of weights of zero is the logarithm of two.
    assert!(objective(ours) < 0.65, "{ours}");
    for name in ["mllib-sgd", "mllib-lbfgs"] {
        let Some(report) = done_or_skipped(&records, name, "pyspark", &said) else { continue };
        assert!(objective(report) < 0.65, "{report}");
        assert_eq!(report["steps_per_epoch"], if name == "mllib-sgd" { 4 } else { 1 });
        assert_eq!(report["epochs"].as_array().unwrap().len(), 3);
        assert!(report["bytes_received"].as_u64().unwrap() > 1000, "{report}");
    }
    assert_eq!(namespaces(&name), [""; 0]);
}
