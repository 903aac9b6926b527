//! What is looked at from inside a namespace. A thread enters it, and ends there.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{io, panic, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// How often a host tries to reach another one.
const ATTEMPTS: u32 = 5;

/// The file that `ip netns` keeps for a namespace.
pub(super) fn path(namespace: &str) -> PathBuf {
    Path::new("/run/netns").join(namespace)
}

/// Bytes that crossed an interface, as it counts them itself.
///
/// TCP hands large packets over at once, and the interface counts their headers once, not once per frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that the host, or the group behind an uplink, received.
    pub received: u64,
    /// Bytes that it sent.
    pub sent: u64,
}

pub(super) fn counters(namespace: &str, interface: &str) -> Result<Counters, String> {
    let table = within(namespace, || fs::read_to_string("/proc/thread-self/net/dev"))?;
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    let numbers: Vec<u64> =
        line.unwrap_or_default().split_whitespace().filter_map(|n| n.parse().ok()).collect();
    match (numbers.first(), numbers.get(8)) {
        (Some(&received), Some(&sent)) => Ok(Counters { received, sent }),
        _ => Err(enter(namespace, &io::Error::other(format!("it has no interface {interface}")))),
    }
}

/// Whether another host can be reached: a port that refuses a connection is on one that answers.
pub(super) fn reaches(namespace: &str, host: Ipv4Addr, patience: Duration) -> Result<bool, String> {
    let answers = || {
        let tried = TcpStream::connect_timeout(&SocketAddr::from((host, 1)), patience);
        tried.map_or_else(|error| error.kind() == ErrorKind::ConnectionRefused, |_| true)
    };
    within(namespace, || Ok((0..ATTEMPTS).any(|_| answers())))
}

/// Does something on a thread that has entered a namespace.
pub(crate) fn within<T: Send>(
    namespace: &str,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> Result<T, String> {
    let done = thread::scope(|scope| {
        let inside = || {
            let file = File::open(path(namespace))?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        };
        scope.spawn(inside).join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    });
    done.map_err(|error| enter(namespace, &error))
}

fn enter(namespace: &str, error: &io::Error) -> String {
    let advice = "gleaner testbed up --replace makes the network again";
    format!("the namespace {namespace} cannot be looked into: {error}; {advice}")
}
