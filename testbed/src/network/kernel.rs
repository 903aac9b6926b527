//! What this kernel and this user can emulate, found out by trying.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::NetworkError;
use crate::topology::Topology;

/// What is tried, in a namespace that ends with the shell that tries it. Every line of the answer is one of these words, or
/// a word with what the kernel said.
const TRIALS: &str = r"
try() { name=$1; shift; said=$($* 2>&1) && echo $name yes || echo $name no $said; }
try veth ip link add name one type veth peer name two
try bridge ip link add name core type bridge
try tbf tc qdisc add dev one root tbf rate 1gbit burst 128k limit 256k
try tun ip tuntap add dev tap mode tap vnet_hdr
try netem tc qdisc add dev two root netem delay 1ms 1us loss 0.1% rate 1gbit
";

/// What cannot be emulated here, of what is tried, and what the kernel said: pairs of interfaces (veth); switches (bridge); rates (tbf);
/// delay, jitter, loss, and rates with them (netem); and interfaces that a process holds, which can do the same (tun).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel(BTreeMap<&'static str, String>);

/// Refuses a user who may make no namespaces.
pub(super) fn expect_root() -> Result<(), NetworkError> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(NetworkError::Root) }
}

impl Kernel {
    /// Tries everything in a scratch namespace, which nothing can see and which is gone afterwards.
    pub fn offers() -> Result<Self, NetworkError> {
        expect_root()?;
        for (program, package) in [("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")] {
            if Command::new(program).arg("-V").output().is_err() {
                return Err(NetworkError::Missing(program, package));
            }
        }
        let namespaces = NetworkError::Namespaces;
        // A terminal's Ctrl-C is for the command, not for the trials.
        let output = Command::new("unshare").args(["--net", "sh", "-c", TRIALS]).process_group(0).output();
        let output = output.map_err(|error| namespaces(error.to_string()))?;
        if !output.status.success() {
            return Err(namespaces(String::from_utf8_lossy(&output.stderr).trim().into()));
        }
        let answers = String::from_utf8_lossy(&output.stdout).into_owned();
        let lacking = |name: &'static str| match answers
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        {
            Some("yes") => None,
            Some(no) => Some((name, no.strip_prefix("no").unwrap_or(no).trim().to_owned())),
            None => Some((name, "nothing was said about it".to_owned())),
        };
        Ok(Self(["veth", "bridge", "tbf", "netem", "tun"].into_iter().filter_map(lacking).collect()))
    }

    /// What the kernel said when it could not do one of these.
    pub(super) fn lacks(&self, name: &str) -> Option<&String> {
        self.0.get(name)
    }

    /// Whether links that delay or lose packets are carried by a process of ours.
    pub fn relays(&self) -> bool {
        self.lacks("netem").is_some() && self.lacks("tun").is_none()
    }

    /// Refuses a topology that takes what is not here.
    pub fn suffices(&self, topology: &Topology) -> Result<(), NetworkError> {
        self.needs("pairs of interfaces", "veth", "veth")?;
        self.needs("bridges", "bridge", "bridge")?;
        if topology.delays_or_loses() && !self.relays() {
            self.needs("latency, jitter and loss", "sch_netem", "netem")?;
        }
        if topology.shapes().any(|shape| shape.rate.is_some()) && self.lacks("netem").is_some() {
            self.needs("bandwidths", "sch_tbf", "tbf")?;
        }
        Ok(())
    }

    /// Refuses where what a module does for something failed.
    pub(super) fn needs(
        &self,
        what: &'static str,
        module: &'static str,
        name: &str,
    ) -> Result<(), NetworkError> {
        let said = self.lacks(name).cloned();
        said.map_or(Ok(()), |said| Err(NetworkError::Kernel(what, module, said)))
    }
}
