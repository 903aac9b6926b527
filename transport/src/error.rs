//! What can go wrong with a link, and with opening one.

use std::io;
use std::time::Duration;

use crate::{MAX_PAYLOAD, Peer};

/// An open link can carry no more, or was asked for something it never carries.
#[derive(thiserror::Error)]
pub enum LinkError {
    /// The other side is gone, or gave the link up.
    #[error("the link to {peer} is closed: it ended, failed, or dropped the link; its own log says which")]
    Closed {
        /// The peer at the other end.
        peer: Peer,
    },
    /// A message, ours or one announced by the peer, is longer than any may be.
    #[error(
        "a message of {length} bytes on the link to {peer} is longer than the {MAX_PAYLOAD} bytes a message \
         may have: split it"
    )]
    TooLong {
        /// The peer at the other end.
        peer: Peer,
        /// The payload's length in bytes.
        length: u64,
    },
    /// What came is not what the peer sent.
    #[error(
        "what came from {peer} is damaged: {what}; something between the two hosts, or the memory of one, changes data"
    )]
    Damaged {
        /// The peer at the other end.
        peer: Peer,
        /// What was expected, and what was found.
        what: String,
    },
    /// What is sent is not answered: the peer hangs or is gone, or the network between the two is cut. Either end may be the cause.
    #[error("{peer} does not answer: {what}; check the network between the two hosts")]
    Unanswered {
        /// The peer at the other end.
        peer: Peer,
        /// What the network said.
        what: String,
    },
    /// The network failed in another way.
    #[error("the link to {peer} failed: {source}; check the network between the two hosts")]
    Io {
        /// The peer at the other end.
        peer: Peer,
        /// What the operating system said.
        source: io::Error,
    },
}

crate::debug_as_sentence!(LinkError);

impl LinkError {
    /// Distinguishes the end of a link, which every job has, from failures that a user must see.
    pub(crate) fn from_io(peer: Peer, source: io::Error) -> Self {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, HostUnreachable, InvalidData, NetworkUnreachable,
            TimedOut, UnexpectedEof, WriteZero,
        };
        match source.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof | WriteZero => {
                LinkError::Closed { peer }
            }
            InvalidData => LinkError::Damaged { peer, what: source.to_string() },
            HostUnreachable | NetworkUnreachable | TimedOut => {
                LinkError::Unanswered { peer, what: source.to_string() }
            }
            _ => LinkError::Io { peer, source },
        }
    }
}

/// A link could not be opened.
#[derive(thiserror::Error)]
pub enum OpenError {
    /// No such peer takes part in this job.
    #[error("there is no {peer} in a job of {workers} workers: ranks are numbered from 0")]
    Unknown {
        /// The peer that was asked for.
        peer: Peer,
        /// How many there are.
        workers: u32,
    },
    /// A worker asked for a link to itself.
    #[error("{peer} asked for a link to itself: what stays on a worker needs no link")]
    Itself {
        /// The worker.
        peer: Peer,
    },
    /// The peer has left the network.
    #[error("{peer} has left the network: it ended or failed; its own log says which")]
    Gone {
        /// The peer that was asked for.
        peer: Peer,
    },
    /// The one that keeps all cards did not show the peer's.
    #[error(
        "{host} at {address} did not say where {peer} listens: {reason}; check that {host} still runs, its own log says more"
    )]
    NoCard {
        /// The rank that keeps the cards, and alone knows the addresses of the others.
        host: Peer,
        /// The peer that was asked for.
        peer: Peer,
        /// Where it was asked.
        address: String,
        /// What the last attempt met.
        reason: String,
    },
    /// No connection could be made.
    #[error(
        "could not connect to {peer} at {address}: {source}; check that it still runs and that no firewall \
         stands between the two hosts"
    )]
    Unreachable {
        /// The peer that was asked for.
        peer: Peer,
        /// Where it was sought.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// This worker's own host could not make a connection.
    #[error(
        "its host could not open a connection to {peer} at {address}: {source}; raise the limit on open files \
         (`ulimit -n`), or free ports and memory"
    )]
    Local {
        /// The peer that was asked for.
        peer: Peer,
        /// Where it was sought.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// This worker's own host lacks what the link needs.
    #[error("its host lacks what a link to {peer} needs: {reason}")]
    Lacks {
        /// The peer that was asked for, or that asked.
        peer: Peer,
        /// What is missing, and what to do.
        reason: String,
    },
    /// No link was opened in time.
    #[error(
        "no link to {peer} at {address} within {after:?}: {last}; check that it still runs and that no \
         firewall drops packets between the two hosts"
    )]
    TimedOut {
        /// The peer that was asked for.
        peer: Peer,
        /// Where it was sought.
        address: String,
        /// How long it was tried.
        after: Duration,
        /// What the last attempt met.
        last: String,
    },
    /// The connection was made, and the handshake failed.
    #[error("the handshake with {peer} at {address} failed: {reason}")]
    Handshake {
        /// The peer that was asked for.
        peer: Peer,
        /// Where it was sought.
        address: String,
        /// What went wrong, and what to do.
        reason: String,
    },
    /// The peer knows us and said no.
    #[error("{peer} at {address} refused the link: {reason}")]
    Refused {
        /// The peer that was asked for.
        peer: Peer,
        /// Where it was sought.
        address: String,
        /// Its sentence.
        reason: String,
    },
}

crate::debug_as_sentence!(OpenError);
