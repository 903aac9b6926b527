//! What can keep a job from running.

use std::io;

/// Why a job could not be started, or not on every host.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The command line is empty or holds what no command line can.
    #[error("expected a program to start, found {found}; write it after `--`, as in `-- ./train --epochs 3`")]
    Program {
        /// What was found instead.
        found: &'static str,
    },
    /// There is no worker to start.
    #[error("expected at least one worker, found none; ask for one or more, or name a host")]
    NoWorkers,
    /// Servers, and no worker that they could serve.
    #[error(
        "{servers} parameter servers in {processes} processes{}; expected more processes than servers, or as many where each is co-located",
        if *colocated { ", each co-located with a worker" } else { "" }
    )]
    Servers {
        /// How many servers.
        servers: u32,
        /// How many processes there are for workers and servers.
        processes: u32,
        /// Whether servers live in the processes of workers.
        colocated: bool,
    },
    /// A word of the hostfile is not understood.
    #[error("{file}, line {line}: found `{word}`, expected {expected}")]
    Hostfile {
        /// The hostfile.
        file: String,
        /// The line, counted from one.
        line: usize,
        /// The offending word.
        word: String,
        /// What is allowed in its place.
        expected: String,
    },
    /// The hostfile cannot be read.
    #[error(
        "the hostfile {file} cannot be read: {source}; give the path of a text file with one host a line"
    )]
    UnreadableHostfile {
        /// The hostfile.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// The hostfile names no host.
    #[error("the hostfile {file} names no host; write one host a line, as in `node1 slots=2`")]
    EmptyHostfile {
        /// The hostfile.
        file: String,
    },
    /// Several hosts, and no way to reach them.
    #[error("found {hosts} hosts, but no agent to reach them with; name one, for instance `ssh`")]
    NoAgent {
        /// How many hosts were given.
        hosts: usize,
    },
    /// An environment variable that cannot be handed over.
    #[error("the variable `{name}` cannot be handed to the workers: {why}")]
    Variable {
        /// Its name.
        name: String,
        /// Why not.
        why: &'static str,
    },
    /// The rendezvous is not an address.
    #[error("expected the rendezvous as HOST:PORT (an IPv6 address in brackets), found `{found}`")]
    Rendezvous {
        /// What was found.
        found: String,
    },
    /// The system refuses something that every job needs.
    #[error("the launcher could not {what}: {source}")]
    System {
        /// What it tried to do.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The command that reaches a host, or the local shell, cannot be started.
    #[error("`{command}` cannot be started: {source}; is it installed and in PATH?")]
    Agent {
        /// The command line.
        command: String,
        /// What the system says.
        source: io::Error,
    },
    /// A host cannot be reached, or has no shell.
    #[error(
        "host {host} does not answer: `{command}` {ended} {said}; check that `{command} </dev/null` works by hand, \
         or take the host out of the hostfile"
    )]
    Host {
        /// The host.
        host: String,
        /// The command that should have reached it.
        command: String,
        /// How that command ended.
        ended: String,
        /// The last line it wrote to standard error.
        said: String,
    },
    /// A host lacks the directory that the job runs in.
    #[error(
        "host {host} cannot enter the directory {directory}; start from a directory that exists on every host, \
         under the same path"
    )]
    Directory {
        /// The host.
        host: String,
        /// The directory.
        directory: String,
    },
    /// A host has no means to end a worker together with its children.
    #[error(
        "host {host} has neither the command setsid nor a shell with job control, so nothing could end a worker's \
         children; install util-linux there"
    )]
    Sessions {
        /// The host.
        host: String,
    },
}

gleaner_transport::debug_as_sentence!(LaunchError);
