//! Small control data that all ranks exchange together: agreeing, gathering, waiting for each other.
//!
//! The ranks form a tree under the coordinator, in which each has up to 16 children. What a rank and all below it have to say
//! goes up as one text, and the answer comes down, both in pieces. So the coordinator sends as many messages as it has
//! children, however many ranks there are. Whether all ranks say the same is found from digests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use gleaner_transport::{MAX_PAYLOAD, Peer};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::algorithm::left;
use crate::failure::Failure;
use crate::io::Io;
use crate::link::Broken;
use crate::tag::Topic;

/// Children that a rank has at most.
const CHILDREN: u32 = 16;

/// The longest note.
pub(crate) const LONGEST: usize = MAX_PAYLOAD - 1;

/// Differing heads that are passed on: those of the lowest ranks.
const HEADS: usize = 8;

/// Bytes of a digest.
const DIGEST: usize = 32;

/// What a note is for, so that ranks whose calls differ are told instead of confused.
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
}

impl Purpose {
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

/// What comes of a call.
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
    workers: u32,
    coordinator: u32,
    /// Calls that are over.
    over: u32,
    /// Calls of this rank, the present one first.
    calls: VecDeque<Call>,
    /// What the children have sent for the present call.
    texts: BTreeMap<Peer, Text>,
    /// Whether this rank's part of it has gone up.
    is_told: bool,
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
    pub(crate) fn new(rank: u32, workers: u32, coordinator: u32) -> Self {
        Self {
            rank,
            workers,
            coordinator,
            over: 0,
            calls: VecDeque::new(),
            texts: BTreeMap::new(),
            is_told: false,
            answer: Text::default(),
        }
    }

    /// This rank's place in the tree, counted from the coordinator.
    fn place(&self) -> u32 {
        (self.rank + self.workers - self.coordinator) % self.workers
    }

    fn at(&self, place: u32) -> Peer {
        Peer((place + self.coordinator) % self.workers)
    }

    fn parent(&self) -> Option<Peer> {
        self.place().checked_sub(1).map(|place| self.at(place / CHILDREN))
    }

    fn children(&self) -> impl Iterator<Item = Peer> + use<'_> {
        let first = u64::from(self.place()) * u64::from(CHILDREN) + 1;
        let places = first..(first + u64::from(CHILDREN)).min(u64::from(self.workers));
        places.map(|place| self.at(place as u32))
    }

    /// The longest text of a rank and all below it, which no other sends.
    fn most(&self, peer: Peer) -> usize {
        let place = (peer.0 + self.workers - self.coordinator) % self.workers;
        1 + HEADS * (5 + DIGEST) + below(place, self.workers) * (LONGEST + 8)
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

    /// A neighbour in the tree sent a piece.
    pub(crate) fn heard(&mut self, from: Peer, call: u32, piece: &[u8], io: &mut Io) -> Result<(), Broken> {
        if call != self.over {
            return Err("it took part in a call that is not the present one");
        }
        if Some(from) == self.parent() {
            if !self.is_told {
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
            let purpose = *purpose as u8;
            if self.is_told {
                return;
            }
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
            let mut heads = vec![Head { rank: self.rank, purpose, digest }];
            let mut notes = Vec::new();
            if let Some(note) = note {
                write_note(&mut notes, self.rank, note);
            }
            for (peer, text) in &self.texts {
                let Some((theirs, rest)) = read_heads(&text.bytes) else {
                    let reason = "it broke the rules: its note makes no sense".into();
                    return io.fail(Failure { rank: peer.0, step: None, reason });
                };
                heads.extend(theirs);
                notes.extend_from_slice(rest);
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
            self.is_told = true;
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
            // The coordinator alone judges, before anything is passed on, so that all hear of the same rank.
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
        self.is_told = false;
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
fn below(place: u32, workers: u32) -> usize {
    let (mut first, mut last, mut count) = (u64::from(place), u64::from(place), 0);
    while first < u64::from(workers) {
        count += last.min(u64::from(workers) - 1) - first + 1;
        (first, last) = (first * u64::from(CHILDREN) + 1, last * u64::from(CHILDREN) + u64::from(CHILDREN));
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
mod tests {
    use super::*;

    /// Every rank but the coordinator has one parent, which has it as a child, whoever coordinates.
    #[test]
    fn the_ranks_form_a_tree_under_the_coordinator() {
        for (workers, coordinator) in (1..400).flat_map(|workers| [(workers, 0), (workers, 2 % workers)]) {
            let notes = |rank| Notes::new(rank, workers, coordinator);
            for rank in 0..workers {
                let parent = notes(rank).parent();
                assert_eq!(parent.is_none(), rank == coordinator);
                if let Some(Peer(parent)) = parent {
                    assert_eq!(notes(parent).children().filter(|child| child.0 == rank).count(), 1);
                }
                let children: Vec<u32> = notes(rank).children().map(|child| child.0).collect();
                assert!(children.len() <= CHILDREN as usize);
                // What may come from below is bounded by what is there, and all of it reaches the coordinator.
                let of = |rank| below((rank + workers - coordinator) % workers, workers);
                assert_eq!(of(rank), 1 + children.into_iter().map(of).sum::<usize>());
            }
            assert_eq!(below(0, workers), workers as usize);
        }
    }

    #[test]
    fn a_text_is_as_long_as_the_notes_of_a_subtree_and_no_longer() {
        // Rank 1 has 3 below it, and rank 2 none.
        let notes = Notes::new(0, 20, 0);
        assert_eq!(below(1, 20), 4);
        for (child, ranks) in [(Peer(1), 4), (Peer(2), 1)] {
            let most = notes.most(child);
            let (mut text, piece) = (Text::default(), vec![0; MAX_PAYLOAD]);
            let mut taken = 0;
            while text.take(&piece, most).is_ok() {
                taken += piece.len() - 1;
            }
            assert!((ranks * LONGEST..=most).contains(&taken) && most < (ranks + 1) * LONGEST, "{taken}");
        }
    }

    #[test]
    fn answers_read_back() {
        for other in [None, Some(0), Some(70_000)] {
            let mut text = write_answer(other);
            [(3, &b"three"[..]), (1, b"")]
                .into_iter()
                .for_each(|(rank, note)| write_note(&mut text, rank, note));
            let answer = read_answer(text.into());
            assert_eq!(answer.other, other);
            assert!(answer.notes.into_iter().eq([(1, Bytes::new()), (3, Bytes::from("three"))]));
        }
    }
}
