//! What every network offers, whatever carries the bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::{Link, OpenError, Peer};

/// One worker's place in a network of peers. One owner drives it by polling.
///
/// Links are opened lazily, by whichever side needs one first, and come out of [`poll_event`](Self::poll_event): the side
/// that asked and the side that was called each see one [`LinkEvent::Up`] for the same link. Between two peers there is at
/// most one link at a time; after a link was dropped on both sides another may be opened. Keeping links alive and noticing
/// silence is left to their owner. Dropping the network accepts and opens no more links, and closes those that
/// were not taken; others belong to their holders and stay.
pub trait Network: Send {
    /// This worker.
    fn peer(&self) -> Peer;

    /// How many peers there are; they are numbered from 0.
    fn workers(&self) -> u32;

    /// In which epoch of the membership it was joined. Links lead to peers of the same epoch only.
    fn epoch(&self) -> u16 {
        0
    }

    /// Makes sure that there is, or soon will be, a link to that peer. Returns at once and may be repeated;
    /// the result is an event: `Up` unless there is a link already, or `Failed`.
    fn open(&mut self, peer: Peer);

    /// The card of a peer, or the worker's own: at most [`MAX_CARD`](crate::MAX_CARD) bytes that the peer brought when it joined, and that
    /// only the peers read. What two need to know of each other before they have a link stands there: the numbers of
    /// queue pairs, or a certificate. It may have to be fetched, and stays the same. A network whose workers
    /// bring none has empty ones.
    ///
    /// # Errors
    /// A peer that does not exist, or a card that cannot be fetched now.
    fn poll_card(&mut self, peer: Peer, _context: &mut Context<'_>) -> Poll<Result<Bytes, OpenError>> {
        let workers = self.workers();
        let is_known = peer.0 < workers;
        Poll::Ready(if is_known { Ok(Bytes::new()) } else { Err(OpenError::Unknown { peer, workers }) })
    }

    /// What happens next. None when nothing will any more.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>>;

    /// What went over this worker's links so far, to be read at any time from anywhere.
    fn counters(&self) -> Arc<Counters>;
}

impl<N: Network + ?Sized> Network for Box<N> {
    fn peer(&self) -> Peer {
        (**self).peer()
    }

    fn workers(&self) -> u32 {
        (**self).workers()
    }

    fn epoch(&self) -> u16 {
        (**self).epoch()
    }

    fn open(&mut self, peer: Peer) {
        (**self).open(peer);
    }

    fn poll_card(&mut self, peer: Peer, context: &mut Context<'_>) -> Poll<Result<Bytes, OpenError>> {
        (**self).poll_card(peer, context)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        (**self).poll_event(context)
    }

    fn counters(&self) -> Arc<Counters> {
        (**self).counters()
    }
}

/// What happens in a network without being asked.
#[derive(Debug)]
pub enum LinkEvent {
    /// A link was opened, by either side.
    Up(Box<dyn Link>),
    /// A link that [`Network::open`] asked for did not come about; or one that the peer asked for did not, and both know who the other is.
    Failed {
        /// The peer at the other end.
        peer: Peer,
        /// Why not.
        error: OpenError,
    },
    /// A part of this worker's own network panicked: what it had to do is not done.
    Panicked {
        /// What the panic said, and where if that is known.
        reason: String,
    },
    /// An unauthenticated peer, or one that does not fit, was refused. Nothing to act on, but worth a line in a log.
    Refused {
        /// Where it called from.
        address: String,
        /// Why it was refused.
        reason: String,
    },
}

/// How much went over the links of one worker, since the network was joined and over all links together. What
/// a rendezvous and the opening of links cost is not counted, nor what sealing adds; headers are, where the network has any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes handed to the network, headers included.
    pub bytes_sent: u64,
    /// Bytes taken from the network, headers included.
    pub bytes_received: u64,
    /// Messages handed to the network whole.
    pub messages_sent: u64,
    /// Messages taken from the network whole.
    pub messages_received: u64,
    /// Links that were opened, those since dropped included.
    pub links: u64,
}

/// The running totals behind [`Traffic`], shared by all links of a worker.
#[derive(Debug, Default)]
pub struct Counters {
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    messages_sent: AtomicU64,
    messages_received: AtomicU64,
    links: AtomicU64,
}

impl Counters {
    /// This many bytes were handed to the network, and this many messages whole.
    pub fn sent(&self, bytes: usize, messages: usize) {
        self.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.messages_sent.fetch_add(messages as u64, Ordering::Relaxed);
    }

    /// This many bytes came, and this many messages whole.
    pub fn received(&self, bytes: usize, messages: usize) {
        self.bytes_received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.messages_received.fetch_add(messages as u64, Ordering::Relaxed);
    }

    /// A link was opened.
    pub fn linked(&self) {
        self.links.fetch_add(1, Ordering::Relaxed);
    }

    /// The totals so far.
    pub fn read(&self) -> Traffic {
        Traffic {
            bytes_sent: self.bytes_sent.load(Ordering::Relaxed),
            bytes_received: self.bytes_received.load(Ordering::Relaxed),
            messages_sent: self.messages_sent.load(Ordering::Relaxed),
            messages_received: self.messages_received.load(Ordering::Relaxed),
            links: self.links.load(Ordering::Relaxed),
        }
    }
}
