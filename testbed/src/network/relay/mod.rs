//! Delay and loss without netem: a process that carries the packets of all links of a network.
//!
//! Each end of a link is an interface that this process holds (a tap). What the kernel sends over one end is read, waits as the
//! link has it, and is received at the other. TCP hands over many segments at once, and they stay together, but each has the
//! room of a frame at the link's rate and is lost by itself.
//!
//! The process lives in the namespace of the switches, so that whatever removes the network ends it. It listens at a
//! socket for questions, one a connection: a line of JSON each way.

mod course;
mod line;
mod packet;
mod tap;

use std::env::current_exe;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_current_timer_slack};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{INTERFACE, Network, Uplink, inside, nodes, state, uplinks};
use crate::topology::Link;
use gleaner_statistics::random::Generator;
pub use line::Crossed;
use line::{Line, carry};
pub(crate) use packet::sum;
use tap::Tap;

/// What the process says once it carries packets.
const READY: &str = "ready";

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A question to the process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// The link of that number is another from now on.
    Change {
        /// Hosts come first, then the groups that have uplinks.
        number: usize,
        /// What it is like.
        link: Link,
    },
    /// What has crossed all links, up and down?
    Crossed,
}

/// A question that is about to be asked.
#[derive(Debug)]
pub(super) struct Question {
    name: String,
    ask: Ask,
    stream: UnixStream,
}

impl Ask {
    /// Connects to the process of that network, so that asking takes next to no time at its moment.
    pub(super) fn prepare(self, name: &str) -> Result<Question, String> {
        let stream = UnixStream::connect(state::socket(name));
        let stream = stream.and_then(|stream| stream.set_read_timeout(Some(PATIENCE)).map(|()| stream));
        Ok(Question { name: name.to_owned(), ask: self, stream: stream.map_err(dead(name))? })
    }
}

impl Question {
    pub(super) fn ask<T: DeserializeOwned>(self) -> Result<T, String> {
        let ask = || -> io::Result<T> {
            let question = serde_json::to_string(&self.ask)?;
            (&self.stream).write_all(format!("{question}\n").as_bytes())?;
            let mut answer = String::new();
            BufReader::new(&self.stream).read_line(&mut answer)?;
            Ok(serde_json::from_str(&answer)?)
        };
        ask().map_err(dead(&self.name))
    }
}

fn dead(name: &str) -> impl FnOnce(io::Error) -> String {
    let again = "so its links carry nothing; make the network again: gleaner testbed up --replace";
    move |error| format!("the relay of the network {name} does not answer ({error}), {again}")
}

/// What is said of a link that would have to be relayed, in a network that is not.
pub(super) fn not_relayed(name: &str) -> String {
    format!(
        "a link of the network {name} cannot delay or lose packets, since it was made without a relay and this kernel has no netem; \
         make it again with such links: gleaner testbed up --replace"
    )
}

fn not_started(name: &str, said: &str) -> String {
    format!("the relay of the network {name} cannot be started: {said}")
}

/// Starts the process, which is this program, for a network whose namespaces and interfaces are there; waits until it carries packets.
pub(super) fn start(name: &str) -> Result<(), String> {
    let started = || -> io::Result<Child> {
        let mut command = Command::new(current_exe()?);
        // In a group of its own, so that a Ctrl-C does not end it.
        command.args(["testbed", "relay", name]).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let mut child = started().map_err(|error| not_started(name, &error.to_string()))?;
    let mut said = String::new();
    if let Some(output) = child.stdout.take() {
        // It ends with the process at the latest.
        let _ = BufReader::new(output).read_line(&mut said);
    }
    if said.trim_end() == READY {
        return Ok(());
    }
    let _ = child.kill();
    let mut complaint = String::new();
    let _ = child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut complaint));
    let _ = child.wait();
    let complaint = if complaint.trim().is_empty() { said } else { complaint };
    Err(not_started(name, &complaint.trim().replace('\n', "; ")))
}

/// The process: carries the packets of a network until it is ended.
///
/// # Errors
/// A network that is not there or is not relayed, or an interface that cannot be held.
pub fn run(name: &str) -> Result<(), String> {
    let failed = |error: io::Error| not_started(name, &error.to_string());
    let network = Network::read(name)?.filter(|network| network.is_relayed);
    let network = network.ok_or_else(|| not_relayed(name))?;
    let ends = ends(&network)?;
    // Where the command that removes the network finds it.
    let home = std::fs::File::open(inside::path(name)).map_err(failed)?;
    move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| failed(error.into()))?;
    let listener = UnixListener::bind(state::socket(name)).map_err(failed)?;
    // Before what runs on the hosts, so that packets are late only where the processors cannot keep up at all.
    let _ = setpriority_process(None, -20);
    // A microsecond instead of fifty. Without it delays are a little longer; threads inherit it.
    let _ = set_current_timer_slack(NonZeroU64::new(1000));
    let (ended, ends_with) = mpsc::channel();
    let lines: Vec<[Arc<Line>; 2]> =
        ends.into_iter().zip(0..).map(|(ends, number)| carried(ends, number, network.seed, &ended)).collect();
    thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(answer(stream, &lines))));
    // The starter waits for this line, and ends the process without it.
    let _ = writeln!(io::stdout(), "{READY}");
    // One direction that carries nothing is enough for a network that is not what was asked for.
    Err(failed(ends_with.recv().unwrap_or_else(|_| io::Error::other("nothing is carried"))))
}

/// Both ends of every link: the host's and the switch's, or the group's and the core's.
fn ends(network: &Network) -> Result<Vec<[Tap; 2]>, String> {
    let held = |namespace: &str, interface: &str| inside::within(namespace, || Tap::hold(interface));
    let mut ends = Vec::new();
    for node in nodes(&network.name, &network.topology) {
        ends.push([held(&node.namespace, INTERFACE)?, held(&network.name, &node.port)?]);
    }
    for Uplink { port, core_port, .. } in uplinks(&network.topology) {
        ends.push([held(&network.name, &port)?, held(&network.name, &core_port)?]);
    }
    Ok(ends)
}

/// Has both directions of a link carried by threads.
fn carried(ends: [Tap; 2], number: u64, seed: u64, ended: &Sender<io::Error>) -> [Arc<Line>; 2] {
    let ends = Arc::new(ends);
    [0usize, 1].map(|direction| {
        let line = Arc::<Line>::default();
        let (ends, ended, carried) = (Arc::clone(&ends), ended.clone(), Arc::clone(&line));
        let random = Generator::new(seed, "packets", 2 * number + direction as u64);
        thread::spawn(move || {
            let carry = || carry(&ends[direction], &ends[1 - direction], &carried, random);
            // Where one direction has panicked, the others must not go on as if all packets were carried.
            let error = catch_unwind(AssertUnwindSafe(carry));
            ended.send(error.unwrap_or_else(|_| io::Error::other("a thread that carries packets panicked")))
        });
        line
    })
}

fn answer(stream: UnixStream, lines: &[[Arc<Line>; 2]]) -> io::Result<()> {
    let mut question = String::new();
    stream.set_read_timeout(Some(PATIENCE))?;
    BufReader::new(&stream).read_line(&mut question)?;
    let answer = match serde_json::from_str(&question)? {
        Ask::Change { number, link: Link { up, down } } => {
            if let Some(line) = lines.get(number) {
                line[0].change(up);
                line[1].change(down);
            }
            "null".to_owned()
        }
        Ask::Crossed => {
            let crossed = |line: &[Arc<Line>; 2]| [line[0].crossed(), line[1].crossed()];
            serde_json::to_string(&lines.iter().map(crossed).collect::<Vec<_>>())?
        }
    };
    writeln!(&stream, "{answer}")
}
