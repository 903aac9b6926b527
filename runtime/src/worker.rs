//! One worker's life in a job: which ranks it is linked to, which one has failed, and how it ends.
//!
//! A pure state machine: events and the time go in, [`Action`]s come out. Whatever breaks, it makes one failure out of it:
//! the first failure that a worker knows is the only one. It notifies all its peers, and when that is written, its own steps.

mod dropping;
mod silences;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gleaner_transport::Peer;

use crate::failure::Failure;
use crate::roles::{OnFailure, RoleMap};
use crate::silence::Silence;
use crate::tag::Topic;

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// There is a link to this peer, or there will be.
    Reached(Peer),
    /// The link is up.
    Up(Peer),
    /// No link was opened, or it broke.
    Broken(Peer, String),
    /// The network says that this peer does not answer. The link carries nothing more, and stays.
    Unanswered(Peer),
    /// All is written that will be.
    Written(Peer),
    /// Both directions of a link have ended in order.
    Ended(Peer),
    /// The leave message of this peer has come, and all that it sent.
    Left(Peer),
    /// All that was sent to this peer has come there, the leave message too.
    AllCame(Peer),
    /// This peer says why the job cannot go on.
    News(Peer, Failure),
    /// Another rank said that one of its links is silent.
    Reported(Silence),
    /// The job cannot go on. The first failure counts.
    Failed(Failure),
    /// Another rank goes on without this one, for this reason.
    Dropped(Failure),
    /// This worker leaves.
    Leave,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Send this.
    Send(Peer, Topic, Vec<u8>),
    /// Let no link write anything but why the job failed.
    GiveUp,
    /// Let the link write what it has, and end.
    Close(Peer),
    /// The same, with a leave message behind it.
    Part(Peer),
    /// Read no more from this peer.
    Ignore(Peer),
    /// Say why the job cannot go on.
    Report(Failure),
    /// This rank goes on without the one that failed.
    Drop(Failure),
    /// All peers know: let this worker's own steps and calls fail.
    Fail(Failure),
    /// This worker has left.
    Leave,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Worker {
    rank: u32,
    role_map: RoleMap,
    coordinator: u32,
    /// After this long without a heartbeat a peer counts as dead; all other limits derive from it.
    timeout: Duration,
    /// The step that this worker is in, for messages about what failed when.
    pub(crate) step: Option<u64>,
    ties: BTreeMap<Peer, Tie>,
    /// Whose end was seen but not explained, and until when another rank may know better. It may be the cause, or follow from a
    /// failure that others know of.
    suspected: Option<(Failure, Instant)>,
    /// Links that fell silent, as far as this worker knows, the first of them first, and when to say who is to blame at the earliest.
    silence: Option<(Vec<Silence>, Instant)>,
    /// Silent links that were reported to others: the same report again is no news.
    sent_silences: BTreeSet<Silence>,
    /// When it last received a heartbeat from any peer.
    heard: Option<Instant>,
    /// Since when it then received none, of two or more peers, for half the timeout: one from which none has come since may be well.
    deaf_since: Option<Instant>,
    /// A failure that is not known to all peers yet.
    failing: Option<Failing>,
    failed: Option<Failure>,
    /// Those that failed and without which it goes on.
    dropped: BTreeMap<Peer, Failure>,
    /// Until when to wait for peers that not all has reached.
    leaving: Option<Instant>,
    has_left: bool,
    actions: Vec<Action>,
}

/// See [`Worker::fail`].
#[derive(Debug)]
struct Failing {
    failure: Failure,
    /// Until when to wait for the rank that is to blame: it may be unable to answer.
    excused: Instant,
    /// Whether that is past.
    is_excused: bool,
    /// Until when to wait for the others.
    until: Instant,
}

/// What is known of a peer.
#[derive(Debug, Default)]
struct Tie {
    /// When it last sent a heartbeat, if it ever did.
    heard: Option<Instant>,
    is_up: bool,
    is_silent: bool,
    /// Since when it does not answer.
    unanswered: Option<Instant>,
    is_written: bool,
    has_left: bool,
    /// Whether all that was sent has reached it.
    has_all: bool,
    /// Whether it knows that the job has failed.
    knows: bool,
}

impl Tie {
    /// Whether what is said to it may reach it.
    fn is_open(&self) -> bool {
        self.is_up && !self.is_silent && self.unanswered.is_none()
    }
}

impl Worker {
    pub(crate) fn new(rank: u32, role_map: RoleMap, coordinator: u32, timeout: Duration) -> Self {
        Self {
            rank,
            role_map,
            coordinator,
            timeout,
            step: None,
            ties: BTreeMap::new(),
            suspected: None,
            silence: None,
            sent_silences: BTreeSet::new(),
            heard: None,
            deaf_since: None,
            failing: None,
            failed: None,
            dropped: BTreeMap::new(),
            leaving: None,
            has_left: false,
            actions: Vec::new(),
        }
    }

    /// What is to be done now, in order.
    pub(crate) fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Why the job has failed, once all peers know.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failed.as_ref()
    }

    /// Whether the leave message of a peer has come.
    pub(crate) fn has_left(&self, peer: Peer) -> bool {
        self.ties.get(&peer).is_some_and(|tie| tie.has_left)
    }

    /// A peer sent a heartbeat.
    pub(crate) fn hear(&mut self, peer: Peer, now: Instant) {
        let before = self.heard.replace(now);
        if let Some(before) = before.filter(|&before| now.duration_since(before) >= self.timeout / 2) {
            // One link alone does not show which end was cut off.
            let quiet = |tie: &&Tie| !tie.has_left && tie.heard.is_some_and(|heard| heard <= before);
            if self.ties.values().filter(quiet).count() > 1 {
                self.deaf_since = Some(before);
            }
        }
        if let Some(tie) = self.ties.get_mut(&peer) {
            tie.heard = Some(now);
        }
    }

    /// The links that have been silent for too long, if nothing has come on them that was not read yet.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<Peer> {
        let is_past = |since: Option<Instant>, limit| since.is_some_and(|at| now.duration_since(at) >= limit);
        // By then all other links whose peers send heartbeats have shown whether they are answered.
        let late = |tie: &Tie| is_past(tie.heard, self.timeout) || is_past(tie.unanswered, self.timeout / 4);
        // Of one that has left nothing more is expected.
        let may_be = |tie: &Tie| tie.is_up && !tie.is_silent && (!tie.has_left || self.is_ending());
        let ties = self.ties.iter().filter(|(_, tie)| may_be(tie) && late(tie));
        ties.map(|(peer, _)| *peer).collect()
    }

    /// When to look at the clock next, but for silent links.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let suspected = self.suspected.as_ref().map(|(_, until)| *until);
        let silence = self.concludes();
        // What is past has had its effect.
        let failing = self.failing.as_ref();
        let excused = failing.filter(|failing| !failing.is_excused).map(|failing| failing.excused);
        let until = failing.map(|failing| failing.until);
        [suspected, silence, excused, until, self.leaving].into_iter().flatten().min()
    }

    pub(crate) fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::Reached(peer) => {
                self.ties.entry(peer).or_default();
            }
            Event::Up(peer) => {
                let was = self.ties.insert(peer, Tie { heard: Some(now), is_up: true, ..Tie::default() });
                self.hear(peer, now);
                // All that were known before have been reported.
                if was.is_none() || self.is_dropped(peer) {
                    self.greet(peer);
                }
            }
            Event::Broken(peer, reason) => {
                match self.ties.get_mut(&peer) {
                    Some(tie) if tie.heard.is_some() => tie.is_up = false,
                    // It was never linked: that it says nothing means nothing.
                    _ => drop(self.ties.remove(&peer)),
                }
                self.suspect(peer, reason, now);
            }
            Event::Unanswered(peer) => {
                if let Some(tie) = self.ties.get_mut(&peer) {
                    tie.unanswered = Some(now);
                }
            }
            Event::Written(peer) => {
                if let Some(tie) = self.ties.get_mut(&peer) {
                    tie.is_written = true;
                }
            }
            Event::Ended(peer) => {
                if let Some(tie) = self.ties.get_mut(&peer) {
                    tie.is_up = false;
                }
            }
            Event::Left(peer) => {
                self.ties.entry(peer).or_default().has_left = true;
            }
            Event::AllCame(peer) => {
                if let Some(tie) = self.ties.get_mut(&peer) {
                    tie.has_all = true;
                }
            }
            Event::News(peer, failure) => {
                self.ties.entry(peer).or_default().knows = true;
                self.fail(failure, now);
            }
            Event::Reported(silence) => self.reported(silence, now),
            Event::Failed(failure) => {
                // A worker needs what a rank had that is not there any more.
                let is_needed = self.is_dropped(Peer(failure.rank));
                if is_needed {
                    self.role_map.roles.on_failure = OnFailure::Stop;
                }
                self.fail(failure, now);
            }
            Event::Dropped(failure) => self.fail(failure, now),
            Event::Leave => {
                self.leaving = Some(now + self.timeout);
                let parts = self.peers().into_iter().map(Action::Part);
                self.actions.extend(parts);
            }
        }
        self.end(now);
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Instant) {
        for peer in self.overdue(now) {
            if let Some(tie) = self.ties.get_mut(&peer) {
                // No rank waits until it has read what is written to it. A failure message may still reach it.
                tie.is_silent = true;
                if tie.unanswered.is_none() {
                    self.actions.push(Action::Ignore(peer));
                }
            }
            self.fall_silent(peer, now);
        }
        if let Some((failure, _)) = self.suspected.take_if(|(_, until)| *until <= now) {
            self.fail(failure, now);
        }
        if self.concludes().is_some_and(|at| at <= now)
            && let Some((silences, _)) = self.silence.take()
        {
            let failure = self.conclude(&silences, now);
            self.fail(failure, now);
        }
        self.end(now);
    }

    /// How long the rank that is to blame may take to answer.
    fn patience(&self) -> Duration {
        (self.timeout / 4).min(Duration::from_secs(1))
    }

    /// How long a suspicion waits for someone who knows better.
    fn hearing(&self) -> Duration {
        (self.timeout / 10).min(Duration::from_millis(200))
    }

    fn peers(&self) -> Vec<Peer> {
        self.ties.keys().copied().collect()
    }

    fn has_failed(&self) -> bool {
        self.failing.is_some() || self.failed.is_some()
    }

    /// Whether this worker no longer checks how others are.
    fn is_ending(&self) -> bool {
        self.leaving.is_some() || self.has_left || self.has_failed()
    }

    /// Notifies a peer that was not known before how this worker ends, if it does.
    fn greet(&mut self, peer: Peer) {
        if self.is_dropped(peer) {
            return self.turn_away(peer);
        }
        let failing = self.failing.as_ref().map(|failing| &failing.failure);
        let failure = failing.or(self.failed.as_ref());
        if let Some(failure) = failure.cloned() {
            self.tell(peer, &failure);
            self.actions.push(Action::Close(peer));
        } else if self.leaving.is_some() {
            self.actions.push(Action::Part(peer));
        }
    }

    /// A peer is gone and did not say why. A rank that is notified of a failure notifies all its peers before it ends, but the
    /// news may come over another link, or be lost with a process that is killed: a rank that ended because of another
    /// must not be blamed for it, so the news gets a moment to arrive.
    fn suspect(&mut self, peer: Peer, reason: String, now: Instant) {
        // Of a silent link the decision is on its way, and a rank that was only to be notified may have left.
        let is_known = self.is_dropped(peer) || self.silence.is_some();
        if !self.is_ending() && self.suspected.is_none() && !is_known {
            let failure = Failure { rank: peer.0, step: self.step, reason };
            self.suspected = Some((failure, now + self.hearing()));
        }
    }

    /// Notifies all peers, and when they know, this worker's own steps: a trainer that gets the failure may end the
    /// process, and no rank may then name this worker. Each peer that is notified notifies all its own.
    fn fail(&mut self, mut failure: Failure, now: Instant) {
        if self.has_failed() || self.drops(&failure) {
            return;
        }
        failure.step = failure.step.or(self.step);
        let server = self.role_map.server(failure.rank);
        let failure = failure.of_server(server);
        self.actions.push(Action::GiveUp);
        for peer in self.present() {
            self.tell(peer, &failure);
            self.actions.push(Action::Close(peer));
        }
        // Last, for it may take a while.
        self.actions.push(Action::Report(failure.clone()));
        let (excused, until) = (now + self.patience(), now + self.timeout);
        self.failing = Some(Failing { failure, excused, is_excused: false, until });
    }

    /// Whether this worker ends and the peer does not have all of it yet.
    fn waits_for(&self, peer: Peer) -> bool {
        let tie = self.ties.get(&peer).filter(|tie| tie.is_open());
        tie.is_some_and(|tie| match &self.failing {
            Some(Failing { failure, is_excused, .. }) => {
                // One that has sent its leave message waits for no rank, and may not read any more.
                !(tie.has_left || tie.knows && tie.is_written || *is_excused && failure.rank == peer.0)
            }
            None => self.leaving.is_some() && self.failed.is_none() && !(tie.has_all && tie.is_written),
        })
    }

    /// What is still to be sent to a peer has moved: if this worker waits until it has come, it goes on waiting.
    pub(crate) fn extend(&mut self, peer: Peer, now: Instant) {
        if !self.waits_for(peer) {
            return;
        }
        let until = now + self.timeout;
        if let Some(failing) = &mut self.failing {
            failing.until = until;
        } else if let Some(leaving) = &mut self.leaving {
            *leaving = until;
        }
    }

    fn tell(&mut self, peer: Peer, failure: &Failure) {
        let news = serde_json::to_vec(failure).unwrap_or_default();
        self.actions.push(Action::Send(peer, Topic::Abort, news));
    }

    /// Ends failing or leaving once all is known to all, or enough time was given.
    fn end(&mut self, now: Instant) {
        if let Some(failing) = &mut self.failing {
            failing.is_excused |= failing.excused <= now;
        }
        let waits = self.ties.keys().any(|peer| self.waits_for(*peer));
        if let Some(failing) = self.failing.take_if(|failing| !waits || failing.until <= now) {
            self.failed = Some(failing.failure.clone());
            self.actions.push(Action::Fail(failing.failure));
        }
        if self.leaving.take_if(|until| !waits || *until <= now).is_some() {
            self.has_left = true;
            self.actions.push(Action::Leave);
        }
    }
}

#[cfg(test)]
mod tests;
