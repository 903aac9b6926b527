//! Going on without a worker that failed, where the job can.
//!
//! The rank that detects the failure closes its link, notifies all others, and goes on; each of them does the same. The failed worker is notified too,
//! if it can still receive, and ends.

use gleaner_transport::Peer;

use super::{Action, Tie, Worker};
use crate::failure::Failure;
use crate::tag::Topic;

impl Worker {
    /// Whether it goes on without a rank that has failed. It does not go on without itself.
    pub(super) fn drops(&mut self, failure: &Failure) -> bool {
        let peer = Peer(failure.rank);
        if failure.rank == self.rank || !self.role_map.drops(failure.rank) {
            return false;
        }
        if self.is_ending() || self.is_dropped(peer) {
            return true;
        }
        self.dropped.insert(peer, failure.clone());
        self.suspected.take_if(|(suspected, _)| suspected.rank == failure.rank);
        if let Some((silences, _)) = &mut self.silence {
            silences.retain(|silence| !silence.has(failure.rank));
        }
        self.silence.take_if(|(silences, _)| silences.is_empty());
        let news = serde_json::to_vec(failure).unwrap_or_default();
        for other in self.present() {
            self.actions.push(Action::Send(other, Topic::Dropped, news.clone()));
        }
        if self.ties.get(&peer).is_some_and(|tie| tie.is_up) {
            self.turn_away(peer);
        }
        self.ties.insert(peer, Tie { has_left: true, is_written: true, has_all: true, ..Tie::default() });
        self.actions.push(Action::Drop(failure.clone()));
        true
    }

    /// All peers but those.
    pub(super) fn present(&self) -> Vec<Peer> {
        self.peers().into_iter().filter(|peer| !self.is_dropped(*peer)).collect()
    }

    /// Whether this rank goes on without a peer that failed.
    pub(super) fn is_dropped(&self, peer: Peer) -> bool {
        self.dropped.contains_key(&peer)
    }

    /// Notifies a peer that the others go on without it, and reads no more from it.
    pub(super) fn turn_away(&mut self, peer: Peer) {
        if let Some(failure) = self.dropped.get(&peer).cloned() {
            self.tell(peer, &failure);
            self.actions.extend([Action::Close(peer), Action::Ignore(peer)]);
        }
    }
}
