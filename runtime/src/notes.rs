//! Small control data that all ranks exchange together: agreeing, gathering, waiting for each other.
//!
//! The ranks form a tree under the coordinator, in which each has up to 16 children. What a rank and all below it have to say
//! goes up as one text, and the answer comes down, both in pieces. So the coordinator sends as many messages as it has
//! children, however many ranks there are. Whether all ranks say the same is found from digests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use gleaner_transport::{MAX_PAYLOAD, Peer};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::algorithm::left;
use crate::failure::Failure;
use crate::io::Io;
use crate::link::Broken;
use crate::roles::{OnFailure, RoleMap};
use crate::tag::Topic;

/// Children that a rank has at most.
const CHILDREN: u32 = 16;

/// The longest note.
pub(crate) const LONGEST: usize = MAX_PAYLOAD - 1;

/// Differing heads that are passed on: those of the lowest ranks.
const HEADS: usize = 8;

/// Bytes of a digest.
const DIGEST: usize = 32;

/// What a note is for, so that ranks whose calls differ get an error instead of confusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Gather = 1,
    Barrier = 2,
    Gradients = 3,
    Reducer = 4,
    Probe = 5,
    Revise = 6,
    Regroup = 7,
    Load = 8,
    Timeline = 9,
    Share = 10,
    Replica = 11,
    Epoch = 12,
    Waits = 13,
    Choose = 14,
    Norms = 15,
}

impl Purpose {
    /// Whether steps follow, over links that were asked for by now.
    fn begins_steps(self) -> bool {
        matches!(self, Purpose::Gradients | Purpose::Reducer)
    }

    fn named(byte: u8) -> &'static str {
        match byte {
            1 => "all_gather()",
            2 => "barrier()",
            3 => "gradients()",
            4 => "reducer()",
            5 => "gradients() or reducer() with the method auto",
            6 => "wait() with the method auto",
            7 => "regroup()",
            8 => "load() or load_from()",
            9 => "timeline() or gather() of a timeline",
            10 => "wait() where groups compete for the entries of a step",
            11 => "replica()",
            13 => "share() of waits",
            14 => "the first start() of a sparse reducer with the method auto",
            15 => "wait() where the density follows the share of the norm",
            12 => "step() at the end of an epoch",
            _ => "an unknown call",
        }
    }
}

/// A call of this rank that all ranks make.
pub(crate) struct Call {
    pub(crate) purpose: Purpose,
    pub(crate) says: Says,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// What a rank says in a call.
pub(crate) enum Says {
    /// This, which all ranks get.
    Note(Bytes),
    /// Lines that must be the same on all ranks, and a note that all ranks get unless it is empty.
    Lines(Arc<str>, Bytes),
}

/// The result of a call.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The notes of all ranks that gave one.
    pub(crate) notes: BTreeMap<u32, Bytes>,
    /// The lowest rank whose lines are others than those of rank 0, if any are.
    pub(crate) other: Option<u32>,
}

/// What a rank's call is, and the lowest rank that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    rank: u32,
    purpose: u8,
    digest: [u8; DIGEST],
}

/// The actor of these calls.
pub(crate) struct Notes {
    rank: u32,
    role_map: RoleMap,
    coordinator: u32,
    /// Those that do not take part any more.
    dropped: BTreeSet<u32>,
    /// Calls that are over.
    over: u32,
    /// Calls of this rank, the present one first.
    calls: VecDeque<Call>,
    /// What the children have sent for the present call.
    texts: BTreeMap<Peer, Text>,
    /// Whether this rank's part of it has gone up.
    is_reported: bool,
    answer: Text,
}

/// A text that comes in pieces.
#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    is_whole: bool,
}

impl Text {
    /// Takes a piece in, whose first byte says whether it is the last.
    fn take(&mut self, piece: &[u8], most: usize) -> Result<(), Broken> {
        let (last, bytes) = piece.split_first().ok_or("its note makes no sense")?;
        if self.is_whole || self.bytes.len() + bytes.len() > most {
            return Err("its notes are longer than they may be");
        }
        self.bytes.extend_from_slice(bytes);
        self.is_whole = *last == 1;
        Ok(())
    }
}

impl Notes {
    pub(crate) fn new(rank: u32, role_map: RoleMap, coordinator: u32) -> Self {
        Self {
            rank,
            role_map,
            coordinator,
            dropped: BTreeSet::new(),
            over: 0,
            calls: VecDeque::new(),
            texts: BTreeMap::new(),
            is_reported: false,
            answer: Text::default(),
        }
    }

    /// This rank's place in the tree, counted from the coordinator.
    fn place(&self) -> u32 {
        (self.rank + self.role_map.workers - self.coordinator) % self.role_map.workers
    }

    fn at(&self, place: u32) -> Peer {
        Peer((place + self.coordinator) % self.role_map.workers)
    }

    fn parent(&self) -> Option<Peer> {
        self.place().checked_sub(1).map(|place| self.at(place / self.width()))
    }

    /// How many children a rank may have: where the others go on without one that fails, no rank stands between two others.
    fn width(&self) -> u32 {
        match self.role_map.roles.on_failure {
            OnFailure::Stop => CHILDREN,
            OnFailure::Continue => u32::MAX,
        }
    }

    fn children(&self) -> impl Iterator<Item = Peer> + use<'_> {
        let width = u64::from(self.width());
        let first = u64::from(self.place()) * width + 1;
        let places = first..(first + width).min(u64::from(self.role_map.workers));
        places.map(|place| self.at(place as u32)).filter(|peer| !self.dropped.contains(&peer.0))
    }

    /// The longest text of a rank and all below it, which no other sends.
    fn most(&self, peer: Peer) -> usize {
        let workers = self.role_map.workers;
        let place = (peer.0 + workers - self.coordinator) % workers;
        1 + HEADS * (5 + DIGEST) + below(place, workers, self.width()) * (LONGEST + 8)
    }

    /// How many calls are over here, and whether this rank waits in the next.
    pub(crate) fn position(&self) -> (u32, bool) {
        (self.over, !self.calls.is_empty())
    }

    /// This rank makes a call.
    pub(crate) fn call(&mut self, call: Call, io: &mut Io) {
        self.calls.push_back(call);
        self.go_on(io);
    }

    /// A link came up.
    pub(crate) fn linked(&mut self, io: &mut Io) {
        self.go_on(io);
    }

    /// A neighbour in the tree sent a piece.
    pub(crate) fn heard(&mut self, from: Peer, call: u32, piece: &[u8], io: &mut Io) -> Result<(), Broken> {
        if call != self.over || self.rank >= self.role_map.workers {
            return Err("it took part in a call that is not the present one");
        }
        if Some(from) == self.parent() {
            if !self.is_reported {
                return Err("it answered before it was asked");
            }
            // All that there are: the answer is the text of the coordinator.
            self.answer.take(piece, self.most(self.at(0)))?;
            let topic = self.topic(io);
            for child in self.children().collect::<Vec<_>>() {
                io.tell(child, topic, piece.to_vec());
            }
            if self.answer.is_whole {
                self.answered();
                self.go_on(io);
            }
        } else if self.children().any(|child| child == from) {
            let most = self.most(from);
            self.texts.entry(from).or_default().take(piece, most)?;
            self.go_on(io);
        } else {
            return Err("it took part in a call out of its place");
        }
        Ok(())
    }

    /// A rank has left.
    pub(crate) fn left(&self, peer: Peer, io: &mut Io) {
        let missing = self.parent() == Some(peer)
            || (self.children().any(|child| child == peer)
                && !self.texts.get(&peer).is_some_and(|t| t.is_whole));
        if missing && !self.calls.is_empty() {
            io.fail(left(peer.0));
        }
    }

    /// The others go on without a rank.
    pub(crate) fn dropped(&mut self, peer: Peer, io: &mut Io) {
        self.dropped.insert(peer.0);
        self.texts.retain(|from, text| *from != peer || text.is_whole);
        self.go_on(io);
    }

    /// The job has failed.
    pub(crate) fn fail(&mut self) {
        self.calls.clear();
    }

    fn topic(&self, io: &Io) -> Topic {
        Topic::Note { epoch: io.epoch, call: self.over }
    }

    /// Passes on what this rank and all below it say, once all is there.
    fn go_on(&mut self, io: &mut Io) {
        loop {
            let Some(Call { purpose, says, .. }) = self.calls.front() else { return };
            // What a link lacks is reported before the first step.
            if self.is_reported || purpose.begins_steps() && !io.is_linked() {
                return;
            }
            let purpose = *purpose as u8;
            let gone = |peer: &Peer| io.worker.has_left(*peer) && !self.texts.contains_key(peer);
            if let Some(peer) = self.children().chain(self.parent()).find(gone) {
                return io.fail(left(peer.0));
            }
            if !self.children().all(|child| self.texts.get(&child).is_some_and(|text| text.is_whole)) {
                return;
            }
            let (digest, note) = match says {
                Says::Note(note) => ([0; DIGEST], Some(note)),
                Says::Lines(lines, note) => {
                    (Sha256::digest(lines.as_bytes()).into(), Some(note).filter(|note| !note.is_empty()))
                }
            };
            let is_note = matches!(says, Says::Note(_));
            let mut heads = vec![Head { rank: self.rank, purpose, digest }];
            let mut notes = Vec::new();
            if let Some(note) = note {
                write_note(&mut notes, self.rank, note);
            }
            for (peer, text) in &self.texts {
                let Some((theirs, rest)) = read_heads(&text.bytes) else {
                    let reason = "it violated the protocol: its note makes no sense".into();
                    return io.fail(Failure { rank: peer.0, step: None, reason });
                };
                heads.extend(theirs);
                notes.extend_from_slice(rest);
            }
            // Every rank has a note.
            let silent =
                self.dropped.iter().filter(|rank| is_note && !self.texts.contains_key(&Peer(**rank)));
            if self.parent().is_none() {
                silent.for_each(|rank| write_note(&mut notes, *rank, &[]));
            }
            self.texts.clear();
            heads.sort_by_key(|head| head.rank);
            let mut differing: Vec<Head> = Vec::new();
            for head in heads {
                if !differing.iter().any(|d| (d.purpose, d.digest) == (head.purpose, head.digest)) {
                    differing.push(head);
                }
            }
            differing.truncate(HEADS);
            self.is_reported = true;
            let topic = self.topic(io);
            if let Some(parent) = self.parent() {
                let mut text = vec![differing.len() as u8];
                for Head { rank, purpose, digest } in differing {
                    text.put_u32_le(rank);
                    text.put_u8(purpose);
                    text.put_slice(&digest);
                }
                text.extend(notes);
                pieces(&text, |piece| io.tell(parent, topic, piece));
                return;
            }
            // The coordinator alone decides, before anything is passed on, so that all are told the same rank.
            if let Some(other) = differing.iter().find(|head| head.purpose != purpose) {
                let (here, there) = (Purpose::named(purpose), Purpose::named(other.purpose));
                let reason = format!(
                    "it called {there} where this rank called {here}; all ranks must make the same calls in the same order"
                );
                return io.fail(Failure { rank: other.rank, step: None, reason });
            }
            let mut text = write_answer(differing.get(1).map(|head| head.rank));
            text.extend(notes);
            for child in self.children().collect::<Vec<_>>() {
                pieces(&text, |piece| io.tell(child, topic, piece));
            }
            self.answer = Text { bytes: text, is_whole: true };
            self.answered();
        }
    }

    /// The present call is over.
    fn answered(&mut self) {
        let text = std::mem::take(&mut self.answer);
        self.over += 1;
        self.is_reported = false;
        if let Some(call) = self.calls.pop_front() {
            // The caller has perhaps given up.
            let _ = call.answer.send(read_answer(text.bytes.into()));
        }
    }
}

/// Sends a text piece by piece. The first byte of each says whether it is the last.
fn pieces(text: &[u8], mut send: impl FnMut(Vec<u8>)) {
    let mut chunks = text.chunks(MAX_PAYLOAD - 1).peekable();
    while let Some(chunk) = chunks.next() {
        send([&[u8::from(chunks.peek().is_none())], chunk].concat());
    }
}

fn write_note(text: &mut Vec<u8>, rank: u32, note: &[u8]) {
    text.put_u32_le(rank);
    text.put_u32_le(note.len() as u32);
    text.put_slice(note);
}

/// The heads of a text, and the notes behind them.
pub(crate) fn read_heads(mut text: &[u8]) -> Option<(Vec<Head>, &[u8])> {
    let count = text.try_get_u8().ok()?;
    let mut heads = Vec::new();
    for _ in 0..count {
        let (rank, purpose) = (text.try_get_u32_le().ok()?, text.try_get_u8().ok()?);
        let mut digest = [0; DIGEST];
        text.try_copy_to_slice(&mut digest).ok()?;
        heads.push(Head { rank, purpose, digest });
    }
    Some((heads, text))
}

/// How many ranks there are below a place in the tree, and at it.
fn below(place: u32, workers: u32, width: u32) -> usize {
    let (mut first, mut last, mut count) = (u64::from(place), u64::from(place), 0);
    while first < u64::from(workers) {
        count += last.min(u64::from(workers) - 1) - first + 1;
        (first, last) = (first * u64::from(width) + 1, last * u64::from(width) + u64::from(width));
    }
    count as usize
}

/// The beginning of an answer.
fn write_answer(other: Option<u32>) -> Vec<u8> {
    let mut text = vec![u8::from(other.is_none())];
    other.into_iter().for_each(|other| text.put_u32_le(other));
    text
}

/// What the coordinator answered. Notes that make no sense are left out, which the caller notices by their number.
pub(crate) fn read_answer(mut text: Bytes) -> Answer {
    let other = if text.try_get_u8() == Ok(1) { None } else { text.try_get_u32_le().ok() };
    let mut notes = BTreeMap::new();
    while let (Ok(rank), Ok(length)) = (text.try_get_u32_le(), text.try_get_u32_le()) {
        if length as usize > text.len() {
            break;
        }
        notes.insert(rank, text.split_to(length as usize));
    }
    Answer { notes, other }
}

/// Where the lines of a rank differ from those of rank 0.
pub(crate) fn difference(rank: u32, zero: &[u8], other: &[u8]) -> Failure {
    let (ours, theirs) = (String::from_utf8_lossy(zero), String::from_utf8_lossy(other));
    let (mut ours, mut theirs) = (ours.lines(), theirs.lines());
    let (here, there) = loop {
        match (ours.next(), theirs.next()) {
            (Some(a), Some(b)) if a == b => {}
            (a, b) => break (a.unwrap_or("nothing"), b.unwrap_or("nothing")),
        }
    };
    let reason = format!(
        "its gradients differ from rank 0's: it has {there}, rank 0 has {here}; start all ranks with the same model and options"
    );
    Failure { rank, step: None, reason }
}

#[cfg(test)]
mod tests;
