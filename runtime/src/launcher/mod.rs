//! The launcher: starts a job's workers here or on other hosts, shows what they print, and ends all when one fails.
//!
//! Every worker runs under a shell that the launcher starts directly, or through an *agent* (ssh, `ip netns exec`, or
//! whatever else takes a host and a command). The shell reads its script from standard input and goes on listening:
//! when that input ends, because the launcher is done, was killed, or lost the connection, it ends the worker and the
//! worker's children. So nothing outlives the launcher, and ending a worker takes no second connection.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::failure::Failure;
use crate::roles::Roles;

mod diagnosis;
mod error;
pub mod hostfile;
mod lines;
mod listener;
mod output;
mod plan;
mod supervise;
mod worker;
mod wrapper;

pub use error::LaunchError;
pub use supervise::run;
pub use wrapper::quote;

/// Reaches a host by ssh. It never asks for a password, since a user cannot answer for many hosts at once, and notices
/// within a quarter of a minute when a host is gone.
pub const SSH: &str =
    "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3";

/// Where workers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// What the agent calls it: a host name, `user@name`, a namespace.
    pub name: String,
    /// How many workers run there.
    pub slots: u32,
    /// Its address in the network of the workers, where that differs from the name.
    pub address: Option<String>,
}

impl Host {
    /// A host with one worker.
    pub fn new(name: impl Into<String>) -> Host {
        Host { name: name.into(), slots: 1, address: None }
    }
}

/// What to run, and where.
///
/// Each worker finds in its environment: `GLEANER_RANK`, `GLEANER_WORLD_SIZE`, `GLEANER_LOCAL_RANK`,
/// `GLEANER_LOCAL_WORLD_SIZE`, `GLEANER_RENDEZVOUS` (host:port), `GLEANER_SECRET_FD` (the descriptor of a pipe
/// with 64 hexadecimal digits, fresh for every job), `GLEANER_LAUNCHER`, `GLEANER_SERVERS`, `GLEANER_COLOCATE`,
/// `GLEANER_ON_FAILURE`, and, unless they are set already, `RAYON_NUM_THREADS` and `OMP_NUM_THREADS` with its share
/// of the machine's cores: of those of its host, or with an agent that ends in `netns exec`, whose hosts are one machine, of all workers.
#[derive(Clone, Debug)]
pub struct Job {
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// The hosts in rank order. Without an agent there is one, which is this machine.
    pub hosts: Vec<Host>,
    /// The command that, followed by a host's name and the word `sh`, starts a shell there; empty for this machine.
    pub agent: Vec<String>,
    /// More variables for every worker. They win over what it would inherit.
    pub env: Vec<(String, String)>,
    /// Where the workers find each other, as host:port. Otherwise a random port of the first host.
    pub rendezvous: Option<String>,
    /// The port at the first host, where it is not random.
    pub port: Option<u16>,
    /// Where the workers run, on every host; otherwise in the launcher's own directory.
    pub directory: Option<PathBuf>,
    /// How many of the slots, the last ones, are parameter servers, or where servers live otherwise; and whether the job goes on when a worker fails.
    pub roles: Roles,
    /// What is shown of the workers' output.
    pub output: Output,
    /// How long the others may go on after the first failure, to say what they know of it and end by themselves.
    pub grace: Duration,
    /// How long the job may take from its start on; then its workers are ended as by Ctrl-C. By default there is no limit.
    pub limit: Option<Duration>,
}

impl Job {
    /// A job on this machine.
    pub fn local(workers: u32, program: impl IntoIterator<Item = impl Into<OsString>>) -> Job {
        let host = Host { name: "localhost".to_owned(), slots: workers, address: None };
        Job::on(vec![host], [""; 0], program)
    }

    /// A job on several hosts.
    pub fn on(
        hosts: Vec<Host>,
        agent: impl IntoIterator<Item = impl Into<String>>,
        program: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Job {
        Job {
            program: program.into_iter().map(Into::into).collect(),
            hosts,
            agent: agent.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            rendezvous: None,
            port: None,
            directory: None,
            roles: Roles::default(),
            output: Output::Prefixed,
            grace: Duration::from_secs(2),
            limit: None,
        }
    }
}

/// What is shown of the workers' output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// All of it, every line behind its rank.
    #[default]
    Prefixed,
    /// Rank 0 as if it ran alone; of the others only standard error, every line behind its rank.
    RankZero,
    /// Nothing. Every line arrives as an [`Event`] whose kind is [`STANDARD_OUTPUT`] or [`STANDARD_ERROR`], and whose body
    /// is the line as text. A line above 64 KiB arrives in several.
    Events,
}

/// The kind of an event that is a line of a worker's standard output, with [`Output::Events`].
pub const STANDARD_OUTPUT: &str = "launcher.output";

/// The kind of an event that is a line of a worker's standard error, with [`Output::Events`].
pub const STANDARD_ERROR: &str = "launcher.error";

/// The exit code of a job that was ended at its limit, which is that of timeout(1).
pub const OVER_LIMIT: u8 = 124;

/// What a worker reported with [`crate::report::event`].
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Who.
    pub rank: u32,
    /// What it is about.
    pub kind: String,
    /// What it says.
    pub body: Value,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// 0; after a failure, that worker's (128 + n after signal n); 130 after Ctrl-C, 143 after SIGTERM, [`OVER_LIMIT`] after
    /// the job's limit.
    pub exit_code: u8,
    /// Which worker failed, which is the job's last line; none if no worker did, or if the job was interrupted or over its limit before
    /// one did.
    pub failure: Option<Failure>,
}
