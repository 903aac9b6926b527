//! Standard error that is not read, or that takes nothing: no worker fails by it, and none is held up.

use std::fs::OpenOptions;
use std::io::{self, PipeReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::job::{Job, steps_done};
use crate::process::{Process, eventually, gleaner, ports, start_with};
use crate::unauthenticated::callers;

/// A full disk.
fn full_disk() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

/// A pipe whose reader is gone.
fn broken_pipe() -> Stdio {
    io::pipe().unwrap().1.into()
}

/// A pipe that takes nothing more, and the end that is not read.
fn full_pipe() -> (PipeReader, Stdio) {
    let (read, mut write) = io::pipe().unwrap();
    write.write_all(&[b'x'; 1 << 16]).unwrap();
    (read, write.into())
}

/// All ranks of a job, with such a standard error at all but rank 0, and events for a launcher shown as text.
fn ranks(job: &Job, mut err: impl FnMut() -> Stdio) -> Vec<Process> {
    let quiet = |rank| job.command(rank, &[], &[("GLEANER_LAUNCHER", "")]);
    let others = (1..job.workers).map(|rank| (quiet(rank), err())).collect::<Vec<_>>();
    let others = others.into_iter().map(|(command, err)| start_with(command, err));
    std::iter::once(job.rank(0)).chain(others).collect()
}

#[test]
fn a_standard_error_that_takes_nothing_is_no_reason_to_fail() {
    for err in [full_disk, broken_pipe] {
        // Rank 0 tells what the method `auto` chose, and who was refused.
        let job = Job::new(3, &["--params", "20000", "--method", "auto", "--steps", "20"]);
        let mut first = start_with(job.command(0, &[], &[("GLEANER_LAUNCHER", "")]), err());
        eventually("rank 0 listens", || ports(first.id()).contains(&job.port));
        let callers = callers(job.port);
        let mut others = [1, 2].map(|rank| start_with(job.command(rank, &[], &[]), err()));
        first.end(Duration::from_secs(30)).report();
        for other in &mut others {
            assert_eq!(other.end(Duration::from_secs(30)).code, 0);
        }
        callers.into_iter().for_each(|caller| drop(caller.join().unwrap()));
    }
}

#[test]
fn a_failure_that_cannot_be_said_ends_the_worker_as_one_that_can() {
    for err in [full_disk, broken_pipe] {
        let job = Job::endless(3, "spardl");
        let mut ranks = ranks(&job, err);
        steps_done(&mut ranks[0], 3);
        ranks[2].signal("KILL");
        ranks[0].end(Duration::from_secs(5)).failed_with(&["rank 2 failed at step "]);
        assert_eq!(ranks[1].end(Duration::from_secs(5)).code, 1, "and not that of a panic");
    }
}

#[test]
fn a_pipe_that_is_not_read_holds_up_no_rank() {
    for launcher in ["", "1"] {
        let job = Job { timeout: Duration::from_secs(5), ..Job::endless(4, "spardl") };
        let mut first = job.rank(0);
        let mut pipes = Vec::new();
        let mut others: Vec<Process> = (1..job.workers)
            .map(|rank| {
                let (read, write) = full_pipe();
                pipes.push(read);
                start_with(job.command(rank, &[], &[("GLEANER_LAUNCHER", launcher)]), write)
            })
            .collect();
        steps_done(&mut first, 3);
        let killed = Instant::now();
        others[2].signal("KILL");
        first.end(job.timeout).failed_with(&["rank 3 failed at step "]);
        for other in &mut others[..2] {
            assert_eq!(other.end(job.timeout).code, 1);
        }
        let took = killed.elapsed();
        assert!(took < job.timeout + Duration::from_secs(3), "{took:?}");
    }
}

/// A launcher whose standard error is full, of workers that have much to say there.
fn unread_launcher(arguments: &[&str]) -> (PipeReader, Process) {
    let (read, write) = full_pipe();
    let mut command = gleaner();
    command.arg("launch").args(arguments).args(["--workers", "2", "--"]);
    command.args(["sh", "-c", "while :; do echo something; echo something else >&2; done"]);
    (read, start_with(command, write))
}

#[test]
fn a_launcher_whose_standard_error_is_not_read_ends_at_sigterm() {
    let (_unread, mut launcher) = unread_launcher(&["--json"]);
    // By now its workers have filled all that there is to fill.
    std::thread::sleep(Duration::from_secs(3));
    let since = Instant::now();
    launcher.signal("TERM");
    let ended = launcher.end(Duration::from_secs(10));
    assert_eq!(ended.code, 143);
    assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
    let summary: serde_json::Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
    assert_eq!(summary["exit_code"], 143);
    eventually("no process is left", || launcher.family().is_empty());
}

#[test]
fn a_launcher_whose_standard_error_is_not_read_holds_up_no_worker_and_hears_who_failed() {
    let (_unread, write) = full_pipe();
    let mut command = gleaner();
    // Far more than pipes and queues hold.
    let lines = "i=0; while [ $i -lt 20000 ]; do echo $i something to be said about this step; i=$((i + 1)); done >&2";
    command.args(["launch", "--json", "--workers", "2", "--", "sh", "-c"]);
    command.arg(format!("{lines}; [ $GLEANER_RANK = 0 ] || exit 7; exec sleep 60"));
    let start = Instant::now();
    let ended = start_with(command, write).end(Duration::from_secs(20));
    assert_eq!(ended.code, 7);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let summary: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(summary["failed_rank"], 1);
}
