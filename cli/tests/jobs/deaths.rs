//! A worker that is killed or stopped in the middle of a step: all others end, and name it and no other.

use std::time::Duration;

use crate::job::{Job, steps_done};
use crate::process::{Process, eventually, gleaner, processor_time, signal_to, start};

/// Waits for all but the victim, and checks what they say.
fn others_name(victim: u32, ranks: &mut [Process], limit: Duration) {
    for (rank, process) in ranks.iter_mut().enumerate() {
        if rank != victim as usize {
            let ended = process.end(limit);
            ended.failed_with(&[&format!("rank {victim} failed at step ")]);
            assert_eq!(ended.err.lines().count(), 1, "one sentence: {ended:?}");
        }
    }
}

fn killed(workers: u32, method: &str) {
    for victim in 0..workers {
        let job = Job::endless(workers, method);
        let mut ranks = job.start();
        steps_done(&mut ranks[0], 3);
        ranks[victim as usize].signal("KILL");
        // A closed connection is noticed at once: no rank waits for the timeout.
        others_name(victim, &mut ranks, Duration::from_secs(5));
    }
}

#[test]
fn a_killed_worker_of_four_is_named_by_all_others() {
    killed(4, "spardl");
}

#[test]
fn a_killed_worker_of_five_is_named_by_all_others() {
    killed(5, "spardl");
}

#[test]
fn a_killed_neighbour_in_the_ring_is_named_by_all_others() {
    killed(4, "ring");
}

#[test]
fn a_stopped_worker_is_named_by_all_others_after_the_time_out() {
    for (victim, method) in [(2, "spardl"), (0, "ring")] {
        let job = Job { timeout: Duration::from_secs(3), ..Job::endless(4, method) };
        let mut ranks = job.start();
        steps_done(&mut ranks[0], 3);
        ranks[victim as usize].signal("STOP");
        others_name(victim, &mut ranks, job.timeout);
        let victim = &mut ranks[victim as usize];
        assert!(victim.runs());
        // When it goes on, it finds itself alone, and ends too.
        victim.signal("CONT");
        let ended = victim.end(job.timeout);
        assert!(ended.code > 0 && ended.out.is_empty(), "{ended:?}");
    }
}

/// Three ranks in the passes of a training, each of which takes this long: no message lies unread when they are stopped.
fn computing(timeout: Duration, transport: &str, pass: &str) -> (Job, Vec<Process>) {
    let arguments = ["train", "--json", "--data", "digits", "--pace", pass, "--steps", "4"];
    let arguments = arguments.map(String::from).to_vec();
    let job = Job { timeout, arguments, ..Job::new(3, &[]) };
    let ranks = (0..3).map(|rank| job.rank_with(rank, &[], &[("GLEANER_TRANSPORT", transport)]));
    let mut ranks: Vec<Process> = ranks.collect();
    steps_done(&mut ranks[0], 1);
    (job, ranks)
}

fn all_end_well(ranks: &mut [Process]) {
    for rank in ranks {
        let ended = rank.end(Duration::from_secs(30));
        assert_eq!(ended.code, 0, "{ended:?}");
    }
}

/// As where a virtual machine is migrated. Over QUIC, links end by themselves after two timeouts.
#[test]
fn a_job_whose_processes_are_all_paused_for_longer_than_the_timeout_goes_on() {
    for (transport, timeout, pause) in [("tcp", 2000, 5000), ("quic", 3000, 3750)] {
        let (_, mut ranks) = computing(Duration::from_millis(timeout), transport, "700ms");
        ranks.iter().for_each(|rank| rank.signal("STOP"));
        std::thread::sleep(Duration::from_millis(pause));
        ranks.iter().for_each(|rank| rank.signal("CONT"));
        all_end_well(&mut ranks);
    }
}

#[test]
fn a_rank_that_does_not_run_again_when_the_others_do_is_named() {
    let (job, mut ranks) = computing(Duration::from_secs(2), "tcp", "700ms");
    ranks.iter().for_each(|rank| rank.signal("STOP"));
    std::thread::sleep(job.timeout * 3 / 2);
    ranks[..2].iter().for_each(|rank| rank.signal("CONT"));
    others_name(2, &mut ranks, job.timeout * 3);
}

/// Each pause is shorter than what counts as one: it is as a processor that comes late.
#[test]
fn a_rank_that_is_paused_again_and_again_sends_heartbeats_in_between() {
    let (job, mut ranks) = computing(Duration::from_millis(1500), "tcp", "5s");
    // All in one pass, in which nothing else is sent.
    for _ in 0..8 {
        ranks[1].signal("STOP");
        std::thread::sleep(job.timeout * 3 / 10);
        ranks[1].signal("CONT");
        std::thread::sleep(job.timeout / 10);
    }
    assert!(ranks[1].runs());
    all_end_well(&mut ranks);
}

/// A job under the launcher, when it has been computing for a while.
fn launched(arguments: &[&str]) -> Process {
    let mut command = gleaner();
    command.args(arguments).args([
        "--json",
        "--params",
        "50000",
        "--steps",
        "100000000",
        "--method",
        "spardl",
    ]);
    let process = start(command);
    let worker = process.worker(2);
    eventually("it computes", || processor_time(worker) > Duration::from_millis(200));
    process
}

const LAUNCH: [&str; 6] = ["launch", "--workers", "4", "--", env!("CARGO_BIN_EXE_gleaner"), "bench"];
const BENCH: [&str; 3] = ["bench", "--workers", "4"];

#[test]
fn the_launcher_says_who_was_killed_and_leaves_no_process_behind() {
    for arguments in [&LAUNCH[..], &BENCH[..]] {
        let mut process = launched(arguments);
        signal_to("KILL", process.worker(2));
        let ended = process.end(Duration::from_secs(10));
        ended.failed_with(&["rank 2 failed at step ", ": killed by signal 9"]);
        assert_eq!(ended.code, 128 + 9, "{ended:?}");
        eventually("no process is left", || process.family().is_empty());
    }
}

#[test]
fn the_launcher_says_who_hangs_and_leaves_no_process_behind() {
    let mut process = launched(&[&["launch", "--timeout", "3s"], &LAUNCH[1..]].concat());
    signal_to("STOP", process.worker(2));
    let ended = process.end(Duration::from_secs(15));
    ended.failed_with(&["rank 2 failed at step ", "no heartbeat"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    eventually("no process is left", || process.family().is_empty());
}

#[test]
fn a_worker_that_is_killed_before_it_joins_is_named_too() {
    let mut command = gleaner();
    command.args(["launch", "--workers", "3", "--", "sh", "-c"]);
    let bench = "exec \"$0\" bench --json --params 100 --method ring";
    command.arg(format!("if [ $GLEANER_RANK = 1 ]; then sleep 0.3; kill -s KILL $$; fi; {bench}"));
    command.arg(env!("CARGO_BIN_EXE_gleaner"));
    let ended = start(command).end(Duration::from_secs(10));
    ended.failed_with(&["rank 1 failed", "killed by signal 9"]);
    assert_eq!(ended.code, 128 + 9, "{ended:?}");
}

#[test]
fn a_rank_0_that_dies_before_it_listens_is_named_with_how_it_ended() {
    for timeout in ["500ms", "1s", "2s", "5s"] {
        let mut command = gleaner();
        command.args(["launch", "--workers", "4", "--timeout", timeout, "--", "sh", "-c"]);
        let bench = "exec \"$0\" bench --json --params 100 --method ring";
        command.arg(format!("[ $GLEANER_RANK != 0 ] || kill -s KILL $$; {bench}"));
        command.arg(env!("CARGO_BIN_EXE_gleaner"));
        let ended = start(command).end(Duration::from_secs(10));
        ended.failed_with(&["rank 0 failed", "killed by signal 9"]);
        assert_eq!(ended.code, 128 + 9, "{timeout}: {ended:?}");
    }
}

/// All ranks see who differs, and the launcher names that one, whichever ends first.
#[test]
fn a_rank_with_other_options_is_named() {
    for odd in ["1", "2", "2"] {
        let mut command = gleaner();
        command.args(["launch", "--workers", "3", "--", "sh", "-c"]);
        let bench = "exec \"$0\" bench --json --params 100 --method ring --steps $steps";
        command.arg(format!("steps=9; [ $GLEANER_RANK != {odd} ] || steps=5; {bench}"));
        command.arg(env!("CARGO_BIN_EXE_gleaner"));
        let ended = start(command).end(Duration::from_secs(10));
        ended.failed_with(&[&format!("rank {odd} failed: rank {odd} runs with --steps 5"), "exit code 1"]);
    }
}
