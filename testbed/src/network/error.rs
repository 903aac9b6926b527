//! What can go wrong with an emulated network.

use std::path::PathBuf;

use crate::topology::TopologyError;

/// What went wrong with an emulated network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Not root.
    #[error(
        "network namespaces need root; run it with sudo, or as root in a container with CAP_NET_ADMIN and CAP_SYS_ADMIN"
    )]
    Root,
    /// A program is not installed.
    #[error("the command {0} is not here; install it, on Debian with apt-get install {1}")]
    Missing(&'static str, &'static str),
    /// No namespaces.
    #[error("this machine makes no network namespaces: {0}; expected CAP_SYS_ADMIN and a kernel with them")]
    Namespaces(String),
    /// The kernel lacks something.
    #[error(
        "{0} cannot be emulated here: the kernel has no {1} (\"{2}\"); ask for less, or try modprobe {1}, or run it in a machine that has all: gleaner testbed vm -- gleaner testbed up …"
    )]
    Kernel(&'static str, &'static str, String),
    /// The topology cannot be.
    #[error("{0}")]
    Topology(#[from] TopologyError),
    /// There is such a network already.
    #[error(
        "the network {name} is there already{}; remove it with gleaner testbed down --name {name}, or say --replace",
        if *complete { "" } else { ", half-made" }
    )]
    There {
        /// Its name.
        name: String,
        /// Whether all of it was made.
        complete: bool,
    },
    /// Another program has namespaces of these names.
    #[error(
        "there are network namespaces called {}, which no gleaner testbed made; expected these names to be free: choose another --name, or remove them yourself with ip netns delete",
        .0.join(", ")
    )]
    Others(Vec<String>),
    /// No such network.
    #[error("there is no network {name}{}; make one with gleaner testbed up", one_of(there))]
    None {
        /// What was asked for.
        name: String,
        /// What there is.
        there: Vec<String>,
    },
    /// A network that was not finished.
    #[error(
        "the network {0} is half-made; remove it with gleaner testbed down --name {0}, or make it anew with up --replace"
    )]
    Half(String),
    /// A state file that this program did not write.
    #[error("{path} is not understood: {1}; expected what gleaner testbed up writes: look at it and at ip netns, and remove both by hand", path = .0.display())]
    Foreign(PathBuf, String),
    /// The state cannot be kept.
    #[error("{path} cannot be used: {1}; it has to say what was made, so nothing is made without it", path = .0.display())]
    State(PathBuf, String),
    /// Another process is at work.
    #[error("another gleaner testbed has been at work for a minute (it holds the lock on {path}); wait for it, or end it", path = .0.display())]
    Locked(PathBuf),
    /// `ip` or `tc` failed.
    #[error("`{command}` failed: {said}")]
    Command {
        /// What was run.
        command: String,
        /// What it said.
        said: String,
    },
    /// The process that carries packets cannot be started.
    #[error("the relay of the network {0} cannot be started: {1}")]
    NoRelay(String, String),
    /// It does not answer.
    #[error(
        "the relay of the network {0} does not answer ({1}), so its links carry nothing; make the network anew: gleaner testbed up --replace"
    )]
    DeadRelay(String, String),
    /// A link that would have to be relayed, in a network that is not.
    #[error(
        "a link of the network {0} cannot delay or lose packets, since it was made without a relay and this kernel has no netem; make it anew with such links: gleaner testbed up --replace"
    )]
    NotRelayed(String),
    /// A congestion control that the kernel has not.
    #[error(
        "this kernel has no congestion control {0} for TCP; expected one of those that it has ({1}), or try modprobe tcp_{0}"
    )]
    Congestion(String, String),
    /// A namespace cannot be looked into.
    #[error(
        "the namespace {0} cannot be looked into: {1}; gleaner testbed up --replace makes the network anew"
    )]
    Enter(String, String),
    /// A host does not reach the first one.
    #[error(
        "{host} does not reach {first}; look at ip -n {namespace} address, and at what filters packets on bridges here (nft list ruleset)"
    )]
    Unreachable {
        /// Which host.
        host: String,
        /// Its namespace.
        namespace: String,
        /// The first host.
        first: String,
    },
    /// A process does not end.
    #[error(
        "process {0} runs in one of the namespaces and does not end even when killed; look at it, then try again"
    )]
    Undead(i32),
    /// Making it failed, and so did removing what was made by then.
    #[error("{0}; and what was made by then is still there: {1}")]
    Twice(Box<NetworkError>, Box<NetworkError>),
}

fn one_of(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(" (there is {})", names.join(", ")) }
}
