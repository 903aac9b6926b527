//! Verbs without an adapter: emulated machines, in which Soft-RoCE makes a verbs device of a network interface. The laws of
//! networks hold in one machine; two and three carry whole jobs, whose workers are killed and cut off.
#![cfg(all(feature = "verbs", feature = "train", target_os = "linux"))]
#![allow(clippy::unwrap_used)]

mod inside;
mod machines;
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
    let script = format!("{DEVICE}\nexec '{}' --ignored --exact --nocapture inside::{name}", this.display());
    let machines = Machines::new(1, &script);
    let Some(outputs) = machines.run(&[]) else { return };
    let output = &outputs[0];
    let out = String::from_utf8_lossy(&output.stdout);
    print!("{out}");
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{}", said(output));
}

#[test]
fn verbs_keep_the_laws() {
    inside("verbs_keep_the_laws");
}

#[test]
fn messages_of_every_size_reach_up_to_eight_peers() {
    inside("messages_of_every_size_reach_up_to_eight_peers");
}

#[test]
fn what_is_wrong_is_told_in_a_sentence() {
    inside("what_is_wrong_is_told_in_a_sentence");
}

/// What perftest measures in the same machine, in the words of its tables.
const PERFTEST: &str = "
for turn in 1 2 3; do
    for program in 'ib_write_bw -s 1048576 -n 200' 'ib_send_lat -s 64 -n 1000'; do
        $program -d rxe0 -x 1 -F >/dev/null 2>&1 & server=$!
        sleep 2
        echo \"$program\"
        $program -d rxe0 -x 1 -F 10.78.0.1 | tail -n 2
        wait $server
    done
done
";

/// Figures to look at, and no test: an emulated processor measures little else than itself.
#[test]
#[ignore = "takes a minute, and needs perftest"]
fn speeds_beside_perftest() {
    let _alone = alone();
    let this = std::env::current_exe().unwrap();
    let this = this.display();
    let script = format!(
        "{DEVICE}\n{PERFTEST}\nexec '{this}' --ignored --exact --nocapture inside::speeds_of_verbs_and_tcp"
    );
    if let Some(outputs) = Machines::new(1, &script).run(&[]) {
        println!("{}\n{}", String::from_utf8_lossy(&outputs[0].stdout), said(&outputs[0]));
    }
}

/// What each machine does: a device over its wire, jobs by TCP and by verbs with the same data, and then what ends a job.
const JOBS: &str = include_str!("jobs.sh");

#[test]
fn two_machines_train_to_the_bits_of_tcp() {
    let _alone = alone();
    let machines = Machines::new(2, JOBS);
    if let Some(outputs) = machines.run(&["same"]) {
        all_well(&outputs);
        same_bits(&machines);
    }
}

#[test]
fn three_machines_train_to_the_bits_of_tcp_and_name_the_rank_that_ends_a_job() {
    let _alone = alone();
    let machines = Machines::new(3, JOBS);
    let Some(outputs) = machines.run(&["same", "killed", "queue", "port"]) else { return };
    all_well(&outputs);
    same_bits(&machines);
    for end in ["killed", "queue", "port"] {
        for rank in [0, 2] {
            let folder = machines.share(rank);
            let read = |name: &str| fs::read_to_string(folder.join(format!("{end}.{name}"))).unwrap();
            let error = read("err");
            assert_ne!(read("code").trim(), "0", "{end}: rank {rank} ended as if all were well: {error}");
            // Where no packet comes in at rank 1, those that send to it are as silent: it is one of the two that are named.
            let named = if end == "queue" { "rank 1" } else { "rank 1 failed" };
            assert!(error.contains(named), "{end}: rank {rank} should name rank 1: {error}");
            println!("{end}, rank {rank}: {}", error.trim());
        }
    }
}

/// All machines ended well. What all of them said is shown otherwise: why one fails often stands at another.
fn all_well(outputs: &[Output]) {
    let all = || {
        (0..).zip(outputs).map(|(rank, output)| format!("rank {rank}: {}\n{}", output.status, said(output)))
    };
    assert!(outputs.iter().all(|output| output.status.success()), "{}", all().collect::<String>());
}

/// The parameters of both transports have one digest, and by verbs the gradients crossed the wire in packets of RDMA.
fn same_bits(machines: &Machines) {
    for method in ["spardl", "ring"] {
        let summary = |transport: &str| -> Value {
            let path = machines.share(0).join(format!("{transport}.{method}.out"));
            serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
        };
        let [tcp, verbs] = ["tcp", "verbs"].map(summary);
        let digest = verbs["parameters_digest"].as_str().unwrap();
        assert_eq!(digest.len(), 64);
        assert_eq!(tcp["parameters_digest"], digest, "{method}");
        for rank in 0..machines.count() {
            let folder = machines.share(rank);
            let [packets, bytes] = counted(&folder, "verbs", method);
            let [no_packets, of_tcp] = counted(&folder, "tcp", method);
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
fn counted(folder: &Path, transport: &str, method: &str) -> [u64; 2] {
    let text = fs::read_to_string(folder.join(format!("{transport}.{method}.sent"))).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}
