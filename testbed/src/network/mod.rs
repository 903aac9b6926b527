//! Networks that are emulated on this machine: network namespaces joined by veth pairs and bridges, with shaped links.
//!
//! Every host is a namespace with one interface, `eth0`. The switches are bridges in a namespace of their own, so that
//! nothing at all is added to the machine's own network. The file `/run/gleaner/NAME.json` says what was made; nothing
//! that it does not name is ever removed.

mod build;
mod commands;
mod inside;
mod kernel;
mod relay;
mod remove;
mod shape;
mod state;

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::process::Command;

use serde::Serialize;
use serde_json::{Value, json};

pub use inside::Counters;
pub(crate) use inside::within;
pub use kernel::Kernel;
pub(crate) use relay::sum;
pub use relay::{Crossed, run as relay};
pub use state::Network;

use crate::topology::{self, Link, Topology};
use commands::Batch;

/// The interface of every host.
pub const INTERFACE: &str = "eth0";

/// What a network is called by default.
pub const NAME: &str = "gleaner";

/// The names of TCP's congestion controls that the kernel knows now.
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// What went wrong with an emulated network, in a sentence.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// There is no such network.
    #[error("{0}")]
    None(String),
    /// A network that was not finished.
    #[error("{0}")]
    Half(String),
    /// `ip` or `tc` failed: what was run, and what it said.
    #[error("`{0}` failed: {1}")]
    Command(String, String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<String> for NetworkError {
    fn from(sentence: String) -> Self {
        Self::Other(sentence)
    }
}

/// A host of an emulated network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// What the topology calls it.
    pub name: String,
    /// Its group.
    pub group: String,
    /// What `ip netns` calls it.
    pub namespace: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its link, as asked for.
    pub link: Link,
    /// The switch's end of its link.
    #[serde(skip)]
    port: String,
    /// The bridge that this is a port of.
    #[serde(skip)]
    switch: String,
}

/// The link between a group's switch and the core.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uplink {
    /// The group.
    pub group: String,
    /// The link, as asked for: up is towards the core.
    pub link: Link,
    /// The group's end of it, the bridge that this is a port of, and the core's end.
    #[serde(skip)]
    port: String,
    #[serde(skip)]
    switch: String,
    #[serde(skip)]
    core_port: String,
}

impl Network {
    /// Makes a network, after one of that name was removed if it is to be replaced. If that fails, nothing is left.
    pub fn up(
        topology: &Topology,
        name: &str,
        replace: bool,
        changes: Changes,
    ) -> Result<Self, NetworkError> {
        topology::name(name)?;
        topology.check()?;
        let kernel = Kernel::offers()?;
        kernel.suffices(topology)?;
        if changes.by_relay {
            kernel.needs("links that a relay carries", "tun", "tun")?;
        }
        let lock = state::lock()?;
        match Self::read(name)? {
            Some(there) if replace => remove::remove(&there)?,
            Some(there) => {
                let how = if there.complete { "" } else { ", half-made" };
                let advice = format!("remove it with gleaner testbed down --name {name}, or say --replace");
                return Err(format!("the network {name} is there already{how}; {advice}").into());
            }
            None => {}
        }
        let mut names = vec![name.to_owned()];
        names.extend(nodes(name, topology).into_iter().map(|node| node.namespace));
        names.retain(|namespace| inside::path(namespace).exists());
        if !names.is_empty() {
            return Err(remove::of_others(&names).into());
        }
        let may_delay = changes.may_delay || topology.delays_or_loses();
        let is_relayed = changes.by_relay || may_delay && kernel.relays();
        let mut network = Self::new(name, topology, is_relayed, changes.seed)?;
        let Err(failure) = build::build(&mut network, &kernel, &lock) else { return Ok(network) };
        match remove::remove(&network) {
            Ok(()) => Err(failure),
            Err(removal) => {
                Err(format!("{failure}; and what was made by then is still there: {removal}").into())
            }
        }
    }

    /// Finds a network that was made, in whole.
    pub fn find(name: &str) -> Result<Self, NetworkError> {
        topology::name(name)?;
        kernel::expect_root()?;
        let network = Self::there(name)?;
        if network.complete {
            return Ok(network);
        }
        let advice =
            format!("remove it with gleaner testbed down --name {name}, or make it again with up --replace");
        Err(NetworkError::Half(format!("the network {name} is half-made; {advice}")))
    }

    fn there(name: &str) -> Result<Self, NetworkError> {
        if let Some(network) = Self::read(name)? {
            return Ok(network);
        }
        let there = match &Self::names()?[..] {
            [] => String::new(),
            names => format!(" (there is {})", names.join(", ")),
        };
        let advice = "make one with gleaner testbed up";
        Err(NetworkError::None(format!("there is no network {name}{there}; {advice}")))
    }

    /// Removes the network and ends what runs in it.
    pub fn down(self) -> Result<(), NetworkError> {
        Self::remove(&self.name)
    }

    /// Removes a network by its name, whole or half-made, and ends what runs in it.
    pub fn remove(name: &str) -> Result<(), NetworkError> {
        topology::name(name)?;
        kernel::expect_root()?;
        let _lock = state::lock()?;
        remove::remove(&Self::there(name)?)
    }

    /// Its hosts, in the order of their addresses.
    pub fn hosts(&self) -> Vec<Node> {
        nodes(&self.name, &self.topology)
    }

    /// The links of groups to the core, in the order of the groups.
    pub fn uplinks(&self) -> Vec<Uplink> {
        uplinks(&self.topology).collect()
    }

    /// A host by its name, or by that of its namespace.
    pub fn host(&self, name: &str) -> Result<Node, NetworkError> {
        let found = self.hosts().into_iter().find(|node| node.name == name || node.namespace == name);
        found.ok_or_else(|| self.topology.unknown("host", name).into())
    }

    /// The hosts as `gleaner launch --hostfile FILE --agent 'ip netns exec'` reads them.
    pub fn hostfile(&self) -> String {
        self.hosts().iter().map(|node| format!("{} address={}\n", node.namespace, node.address)).collect()
    }

    /// A command that runs a program on a host, for arguments to be added.
    pub fn command(&self, host: &str, program: &str) -> Result<Command, NetworkError> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host(host)?.namespace, program]);
        Ok(command)
    }

    /// What has crossed a host's interface since it was made.
    pub fn counters(&self, host: &str) -> Result<Counters, NetworkError> {
        Ok(inside::counters(&self.host(host)?.namespace, INTERFACE)?)
    }

    /// What a group has received from the core and sent to it since the network was made.
    pub fn uplink_counters(&self, uplink: &Uplink) -> Result<Counters, String> {
        inside::counters(&self.name, &uplink.port)
    }

    /// What has crossed all links so far, up and down, if a process of ours relays packets: where the kernel has netem, or no link
    /// delays or loses packets, there is none.
    ///
    /// # Errors
    /// A process that is gone.
    pub fn crossed(&self) -> Result<Option<Crossed>, String> {
        if !self.is_relayed {
            return Ok(None);
        }
        let links: Vec<[Crossed; 2]> = relay::Ask::Crossed.prepare(&self.name)?.ask()?;
        Ok(Some(links.into_iter().flatten().fold(Crossed::default(), Crossed::plus)))
    }

    /// Changes the link of a host while packets cross it; those that wait in its queues are lost, or arrive as before where a
    /// relay has them.
    pub fn set_link(&mut self, host: &str, link: Link) -> Result<(), NetworkError> {
        let (_lock, change) = self.link_change(host, link)?;
        change.go()
    }

    /// Prepares such a change, so that it takes next to no time at its moment.
    pub fn prepare_link(&mut self, host: &str, link: Link) -> Result<Prepared, NetworkError> {
        Ok(self.link_change(host, link)?.1)
    }

    fn link_change(&mut self, host: &str, link: Link) -> Result<(File, Prepared), NetworkError> {
        let host = self.host(host)?.name;
        let mut changed = self.clone();
        *changed.topology.link_mut(&host)? = link;
        changed.topology.check()?;
        let kernel = Kernel::offers()?;
        kernel.suffices(&changed.topology)?;
        if link.directions().iter().any(|shape| shape.delays_or_loses())
            && kernel.lacks("netem").is_some()
            && !self.is_relayed
        {
            return Err(relay::not_relayed(&self.name).into());
        }
        let lock = state::lock()?;
        changed.write()?;
        *self = changed;
        let node = self.host(&host)?;
        let number = self.hosts().iter().position(|there| *there == node).unwrap_or_default();
        Ok((lock, build::prepare(self, number, &node, &kernel)?))
    }

    /// Prepares to cut the link of a host, as if its cable were pulled, or to join it again, so that it takes next to no time at its
    /// moment. The kernel takes up to a second or so to use a link that was joined.
    pub fn plug(&self, host: &str, is_in: bool) -> Result<Prepared, NetworkError> {
        let line = format!("link set dev {} {}", self.host(host)?.port, if is_in { "up" } else { "down" });
        Prepared::start([("ip", &*self.name, vec![line])], None)
    }

    /// The hosts whose links are cut now.
    pub fn cut_hosts(&self) -> Result<Vec<String>, NetworkError> {
        let interfaces = commands::interfaces(&["ip", "-json", "-n", &self.name, "link", "show"])?;
        let is_up =
            |shown: &Value| shown["flags"].as_array().is_some_and(|flags| flags.contains(&json!("UP")));
        let is_down = |port: &str| interfaces.iter().any(|shown| shown["ifname"] == port && !is_up(shown));
        let cut = |node: Node| is_down(&node.port).then_some(node.name);
        Ok(self.hosts().into_iter().filter_map(cut).collect())
    }

    /// Refuses a congestion control that the kernel has not.
    ///
    /// # Errors
    /// A name that the kernel does not know, with those that it does.
    pub fn check_congestion(name: &str) -> Result<(), String> {
        let there = fs::read_to_string(CONGESTION).unwrap_or_default();
        if there.split_whitespace().any(|known| known == name) {
            return Ok(());
        }
        let expected =
            format!("expected one of those that it has ({}), or try modprobe tcp_{name}", there.trim());
        Err(format!("this kernel has no congestion control {name} for TCP; {expected}"))
    }

    /// Has TCP on every host use a congestion control, such as `cubic`, for connections that are made from now on.
    ///
    /// It is a property of the hosts' routes: a namespace takes as its own setting only what the whole machine allows to every user.
    ///
    /// # Errors
    /// One that the kernel has not, or a command that fails.
    pub fn set_congestion(&self, name: &str) -> Result<(), NetworkError> {
        Self::check_congestion(name)?;
        let subnet = self.topology.subnet;
        for Node { namespace, address, .. } in self.hosts() {
            let route = format!("{subnet} dev {INTERFACE} proto kernel scope link src {address}");
            commands::batch("ip", &namespace, &[format!("route replace {route} congctl {name}")])?;
        }
        Ok(())
    }
}

/// A change that waits for its moment: the programs that make it run already.
#[derive(Debug)]
pub struct Prepared(Vec<Batch>, Option<relay::Question>);

impl Prepared {
    /// Starts programs in their namespaces, for these commands, beside what the relay will be asked.
    fn start<'a>(
        all: impl IntoIterator<Item = (&'static str, &'a str, Vec<String>)>,
        question: Option<relay::Question>,
    ) -> Result<Self, NetworkError> {
        let start = |(program, namespace, lines)| Batch::start(program, namespace, lines);
        Ok(Self(all.into_iter().map(start).collect::<Result<_, _>>()?, question))
    }

    /// Makes the change.
    pub fn go(mut self) -> Result<(), NetworkError> {
        let answer = self.1.map(relay::Question::ask::<()>);
        self.0.iter_mut().for_each(Batch::send);
        self.0.into_iter().try_for_each(Batch::end)?;
        Ok(answer.transpose().map(drop)?)
    }
}

fn nodes(name: &str, topology: &Topology) -> Vec<Node> {
    let groups = topology.groups.iter().enumerate();
    let hosts = groups.flat_map(|(i, group)| group.hosts.iter().map(move |host| (i, group, host)));
    let addresses = (0..).map_while(|i| topology.subnet.address(i));
    let numbered = hosts.zip(addresses).enumerate();
    numbered
        .map(|(i, ((group_index, group, host), address))| Node {
            name: host.name.clone(),
            group: group.name.clone(),
            namespace: format!("{name}.{}", host.name),
            address,
            link: host.link,
            port: format!("port{i}"),
            switch: group.uplink.map_or("core".into(), |_| format!("switch{group_index}")),
        })
        .collect()
}

fn uplinks(topology: &Topology) -> impl Iterator<Item = Uplink> {
    topology.groups.iter().enumerate().filter_map(|(i, group)| {
        Some(Uplink {
            group: group.name.clone(),
            link: group.uplink?,
            port: format!("uplink{i}"),
            switch: format!("switch{i}"),
            core_port: format!("downlink{i}"),
        })
    })
}

/// How links of a network will change, and what carries them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Whether any will delay or lose packets that does neither now. What that takes is made from the beginning.
    pub may_delay: bool,
    /// Whether a process of ours carries packets although the kernel has netem: then it is known which are lost.
    pub by_relay: bool,
    /// Where random numbers start, where a process of ours makes them.
    pub seed: u64,
}

#[cfg(test)]
mod tests;
