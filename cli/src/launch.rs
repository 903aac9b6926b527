//! `gleaner launch`: starts a program as several workers, on this machine or on others.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gleaner_algorithms::did_you_mean;
use gleaner_runtime::launcher::{self, Job, LaunchError, Outcome, hostfile};
use gleaner_runtime::report::say;
use gleaner_runtime::{Congestion, Preference, Sockets, TransportChoice, VerbsDevice};
use gleaner_units as units;

use crate::crew::{self, Servers};
use crate::report::launch_code;

const EXAMPLES: &str = "\
Examples:
  gleaner launch --workers 4 -- ./train --epochs 3
  gleaner launch --hostfile hosts -- ./train --epochs 3
  gleaner launch --workers 4 --servers 1 -- ./train --synchrony ssp/3
  gleaner launch --hostfile namespaces --agent 'ip netns exec' --env RUST_LOG=debug -- ./train

A hostfile names one host a line; the first host's first worker is rank 0:
  node1 slots=2                # two workers; the name is what ssh connects to
  me@node2 address=10.0.0.2    # its address in the network of the workers

Every worker finds its place in GLEANER_RANK, GLEANER_WORLD_SIZE, GLEANER_LOCAL_RANK, GLEANER_LOCAL_WORLD_SIZE,
GLEANER_RENDEZVOUS, and reads its secret from the descriptor in GLEANER_SECRET_FD. When one fails, or at Ctrl-C, all of them end, children included. The exit code
is that of the worker that failed (128 + n after signal n), 130 after Ctrl-C.";

/// Start a program as several workers, here or on several hosts, and end all of them when one fails
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Launch {
    /// How many workers to start on this machine.
    #[arg(
        long,
        short = 'n',
        value_name = "P",
        required_unless_present = "hostfile",
        conflicts_with = "hostfile",
        value_parser = units::within::<u32>(1..=1024)
    )]
    workers: Option<u32>,

    #[command(flatten)]
    servers: Servers,

    /// The hosts to start workers on: one a line, with `slots=K` for K workers and `address=A` where the workers
    /// reach the host by another address than its name.
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,

    /// The command that reaches a host: it is followed by the host's name and `sh`, which reads what to do from its
    /// standard input. `ip netns exec` works as well as ssh.
    #[arg(long, value_name = "COMMAND", requires = "hostfile", default_value = launcher::SSH)]
    agent: String,

    /// A variable for every worker, besides those it inherits. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,

    /// Where the workers find each other; without it, at the first host, on a random port below 32768.
    #[arg(long, value_name = "HOST:PORT")]
    rendezvous: Option<String>,

    /// The port at the first host where the workers find each other, instead of a random one.
    #[arg(long, conflicts_with = "rendezvous")]
    port: Option<u16>,

    /// How long workers wait for each other at the start, and how long a silent one counts as alive, such as 30s (sets GLEANER_TIMEOUT).
    #[arg(long, value_name = "TIME", value_parser = crew::timeout)]
    timeout: Option<Duration>,

    /// Do not encrypt links, on a trusted network (sets GLEANER_PLAIN).
    #[arg(long)]
    plain: bool,

    /// Transport between workers: tcp (the default), quic, verbs, or auto: verbs where the host can use it, else tcp; all workers have to use
    /// the same (sets GLEANER_TRANSPORT).
    #[arg(long, value_name = "TRANSPORT", value_parser = transport)]
    transport: Option<Preference>,

    /// The adapter that carries links over verbs: NAME, NAME:PORT or NAME:PORT:GID, and behind a comma tc=, sl= or pkey= (sets GLEANER_VERBS_DEVICE).
    #[arg(long, value_name = "ADAPTER")]
    verbs_device: Option<VerbsDevice>,

    /// How many TCP connections each link has, 1 to 64: several for long paths that lose packets (sets GLEANER_SOCKETS).
    #[arg(long, value_name = "SOCKETS")]
    sockets: Option<Sockets>,

    /// QUIC's congestion control: cubic or bbr (sets GLEANER_CONGESTION).
    #[arg(long, value_name = "CONTROL")]
    congestion: Option<Congestion>,

    /// End standard output with a line of JSON: exit_code, failed_rank, step, reason.
    #[arg(long)]
    json: bool,

    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn transport(name: &str) -> Result<Preference, String> {
    name.parse::<Preference>().map_err(|expected| {
        let names = expected.replace(" or ", ", ");
        format!("expected {expected}{}", did_you_mean(name, &names))
    })
}

pub fn run(launch: Launch) -> ExitCode {
    let json = launch.json;
    let outcome = job(launch).and_then(crew::follow);
    match &outcome {
        Err(error) => say(format_args!("gleaner launch: {error}")),
        Ok(Outcome { failure: Some(failure), .. }) => say(format_args!("gleaner launch: {failure}")),
        Ok(Outcome { exit_code: 0, .. }) => {}
        Ok(_) => say("gleaner launch: interrupted; all workers have ended"),
    }
    let exit_code = outcome.as_ref().map_or_else(launch_code, |outcome| outcome.exit_code);
    if json {
        let failure = outcome.as_ref().ok().and_then(|outcome| outcome.failure.as_ref());
        let error = outcome.as_ref().err().map(ToString::to_string);
        let summary = serde_json::json!({
            "exit_code": exit_code,
            "failed_rank": failure.map(|failure| failure.rank),
            "step": failure.and_then(|failure| failure.step),
            "reason": failure.map(|failure| failure.reason.clone()).or(error),
        });
        let was_interrupted = matches!(&outcome, Ok(Outcome { exit_code: 1.., failure: None }));
        print(crate::report::json(&summary), was_interrupted);
    }
    ExitCode::from(exit_code)
}

/// Prints it to standard output. A user who interrupted the job does not wait long for a reader.
fn print(text: String, was_interrupted: bool) {
    let (printed, is_printed) = mpsc::channel();
    thread::spawn(move || printed.send(crate::report::print(&text)));
    let limit = if was_interrupted { Duration::from_secs(1) } else { Duration::MAX };
    if let Ok(Err(error)) = is_printed.recv_timeout(limit) {
        say(format_args!("gleaner launch: {error}"));
    }
}

fn job(launch: Launch) -> Result<Job, LaunchError> {
    let mut job = match &launch.hostfile {
        Some(file) => Job::on(hostfile::read(file)?, launch.agent.split_whitespace(), launch.program),
        None => Job::local(launch.servers.processes(launch.workers.unwrap_or(0)), launch.program),
    };
    job.roles = launch.servers.roles();
    job.env = launch.env;
    job.env.extend(launch.timeout.map(crew::timeout_variable));
    job.env.extend(launch.plain.then(|| ("GLEANER_PLAIN".to_owned(), "1".to_owned())));
    let [transport, device, sockets, congestion] = TransportChoice::VARIABLES;
    job.env.extend(launch.transport.map(|named| (transport.to_owned(), named.to_string())));
    job.env.extend(launch.verbs_device.as_ref().map(|named| (device.to_owned(), named.to_string())));
    job.env.extend(launch.sockets.map(|number| (sockets.to_owned(), number.to_string())));
    job.env.extend(launch.congestion.map(|named| (congestion.to_owned(), named.to_string())));
    job.rendezvous = launch.rendezvous;
    job.port = launch.port;
    Ok(job)
}

fn variable(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| format!("expected NAME=VALUE, found `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_transport_is_proposed() {
        assert_eq!(transport("auto"), Ok(Preference::Auto));
        assert_eq!(transport("quci").unwrap_err(), "expected tcp, quic, verbs or auto (did you mean quic?)");
        assert_eq!(transport("udp").unwrap_err(), "expected tcp, quic, verbs or auto");
    }
}
