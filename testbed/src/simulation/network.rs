//! The network and the hosts that a step is simulated on.

use std::collections::HashSet;
use std::time::Duration;

use crate::topology::{self, Shape, Topology};

/// A link in one direction: a bucket of `burst` bytes that fills at a rate, as `tc tbf` shapes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes per second, of headers and payload.
    pub rate: f64,
    /// Bytes that pass at once after a pause.
    pub burst: f64,
    /// Seconds from one end to the other.
    pub latency: f64,
    /// The share of segments that it loses.
    pub loss: f64,
}

impl Link {
    /// A link that is shaped like this, and carries at once what it can in the time `burst`.
    pub fn of_shape(shape: &Shape, burst: Duration) -> Self {
        let rate = shape.rate.map_or(f64::INFINITY, |rate| rate.bytes_per_second());
        let burst = if rate.is_finite() { rate * burst.as_secs_f64() } else { 0.0 };
        Self { rate, burst, latency: shape.delay.as_secs_f64(), loss: shape.loss.share() }
    }
}

/// Where a worker runs, and by which links it is reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// By how many times its processors are slower.
    pub slow: f64,
    /// Which pool of cores it uses, as a position in [`Network::pools`].
    pub pool: usize,
    /// From the host to the core, as positions in [`Network::links`].
    pub up: Vec<usize>,
    /// From the core to the host.
    pub down: Vec<usize>,
    /// Hosts of one group reach each other by their first link up and their last one down alone.
    pub group: usize,
}

/// Everything but the machine and what the workers do.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// By rank.
    pub hosts: Vec<Host>,
    /// In whatever order.
    pub links: Vec<Link>,
    /// Cores in each pool.
    pub pools: Vec<f64>,
    /// Where the chances of loss start.
    pub seed: u64,
}

impl Network {
    /// Equal hosts at one switch, each with such a link in both directions. Each has so many cores, or all of them are on one
    /// machine with so many.
    pub fn star(workers: u32, link: Link, cores: f64, shared: bool) -> Self {
        let host = |rank: usize| Host {
            slow: 1.0,
            pool: if shared { 0 } else { rank },
            up: vec![2 * rank],
            down: vec![2 * rank + 1],
            group: 0,
        };
        Self {
            hosts: (0..workers as usize).map(host).collect(),
            links: vec![link; 2 * workers as usize],
            pools: vec![cores; if shared { 1 } else { workers as usize }],
            seed: 1,
        }
    }

    /// Whether anything is sampled at random: who begins first on shared cores, or what is lost.
    pub fn is_random(&self) -> bool {
        self.pools.len() < self.hosts.len() || self.links.iter().any(|link| link.loss > 0.0)
    }

    /// How many workers compute at once where they share cores; one where each has its own.
    pub fn at_once(&self) -> u32 {
        let workers = self.hosts.len() as f64;
        let shared = self.pools.len() < self.hosts.len();
        if shared { self.pools.iter().sum::<f64>().ceil().clamp(1.0, workers) as u32 } else { 1 }
    }

    /// The hosts of a topology, in its order. A shaped link lets through at once what it carries in the time `burst`.
    /// Jitter is left out: it lengthens as much as it shortens.
    pub fn of_topology(topology: &Topology, burst: Duration, cores: f64, shared: bool) -> Self {
        let mut links = Vec::new();
        let mut add = |link: topology::Link| {
            links.extend(link.directions().map(|shape| Link::of_shape(shape, burst)));
            (links.len() - 2, links.len() - 1)
        };
        let mut hosts = Vec::new();
        for (group, members) in topology.groups.iter().enumerate() {
            let uplink = members.uplink.map(&mut add);
            // Hosts without an uplink of their own group are attached to the core, which joins them at once.
            for member in &members.hosts {
                let (up, down) = add(member.link);
                hosts.push(Host {
                    slow: 1.0,
                    pool: if shared { 0 } else { hosts.len() },
                    up: std::iter::once(up).chain(uplink.map(|(up, _)| up)).collect(),
                    down: uplink.map(|(_, down)| down).into_iter().chain([down]).collect(),
                    group,
                });
            }
        }
        let pools = vec![cores; if shared { 1 } else { hosts.len() }];
        Self { hosts, links, pools, seed: 1 }
    }

    /// One host in place of all (symmetry reduction), if they are equal, have cores of their own, are joined by their own links alone, and lose
    /// nothing.
    pub fn one_of_equals(&self) -> Option<Self> {
        let first = self.hosts.first()?;
        let link = |path: &[usize]| match path {
            [link] => Some(self.links[*link]),
            _ => None,
        };
        let of = |host: &Host| Some((host.slow, self.pools[host.pool], link(&host.up)?, link(&host.down)?));
        let (slow, cores, up, down) = of(first)?;
        let pools: HashSet<usize> = self.hosts.iter().map(|host| host.pool).collect();
        let equal = pools.len() == self.hosts.len() && self.hosts.iter().all(|host| of(host) == of(first));
        let host = Host { slow, pool: 0, up: vec![0], down: vec![1], group: 0 };
        (equal && up.loss == 0.0 && down.loss == 0.0).then(|| Self {
            hosts: vec![host],
            links: vec![up, down],
            pools: vec![cores],
            seed: self.seed,
        })
    }

    /// The link that a message from one rank to another takes at its n-th hop, if there is one.
    pub fn hop(&self, from: usize, to: usize, hop: usize) -> Option<usize> {
        let (from, to) = (&self.hosts[from], &self.hosts[to]);
        if from.group == to.group {
            return from.up.first().into_iter().chain(to.down.last()).nth(hop).copied();
        }
        from.up.iter().chain(&to.down).nth(hop).copied()
    }
}
