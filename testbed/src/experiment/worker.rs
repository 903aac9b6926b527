//! Workers as processes: found by their rank, stopped, killed.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A variable in the environment of a job's workers, by which they are told from those of any other job.
pub const MARK: &str = "GLEANER_TESTBED_JOB";

/// How long a worker may take to appear after its launcher was started.
const APPEARING: Duration = Duration::from_secs(5);

/// What kept a worker from being found or signalled.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It is not there.
    #[error("there is no worker of rank {0}; it has ended, or was never started")]
    Missing(u32),
    /// The system refuses.
    #[error("the worker of rank {rank} takes no signal: {source}")]
    Signal {
        /// The worker.
        rank: u32,
        /// Why.
        source: std::io::Error,
    },
}

/// Sends a signal to one worker of the job with this mark.
pub fn signal(mark: &str, rank: u32, signal: Signal) -> Result<(), WorkerError> {
    let worker = find(mark, rank)?;
    kill_process(worker, signal).map_err(|error| WorkerError::Signal { rank, source: error.into() })
}

/// The worker's process, waited for if it is only being started.
pub fn find(mark: &str, rank: u32) -> Result<Pid, WorkerError> {
    let wanted = [format!("{MARK}={mark}"), format!("GLEANER_RANK={rank}")];
    let since = Instant::now();
    loop {
        let found = fs::read_dir("/proc").into_iter().flatten().flatten().find_map(|entry| {
            let number: i32 = entry.file_name().to_str()?.parse().ok()?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let has =
                |wanted: &String| environment.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes());
            (wanted.iter().all(has) && leads_session(number)).then(|| Pid::from_raw(number))?
        });
        match found {
            Some(worker) => return Ok(worker),
            None if since.elapsed() > APPEARING => return Err(WorkerError::Missing(rank)),
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// The launcher makes every worker the leader of a session; what it starts itself is not.
fn leads_session(number: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    // number (name) state parent group session
    let session = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(3));
    session.and_then(|session| session.parse().ok()) == Some(number)
}
