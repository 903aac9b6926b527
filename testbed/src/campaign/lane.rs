//! Emulated hosts on which one job after the other runs.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, io, thread};

use gleaner_processes::Process;
use rustix::process::Pid;

use super::fault::Fault;
use super::forgery::{self, Forged};
use crate::Error;
use crate::network::{Changes, Network, Node, Prepared, within};
use crate::ongoing::Ongoing;
use crate::topology::{Link, Shape, Subnet, Topology};
use gleaner_units as units;

/// What a slow link carries.
const SLOW: &str = "4mbit";

/// Connections of a flood in all, and the pause between two: 200 a second.
const CONNECTIONS: usize = 300;
const PAUSE: Duration = Duration::from_millis(5);

/// A network of its own.
pub struct Lane {
    pub number: usize,
    network: Network,
    hosts: Vec<Node>,
    /// What waits for its moment.
    prepared: Option<Prepared>,
    /// What is done to the link of a host.
    done: Option<(Fault, u32)>,
}

impl Lane {
    pub fn up(number: usize, hosts: u32) -> Result<Self, Error> {
        let topology = Topology::uniform(hosts as usize, Subnet::default(), Link::default())?;
        let name = format!("chaos-{}-{number}", std::process::id());
        let network = Network::up(&topology, &name, true, Changes::default())?;
        let hosts = network.hosts();
        Ok(Self { number, network, hosts, prepared: None, done: None })
    }

    pub fn down(self) -> Result<(), Error> {
        Ok(self.network.down()?)
    }

    /// Writes the hostfile for a launcher: a host for each worker.
    pub fn write_hosts(&self, path: &Path, workers: u32) -> io::Result<()> {
        let hosts = self.network.hostfile();
        fs::write(path, hosts.split_inclusive('\n').take(workers as usize).collect::<String>())
    }

    /// Prepares what a fault does to the link of a host, if it does anything: parts of a worker's life may be shorter than what
    /// it takes to start a program.
    pub fn prepare(&mut self, fault: Fault, host: u32) -> Result<(), Error> {
        let name = &self.hosts[host as usize].name;
        self.prepared = Some(match fault {
            Fault::Cut | Fault::ShortCut | Fault::MendedCut => self.network.plug(name, false)?,
            Fault::SlowLink => {
                let shape = Shape { rate: Some(units::rate(SLOW)?), ..Shape::default() };
                self.network.prepare_link(name, Link::both(shape))?
            }
            _ => return Ok(()),
        });
        self.done = Some((fault, host));
        Ok(())
    }

    /// Does what was prepared.
    pub fn inject(&mut self) -> Result<(), Error> {
        Ok(self.prepared.take().map_or(Ok(()), Prepared::go)?)
    }

    /// Opens connections to a worker on a host, from the next one.
    pub fn flood(&self, host: u32, process: Pid) -> Ongoing<Forged> {
        let (from, to) = (self.next(host).namespace.clone(), self.hosts[host as usize].address);
        Ongoing::start(move |over| flood(&from, to, process, over))
    }

    /// Changes bytes on their way to a host.
    pub fn forge(&self, host: u32) -> Result<Ongoing<Forged>, Error> {
        let ranks = self.hosts.iter().map(|host| host.address).collect();
        Ok(forgery::start(&self.hosts[host as usize], self.next(host), ranks)?)
    }

    fn next(&self, host: u32) -> &Node {
        &self.hosts[(host as usize + 1) % self.hosts.len()]
    }

    /// Undoes what was done to links.
    pub fn restore(&mut self) -> Result<(), Error> {
        self.prepared = None;
        let Some((fault, host)) = self.done.take() else { return Ok(()) };
        let name = &self.hosts[host as usize].name;
        match fault {
            Fault::SlowLink => self.network.set_link(name, Link::default())?,
            _ => self.network.plug(name, true)?.go()?,
        }
        Ok(())
    }
}

/// Floods all ports at which a process on a host listens, from a namespace, until it is over. Nothing is forged by it.
fn flood(from: &str, to: Ipv4Addr, process: Pid, over: &AtomicBool) -> Forged {
    let pour = || {
        let mut open = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let ports = listening(process);
            if open.len() < CONNECTIONS {
                let to = ports.iter().map(|&port| SocketAddr::from((to, port)));
                open.extend(to.filter_map(|to| TcpStream::connect_timeout(&to, 20 * PAUSE).ok()));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    };
    // Without the namespace the job is over, too.
    let _ = within(from, pour);
    Forged::default()
}

/// The listening ports in a process's network.
fn listening(process: Pid) -> Vec<u16> {
    let table = fs::read_to_string(Process::from(process).file("net/tcp")).unwrap_or_default();
    let port = |line: &str| {
        // number local remote state
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next()?, words.nth(1)?);
        let (_, port) = local.split_once(':')?;
        (state == "0A").then(|| u16::from_str_radix(port, 16).ok())?
    };
    table.lines().filter_map(port).collect()
}
