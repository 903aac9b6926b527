//! A job whose ranks are started by hand, each with its own arguments and environment.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{Ended, Process, eventually, free_port, gleaner, start};

/// 64 hexadecimal digits.
pub const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// The path of a file of that name with a secret, which only this user may read.
pub fn secret_file(name: &str, secret: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.secret", std::process::id()));
    // Renamed into place, since another test may be reading it.
    let new = tempfile::Builder::new().tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(new.path(), secret).unwrap();
    new.persist(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What the ranks of a job have in common.
#[derive(Clone, Debug)]
pub struct Job {
    pub workers: u32,
    pub port: u16,
    pub timeout: Duration,
    pub arguments: Vec<String>,
}

impl Job {
    /// `gleaner bench --json` with these arguments.
    pub fn new(workers: u32, arguments: &[&str]) -> Self {
        let arguments = ["bench", "--json"].iter().chain(arguments).map(ToString::to_string).collect();
        Self { workers, port: free_port(), timeout: Duration::from_secs(30), arguments }
    }

    /// A job that ends only by a failure.
    pub fn endless(workers: u32, method: &str) -> Self {
        Self::new(workers, &["--params", "50000", "--steps", "100000000", "--method", method])
    }

    /// Starts one rank. It tells how far it is on standard error, as to a launcher.
    pub fn rank(&self, rank: u32) -> Process {
        self.rank_with(rank, &[], &[])
    }

    /// Starts one rank with more arguments, and variables besides or instead of the job's (without them, if empty).
    pub fn rank_with(&self, rank: u32, arguments: &[&str], variables: &[(&str, &str)]) -> Process {
        start(self.command(rank, arguments, variables))
    }

    /// What starts one rank.
    pub fn command(&self, rank: u32, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = gleaner();
        command.args(&self.arguments).args(arguments);
        command.envs([
            ("GLEANER_RANK", rank.to_string()),
            ("GLEANER_WORLD_SIZE", self.workers.to_string()),
            ("GLEANER_RENDEZVOUS", format!("127.0.0.1:{}", self.port)),
            ("GLEANER_SECRET_FILE", secret_file("job", SECRET)),
            ("GLEANER_JOB", self.port.to_string()),
            ("GLEANER_TIMEOUT", format!("{}ms", self.timeout.as_millis())),
            ("GLEANER_LAUNCHER", "1".to_owned()),
        ]);
        for (name, value) in variables {
            match *value {
                "" => command.env_remove(name),
                value => command.env(name, value),
            };
        }
        command
    }

    /// Starts all ranks.
    pub fn start(&self) -> Vec<Process> {
        (0..self.workers).map(|rank| self.rank(rank)).collect()
    }
}

/// Waits until rank 0 has reported that so many steps are done.
pub fn steps_done(rank_zero: &mut Process, steps: usize) {
    eventually("steps are done", || {
        rank_zero.events().matches("\"kind\":\"progress\"").count() >= steps || !rank_zero.runs()
    });
}

/// Waits for all of them.
pub fn end(ranks: &mut [Process]) -> Vec<Ended> {
    ranks.iter_mut().map(|rank| rank.end(Duration::from_secs(30))).collect()
}
