//! A job whose network changes while it trains.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Network, text};

const WORKERS: u64 = 3;

/// Steps: five before the first plan, ten until the first check of it, and some with the new plan.
const STEPS: u64 = 30;

/// The lengths of the groups that each rank exchanged in each step, by a trace.
fn groups(trace: &Value) -> Vec<BTreeMap<u64, Vec<u64>>> {
    let mut groups = vec![BTreeMap::new(); WORKERS as usize];
    for event in trace["traceEvents"].as_array().unwrap() {
        let (rank, step) = (event["pid"].as_u64(), event["args"]["step"].as_u64());
        if let (Some(rank), Some(step), "commit") = (rank, step, event["name"].as_str().unwrap_or("")) {
            let lengths: &mut Vec<u64> = groups[rank as usize].entry(step).or_default();
            lengths.push(event["args"]["entries"].as_u64().unwrap());
            lengths.sort_unstable();
        }
    }
    groups
}

/// What the slow link carries in a step, in bits: it takes 27 ms at 10 Mbit/s.
const BITS: f64 = 270e3;

/// At 100 Mbit/s a hundredth of ResNet-20's gradient is there in a moment, and nothing is gained by more groups than one. Over the slow link it
/// takes a good part of the backward pass, however long that takes on this machine.
#[test]
fn all_ranks_change_their_groups_when_a_link_becomes_slow() {
    let Some(network) = Network::named("drift") else { return };
    let output = network.run("up", &["--hosts", &WORKERS.to_string(), "--bandwidth", "100mbit"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let folder = tempfile::tempdir().unwrap();
    let (hosts, trace) = (folder.path().join("hosts"), folder.path().join("trace.json"));
    std::fs::write(&hosts, output.stdout).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.args(["launch", "--hostfile"]).arg(&hosts).args(["--agent", "ip netns exec", "--"]);
    command.arg(env!("CARGO_BIN_EXE_gleaner"));
    command.args([
        "train",
        "--data",
        "synthetic",
        "--model",
        "resnet20",
        "--batch",
        "2",
        "--density",
        "0.02",
    ]);
    command
        .args(["--steps", &STEPS.to_string(), "--evaluate-every", "100", "--json", "--timeline"])
        .arg(&trace);
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let mut said = String::new();
    for line in BufReader::new(job.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.contains("optimal puts") && !said.contains("optimal puts") {
            // The uplink of the first host, when the first plan is made.
            let expected = line.split_once(" ms a step expected").unwrap().0.rsplit(' ').next().unwrap();
            let milliseconds: f64 = expected.parse().unwrap();
            let rate = format!("{:.0}bit", BITS / (0.75e-3 * milliseconds));
            let slow = "host0 -- tc qdisc change dev eth0 root tbf burst 4000b limit 140000b rate";
            let output = network.run("exec", &slow.split(' ').chain([&*rate]).collect::<Vec<_>>());
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
        said += &(line + "\n");
        assert!(begun.elapsed() < Duration::from_secs(300), "{said}");
    }
    let mut out = String::new();
    job.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(job.wait().unwrap().success(), "{said}");
    assert!(said.contains("times have drifted: instead of "), "{said}");
    // The launcher's mark stands before each line. All ranks compared their digests, or the job would have failed.
    let line = out.lines().find_map(|line| line.find('{').map(|at| &line[at..])).unwrap();
    let summary: Value = serde_json::from_str(line).unwrap();
    assert_eq!(summary["parameters_digest"].as_str().map(str::len), Some(64));
    let ranks = groups(&serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap());
    assert_eq!(ranks[0].len() as u64, STEPS);
    let (first, last) = (&ranks[0][&5], &ranks[0][&(STEPS - 1)]);
    assert_ne!(first, last, "{ranks:?}: {said}");
    assert_eq!(summary["groups"].as_u64().unwrap() as usize, last.len(), "{said}");
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "at the same steps: {ranks:?}");
    network.down();
}
