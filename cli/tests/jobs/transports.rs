//! The same jobs, whatever carries their links.

use std::process::Command;
use std::time::Duration;

use crate::job::{Job, end, steps_done};
use crate::process::{Ended, clean, gleaner, run, start};

const GLEANER: &str = env!("CARGO_BIN_EXE_gleaner");

fn small(workers: u32) -> Job {
    Job::new(workers, &["--params", "1000", "--method", "spardl", "--steps", "5", "--warmup", "0"])
}

fn launched(options: &[&str], program: &[&str]) -> Ended {
    let mut command = gleaner();
    command.args(["launch", "-n", "4"]).args(options).args(["--", GLEANER]).args(program);
    run(command)
}

#[test]
fn a_training_ends_with_the_same_parameters_over_quic_as_over_tcp() {
    let train = ["train", "--steps", "20", "--json"];
    let over = |options: &[&str]| launched(options, &train).report()["parameters_digest"].clone();
    let tcp = over(&[]);
    assert_eq!(tcp.as_str().map(str::len), Some(64), "{tcp}");
    assert_eq!(over(&["--transport", "quic"]), tcp);
    assert_eq!(over(&["--transport", "quic", "--congestion", "bbr"]), tcp);
}

#[test]
fn updates_are_the_same_over_quic_as_over_tcp() {
    for method in ["spardl", "ring", "oktopk"] {
        let bench = ["bench", "--params", "100000", "--method", method, "--steps", "5", "--json"];
        let over = |options: &[&str]| launched(options, &bench).report()["digest"].clone();
        assert_eq!(over(&["--transport", "quic"]), over(&[]), "{method}");
    }
}

#[test]
fn what_auto_stands_for_is_reported_once_by_rank_0() {
    let bench = ["bench", "--params", "1000", "--method", "ring", "--steps", "2", "--json"];
    let ended = launched(&["--transport", "auto"], &bench);
    ended.report();
    let said: Vec<&str> = ended.err.lines().filter(|line| line.contains("transport: ")).collect();
    assert_eq!(said.len(), 1, "{ended:?}");
    // There is no verbs device, and links are to be encrypted.
    assert!(said[0].starts_with("[0] gleaner: transport: tcp (not verbs: "), "{ended:?}");
}

#[test]
fn different_transports_are_reported_to_both_with_both_names() {
    let job = small(2);
    let mut ranks = [job.rank(0), job.rank_with(1, &[], &[("GLEANER_TRANSPORT", "quic")])];
    for ended in end(&mut ranks) {
        ended.failed_with(&["the transport of rank 1 at 127.0.0.1 is quic and that of rank 0 is tcp"]);
    }
}

/// A worker that took its transport by `auto` says why, where another has another.
#[test]
fn each_worker_that_differs_says_what_auto_means() {
    let job = small(2);
    let mut ranks = [("quic", 0), ("auto", 1)]
        .map(|(transport, rank)| job.rank_with(rank, &[], &[("GLEANER_TRANSPORT", transport)]));
    let [zero, one] = end(&mut ranks).try_into().unwrap();
    let both = "the transport of rank 1 at 127.0.0.1 is tcp and that of rank 0 is quic";
    zero.failed_with(&[both]);
    one.failed_with(&[both]);
    assert!(one.err.contains("gleaner: transport: tcp (not verbs: "), "{one:?}");
}

/// A network of its own, whose loopback lets no UDP pass.
struct WithoutUdp(String);

impl WithoutUdp {
    /// None where this process may not make one.
    fn new() -> Option<Self> {
        let name = format!("gleaner-udp-{}", std::process::id());
        // The table of local addresses comes first, unless it is moved behind the rule.
        let rules = format!(
            "ip netns add {name} && ip -n {name} link set lo up && ip -n {name} rule add pref 10 lookup local && \
             ip -n {name} rule del pref 0 && ip -n {name} rule add pref 5 blackhole ipproto udp"
        );
        let made = Self(name);
        match Command::new("sh").args(["-c", &rules]).output() {
            Ok(output) if output.status.success() => Some(made),
            other => {
                let why =
                    format!("making network namespaces and rules takes root and the command ip: {other:?}");
                gleaner_skips::skip("netns", why);
                None
            }
        }
    }
}

impl Drop for WithoutUdp {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).output();
    }
}

/// As behind a firewall that lets TCP pass alone. It is reported before any step.
#[test]
fn a_network_that_lets_no_udp_pass_is_reported_by_both_with_both_names() {
    let Some(network) = WithoutUdp::new() else { return };
    let job = Job { timeout: Duration::from_secs(5), ..small(2) };
    let start = |rank| {
        let bare = job.command(rank, &[], &[("GLEANER_TRANSPORT", "quic")]);
        let mut command = clean(Command::new("ip"));
        command.args(["netns", "exec", &network.0, GLEANER]).args(bare.get_args());
        command.envs(bare.get_envs().filter_map(|(name, value)| Some((name, value?))));
        start(command)
    };
    for ended in end(&mut [start(0), start(1)]) {
        let both = "rank 0 and rank 1 have found each other, and no link of the transport quic";
        ended.failed_with(&[both, "let UDP pass between the two hosts"]);
    }
}

#[test]
fn what_does_not_fit_a_transport_is_reported_before_the_job_begins() {
    let job = small(2);
    for (variables, words) in [
        (
            &[("GLEANER_TRANSPORT", "udp")][..],
            &["GLEANER_TRANSPORT", "'udp'", "tcp, quic, verbs or auto"][..],
        ),
        (&[("GLEANER_CONGESTION", "reno")], &["GLEANER_CONGESTION", "'reno'", "cubic or bbr"]),
        (&[("GLEANER_CONGESTION", "bbr")], &["congestion controller bbr", "the transport is tcp"]),
        (
            &[("GLEANER_TRANSPORT", "quic"), ("GLEANER_PLAIN", "1")],
            &["the transport quic encrypts all", "--plain"],
        ),
    ] {
        for rank in 0..2 {
            job.rank_with(rank, &[], variables).end(job.timeout).failed_with(words);
        }
    }
}

/// Its process is gone: no rank waits for the timeout, though no datagram says so.
#[test]
fn a_killed_worker_is_named_by_all_others_over_quic() {
    for (victim, method) in [(0, "spardl"), (2, "spardl"), (3, "ring")] {
        let job = Job::endless(4, method);
        let over = [("GLEANER_TRANSPORT", "quic")];
        let mut ranks: Vec<_> = (0..4).map(|rank| job.rank_with(rank, &[], &over)).collect();
        steps_done(&mut ranks[0], 3);
        ranks[victim].signal("KILL");
        for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
            let ended = process.end(Duration::from_secs(5));
            ended.failed_with(&[&format!("rank {victim} failed at step ")]);
            assert_eq!(ended.err.lines().count(), 1, "one sentence of rank {rank}: {ended:?}");
        }
    }
}

#[test]
fn a_stopped_worker_is_named_by_all_others_over_quic_after_the_time_out() {
    let job = Job { timeout: Duration::from_secs(3), ..Job::endless(4, "spardl") };
    let over = [("GLEANER_TRANSPORT", "quic")];
    let mut ranks: Vec<_> = (0..4).map(|rank| job.rank_with(rank, &[], &over)).collect();
    steps_done(&mut ranks[0], 3);
    ranks[2].signal("STOP");
    for (_, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != 2) {
        process.end(job.timeout).failed_with(&["rank 2 failed at step ", "no heartbeat"]);
    }
    ranks[2].signal("KILL");
}
