//! Which ranks of a job are workers, and which are parameter servers.

use gleaner_transport::Peer;

/// Whether the job goes on when a worker fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It ends on all ranks.
    #[default]
    Stop,
    /// The others go on without it: for jobs whose workers need nothing of each other but what servers have. Without rank 0 or a
    /// server the job ends all the same.
    Continue,
}

/// The parameter servers of a job, beside its workers; the same at all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// How many servers there are.
    pub servers: u32,
    /// Whether they live in the processes of the first workers. Otherwise they have the last ranks.
    pub colocated: bool,
    /// Whether the job goes on when a worker fails.
    pub on_failure: OnFailure,
}

/// Roles among this many ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoleMap {
    /// The number of workers, P. They have the first ranks.
    pub(crate) workers: u32,
    /// The number of workers, and of servers that have ranks of their own.
    pub(crate) ranks: u32,
    pub(crate) roles: Roles,
}

impl RoleMap {
    /// None where no worker is left, or where there are not as many ranks as servers.
    pub(crate) fn new(ranks: u32, roles: Roles) -> Option<Self> {
        let workers = if roles.colocated { ranks } else { ranks.checked_sub(roles.servers)? };
        (workers > 0 && (!roles.colocated || roles.servers <= ranks)).then_some(Self {
            workers,
            ranks,
            roles,
        })
    }

    /// At which rank a server is.
    pub(crate) fn host(&self, server: u32) -> Peer {
        Peer(if self.roles.colocated { server } else { self.workers + server })
    }

    /// Which server is at a rank.
    pub(crate) fn hosted(&self, rank: u32) -> Option<u32> {
        let server = if self.roles.colocated { Some(rank) } else { rank.checked_sub(self.workers) };
        server.filter(|server| *server < self.roles.servers)
    }

    /// Which server a rank is, if it is no worker.
    pub(crate) fn server(&self, rank: u32) -> Option<u32> {
        self.hosted(rank).filter(|_| rank >= self.workers)
    }

    /// Whether one of two ranks is a worker whom the other, as a server, serves: these are linked from the beginning, so that each
    /// notices when the other leaves.
    pub(crate) fn meet(&self, one: u32, other: u32) -> bool {
        let serves = |server: u32, worker: u32| self.hosted(server).is_some() && worker < self.workers;
        one != other && (serves(one, other) || serves(other, one))
    }

    /// Whether the others go on without a rank that has failed.
    pub(crate) fn drops(&self, rank: u32) -> bool {
        let is_dispensable = rank > 0 && rank < self.workers && self.hosted(rank).is_none();
        is_dispensable && self.roles.on_failure == OnFailure::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_the_last_ranks_or_those_of_the_first_workers() {
        let roles = Roles { servers: 2, ..Roles::default() };
        let apart = RoleMap::new(5, roles).unwrap();
        assert_eq!((apart.workers, apart.ranks), (3, 5));
        assert_eq!(
            (0..5).map(|rank| apart.server(rank)).collect::<Vec<_>>(),
            [None, None, None, Some(0), Some(1)]
        );
        assert_eq!([0, 1].map(|server| apart.host(server)), [Peer(3), Peer(4)]);
        let together = RoleMap::new(5, Roles { colocated: true, ..roles }).unwrap();
        assert_eq!((together.workers, together.ranks), (5, 5));
        assert_eq!(
            (0..5).map(|rank| together.hosted(rank)).collect::<Vec<_>>(),
            [Some(0), Some(1), None, None, None]
        );
        assert!((0..5).all(|rank| together.server(rank).is_none()));
        assert!(
            RoleMap::new(2, roles).is_none() && RoleMap::new(1, Roles { colocated: true, ..roles }).is_none()
        );
    }

    #[test]
    fn only_a_worker_that_no_other_needs_is_dropped() {
        let roles = Roles { servers: 1, colocated: false, on_failure: OnFailure::Continue };
        let dropped =
            |roles| (0..4).filter(|&rank| RoleMap::new(4, roles).unwrap().drops(rank)).collect::<Vec<_>>();
        assert_eq!(dropped(roles), [1, 2]);
        assert_eq!(dropped(Roles { colocated: true, servers: 2, ..roles }), [2, 3]);
        assert!(dropped(Roles { on_failure: OnFailure::Stop, ..roles }).is_empty());
    }
}
