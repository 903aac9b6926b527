//! What this kernel and this user can emulate, found out by trying.

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

/// What can be emulated here; for what cannot, what the kernel said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Pairs of interfaces.
    pub veth: Result<(), String>,
    /// Switches.
    pub bridge: Result<(), String>,
    /// Rates.
    pub tbf: Result<(), String>,
    /// Delay, jitter, loss, and rates with them.
    pub netem: Result<(), String>,
    /// Interfaces that a process holds, which can do the same.
    pub tun: Result<(), String>,
}

impl Kernel {
    /// Tries everything in a scratch namespace, which nothing can see and which is gone afterwards.
    pub fn offers() -> Result<Self, NetworkError> {
        if !rustix::process::geteuid().is_root() {
            return Err(NetworkError::Root);
        }
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
        let answer = |name: &str| {
            let line = answers.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            match line {
                Some("yes") => Ok(()),
                Some(no) => Err(no.strip_prefix("no").unwrap_or(no).trim().to_owned()),
                None => Err("nothing was said about it".to_owned()),
            }
        };
        Ok(Self {
            veth: answer("veth"),
            bridge: answer("bridge"),
            tbf: answer("tbf"),
            netem: answer("netem"),
            tun: answer("tun"),
        })
    }

    /// Whether links that delay or lose packets are carried by a process of ours.
    pub fn relays(&self) -> bool {
        self.netem.is_err() && self.tun.is_ok()
    }

    /// Refuses where a process cannot hold interfaces.
    pub fn holds_interfaces(&self) -> Result<(), NetworkError> {
        lacks("links that a relay carries", "tun", &self.tun)
    }

    /// Refuses a topology that takes what is not here.
    pub fn suffices(&self, topology: &Topology) -> Result<(), NetworkError> {
        lacks("pairs of interfaces", "veth", &self.veth)?;
        lacks("bridges", "bridge", &self.bridge)?;
        if topology.delays_or_loses() && !self.relays() {
            lacks("latency, jitter and loss", "sch_netem", &self.netem)?;
        }
        if topology.limits_rate() && self.netem.is_err() {
            lacks("bandwidths", "sch_tbf", &self.tbf)?;
        }
        Ok(())
    }
}

fn lacks(what: &'static str, module: &'static str, tried: &Result<(), String>) -> Result<(), NetworkError> {
    match tried {
        Ok(()) => Ok(()),
        Err(said) => Err(NetworkError::Kernel(what, module, said.clone())),
    }
}
