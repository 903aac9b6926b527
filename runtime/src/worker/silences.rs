//! Links without a sign of life, here or elsewhere: which ranks are told, and how long this rank waits for the coordinator's verdict.

use std::time::Instant;

use gleaner_transport::Peer;

use super::{Action, Worker};
use crate::silence::Silence;
use crate::tag::Topic;

impl Worker {
    /// A link of this worker has fallen silent. Either end of it may be the cause, and the other end may think that it is
    /// this one, so one rank judges for all.
    pub(super) fn fall_silent(&mut self, peer: Peer, now: Instant) {
        if self.is_ending() || self.silence.is_some() || self.is_dropped(peer) {
            return;
        }
        let silence = Silence { at: self.rank, from: peer.0 };
        self.tell_of(silence);
        // A rank that is not the judge gives the verdict time to come.
        let pause = if self.rank == self.coordinator { self.hearing() } else { 3 * self.hearing() };
        self.silence = Some((silence, now + pause));
    }

    /// A link of another rank has fallen silent.
    pub(super) fn told(&mut self, silence: Silence, now: Instant) {
        let is_over = [silence.at, silence.from].into_iter().any(|rank| self.is_dropped(Peer(rank)));
        if self.is_ending() || is_over {
            return;
        }
        self.tell_of(silence);
        if self.rank == self.coordinator && self.silence.is_none() {
            self.silence = Some((silence, now + self.hearing()));
        }
    }

    fn tell_of(&mut self, silence: Silence) {
        if !self.told_of.insert(silence.at) {
            return;
        }
        for rank in silence.confidants(self.rank, self.role_map.ranks, self.coordinator) {
            if self.is_dropped(Peer(rank)) {
                continue;
            }
            self.actions.push(Action::Send(Peer(rank), Topic::Silence, silence.encode()));
        }
    }
}
