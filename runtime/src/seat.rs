//! A worker's seat among the workers of a job: the one place that says who coordinates, and in which epoch.

use gleaner_algorithms::Rank;
use gleaner_transport::Network;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) rank: Rank,
    pub(crate) workers: u32,
    /// The rank that gathers and decides.
    pub(crate) coordinator: Rank,
    /// How often the set of workers has changed: part of the tags of all that belongs to steps and calls.
    pub(crate) epoch: u16,
}

impl Seat {
    /// The rank that coordinates a job that begins.
    pub(crate) const FIRST: Rank = Rank(0);

    /// That of a worker which has joined.
    pub(crate) fn of(network: &dyn Network) -> Self {
        let (rank, workers) = (Rank(network.peer().0), network.workers());
        Self { rank, workers, coordinator: Self::FIRST, epoch: network.epoch() }
    }
}
