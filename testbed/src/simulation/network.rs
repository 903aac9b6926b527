//! The network and the hosts that a step is simulated on.

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
    /// Equal hosts at one switch, each with so many cores, or all of them on one machine with so many.
    pub fn star(workers: u32, link: Link, cores: f64, shared: bool) -> Self {
        let host = |rank: usize| Host {
            slow: 1.0,
            pool: if shared { 0 } else { rank },
            up: vec![2 * rank],
            down: vec![2 * rank + 1],
            group: 0,
        };
        // The latency is between two hosts: it counts once.
        let down = Link { latency: 0.0, loss: 0.0, ..link };
        Self {
            hosts: (0..workers as usize).map(host).collect(),
            links: (0..workers).flat_map(|_| [link, down]).collect(),
            pools: vec![cores; if shared { 1 } else { workers as usize }],
            seed: 1,
        }
    }

    /// The link that a message from one rank to another takes as its so-manieth, if there is one.
    pub fn hop(&self, from: usize, to: usize, hop: usize) -> Option<usize> {
        let (from, to) = (&self.hosts[from], &self.hosts[to]);
        if from.group == to.group {
            return match hop {
                0 => from.up.first().copied(),
                1 => to.down.last().copied(),
                _ => None,
            };
        }
        from.up.iter().chain(&to.down).nth(hop).copied()
    }
}
