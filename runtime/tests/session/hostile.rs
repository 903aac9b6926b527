//! Ranks that join as all do and then send what no worker sends, as much as they can: the job ends with a sentence that
//! names them, on all other ranks, whatever their memory would hold.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use gleaner_algorithms::Method;
use gleaner_runtime::Session;
use gleaner_transport::memory::{self, MemoryNetwork};
use gleaner_transport::{Counters, Link, LinkError, LinkEvent, Message, Network, Peer, Tag};

/// What is sent, by its number.
type Flood = fn(u64) -> (u64, Vec<u8>);

/// Messages of a flood.
const MESSAGES: u64 = 400_000;

/// The kinds of messages, as they stand in the highest bits of tags.
const BAGS: u64 = 0;
const NOTE: u64 = 11;
const CANCEL: u64 = 12;
const CREDIT: u64 = 14;

fn tag(kind: u64, rest: u64) -> u64 {
    kind << 60 | rest
}

/// A network whose links begin to flood with their first bag.
struct Hostile {
    inner: MemoryNetwork,
    flood: Flood,
    /// Whether they read no more from then on.
    is_deaf: bool,
}

struct HostileLink {
    inner: Box<dyn Link>,
    flood: Flood,
    is_deaf: bool,
    /// Messages of the flood that were sent, once it has begun.
    sent: Option<u64>,
    /// Whether what was submitted is part of the flood, in order.
    submitted: VecDeque<bool>,
    /// Messages of its own that were sent and not told yet.
    own: usize,
}

impl Network for Hostile {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn workers(&self) -> u32 {
        self.inner.workers()
    }

    fn open(&mut self, peer: Peer) {
        self.inner.open(peer);
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        self.inner.poll_event(context).map(|event| {
            Some(match event? {
                LinkEvent::Up(inner) => LinkEvent::Up(Box::new(HostileLink {
                    inner,
                    flood: self.flood,
                    is_deaf: self.is_deaf,
                    sent: None,
                    submitted: VecDeque::new(),
                    own: 0,
                })),
                event => event,
            })
        })
    }

    fn counters(&self) -> Arc<Counters> {
        self.inner.counters()
    }
}

impl Link for HostileLink {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn submit(&mut self, message: Message) {
        if message.tag.0 >> 60 == BAGS {
            self.sent.get_or_insert(0);
        }
        self.submitted.push_back(false);
        self.inner.submit(message);
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        match self.pump(context) {
            Err(error) => Poll::Ready(Err(error)),
            Ok(()) if self.own == 0 => Poll::Pending,
            Ok(()) => Poll::Ready(Ok(std::mem::take(&mut self.own))),
        }
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        self.pump(context)?;
        if self.is_deaf && self.sent.is_some() {
            return Poll::Pending;
        }
        self.inner.poll_received(context)
    }
}

impl HostileLink {
    /// Sends as much of the flood as goes.
    fn pump(&mut self, context: &mut Context<'_>) -> Result<(), LinkError> {
        loop {
            while let Some(sent) = &mut self.sent
                && *sent < MESSAGES
                && self.submitted.len() < 64
            {
                let (tag, payload) = (self.flood)(*sent);
                *sent += 1;
                self.submitted.push_back(true);
                self.inner.submit(Message { tag: Tag(tag), payload: Bytes::from(payload) });
            }
            let Poll::Ready(sent) = self.inner.poll_sent(context) else { return Ok(()) };
            self.own += self.submitted.drain(..sent?).filter(|flood| !flood).count();
        }
    }
}

/// What the ranks that keep the rules say about the one that does not.
fn sentences(hostile: u32, is_deaf: bool, flood: Flood) -> Vec<String> {
    let ranks: Vec<_> = memory::networks(3)
        .into_iter()
        .map(|network| {
            std::thread::spawn(move || {
                let timeout = Duration::from_secs(5);
                let session = match network.peer() {
                    Peer(rank) if rank == hostile => {
                        Session::over(async move { Ok(Hostile { inner: network, flood, is_deaf }) }, timeout)
                    }
                    _ => Session::over(async { Ok(network) }, timeout),
                }?;
                let mut reducer = session.reducer("r", 100, Method::ring())?;
                loop {
                    reducer.start(&[1.0; 100])?.wait()?;
                }
            })
        })
        .collect();
    let errors = ranks.into_iter().map(|rank| {
        let error: gleaner_runtime::Error = match rank.join().unwrap() {
            Ok(never) => never,
            Err(error) => error,
        };
        error.to_string()
    });
    let all: Vec<_> = errors.collect();
    all.into_iter().enumerate().filter(|(rank, _)| *rank != hostile as usize).map(|(_, said)| said).collect()
}

#[test]
fn a_flood_ends_the_job_in_the_name_of_its_sender() {
    let freezing: Flood = |n| (tag(CANCEL, n + 2), vec![1]);
    let again: Flood = |_| (tag(CANCEL, 1 << 20), vec![1]);
    let bags: Flood = |n| (tag(BAGS, (n + 1) << 24), vec![0; 34]);
    let notes: Flood = |_| (tag(NOTE, 3), vec![0; 1 << 10]);
    let credit: Flood = |n| (tag(CREDIT, 1000 * n), vec![0; 8]);
    let cases: [(&str, u32, bool, Flood, &str); 6] = [
        ("freezing steps to come", 0, false, freezing, "thousands of steps"),
        ("deciding for others", 1, false, freezing, "out of turn"),
        ("answers that nobody reads", 0, true, again, "does not read the answers"),
        ("bags of gradients that do not exist", 1, false, bags, "more than its schedules allow"),
        ("notes of calls to come", 1, false, notes, "not the present one"),
        ("credit for everything", 1, false, credit, "credit for gradients that nobody has"),
    ];
    for (what, hostile, is_deaf, flood, expected) in cases {
        for said in sentences(hostile, is_deaf, flood) {
            assert!(
                said.starts_with(&format!("rank {hostile} failed")) && said.contains(expected),
                "{what}: {said}"
            );
        }
    }
}
