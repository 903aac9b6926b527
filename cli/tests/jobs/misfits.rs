//! Ranks that do not fit together: all of them say so.

use std::time::Duration;

use crate::job::{Job, end, secret_file};
use crate::process::{Process, eventually, ports};
use crate::unauthenticated::undisturbed;

fn small(workers: u32) -> Job {
    Job::new(workers, &["--params", "1000", "--method", "spardl", "--steps", "5", "--warmup", "0"])
}

#[test]
fn ranks_that_measure_something_else_are_named_with_both_values() {
    let base = ["--steps", "5", "--warmup", "0"];
    for (common, odd, words) in [
        (
            &["--params", "1000", "--method", "spardl"][..],
            &["--params", "2000", "--method", "spardl"][..],
            &["2000 entries", "1000 entries"][..],
        ),
        (
            &["--params", "1000", "--method", "spardl", "--density", "0.1"],
            &["--params", "1000", "--method", "spardl", "--density", "0.2"],
            &["density 0.2", "density 0.1"],
        ),
        (
            &["--params", "1000", "--method", "spardl", "--k", "10"],
            &["--params", "1000", "--method", "spardl", "--k", "11"],
            &["k = 11", "k = 10"],
        ),
        (
            &["--params", "1000", "--method", "spardl"],
            &["--params", "1000", "--method", "ring"],
            &["method ring", "method spardl"],
        ),
        (
            &["--params", "1000", "--method", "ring", "--seed", "1"],
            &["--params", "1000", "--method", "ring", "--seed", "2"],
            &["--seed 2", "--seed 1"],
        ),
    ] {
        let (mut job, mut other) = (Job::new(3, &base), Job::new(3, &base));
        job.arguments.extend(common.iter().map(ToString::to_string));
        other.arguments.extend(odd.iter().map(ToString::to_string));
        other.port = job.port;
        let mut ranks = [job.rank(0), other.rank(1), job.rank(2)];
        for ended in end(&mut ranks) {
            ended.failed_with(&["rank 1", "rank 0", "start all ranks with the same"]);
            ended.failed_with(words);
        }
    }
}

#[test]
fn another_world_size_is_named_on_both_sides() {
    let job = small(2);
    let mut ranks = [job.rank(0), job.rank_with(1, &[], &[("GLEANER_WORLD_SIZE", "3")])];
    for ended in end(&mut ranks) {
        ended.failed_with(&["started for 3 workers", "for 2"]);
    }
}

#[test]
fn another_number_of_sockets_is_named_on_both_sides() {
    let job = small(2);
    let mut ranks = [job.rank_with(0, &[], &[("GLEANER_SOCKETS", "4")]), job.rank(1)];
    for ended in end(&mut ranks) {
        ended.failed_with(&[
            "with 1 socket for each link",
            "with 4 sockets for each link",
            "GLEANER_SOCKETS",
        ]);
    }
}

#[test]
fn a_rank_that_was_started_twice_is_named_on_both_sides() {
    let job = Job { timeout: Duration::from_secs(20), ..small(3) };
    let mut ranks = [job.rank(0), job.rank(1), job.rank(1)];
    for ended in end(&mut ranks) {
        ended.failed_with(&["two workers were started as", " 1"]);
    }

    // When the job has begun, only the one that is too many is refused.
    let job = Job::new(2, &["--params", "1000", "--method", "ring", "--steps", "100000000"]);
    let mut ranks = job.start();
    crate::job::steps_done(&mut ranks[0], 1);
    job.rank(1).end(job.timeout).failed_with(&["started twice"]);
    job.rank(0).end(job.timeout).failed_with(&[&format!("port {} is in use", job.port)]);
    assert!(ranks.iter_mut().all(Process::runs));
}

#[test]
fn a_rank_that_does_not_come_is_named_by_all_others() {
    let job = Job { timeout: Duration::from_secs(5), ..small(4) };
    let mut ranks = [job.rank(0), job.rank(1), job.rank(3)];
    for ended in end(&mut ranks) {
        ended.failed_with(&[" 2 did not come"]);
    }
    let mut alone = job.rank(2);
    alone.end(job.timeout).failed_with(&[&format!("127.0.0.1:{}", job.port), "Check that"]);
}

#[test]
fn another_secret_is_distinguished_from_a_missing_rank() {
    let job = Job { timeout: Duration::from_secs(5), ..small(2) };
    let other = secret_file("other", &"f".repeat(64));
    let mut ranks = [job.rank(0), job.rank_with(1, &[], &[("GLEANER_SECRET_FILE", &other)])];
    let ended = end(&mut ranks);
    ended[0].failed_with(&[" 1 did not come", "refused", "another secret"]);
    ended[1].failed_with(&["the secrets or the jobs' ids probably differ"]);
    assert!(ended.iter().all(|ended| !ended.err.contains("ffff")), "secrets are not shown: {ended:?}");
}

/// Two jobs with one secret and one port, each with an id: a worker of the other is refused, while a rank is waited for
/// and while steps are taken, with a sentence.
#[test]
fn a_worker_of_another_job_with_the_same_secret_and_port_changes_nothing() {
    for workers in ["3", "2"] {
        // As many steps as it needs on this machine.
        for steps in (0..).map(|i| (200 * 4_u32.pow(i)).to_string()) {
            let job = Job::new(3, &["--params", "20000", "--method", "spardl", "--steps", &steps]);
            let other = |rank: u32| {
                let variables = [("GLEANER_JOB", "another"), ("GLEANER_WORLD_SIZE", workers)];
                job.rank_with(rank, &[], &variables).end(job.timeout)
            };
            let refusal = ["the secrets or the jobs' ids probably differ"];
            let mut ranks = vec![job.rank(0)];
            eventually("rank 0 listens", || ports(ranks[0].id()).contains(&job.port));
            // Before the job's own rank 1, and in its place.
            other(1).failed_with(&refusal);
            ranks.extend([job.rank(1), job.rank(2)]);
            crate::job::steps_done(&mut ranks[0], 1);
            let late = [other(1), other(0)];
            let all_ran = ranks.iter_mut().all(Process::runs);
            let ended = end(&mut ranks);
            assert!(ended.iter().all(|ended| ended.code == 0), "{ended:?}");
            assert_eq!(ended[0].report()["digest"], undisturbed(&job));
            assert!(ended[0].err.contains("it belongs to another job"), "{ended:?}");
            if all_ran {
                late[0].failed_with(&refusal);
                late[1].failed_with(&[&format!("port {} is in use", job.port)]);
                break;
            }
        }
    }
}

#[test]
fn a_rank_that_dies_while_others_are_waited_for_is_named() {
    for victim in [1, 0] {
        let job = Job { timeout: Duration::from_secs(10), ..small(4) };
        let mut ranks = [job.rank(0), job.rank(1), job.rank(2)];
        eventually("the guests reach rank 0", || ranks.iter().all(|rank| !ports(rank.id()).is_empty()));
        // Until they are admitted. Time in which the machine stands still is a part of one of these pauses.
        (0..10).for_each(|_| std::thread::sleep(Duration::from_millis(50)));
        ranks[victim].signal("KILL");
        for (_, ended) in end(&mut ranks).iter().enumerate().filter(|(rank, _)| *rank != victim) {
            ended.failed_with(&[&format!("rank {victim}")]);
        }
    }
}
