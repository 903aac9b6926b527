//! Connections to a worker that say nothing, and stay.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use gleaner_processes::Process;
use rustix::process::Pid;

use super::forgery::Forged;
use crate::network::within;

/// Connections in all, and the pause between two: 200 a second.
const CONNECTIONS: usize = 300;
const PAUSE: Duration = Duration::from_millis(5);

/// Floods all ports at which a process on a host listens, from a namespace, until it is over. Nothing is forged by it.
pub fn flood(from: &str, to: Ipv4Addr, process: Pid, over: &AtomicBool) -> Forged {
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
