//! Messages on links: first come, first served, each link a bucket of bytes; a message passes on to its next link as soon as
//! its first byte is there, and segments that are lost come later.

use std::collections::HashMap;

use super::network::Network;

/// Payload of a segment, as TCP has it on Ethernet.
const SEGMENT: f64 = 1448.0;

/// How long a sender waits where no later segment shows that one is missing: Linux's least.
const TIMEOUT: f64 = 0.2;

/// A message under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Flight {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Payload.
    pub(super) bytes: f64,
    /// How many links it has passed.
    pub(super) hop: usize,
    /// When its last byte is on the way, at the earliest: what links before this one allow.
    pub(super) sent: f64,
}

/// The links in time.
pub(super) struct Wires<'a> {
    network: &'a Network,
    goodput: f64,
    /// By link, when its bucket is full again but for the burst: below the present after a pause.
    free: Vec<f64>,
    /// When the last message from one rank to another is there: those after it come later. Only where something is lost.
    last: HashMap<(usize, usize), f64>,
    lossy: bool,
    random: u64,
}

impl<'a> Wires<'a> {
    pub(super) fn new(network: &'a Network, goodput: f64) -> Self {
        Self {
            network,
            goodput,
            free: network.links.iter().map(|link| -link.burst / link.rate).collect(),
            last: HashMap::new(),
            lossy: network.links.iter().any(|link| link.loss > 0.0),
            random: network.seed,
        }
    }

    /// Lets a message pass its next link. Gives when its first byte is at the link after that, with the message, or when all
    /// of it is there, if that was the last one.
    pub(super) fn pass(&mut self, flight: Flight, now: f64) -> (f64, Option<Flight>) {
        let Flight { from, to, bytes, hop, sent } = flight;
        let Some(number) = self.network.hop(from, to, hop) else { return (sent.max(now), None) };
        let link = &self.network.links[number];
        let takes = bytes / self.goodput / link.rate;
        let start = self.free[number].max(now - link.burst / link.rate);
        self.free[number] = start + takes;
        let sent = sent.max(start + takes).max(now) + link.latency;
        let first = start.max(now) + link.latency;
        if self.network.hop(from, to, hop + 1).is_some() {
            return (first, Some(Flight { hop: hop + 1, sent, ..flight }));
        }
        let mut there = sent;
        if self.lossy {
            there += self.repairs(from, to, bytes);
            let last = self.last.entry((from, to)).or_default();
            there = last.max(there);
            *last = there;
        }
        (there, None)
    }

    /// How much later a message comes because of lost segments. Each of them is sent again: after a round trip if three later
    /// ones show that it is missing, after the time-out otherwise.
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

    /// The numbers below `count` in an order by lot.
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

    /// A number in (0, 1) that looks like chance (SplitMix64).
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((x ^ (x >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }
}
