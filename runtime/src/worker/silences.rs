//! Links without a heartbeat, here or elsewhere: which ranks are notified, how long this rank waits for the coordinator's decision, and its
//! own.

use std::time::Instant;

use gleaner_transport::Peer;

use super::{Action, Tie, Worker};
use crate::failure::Failure;
use crate::silence::{self, Hearing, Silence};
use crate::tag::Topic;

impl Worker {
    /// A link of this worker has fallen silent. Either end of it may be the cause, and the other end may think that it is
    /// this one, so one rank decides for all. Other links that have been silent for half the timeout are reported to it, too: what they have in
    /// common is perhaps this worker.
    pub(super) fn fall_silent(&mut self, peer: Peer, now: Instant) {
        if self.is_ending() || self.silence.is_some() || self.is_dropped(peer) {
            return;
        }
        let others = self.ties.iter().filter(|(other, tie)| **other != peer && self.is_quiet(tie, now));
        let others: Vec<Peer> = others.map(|(other, _)| *other).collect();
        let silences: Vec<Silence> = [peer]
            .into_iter()
            .chain(others)
            .filter(|peer| !self.is_dropped(*peer))
            .map(|peer| Silence { at: self.rank, from: peer.0 })
            .collect();
        silences.iter().for_each(|silence| self.tell_of(*silence));
        // A rank that is not the coordinator gives the decision time to come.
        let pause = if self.rank == self.coordinator { self.hearing() } else { 3 * self.hearing() };
        self.silence = Some((silences, now + pause));
    }

    /// A link of another rank has fallen silent.
    pub(super) fn reported(&mut self, silence: Silence, now: Instant) {
        let is_over = [silence.at, silence.from].into_iter().any(|rank| self.is_dropped(Peer(rank)));
        if self.is_ending() || is_over {
            return;
        }
        self.tell_of(silence);
        if self.rank == self.coordinator {
            let until = now + self.hearing();
            let (silences, _) = self.silence.get_or_insert_with(|| (Vec::new(), until));
            if silence::is_news(silence, silences.iter()) {
                silences.push(silence);
            }
        }
    }

    fn tell_of(&mut self, silence: Silence) {
        if !silence::is_news(silence, self.sent_silences.iter()) {
            return;
        }
        self.sent_silences.insert(silence);
        for rank in silence.reports_to(self.rank, self.role_map.ranks, self.coordinator) {
            if self.is_dropped(Peer(rank)) {
                continue;
            }
            self.actions.push(Action::Send(Peer(rank), Topic::Silence, silence.encode()));
        }
    }

    /// When this worker says who is to blame for silent links. Where no peer that has not left sends it heartbeats, and one at most is silent, links that
    /// are being opened show whether it was cut off itself: it waits a while longer for them.
    pub(super) fn concludes(&self) -> Option<Instant> {
        let (_, until) = self.silence.as_ref()?;
        let stayed = || self.ties.values().filter(|tie| tie.is_silent || !tie.has_left);
        let linked = || stayed().filter(|tie| tie.heard.is_some());
        let waits = linked().count() < 2
            && linked().all(|tie| tie.is_silent)
            && stayed().any(|tie| tie.heard.is_none());
        Some(if waits { *until + self.patience() } else { *until })
    }

    /// The peers that show by their silence whether this worker was cut off. That of a rank that has left in order means nothing, and that of
    /// one with which there was no link yet means nothing to a worker that has received heartbeats from another.
    fn counted(&self) -> impl Iterator<Item = (&Peer, &Tie)> {
        let hears = self.heard_meanwhile();
        let is_linked = move |tie: &Tie| tie.heard.is_some() || !hears;
        self.ties.iter().filter(move |(_, tie)| tie.is_silent || !tie.has_left && is_linked(tie))
    }

    /// Whether a peer, which may have left since, sent it a heartbeat when one that is silent now had been so for half the timeout.
    fn heard_meanwhile(&self) -> bool {
        let silent = self.ties.values().filter(|tie| tie.is_silent).filter_map(|tie| tie.heard).min();
        silent.zip(self.heard).is_some_and(|(since, heard)| heard.duration_since(since) >= self.timeout / 2)
    }

    /// Which rank is to blame for these silent links, as this worker concludes.
    pub(super) fn conclude(&self, silences: &[Silence], now: Instant) -> Failure {
        let peers: Vec<u32> = self.counted().map(|(peer, _)| peer.0).collect();
        let hearing = |rank| self.hearing_of(rank, now);
        let (rank, reason) = silence::decide(silences, self.rank, &peers, hearing, self.timeout);
        Failure { rank, step: self.step, reason }
    }

    /// Whether nothing came for a while from a peer that did not leave: in half the timeout, one that lives sends three heartbeats.
    fn is_quiet(&self, tie: &Tie, now: Instant) -> bool {
        let is_late = tie.heard.is_some_and(|heard| now.duration_since(heard) >= self.timeout / 2);
        tie.is_up && !tie.has_left && (is_late || tie.unanswered.is_some())
    }

    /// Whether a peer sent a heartbeat lately.
    pub(crate) fn hears(&self, peer: Peer, now: Instant) -> bool {
        matches!(self.hearing_of(peer.0, now), Hearing::Heard)
    }

    /// Whether a rank sent a heartbeat lately, and what is known if it did not.
    fn hearing_of(&self, rank: u32, now: Instant) -> Hearing {
        let Some(tie) = self.ties.get(&Peer(rank)).filter(|_| rank != self.rank) else {
            return if rank == self.rank { Hearing::Heard } else { Hearing::Unknown };
        };
        match tie.heard {
            None => Hearing::Unknown,
            _ if tie.unanswered.is_some() => Hearing::Unanswered,
            Some(heard) if now.duration_since(heard) < self.timeout / 2 => Hearing::Heard,
            Some(heard) if self.deaf_since.is_some_and(|deaf| heard <= deaf) => Hearing::SinceDeaf,
            Some(_) => Hearing::Silent,
        }
    }
}
