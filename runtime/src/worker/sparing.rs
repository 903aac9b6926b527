//! Going on without a worker that failed, where the job can.
//!
//! Whoever would make a failure of the job of it ends its link, tells all others, and goes on; who is told does the same. The one that failed is
//! told too, if it still hears, and ends.

use gleaner_transport::Peer;

use super::{Action, Tie, Worker};
use crate::failure::Failure;
use crate::tag::Topic;

impl Worker {
    /// Whether it goes on without a rank that has failed. It does not go on without itself.
    pub(super) fn spares(&mut self, failure: &Failure) -> bool {
        let peer = Peer(failure.rank);
        if failure.rank == self.rank || !self.cast.spares(failure.rank) {
            return false;
        }
        if self.is_ending() || self.is_spared(peer) {
            return true;
        }
        self.spared.insert(peer, failure.clone());
        self.suspected.take_if(|(suspected, _)| suspected.rank == failure.rank);
        self.silence.take_if(|(silence, _)| [silence.at, silence.from].contains(&failure.rank));
        let news = serde_json::to_vec(failure).unwrap_or_default();
        for other in self.present() {
            self.actions.push(Action::Send(other, Topic::Spared, news.clone()));
        }
        if self.ties.get(&peer).is_some_and(|tie| tie.is_up) {
            self.turn_away(peer);
        }
        self.ties.insert(peer, Tie { has_left: true, is_written: true, has_all: true, ..Tie::default() });
        self.actions.push(Action::Spare(failure.clone()));
        true
    }

    /// All peers but those.
    pub(super) fn present(&self) -> Vec<Peer> {
        self.peers().into_iter().filter(|peer| !self.is_spared(*peer)).collect()
    }

    /// Whether this rank goes on without a peer that failed.
    pub(super) fn is_spared(&self, peer: Peer) -> bool {
        self.spared.contains_key(&peer)
    }

    /// Tells a peer that the others go on without it, and hears no more of it.
    pub(super) fn turn_away(&mut self, peer: Peer) {
        if let Some(failure) = self.spared.get(&peer).cloned() {
            self.tell(peer, &failure);
            self.actions.extend([Action::Close(peer), Action::Ignore(peer)]);
        }
    }
}
