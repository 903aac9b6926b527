//! Bytes from worker to worker. This crate knows nothing of gradients, schedules or steps.
//!
//! A [`Network`] opens [`Link`]s to peers on demand; a link carries tagged [`Message`]s in both directions at once. Nothing
//! here assumes sockets: a link owns what was submitted until it says that it is sent, lends memory of its own (registered,
//! pinned) as [`Bytes`] and as [`Lease`], and promises an order within a lane only, so that streams may be independent.

#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::fmt;
use std::net::IpAddr;
use std::task::{Context, Poll};

use bytes::Bytes;

pub mod adverse;
mod choice;
pub mod conformance;
mod device;
mod error;
mod lease;
pub mod memory;
mod network;
#[cfg(feature = "quic")]
pub mod quic;
pub mod seal;
mod secret;
mod sentence;
mod sockets;
pub mod tcp;
#[cfg(all(feature = "verbs", target_os = "linux"))]
pub mod verbs;

pub use choice::{ChoiceError, Congestion, Preference, Transport, TransportChoice, join};
pub use device::VerbsDevice;
pub use error::{LinkError, OpenError};
pub use lease::Lease;
pub use network::{Counters, LinkEvent, Network, Traffic};
pub use secret::{Secret, SecretError};
pub use sockets::Sockets;
pub use tcp::{JoinConfig, JoinError, Joining};

/// One worker as the network knows it. A peer keeps its number for as long as it lives;
/// ranks, which a schedule uses, are given out again for each membership epoch. It is shown as the rank that it was
/// started with, which is the name that users know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub u32);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Says which conversation a message belongs to. The network carries it and reads one bit of it: the highest says whether
/// the message is control data.
///
/// Messages of one tag arrive in the order in which they were submitted; so do all control messages of a link, whatever
/// their tags. Nothing else is promised: a message may overtake those of other tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

impl Tag {
    /// The bit that marks control data.
    pub const CONTROL: u64 = 1 << 63;

    /// Whether it travels in the one ordered lane for control data. All others have a lane of their own.
    pub fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }
}

/// The largest payload of one message, in bytes. What is longer goes in several messages:
/// a length from the wire is refused above this bound before anything is allocated.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// The most bytes that a worker's card has.
pub const MAX_CARD: usize = 1024;

/// One tagged message, at most [`MAX_PAYLOAD`] bytes long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The conversation it belongs to.
    pub tag: Tag,
    /// What is said.
    pub payload: Bytes,
}

/// Bytes that went over one link so far, those of messages that are under way included. They show that a link is alive
/// while one long message takes its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes that the network has taken.
    pub sent: u64,
    /// Bytes that have come.
    pub received: u64,
}

/// An open, authenticated connection to one peer. One owner drives it by polling, as futures are: `Pending` means that the
/// context's waker is woken when there is more to do, `Ready` that it is to be polled again.
///
/// The two directions are independent: one that ended, or that is not polled, delays the other no more than a full buffer
/// does. Dropping the link closes it: the other side reads [`LinkError::Closed`] after the messages that reached it.
/// That is no leave message, and what was still under way may be lost: a sender whose messages must arrive waits for an answer first.
pub trait Link: Send {
    /// The peer at the other end.
    fn peer(&self) -> Peer;

    /// The address of the peer's host, as this link reaches it, where the network has addresses of IP.
    fn address(&self) -> Option<IpAddr> {
        None
    }

    /// Whether what it carries is encrypted and authenticated message by message.
    fn is_sealed(&self) -> bool {
        false
    }

    /// How many bytes have moved. A network that moves messages whole need not count them: zero for ever.
    fn moved(&self) -> Moved {
        Moved::default()
    }

    /// Memory for a payload of this many bytes, at most [`MAX_PAYLOAD`], at a multiple of four bytes. A network that needs payloads in
    /// memory of its own lends that, so that nothing is copied on the way; what lies elsewhere it copies when it is submitted. It
    /// never waits: when its own memory runs short, it lends other. A lease outlives the link, and its payload may be
    /// sent on any link, several times.
    fn lease(&mut self, length: usize) -> Lease {
        Lease::heap(length)
    }

    /// Takes a message. It neither waits nor wakes: the owner polls [`poll_sent`](Self::poll_sent) afterwards, and bounds
    /// what is submitted and not sent yet. A message that is longer than [`MAX_PAYLOAD`] ends the sending: it is let go at
    /// once, with all that is not sent, and `poll_sent` returns [`LinkError::TooLong`] from then on.
    fn submit(&mut self, message: Message);

    /// Goes on sending what was submitted, and says how many more messages, in the order of submission, have been handed to
    /// the network whole: their payloads are no longer needed. That they arrived is not promised. Pending if there are none.
    /// While the peer does not receive, the network takes a bounded amount and no more.
    ///
    /// # Errors
    /// A link that can carry no more.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>>;

    /// The next message. It begins at a multiple of four bytes in memory if it did where it was submitted, so that numbers
    /// can be seen in place. Its payload may lie in memory of the network, which is given back when the last [`Bytes`] of
    /// it is dropped; a network whose memory runs short copies, so a payload that is kept blocks nothing.
    ///
    /// # Errors
    /// A link that brings no more. After [`LinkError::Unanswered`] the peer may be alive, and notices nothing until this end
    /// is dropped. After [`LinkError::Damaged`] and [`LinkError::TooLong`] it is polled on: it takes in what
    /// comes and throws it away until the peer closes, because what this side still says is lost where a connection ends with
    /// unread bytes.
    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>>;
}

impl fmt::Debug for dyn Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.peer())
    }
}
