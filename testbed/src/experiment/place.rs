//! Where jobs run: on the loopback, or on an emulated network that is reshaped from job to job.

use std::collections::BTreeSet;

use gleaner_runtime::launcher::Host;
use serde_json::Value;

use super::Wanted;
use super::case::Case;
use super::chaos::Properties;
use crate::Error;
use crate::network::{Changes, Crossed, Kernel, Network, Node};
use crate::record::Traffic;
use crate::topology::{Link, Shape, Subnet, Topology};

/// The command that reaches an emulated host.
pub(super) const AGENT: [&str; 3] = ["ip", "netns", "exec"];

/// A place with workers' hosts: emulated ones, or none but this machine.
pub struct Place(Option<Emulated>);

/// Emulated hosts, and what they are like.
struct Emulated {
    network: Network,
    hosts: Vec<Node>,
    /// Each host's link without chaos.
    links: Vec<Link>,
    /// The hosts whose links differ from it now.
    reshaped: BTreeSet<usize>,
    cut: Vec<usize>,
    /// TCP's congestion control on all hosts, if a case has said it.
    congestion: Option<String>,
    /// Whether cases say what links are like; a topology does by itself.
    uniform: bool,
}

impl Place {
    /// Brings it up for these cases, with links as the first of them has them. What any of them needs and is not here is
    /// refused before anything is made.
    pub fn up<'a>(
        wanted: &Wanted,
        cases: impl Iterator<Item = &'a Case> + Clone,
        name: &str,
        replace: bool,
    ) -> Result<Self, Error> {
        let topologies = match wanted {
            Wanted::Loopback => return Ok(Self(None)),
            Wanted::Uniform(hosts) => cases
                .clone()
                .map(|case| Ok(Topology::uniform(*hosts as usize, Subnet::default(), link(case)?)?))
                .collect::<Result<Vec<_>, Error>>()?,
            Wanted::Topology(file) => vec![Topology::read(file)?],
        };
        let kernel = Kernel::offers()?;
        topologies.iter().try_for_each(|topology| kernel.suffices(topology))?;
        cases.clone().filter_map(Case::congestion).try_for_each(Network::check_congestion)?;
        let Some(first) = topologies.first() else { return Ok(Self(None)) };
        let (workers, hosts) = (cases.map(Case::hosts).max().unwrap_or(1), first.hosts().count());
        if workers as usize > hosts {
            return Err(too_few(workers, hosts));
        }
        let may_delay = topologies.iter().any(Topology::delays_or_loses);
        let network = Network::up(first, name, replace, Changes { may_delay, ..Changes::default() })?;
        let hosts = network.hosts();
        let links = hosts.iter().map(|host| host.link).collect();
        let uniform = matches!(wanted, Wanted::Uniform(_));
        let (reshaped, cut, congestion) = Default::default();
        Ok(Self(Some(Emulated { network, hosts, links, reshaped, cut, congestion, uniform })))
    }

    pub fn down(self) -> Result<(), Error> {
        Ok(self.0.map_or(Ok(()), |emulated| emulated.network.down())?)
    }

    /// The first hosts, as the launcher has them; none on the loopback.
    pub fn hosts(&self, count: u32) -> Vec<Host> {
        let host =
            |node: &Node| Host { address: Some(node.address.to_string()), ..Host::new(&node.namespace) };
        self.0.iter().flat_map(|emulated| &emulated.hosts).take(count as usize).map(host).collect()
    }

    /// Gives the links what this case says.
    pub fn shape(&mut self, case: &Case) -> Result<(), Error> {
        let Some(emulated) = self.0.as_mut().filter(|emulated| emulated.uniform) else { return Ok(()) };
        if let Some(name) = case.congestion()
            && emulated.congestion.as_deref() != Some(name)
        {
            emulated.network.set_congestion(name)?;
            emulated.congestion = Some(name.to_owned());
        }
        let link = link(case)?;
        for host in 0..emulated.hosts.len() {
            if emulated.links[host] != link {
                emulated.network.set_link(&emulated.hosts[host].name, link)?;
                emulated.links[host] = link;
            }
        }
        Ok(())
    }

    /// What each of the first hosts has received and sent so far.
    pub fn traffic(&self, count: u32) -> Result<Vec<Traffic>, Error> {
        let Some(emulated) = &self.0 else { return Ok(Vec::new()) };
        let traffic = |node: &Node| {
            let counters = emulated.network.counters(&node.name)?;
            Ok(Traffic { host: node.name.clone(), received: counters.received, sent: counters.sent })
        };
        emulated.hosts.iter().take(count as usize).map(traffic).collect()
    }

    /// What has crossed all links so far, if a process of ours relays packets.
    pub fn crossed(&self) -> Result<Option<Crossed>, String> {
        self.0.as_ref().map_or(Ok(None), |emulated| emulated.network.crossed())
    }

    /// Cuts one host's link, or joins it again.
    pub fn plug(&mut self, host: u32, is_in: bool) -> Result<(), Error> {
        let (emulated, host) = self.host(host)?;
        emulated.network.plug(&emulated.hosts[host].name, is_in)?.go()?;
        emulated.cut.retain(|cut| *cut != host);
        emulated.cut.extend((!is_in).then_some(host));
        Ok(())
    }

    /// Gives one host's link other properties; what is not said is as the case has it.
    pub fn reshape(&mut self, host: u32, properties: &Properties) -> Result<(), Error> {
        let (emulated, host) = self.host(host)?;
        let Link { up, down } = emulated.links[host];
        let text = |name: &str| properties.get(name).map(String::as_str);
        let link = Link { up: up.with(text)?, down: down.with(text)? };
        emulated.network.set_link(&emulated.hosts[host].name, link)?;
        emulated.reshaped.insert(host);
        Ok(())
    }

    /// Undoes what was done to single hosts.
    pub fn restore(&mut self) -> Result<(), Error> {
        let Some(emulated) = &mut self.0 else { return Ok(()) };
        while let Some(host) = emulated.cut.last() {
            emulated.network.plug(&emulated.hosts[*host].name, true)?.go()?;
            emulated.cut.pop();
        }
        while let Some(host) = emulated.reshaped.first() {
            emulated.network.set_link(&emulated.hosts[*host].name, emulated.links[*host])?;
            emulated.reshaped.pop_first();
        }
        Ok(())
    }

    /// A host that is there: the file was checked against the cases, and these against the hosts.
    fn host(&mut self, host: u32) -> Result<(&mut Emulated, usize), Error> {
        const NONE: &str = "there is no emulated network here; write a [network] into the experiment's file";
        let emulated = self.0.as_mut().ok_or(NONE)?;
        let hosts = emulated.hosts.len();
        if host as usize >= hosts { Err(too_few(host + 1, hosts)) } else { Ok((emulated, host as usize)) }
    }
}

/// What is said of a case with more workers than hosts.
fn too_few(workers: u32, hosts: usize) -> Error {
    let advice = "add hosts to it, or leave that case out";
    format!("a case has {workers} workers, and the topology has {hosts} hosts; {advice}").into()
}

/// The link that a case asks for, the same in both directions.
fn link(case: &Case) -> Result<Link, Error> {
    let text = |name: &str| case.0.get(name).and_then(Value::as_str);
    Ok(Link::both(Shape::default().with(text)?))
}
