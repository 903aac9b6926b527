//! How much can go to the background in the time of a pass: OSP, equation 5, and what takes its place beyond one server.

use std::time::Duration;

/// The most entries, of a model of so many, whose exchange takes no longer than a pass; `seconds` never falls as entries grow.
/// For servers [`Cluster::seconds`] gives it, for an all-reduce [its schedule's cost](crate::schedule::Cost::time). U_max is
/// this, or the [cap](super::Osp::most) where that is less.
///
/// ```
/// use std::time::Duration;
/// use gleaner_algorithms::synchrony::osp::{self, Cluster, Link};
///
/// // Eight workers and one server at 1 Gbit/s, and passes of 0.8 s. Equation 5: 125 MB/s · 0.8 s / 8 = 12.5 MB.
/// let link = Link { bytes_per_second: 125e6, loss: 0.0 };
/// let cluster = Cluster { workers: vec![link; 8], servers: vec![link], ..Cluster::default() };
/// let most = osp::most(25_600_000, Duration::from_millis(800), |entries| cluster.seconds(4.0 * entries as f64));
/// assert!((most as f64 * 4.0 - 12.5e6).abs() < 8.0);
/// ```
pub fn most(entries: usize, pass: Duration, seconds: impl Fn(usize) -> f64) -> usize {
    let fits = |entries: usize| seconds(entries) <= pass.as_secs_f64();
    if fits(entries) {
        return entries;
    }
    // What fits, or nothing, and what does not.
    let (mut low, mut high) = (0, entries);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// A link, as it was measured; the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Its rate in one direction, b.
    pub bytes_per_second: f64,
    /// The share that is lost and sent again, lr; equation 5 prints 1 + lr, by which a lossier link would allow more.
    pub loss: f64,
}

impl Link {
    /// b (1 − lr).
    fn rate(self) -> f64 {
        self.bytes_per_second * (1.0 - self.loss)
    }
}

/// Workers and servers, and the links between them. Each server has an even share of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    /// The links of the workers, by rank.
    pub workers: Vec<Link>,
    /// The links of the servers. Where they are [co-located](Self::colocated), they share those of the first workers, and these
    /// count.
    pub servers: Vec<Link>,
    /// Whether each server is on the host of the worker of the same number.
    pub colocated: bool,
    /// Whether what is pulled travels only once all is pushed, as it does where a server applies a stage as a whole. If not,
    /// pulls run beside pushes in the other direction of the links, which is what equation 5 counts.
    pub in_turn: bool,
    /// From one end of a link to the other; equation 5 leaves it out.
    pub latency: Duration,
}

impl Cluster {
    /// How long it takes until every worker has pushed this many bytes and has pulled as many.
    ///
    /// A link is busy for what runs over it in one direction, by its rate. With N workers and S servers, of B bytes each:
    ///
    /// | link | pushes | pulls |
    /// |---|---|---|
    /// | of a worker | B out | B in |
    /// | of a server | N·B/S in | N·B/S out |
    /// | of a worker that hosts a server | B·(S − 1)/S out, (N − 1)·B/S in | the same the other way round |
    ///
    /// The busiest decides, of links that differ the one that takes longest. One server and equal links: N·B/(b (1 − lr)),
    /// equation 5.
    pub fn seconds(&self, bytes: f64) -> f64 {
        let (workers, servers) = (self.workers.len() as f64, self.servers.len().max(1) as f64);
        let times = |link: &Link, load: f64| if load > 0.0 { load / link.rate() } else { 0.0 };
        let hosts = if self.colocated { self.servers.len() } else { 0 };
        let apart = self.workers.iter().skip(hosts).map(|link| (link, bytes, 0.0));
        let serving = self.servers.iter().skip(hosts).map(|link| (link, workers * bytes / servers, 0.0));
        let (out, into) = (bytes * (servers - 1.0) / servers, bytes * (workers - 1.0) / servers);
        let both = self.workers.iter().take(hosts).map(|link| (link, out, into));
        let busy = apart.chain(serving).chain(both).map(|(link, one, other): (&Link, f64, f64)| {
            // Of a host with a worker and a server both directions are used by pushes, and by pulls the other way round.
            if self.in_turn { 2.0 * times(link, one.max(other)) } else { times(link, one + other) }
        });
        let turns = if self.in_turn { 2.0 } else { 1.0 };
        busy.fold(0.0, f64::max) + turns * self.latency.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FAST: Link = Link { bytes_per_second: 100.0, loss: 0.0 };

    fn cluster(workers: usize, servers: usize) -> Cluster {
        Cluster { workers: vec![FAST; workers], servers: vec![FAST; servers], ..Cluster::default() }
    }

    #[test]
    fn one_server_is_equation_5() {
        let lossy = Link { bytes_per_second: 125e6, loss: 0.02 };
        let cluster = Cluster { workers: vec![lossy; 8], servers: vec![lossy], ..Cluster::default() };
        let pass = Duration::from_millis(640);
        let most = most(100_000_000, pass, |entries| cluster.seconds(4.0 * entries as f64));
        let equation = 125e6 * (1.0 - 0.02) * 0.64 / 8.0;
        assert!((most as f64 * 4.0 - equation).abs() < 8.0, "{most}");
        // A lossier link allows less.
        let lossier = Link { loss: 0.5, ..lossy };
        assert!(Cluster { servers: vec![lossier], ..cluster.clone() }.seconds(1.0) > cluster.seconds(1.0));
    }

    #[test]
    fn several_servers_by_hand() {
        // 8 · 100 / 4 bytes into each server.
        assert_eq!(cluster(8, 4).seconds(100.0), 2.0);
        // As many servers as workers or more: the workers' own links.
        assert_eq!((cluster(8, 8).seconds(100.0), cluster(8, 16).seconds(100.0)), (1.0, 1.0));
        // Each host has 7 pushes and 7 pulls of an eighth in either direction.
        let colocated = Cluster { colocated: true, ..cluster(8, 8) };
        assert_eq!(colocated.seconds(100.0), 2.0 * 100.0 * 7.0 / 8.0 / 100.0);
        // One server with its worker: seven push, and its own part stays.
        assert_eq!(Cluster { colocated: true, ..cluster(8, 1) }.seconds(100.0), 7.0);
        assert_eq!(Cluster { colocated: true, ..cluster(1, 1) }.seconds(100.0), 0.0);
        // Pulls after pushes.
        let in_turn = Cluster { in_turn: true, latency: Duration::from_secs(3), ..cluster(8, 4) };
        assert_eq!(in_turn.seconds(100.0), 2.0 * (2.0 + 3.0));
        assert_eq!(Cluster { in_turn: true, ..colocated }.seconds(100.0), 2.0 * 100.0 * 7.0 / 8.0 / 100.0);
    }

    #[test]
    fn the_slowest_link_decides() {
        let mut cluster = cluster(4, 2);
        assert_eq!(cluster.seconds(100.0), 2.0);
        cluster.workers[3].bytes_per_second = 10.0;
        assert_eq!(cluster.seconds(100.0), 10.0);
        cluster.servers[1].bytes_per_second = 5.0;
        assert_eq!(cluster.seconds(100.0), 40.0);
        cluster.servers[1].bytes_per_second = 0.0;
        assert_eq!(most(1000, Duration::from_secs(1), |entries| cluster.seconds(entries as f64)), 0);
    }

    proptest! {
        #[test]
        fn the_most_is_the_most(entries in 0usize..5000, steps in prop::collection::vec((0usize..5000, 0u32..50), 0..6), pass in 0u32..200) {
            // Any staircase: what an all-reduce takes jumps where a block has one entry more.
            let seconds = |n: usize| steps.iter().filter(|(at, _)| n > *at).map(|&(_, height)| f64::from(height)).sum::<f64>();
            let most = most(entries, Duration::from_secs(pass.into()), seconds);
            prop_assert!(most <= entries && seconds(most) <= f64::from(pass));
            prop_assert!(most == entries || seconds(most + 1) > f64::from(pass));
        }
    }
}
