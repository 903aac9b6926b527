//! Verbs without an adapter: emulated machines, in which Soft-RoCE makes a verbs device of a network interface. The invariants of
//! networks hold in one machine; two and three carry whole jobs, whose workers are killed and cut off.
//!
//! Those that are left out as a rule take minutes more: `cargo test --release --workspace --test verbs -- --include-ignored --skip inside
//! --skip speeds` runs all.
#![cfg(all(feature = "verbs", feature = "train", target_os = "linux"))]
#![allow(clippy::unwrap_used)]

mod faults;
mod inside;
mod lacks;
mod machines;
mod speeds;
/// The networks that the transport is tested on.
#[path = "../../../transport/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::Output;

use machines::{Machines, alone, said};
use serde_json::Value;

/// Makes a device over an interface that leads nowhere: peers in one machine reach each other through it.
const DEVICE: &str = "
set -e
ip link add v1 type veth peer name v2
ip addr add 10.78.0.1/24 dev v1; ip link set v1 up; ip link set v2 up
rdma link add rxe0 type rxe netdev v1
";

/// Runs a test of this file, by its name, in a machine with a device.
fn inside(name: &str) {
    let _alone = alone();
    let this = std::env::current_exe().unwrap();
    let script = format!("{DEVICE}\nexec '{}' --ignored --exact --nocapture {name}", this.display());
    let machines = Machines::new(1, &script);
    let Some(outputs) = machines.run(&[]) else { return };
    let output = &outputs[0];
    let out = String::from_utf8_lossy(&output.stdout);
    print!("{out}");
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{}", said(output));
}

#[test]
#[ignore = "takes minutes of emulated machines"]
fn verbs_keep_the_requirements() {
    inside("inside::verbs_keep_the_requirements");
}

#[test]
#[ignore = "takes minutes of emulated machines"]
fn messages_of_every_size_reach_up_to_eight_peers() {
    inside("inside::messages_of_every_size_reach_up_to_eight_peers");
}

#[test]
#[ignore = "takes minutes of emulated machines"]
fn what_is_wrong_is_reported_in_a_sentence() {
    inside("inside::what_is_wrong_is_reported_in_a_sentence");
}

/// What each machine does: a device over its wire, jobs by TCP and by verbs with the same data, and then what ends a job.
const JOBS: &str = include_str!("jobs.sh");

#[test]
fn three_machines_train_to_the_bits_of_tcp_and_name_the_rank_that_ends_a_job() {
    let _alone = alone();
    let machines = Machines::new(3, JOBS);
    let ends = ["killed", "queue", "port"];
    let Some(outputs) = machines.run(&[&["same"][..], &ends].concat()) else { return };
    all_well(&outputs);
    same_bits(&machines, "same", 3);
    for end in ends {
        for rank in [0, 2] {
            let (code, error) = ended(&machines, end, rank);
            println!("{end}, rank {rank}: {error}");
            assert_ne!(code, "0", "{end}: rank {rank} ended as if all were well: {error}");
            assert!(error.contains("rank 1 failed"), "{end}: rank {rank} should name rank 1: {error}");
        }
    }
}

#[test]
#[ignore = "takes minutes of emulated machines"]
fn two_machines_train_to_the_bits_of_tcp_and_what_links_of_one_rank_lack_is_reported_by_all_before_any_step()
{
    let _alone = alone();
    let machines = Machines::new(3, JOBS);
    let Some(outputs) = machines.run(&["pair", "class", "memory", "blocked", "narrow"]) else { return };
    all_well(&outputs);
    same_bits(&machines, "pair", 2);
    for rank in 0..3 {
        let (code, error) = ended(&machines, "class", rank);
        assert_eq!(code, "0", "both ends use the smaller MTU, and the class that they are given: {error}");
    }
    for (end, why) in [
        ("memory", "could not be registered"),
        ("blocked", "let UDP port 4791 pass"),
        ("narrow", "no packet of 1024 bytes passed"),
    ] {
        for rank in 0..3 {
            let (code, error) = ended(&machines, end, rank);
            println!("{end}, rank {rank}: {error}");
            assert_ne!(code, "0", "{end}: rank {rank} ended as if all were well: {error}");
            assert!(error.contains(why) && !error.contains("at step"), "{end}: rank {rank}: {error}");
            let names = end != "memory" && rank == 1 || error.contains("rank 1 failed: ");
            assert!(names, "{end}: rank {rank} should name rank 1: {error}");
        }
    }
}

/// How a job ended at a rank: its exit code, and what it said.
fn ended(machines: &Machines, job: &str, rank: usize) -> (String, String) {
    let read = |name: &str| {
        let path = machines.share(rank).join(format!("{job}.{name}"));
        fs::read_to_string(path).unwrap().trim().to_owned()
    };
    (read("code"), read("err"))
}

/// All machines ended well. What all of them said is shown otherwise: why one fails often stands at another.
fn all_well(outputs: &[Output]) {
    let all = || {
        (0..).zip(outputs).map(|(rank, output)| format!("rank {rank}: {}\n{}", output.status, said(output)))
    };
    assert!(outputs.iter().all(|output| output.status.success()), "{}", all().collect::<String>());
}

/// The parameters of both transports have one digest, and by verbs the gradients crossed the wire in packets of RDMA.
fn same_bits(machines: &Machines, word: &str, workers: usize) {
    for method in ["spardl", "ring"] {
        let summary = |transport: &str| -> Value {
            let path = machines.share(0).join(format!("{word}.{transport}.{method}.out"));
            serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
        };
        let [tcp, verbs] = ["tcp", "verbs"].map(summary);
        let digest = verbs["parameters_digest"].as_str().unwrap();
        assert_eq!(digest.len(), 64);
        assert_eq!(tcp["parameters_digest"], digest, "{method}");
        for rank in 0..workers {
            let folder = machines.share(rank);
            let [packets, bytes] = counted(&folder, &format!("{word}.verbs.{method}"));
            let [no_packets, of_tcp] = counted(&folder, &format!("{word}.tcp.{method}"));
            let payload = verbs["bytes_received"].as_u64().unwrap();
            println!(
                "{method}, rank {rank}: {packets} packets of RDMA, {bytes} bytes; by TCP {of_tcp} bytes"
            );
            assert_eq!(no_packets, 0, "TCP should send no packet of RDMA");
            assert!(packets * 1024 >= payload / 2 && packets > 0, "{packets} packets for {payload} bytes");
            assert!(bytes >= payload / 2, "{bytes} bytes left the interface, of {payload}");
        }
    }
}

/// Packets that the adapter sent and bytes that left the interface during one job.
fn counted(folder: &Path, job: &str) -> [u64; 2] {
    let text = fs::read_to_string(folder.join(format!("{job}.sent"))).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}
