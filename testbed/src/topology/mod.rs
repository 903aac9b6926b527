//! What a network looks like: hosts in groups, the link of each host, and the core that joins the groups.
//!
//! Every host is attached to a switch by its link. A group with an uplink has a switch of its own, which that uplink joins to the
//! core; hosts of a group without one are attached to the core itself.

mod link;
mod subnet;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use link::{Link, Loss, Shape};
pub use subnet::Subnet;

use link::Parts;

/// The kernel gives a bridge so many ports at most.
const PORTS: usize = 1023;

/// Names may be so long: a name of a file holds that of the network and that of the host.
const LONGEST_NAME: usize = 63;

/// Hosts in groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// The addresses of the hosts, counted up in their order.
    pub subnet: Subnet,
    /// The groups.
    pub groups: Vec<Group>,
}

/// Hosts that belong together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// What it is called.
    pub name: String,
    /// The link of its switch to the core; without one, its hosts are attached to the core itself.
    pub uplink: Option<Link>,
    /// Its hosts.
    pub hosts: Vec<Host>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// What it is called.
    pub name: String,
    /// Its link to its switch.
    pub link: Link,
}

impl Topology {
    /// So many hosts with equal links on one switch, called host0, host1, ….
    pub fn uniform(hosts: usize, subnet: Subnet, link: Link) -> Result<Self, String> {
        // Before a name is made for each.
        fits(hosts, subnet)?;
        let hosts = (0..hosts).map(|i| Host { name: format!("host{i}"), link }).collect();
        let topology = Self { subnet, groups: vec![Group { name: "host".into(), uplink: None, hosts }] };
        topology.check()?;
        Ok(topology)
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = fs::read_to_string(path);
        let text = text.map_err(|error| format!("the topology {shown} cannot be read: {error}"))?;
        Self::parse(&text).map_err(|error| format!("the topology {shown} is not understood: {error}"))
    }

    /// Reads the text of a file, and checks it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let topology = file.resolve()?;
        topology.check()?;
        Ok(topology)
    }

    /// All hosts in the order of their addresses, which is that of the ranks.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.groups.iter().flat_map(|group| &group.hosts)
    }

    /// The link of a host, to be changed.
    pub fn link_mut(&mut self, host: &str) -> Result<&mut Link, String> {
        let unknown = self.unknown("host", host);
        let mut hosts = self.groups.iter_mut().flat_map(|group| &mut group.hosts);
        hosts.find(|there| there.name == host).map(|host| &mut host.link).ok_or(unknown)
    }

    /// Whether any link does more than limit the rate.
    pub fn delays_or_loses(&self) -> bool {
        self.shapes().any(Shape::delays_or_loses)
    }

    /// Every direction of every link.
    pub fn shapes(&self) -> impl Iterator<Item = &Shape> {
        let uplinks = self.groups.iter().filter_map(|group| group.uplink.as_ref());
        uplinks.chain(self.hosts().map(|host| &host.link)).flat_map(Link::directions)
    }

    /// Refuses what cannot be emulated.
    pub fn check(&self) -> Result<(), String> {
        let hosts = self.hosts().count();
        if hosts == 0 {
            let none = "there is no host in it; expected at least one, such as a [[group]] with hosts = 6";
            return Err(none.to_owned());
        }
        fits(hosts, self.subnet)?;
        different("groups", self.groups.iter().map(|group| group.name.as_str()))?;
        different("hosts", self.hosts().map(|host| host.name.as_str()))?;
        let on_core = |group: &Group| if group.uplink.is_some() { 1 } else { group.hosts.len() };
        let on_own = |group: &Group| if group.uplink.is_some() { group.hosts.len() + 1 } else { 0 };
        let of_groups = self.groups.iter().map(on_own);
        let ports = of_groups.chain([self.groups.iter().map(on_core).sum()]).max().unwrap_or(0);
        if ports > PORTS {
            return Err(format!(
                "{ports} links end at one switch, and a bridge of the kernel has {PORTS} ports; expected several groups with uplinks"
            ));
        }
        let links = self.groups.iter().filter_map(|group| Some((&group.name, group.uplink.as_ref()?)));
        for (name, link) in links.chain(self.hosts().map(|host| (&host.name, &host.link))) {
            for shape in link.directions() {
                shape.check().map_err(|error| format!("the link of {name}: {error}"))?;
            }
        }
        Ok(())
    }

    pub(crate) fn unknown(&self, what: &str, name: &str) -> String {
        let there: Vec<&str> = match what {
            "host" => self.hosts().map(|host| host.name.as_str()).collect(),
            _ => self.groups.iter().map(|group| group.name.as_str()).collect(),
        };
        format!("there is no {what} {name}; there are {}", there.join(", "))
    }
}

/// A name of a network, from the command line.
///
/// # Errors
/// A name that cannot be part of a namespace's, with what was expected.
pub fn name(name: &str) -> Result<String, String> {
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if begins && name.chars().all(plain) && name.len() <= LONGEST_NAME {
        Ok(name.to_owned())
    } else {
        let expected = "expected letters, digits, '-' and '_', the first one a letter or a digit";
        Err(format!("'{name}' cannot be a name; {expected}, at most {LONGEST_NAME} of them"))
    }
}

fn fits(hosts: usize, subnet: Subnet) -> Result<(), String> {
    let larger = if subnet.prefix() > 16 { "10.77.0.0/16" } else { "10.0.0.0/8" };
    let room = subnet.hosts();
    if hosts <= room {
        return Ok(());
    }
    let expected = format!("expected a larger subnet, such as {larger}");
    Err(format!("{hosts} hosts do not fit into {subnet}, which has addresses for {room}; {expected}"))
}

fn different<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = HashSet::new();
    for one in names {
        name(one)?;
        if !seen.insert(one) {
            return Err(format!("two {what} are called {one}; expected different names"));
        }
    }
    Ok(())
}

/// A topology as a file gives it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    subnet: Subnet,
    /// What links have that say nothing else.
    #[serde(default)]
    link: Parts,
    #[serde(default)]
    group: Vec<FileGroup>,
    /// Links of single hosts.
    #[serde(default)]
    host: BTreeMap<String, Parts>,
    /// The links of groups to the core.
    #[serde(default)]
    uplink: BTreeMap<String, Parts>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileGroup {
    name: String,
    hosts: Hosts,
    #[serde(default)]
    link: Parts,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a number of hosts, or a list of their names")]
enum Hosts {
    Count(usize),
    Names(Vec<String>),
}

impl File {
    fn resolve(self) -> Result<Topology, String> {
        // Before a name is made for each.
        let count = |group: &FileGroup| match &group.hosts {
            Hosts::Count(count) => *count,
            Hosts::Names(names) => names.len(),
        };
        fits(self.group.iter().map(count).fold(0, usize::saturating_add), self.subnet)?;
        let default = self.link.over(Link::default());
        let group = |group: FileGroup| {
            let link = group.link.over(default);
            let names = match group.hosts {
                Hosts::Count(count) => (0..count).map(|i| format!("{}{i}", group.name)).collect(),
                Hosts::Names(names) => names,
            };
            let hosts = names.into_iter().map(|name| Host { name, link }).collect();
            Group { uplink: None, name: group.name, hosts }
        };
        let groups = self.group.into_iter().map(group).collect();
        let mut topology = Topology { subnet: self.subnet, groups };
        for (name, parts) in self.host {
            let link = topology.link_mut(&name)?;
            *link = parts.over(*link);
        }
        for (name, parts) in self.uplink {
            let unknown = topology.unknown("group", &name);
            let group = topology.groups.iter_mut().find(|group| group.name == name).ok_or(unknown)?;
            // Not from [link]: that is about hosts, and a core as slow as one host is seldom meant.
            group.uplink = Some(parts.over(Link::default()));
        }
        Ok(topology)
    }
}

#[cfg(test)]
mod tests;
