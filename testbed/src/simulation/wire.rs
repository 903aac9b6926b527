//! Messages on links: one after the other from one rank to another, piece by piece, so that messages of several ranks which meet
//! at a link share it. Each link is a bucket of bytes that serves pieces as they come; a piece passes on to its next link as
//! soon as its first byte is there, the one behind it sets out once the links have no other waiting, and segments that are
//! lost come later.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use gleaner_statistics::random::Generator;

use super::network::Network;

/// Payload of a segment, as TCP has it on Ethernet.
const SEGMENT: f64 = 1448.0;

/// A message is sent in so many pieces at most, and in fewer if they would be shorter than `PIECE` bytes.
const PIECES: f64 = 16.0;

/// What the kernel hands to a link at once, at most.
const PIECE: f64 = 65536.0;

/// How long a sender waits where no later segment shows that one is missing: Linux's least.
const TIMEOUT: f64 = 0.2;

/// A piece of a message under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Flight {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Payload of the message.
    pub(super) bytes: f64,
    /// Of them, those of this piece and of the pieces after it.
    left: f64,
    /// How many links it has passed.
    hop: usize,
    /// When its last byte is on the way, at the earliest: what links before this one allow.
    sent: f64,
}

impl Flight {
    /// The first piece of a message that sets out then.
    fn first(from: usize, to: usize, bytes: f64, sent: f64) -> Self {
        Self { from, to, bytes, left: bytes, hop: 0, sent }
    }

    fn piece(&self) -> f64 {
        self.left.min(PIECE.max(self.bytes / PIECES))
    }
}

/// The links in time.
pub(super) struct Wires<'a> {
    network: &'a Network,
    goodput: f64,
    /// By link, when its bucket is full again but for the burst: below the present after a pause.
    free: Vec<f64>,
    /// Payloads of messages that wait for the one that sets out from one rank to another; nothing if none does.
    queues: HashMap<(usize, usize), VecDeque<f64>>,
    /// When the next message from one rank to another may set out, where no message waited behind the last one.
    ready: HashMap<(usize, usize), f64>,
    /// When the last message from one rank to another is there: those after it come later. Only where something is lost.
    last: HashMap<(usize, usize), f64>,
    lossy: bool,
    random: Generator,
}

impl<'a> Wires<'a> {
    pub(super) fn new(network: &'a Network, goodput: f64) -> Self {
        Self {
            network,
            goodput,
            free: network.links.iter().map(|link| -link.burst / link.rate).collect(),
            queues: HashMap::new(),
            ready: HashMap::new(),
            last: HashMap::new(),
            lossy: network.links.iter().any(|link| link.loss > 0.0),
            random: Generator::seeded(network.seed),
        }
    }

    /// A message that was written now: its first piece and when that sets out, unless it has to wait for messages before it.
    pub(super) fn send(&mut self, from: usize, to: usize, bytes: f64, now: f64) -> Option<(f64, Flight)> {
        match self.queues.entry((from, to)) {
            Entry::Occupied(mut queue) => {
                queue.get_mut().push_back(bytes);
                return None;
            }
            Entry::Vacant(queue) => queue.insert(VecDeque::new()),
        };
        let sets_out = self.ready.get(&(from, to)).map_or(now, |ready| ready.max(now));
        Some((sets_out, Flight::first(from, to, bytes, sets_out)))
    }

    /// Lets a piece pass its next link. Says when its first byte is at the one after that, when the piece behind it sets out,
    /// of this message or of the next one between the two ranks, and when all of its message is there.
    pub(super) fn pass(&mut self, flight: Flight, now: f64) -> ([Option<(f64, Flight)>; 2], Option<f64>) {
        let Flight { from, to, bytes, left, hop, sent } = flight;
        let Some(number) = self.network.hop(from, to, hop) else {
            // Nothing lies between the two.
            return ([None, self.behind(flight, bytes, now)], Some(sent.max(now)));
        };
        let link = &self.network.links[number];
        let piece = flight.piece();
        let takes = piece / self.goodput / link.rate;
        let start = self.free[number].max(now - link.burst / link.rate);
        self.free[number] = start + takes;
        let passed = sent.max(start + takes).max(now);
        let sent = passed + link.latency;
        let first = start.max(now) + link.latency;
        let behind = if hop == 0 { self.behind(flight, piece, passed) } else { None };
        if self.network.hop(from, to, hop + 1).is_some() {
            return ([Some((first, Flight { hop: hop + 1, sent, ..flight })), behind], None);
        }
        let mut there = sent;
        if piece >= left && self.lossy {
            there += self.repairs(from, to, bytes);
            let last = self.last.entry((from, to)).or_default();
            there = last.max(there);
            *last = there;
        }
        ([None, behind], (piece >= left).then_some(there))
    }

    /// What sets out when a piece has left its host.
    fn behind(&mut self, flight: Flight, piece: f64, passed: f64) -> Option<(f64, Flight)> {
        let Flight { from, to, left, .. } = flight;
        let ready = passed.max(self.room(from, to));
        if piece < left {
            return Some((ready, Flight { left: left - piece, sent: passed, ..flight }));
        }
        let next = self.queues.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        if next.is_none() {
            self.queues.remove(&(from, to));
            self.ready.insert((from, to), ready);
        }
        next.map(|bytes| (ready, Flight::first(from, to, bytes, passed)))
    }

    /// When a piece may set out so that it finds no piece waiting at any link, as far as it is known now.
    fn room(&self, from: usize, to: usize) -> f64 {
        let links = (0..).map_while(|hop| self.network.hop(from, to, hop));
        let (_, room) = links.fold((0.0, f64::NEG_INFINITY), |(latency, room): (f64, f64), number| {
            (latency + self.network.links[number].latency, room.max(self.free[number] - latency))
        });
        room
    }

    /// How much later a message comes because of lost segments. Each of them is sent again: after a round trip if three later
    /// ones show that it is missing, after the timeout otherwise.
    fn repairs(&mut self, from: usize, to: usize, bytes: f64) -> f64 {
        let links = (0..).map_while(|hop| self.network.hop(from, to, hop)).map(|l| &self.network.links[l]);
        let (latency, arrives) = links.fold((0.0, 1.0), |(latency, arrives), link| {
            (latency + link.latency, arrives * (1.0 - link.loss))
        });
        let segments = (bytes / SEGMENT).ceil().max(1.0);
        let mut seconds = 0.0;
        // From one lost segment to the next: geometric, so that long messages cost no more than their losses.
        let mut at = self.gap(arrives);
        while at < segments {
            seconds += 2.0 * latency;
            let mut shown = segments - at > 3.0;
            loop {
                seconds += if shown { 0.0 } else { TIMEOUT };
                // What was sent again may be lost, too, and nothing comes after it.
                if self.uniform() < arrives {
                    break;
                }
                shown = false;
            }
            at += 1.0 + self.gap(arrives);
        }
        seconds
    }

    /// The numbers below `count` in a random order.
    pub(super) fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            all.swap(i, (self.uniform() * (i + 1) as f64) as usize);
        }
        all
    }

    /// How many segments arrive before one is lost.
    fn gap(&mut self, arrives: f64) -> f64 {
        if arrives >= 1.0 {
            return f64::INFINITY;
        }
        (self.uniform().ln() / arrives.max(1e-12).ln()).floor()
    }

    /// A random number in (0, 1).
    fn uniform(&mut self) -> f64 {
        self.random.unit() + 0.25 * f64::EPSILON
    }
}
