//! Bytes from worker to worker. This room knows nothing of gradients, schedules or steps.
//!
//! A [`Network`] opens [`Link`]s to peers on demand; a link carries ordered, reliable, tagged
//! [`Message`]s in both directions at once. Nothing here assumes sockets: a network may lend its own
//! (registered, pinned) memory as [`Bytes`], and takes payloads as `Bytes` without copying them.

#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;

mod error;
pub mod memory;
mod network;
mod secret;
pub mod tcp;

pub use error::{LinkError, OpenError};
pub use network::{LinkEvent, Network, Traffic};
pub use secret::{Secret, SecretError};

/// One worker as the network knows it. A peer keeps its number for as long as it lives;
/// ranks, which a schedule uses, are given out anew for each membership epoch. It is shown as the rank that it was
/// started with, which is the name that users know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub u32);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Says which conversation a message belongs to; the network carries it and never reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// The largest payload of one message, in bytes. Whoever has more to say sends several messages:
/// a length from the wire is refused above this bound before anything is allocated.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// One tagged message, at most [`MAX_PAYLOAD`] bytes long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The conversation it belongs to.
    pub tag: Tag,
    /// What is said.
    pub payload: Bytes,
}

/// A boxed future, so that networks can be chosen at run time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The sending half of a link.
pub trait Sender: Send {
    /// Hands the messages to the network in order. Returns when their payloads are no longer needed;
    /// that they arrived is not promised. Several messages a call let a network write them at once.
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> BoxFuture<'a, Result<(), LinkError>>;
}

/// The receiving half of a link.
pub trait Receiver: Send {
    /// Waits for the next message. Dropping the returned future loses the link's place in the stream,
    /// so whoever races it against a clock must give the link up when the clock wins.
    fn receive(&mut self) -> BoxFuture<'_, Result<Message, LinkError>>;
}

/// An open, authenticated connection to one peer.
///
/// Dropping it closes it: the other side reads [`LinkError::Closed`] after the messages that reached it.
/// That is no goodbye, what was still under way may be lost; whoever must be heard waits for an answer first.
pub struct Link {
    /// Who is at the other end.
    pub peer: Peer,
    /// Sends to the peer.
    pub sender: Box<dyn Sender>,
    /// Receives from the peer.
    pub receiver: Box<dyn Receiver>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.peer)
    }
}
