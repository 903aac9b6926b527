//! What this kernel and this user can emulate, found out by trying.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;

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
pub(super) fn expect_root() -> Result<(), String> {
    const NOT_ROOT: &str = "network namespaces need root; run it with sudo, or as root in a container with CAP_NET_ADMIN and \
                            CAP_SYS_ADMIN";
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(NOT_ROOT.to_owned()) }
}

impl Kernel {
    /// Tries everything in a scratch namespace, which nothing can see and which is gone afterwards.
    pub fn offers() -> Result<Self, String> {
        expect_root()?;
        for (program, package) in [("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")] {
            if Command::new(program).arg("-V").output().is_err() {
                let advice = format!("install it, on Debian with apt-get install {package}");
                return Err(format!("the command {program} is not here; {advice}"));
            }
        }
        let none = |said: &str| {
            let expected = "expected CAP_SYS_ADMIN and a kernel with them";
            format!("this machine makes no network namespaces: {said}; {expected}")
        };
        // A terminal's Ctrl-C is for the command, not for the trials.
        let output = Command::new("unshare").args(["--net", "sh", "-c", TRIALS]).process_group(0).output();
        let output = output.map_err(|error| none(&error.to_string()))?;
        if !output.status.success() {
            return Err(none(String::from_utf8_lossy(&output.stderr).trim()));
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
    pub fn suffices(&self, topology: &Topology) -> Result<(), String> {
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
    pub(super) fn needs(&self, what: &str, module: &str, name: &str) -> Result<(), String> {
        let Some(said) = self.lacks(name) else { return Ok(()) };
        Err(format!(
            "{what} cannot be emulated here: the kernel has no {module} (\"{said}\"); ask for less, or try modprobe {module}, or run \
             it in a machine that has all: gleaner testbed vm -- gleaner testbed up …"
        ))
    }
}
