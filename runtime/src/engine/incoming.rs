//! What comes from the network, and where it goes.

use std::task::Poll;

use bytes::Bytes;
use gleaner_transport::{LinkError, LinkEvent, Message, OpenError, Peer, Tag};

use super::{EARLY, Engine, TURN};
use crate::failure::Failure;
use crate::link::{Broken, Link, cost};
use crate::report;
use crate::server;
use crate::silence::Silence;
use crate::steps::Word;
use crate::tag::{PROBE, SERVED, Topic};
use crate::worker::Event;

impl Engine {
    pub(super) fn network(&mut self, event: LinkEvent) {
        let io = &mut self.io;
        match event {
            LinkEvent::Up(transport) => {
                let peer = transport.peer();
                io.connect(peer, transport);
                self.read(peer);
                self.notes.linked(&mut self.io);
            }
            LinkEvent::Failed { peer, error } => {
                let failed = match error {
                    OpenError::NoCard { host, .. } => host,
                    OpenError::Local { .. } | OpenError::Lacks { .. } => Peer(io.rank.0),
                    _ => peer,
                };
                io.worker.handle(Event::Broken(failed, error.to_string()), io.now);
            }
            LinkEvent::Panicked { reason } => {
                let (rank, step) = (io.rank.0, io.worker.step);
                io.fail(Failure { rank, step, reason: format!("its network panicked: {reason}") });
            }
            LinkEvent::Refused { address, reason } => {
                self.refused += 1;
                // A caller that never stops fills no log.
                if self.refused <= 5 || self.refused.is_power_of_two() {
                    let (rank, callers) = (io.rank.0, self.refused);
                    report::say(format_args!(
                        "gleaner: rank {rank} refused the connection from {address}: {reason} (so far {callers} callers were refused)"
                    ));
                }
            }
        }
    }

    /// Reads what has come on a link.
    pub(super) fn read(&mut self, peer: Peer) {
        for _ in 0..TURN {
            let Some(link) = self.io.links.get_mut(&peer) else { return };
            let received = match link.poll_received() {
                Poll::Pending => return,
                Poll::Ready(received) => received,
            };
            self.io.worker.hear(peer, self.io.now);
            let ended = match received.map(|message| self.received(peer, message)) {
                Ok(Ok(())) => None,
                // No other rank knows better which one is to blame.
                Ok(Err(what)) => {
                    return self.distrust(peer, format!("it violated the protocol: {what}"));
                }
                Err(_) if self.io.worker.has_left(peer) => Some(String::new()),
                // A rank that reads what was never sent is the first to know, and what it sends to the peer still arrives.
                Err(error @ (LinkError::Damaged { .. } | LinkError::TooLong { .. })) => {
                    return self.distrust(peer, error.to_string());
                }
                Err(error @ LinkError::Unanswered { .. }) => return self.unanswered(peer, &error),
                Err(LinkError::Closed { .. }) => {
                    let reason = "its connection closed without a leave message: it died, was killed, or the connection was cut";
                    Some(reason.to_owned())
                }
                Err(error) => Some(format!("its connection broke: {error}")),
            };
            match ended {
                None => {}
                Some(reason) => return self.io.ended(peer, (!reason.is_empty()).then_some(reason)),
            }
            self.carry_out();
        }
        self.ready.push(peer);
    }

    /// A peer does not answer. Which end of the link is to blame shows later, so the link is not closed: the peer, if it lives, would
    /// take this worker for gone.
    fn unanswered(&mut self, peer: Peer, error: &LinkError) {
        report::say(format_args!("gleaner: {}: {error}", self.io.rank));
        self.io.link(peer).hold();
        self.io.worker.handle(Event::Unanswered(peer), self.io.now);
    }

    /// What came from a peer ends the job.
    fn distrust(&mut self, peer: Peer, reason: String) {
        let (rank, step) = (peer.0, self.io.worker.step);
        self.io.link(peer).distrust();
        self.io.fail(Failure { rank, step, reason });
        self.ready.push(peer);
    }

    fn received(&mut self, peer: Peer, Message { tag, payload }: Message) -> Result<(), Broken> {
        let Self { io, actors, notes, volleys, .. } = self;
        match Topic::of(tag).ok_or("it sent a message of an unknown kind")? {
            Topic::Alive if io.positions.report(peer, &payload) => {}
            Topic::Alive => return Err("its heartbeat makes no sense"),
            Topic::Bags(id) => {
                io.link(peer).charge(id.gradient, &payload)?;
                match actors.range_mut(..=id.gradient).next_back() {
                    Some((_, actor)) if actor.expects(id, io) => actor.arrived(id, peer, payload, io),
                    // Of a step that was cancelled, or of a gradient that is gone.
                    _ => io.consume(peer, id.gradient, cost(&payload)),
                }
                self.look_for_end(peer);
            }
            Topic::Probe { round, .. } => {
                io.link(peer).charge(PROBE, &payload)?;
                io.consume(peer, PROBE, cost(&payload));
                volleys.arrived(peer, round, io)?;
                self.look_for_end(peer);
            }
            Topic::Credit { gradient } => {
                if gradient < SERVED && gradient > io.gradients + EARLY || server::is_unassigned(gradient) {
                    return Err("it gives credit for gradients that do not exist");
                }
                let is_gone = io.is_gone(gradient);
                io.link(peer).allow(gradient, is_gone, &payload)?;
                io.touch(peer);
            }
            Topic::Note { call, .. } => notes.heard(peer, call, &payload, io)?,
            Topic::Cancel(id) => {
                let word = Word::decode(&payload).ok_or("its words about cancelling make no sense")?;
                io.steps.heard(peer.0, id, word)?;
            }
            Topic::Silence => {
                let silence = Silence::decode(&payload, io.role_map.ranks);
                let silence = silence.ok_or("what it says about silence makes no sense")?;
                io.worker.handle(Event::Reported(silence), io.now);
            }
            Topic::Bye => {
                io.link(peer).parted(&payload)?;
                self.look_for_end(peer);
            }
            Topic::AllCame => {
                io.link(peer).all_came()?;
                io.worker.handle(Event::AllCame(peer), io.now);
            }
            Topic::Dropped => {
                let failure = serde_json::from_slice(&payload).map_err(|_| "its news makes no sense")?;
                io.worker.handle(Event::Dropped(failure), io.now);
            }
            Topic::Abort => {
                let failure =
                    serde_json::from_slice(&payload).map_err(|_| "its failure message makes no sense")?;
                io.link(peer).ignore();
                io.worker.handle(Event::News(peer, failure), io.now);
                io.end(peer);
            }
        }
        if self.io.links.get(&peer).is_some_and(Link::is_deaf) {
            return Err("it goes on sending and does not read the answers");
        }
        Ok(())
    }

    /// A message from this rank to itself, which has a worker and a server.
    pub(super) fn local(&mut self, tag: Tag, payload: Bytes) {
        let (here, Self { io, actors, .. }) = (Peer(self.io.rank.0), self);
        if let Some(Topic::Bags(id)) = Topic::of(tag)
            && let Some((_, actor)) = actors.range_mut(..=id.gradient).next_back()
        {
            actor.arrived(id, here, payload, io);
        }
    }

    /// Whether the leave message of a peer and all its bags have come.
    fn look_for_end(&mut self, peer: Peer) {
        if !self.io.link(peer).has_left() {
            return;
        }
        self.io.touch(peer);
        self.io.worker.handle(Event::Left(peer), self.io.now);
        self.io.steps.left(peer.0);
        // What was decided by that comes before what can no longer come.
        self.follow();
        let Self { io, actors, notes, volleys, .. } = self;
        actors.values_mut().for_each(|actor| actor.left(peer, io));
        notes.left(peer, io);
        volleys.left(peer, io);
    }
}
