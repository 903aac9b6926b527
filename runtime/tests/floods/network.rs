//! A rank's network that sends besides what the rank does a given kind of message, as many as go.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use gleaner_transport::memory::MemoryNetwork;
use gleaner_transport::{Counters, Link, LinkError, LinkEvent, Message, Network, Peer, Tag};

/// What is sent, by its number: a tag and a payload.
pub type Flood = fn(u64) -> (u64, Vec<u8>);

/// Messages of a flood.
pub const MESSAGES: u64 = 400_000;

/// The kind of bags, as it stands in the highest bits of tags.
pub const BAGS: u64 = 0;

/// A network whose links begin to flood with their first bag.
pub struct Hostile {
    pub inner: MemoryNetwork,
    pub flood: Flood,
    /// Whether they read no more from then on.
    pub is_deaf: bool,
    /// Messages of the flood that the network has taken.
    pub taken: Arc<AtomicU64>,
}

struct HostileLink {
    inner: Box<dyn Link>,
    flood: Flood,
    is_deaf: bool,
    taken: Arc<AtomicU64>,
    /// Messages of the flood that were sent, once it has begun.
    sent: Option<u64>,
    /// Whether what was submitted is part of the flood, in order.
    submitted: VecDeque<bool>,
    /// Messages of its own that were sent and not reported yet.
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
                    taken: Arc::clone(&self.taken),
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
            let sent = sent?;
            let own = self.submitted.drain(..sent).filter(|flood| !flood).count();
            self.own += own;
            self.taken.fetch_add((sent - own) as u64, Ordering::Relaxed);
        }
    }
}
