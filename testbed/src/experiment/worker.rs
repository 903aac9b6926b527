//! Workers as processes: found by their rank, stopped, killed.

use std::thread;
use std::time::{Duration, Instant};

use gleaner_processes::{end, with_environment};
use rustix::process::{Pid, Signal, kill_process};

use crate::Error;

/// A variable in the environment of a job's workers, by which they are distinguished from those of any other job.
pub const MARK: &str = "GLEANER_TESTBED_JOB";

/// How long a worker may take to appear after its launcher was started.
const APPEARING: Duration = Duration::from_secs(5);

/// Sends a signal to one worker of the job with this mark.
pub fn signal(mark: &str, rank: u32, signal: Signal) -> Result<(), Error> {
    let sent = kill_process(find(mark, rank)?, signal).map_err(std::io::Error::from);
    sent.map_err(|error| format!("the worker of rank {rank} takes no signal: {error}").into())
}

/// The worker's process, waited for if it is only being started.
pub fn find(mark: &str, rank: u32) -> Result<Pid, Error> {
    let wanted = [format!("{MARK}={mark}"), format!("GLEANER_RANK={rank}")];
    let since = Instant::now();
    loop {
        // The launcher makes every worker the leader of a session; what it starts itself is not.
        match with_environment(&wanted).find(|worker| worker.leads_session()) {
            Some(worker) => return Ok(worker.id()),
            None if since.elapsed() > APPEARING => {
                let missing =
                    format!("there is no worker of rank {rank}; it has ended, or was never started");
                return Err(missing.into());
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Ends what a job with this mark has left: its launcher ends its workers and what they started, but who left their session
/// or is on another host than its starter is not among them.
pub fn end_all(mark: &str) {
    let wanted = [format!("{MARK}={mark}")];
    // Of one that not even a signal ends, there is nothing to be done about here.
    let _ = end(|| with_environment(&wanted).collect());
}

/// How many processes of a job with this mark there are.
pub fn left(mark: &str) -> usize {
    with_environment(&[format!("{MARK}={mark}")]).count()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn with_mark(mark: &str, script: &str) -> Child {
        Command::new("sh").args(["-c", script]).env(MARK, mark).spawn().unwrap()
    }

    /// Processes that ignore signals, are stopped, or have made a session of their own, and no others.
    #[test]
    fn all_that_a_job_has_left_is_ended() {
        let mark = format!("left-{}", std::process::id());
        let other = format!("{mark}-other");
        let mut children = [
            with_mark(&mark, "trap '' TERM; while :; do sleep 0.1; done"),
            with_mark(&mark, "kill -s STOP $$"),
            with_mark(&mark, "setsid sleep 1000 & exec sleep 1000"),
        ];
        let mut control = with_mark(&other, "exec sleep 1000");
        let all_there = || left(&mark) >= 4;
        let since = Instant::now();
        while !all_there() {
            assert!(since.elapsed() < Duration::from_secs(60), "not all of them started within a minute");
            thread::sleep(Duration::from_millis(10));
        }
        end_all(&mark);
        assert_eq!(left(&mark), 0);
        for child in &mut children {
            child.wait().unwrap();
        }
        assert!(control.try_wait().unwrap().is_none());
        control.kill().unwrap();
        control.wait().unwrap();
    }
}
