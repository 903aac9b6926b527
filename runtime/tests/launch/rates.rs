//! Measuring links of a known rate: hosts in network namespaces, shaped in both directions.

use std::process::Command;
use std::time::Duration;

use gleaner_runtime::Session;
use serde_json::json;

use crate::process::{Ended, PROBE, launch};

/// Three hosts and the bridge between them, in namespaces that live as long as their test.
struct Cluster {
    hosts: Vec<String>,
    bridge: String,
}

/// Runs a command of its arguments, with its complaint as the error.
fn command(line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split(' ').collect();
    match Command::new(words[0]).args(&words[1..]).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{line}: {error}")),
    }
}

impl Cluster {
    /// None where this process may not make any, or the kernel has no shaping.
    fn new(rate: &str) -> Option<Self> {
        let name = |part: &str| format!("gleaner-rate-{}-{part}", std::process::id());
        let cluster = Cluster { hosts: ["a", "b", "c"].map(name).to_vec(), bridge: name("bridge") };
        match cluster.make(rate) {
            Ok(()) => Some(cluster),
            Err(reason) => {
                let why = format!(
                    "shaped links take root, the commands ip and tc, and a kernel with tbf: {reason}"
                );
                gleaner_skips::skip("tbf", why);
                None
            }
        }
    }

    fn make(&self, rate: &str) -> Result<(), String> {
        let Self { hosts, bridge } = self;
        command(&format!("ip netns add {bridge}"))?;
        command(&format!("ip -n {bridge} link add bridge type bridge"))?;
        command(&format!("ip -n {bridge} link set bridge up"))?;
        for (i, host) in hosts.iter().enumerate() {
            command(&format!("ip netns add {host}"))?;
            command(&format!("ip -n {bridge} link add port{i} type veth peer name eth0 netns {host}"))?;
            command(&format!("ip -n {bridge} link set port{i} master bridge up"))?;
            command(&format!("ip -n {host} link set lo up"))?;
            command(&format!("ip -n {host} address add 10.78.0.{}/24 dev eth0", i + 1))?;
            command(&format!("ip -n {host} link set eth0 up"))?;
            let shape = format!("root tbf rate {rate} burst 128k latency 20ms");
            command(&format!("tc -n {host} qdisc add dev eth0 {shape}"))?;
            command(&format!("tc -n {bridge} qdisc add dev port{i} {shape}"))?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for name in self.hosts.iter().chain([&self.bridge]) {
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

/// Not a test of its own: as a process of its own, it is a worker that measures.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn probing_worker() {
    if std::env::var_os(PROBE).is_none() {
        return;
    }
    let session = Session::join().unwrap();
    let probed = session.probe(1_000_000).unwrap();
    let (network, took) = (probed.network, probed.took.as_secs_f64());
    println!("\nprobed {} {} {took}", network.bytes_per_second, network.latency.as_secs_f64());
}

/// What beside the measuring takes the processors is measured, too: it is right at least once in a few times.
#[test]
fn a_shaped_link_shows_its_rate_in_two_seconds() {
    let Some(cluster) = Cluster::new("200mbit") else { return };
    let wrong: Vec<String> = (0..5).map_while(|_| measured(&cluster).err()).collect();
    assert!(wrong.len() < 5, "{wrong:#?}");
}

/// Measures once, on each of three hosts, and says what is wrong with the result.
fn measured(cluster: &Cluster) -> Result<(), String> {
    let hosts: Vec<_> =
        (1..).zip(&cluster.hosts).map(|(i, host)| json!([host, 1, format!("10.78.0.{i}")])).collect();
    let worker = std::env::current_exe().unwrap();
    let ended = launch(json!({
        "hosts": hosts,
        "agent": ["ip", "netns", "exec"],
        "program": [worker.to_str().unwrap(), "--exact", "rates::probing_worker", "--ignored", "--nocapture", "-q"],
        "env": { PROBE: "1" },
    }))
    .end();
    assert_eq!(ended.code, 0, "{ended:?}");
    for rank in 0..3 {
        let lines = Ended::lines_of(&ended.out, rank);
        let line = lines.iter().find_map(|line| line.strip_prefix("probed ")).unwrap_or_default();
        let numbers: Vec<f64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [rate, latency, took] = numbers[..] else { panic!("rank {rank} said {lines:?}: {ended:?}") };
        println!("rank {rank}: {rate:.0} bytes/s, {:.0} µs, in {took:.2} s", latency * 1e6);
        // 200 Mbit/s are 25 million bytes, headers included.
        if (rate / 25e6 - 1.0).abs() >= 0.15 {
            return Err(format!("{rate} bytes a second over a link of 25e6"));
        }
        // Nothing on the way delays. An acknowledgement that is waited for would take 40 ms, and a burst that is still
        // in the queue up to 20.
        if latency <= 0.0 || latency >= 0.01 {
            return Err(format!("{latency} s over links without delay"));
        }
        if Duration::from_secs_f64(took) >= Duration::from_secs(2) {
            return Err(format!("{took} s"));
        }
    }
    Ok(())
}
