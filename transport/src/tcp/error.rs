//! Why a worker could not take part in a job.

use std::io;
use std::time::Duration;

use crate::{Congestion, MAX_CARD, OpenError, Peer, Sockets, Transport, VerbsDevice};

/// A worker could not join.
#[derive(thiserror::Error)]
pub enum JoinError {
    /// The worker's own numbers make no sense.
    #[error(
        "{peer} cannot join a job of {workers} workers: ranks are numbered from 0 to one less than the workers"
    )]
    Impossible {
        /// The peer that it should be.
        peer: Peer,
        /// How many workers there should be.
        workers: u32,
    },
    /// The rendezvous address is no host and port.
    #[error(
        "the rendezvous address {address:?} should be a host and a port, such as node1:7000 or [fd00::1]:7000"
    )]
    Address {
        /// What was given.
        address: String,
    },
    /// A card that is too long.
    #[error("its card has {length} bytes; expected at most {MAX_CARD}")]
    Card {
        /// Its length.
        length: usize,
    },
    /// A transport that this program does not have.
    #[error(
        "the transport {transport} is not in this program: build it with `--features {transport}`, or choose another one \
         (--transport, GLEANER_TRANSPORT)"
    )]
    NotBuilt {
        /// What was asked for.
        transport: Transport,
    },
    /// A congestion controller for a transport that has none of its own.
    #[error(
        "the congestion controller {congestion} was asked for, and the transport is {transport}: leave it out (--congestion, \
         GLEANER_CONGESTION), or choose quic (--transport, GLEANER_TRANSPORT)"
    )]
    Congestion {
        /// What was asked for.
        congestion: Congestion,
        /// What carries links.
        transport: Transport,
    },
    /// A transport that always encrypts.
    #[error(
        "the transport {transport} encrypts all that it carries, and links that are not encrypted were asked for: leave out --plain \
         (GLEANER_PLAIN), or choose another transport (--transport, GLEANER_TRANSPORT)"
    )]
    Sealed {
        /// What was asked for.
        transport: Transport,
    },
    /// This host did not give what a transport takes.
    #[error("{peer} could not {what} for the transport {transport}: {reason}")]
    Setup {
        /// This worker.
        peer: Peer,
        /// What carries links.
        transport: Transport,
        /// What it could not do.
        what: &'static str,
        /// Why not.
        reason: String,
    },
    /// All workers came, and a link between two of them did not.
    #[error(
        "{peer} and {other} have found each other, and no link of the transport {transport} between them could be opened: {error}"
    )]
    Unlinked {
        /// This worker.
        peer: Peer,
        /// To whom there is no link.
        other: Peer,
        /// What carries links.
        transport: Transport,
        /// Why there is none.
        error: OpenError,
    },
    /// Another program, or another job, listens there.
    #[error(
        "port {port} is in use: another program or another job on this host listens there; stop it, or choose \
         another port for the rendezvous address {address}"
    )]
    PortInUse {
        /// The rendezvous address.
        address: String,
        /// Its port.
        port: u16,
    },
    /// No port could be opened.
    #[error(
        "could not listen for the rendezvous address {address}: {source}; check that it belongs to this host"
    )]
    Bind {
        /// The rendezvous address.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// A worker never reached rank 0.
    #[error(
        "{peer} could not reach rank 0 at {address} within {after:?}; the last attempt failed: {last}. Check that \
         rank 0 was started, that the address is its own, and that no firewall stands in between"
    )]
    Unreachable {
        /// The peer that could not.
        peer: Peer,
        /// The rendezvous address.
        address: String,
        /// How long it tried.
        after: Duration,
        /// What the last attempt met.
        last: String,
    },
    /// Someone answered, and the handshake failed.
    #[error("{peer} connected to {address}, but the handshake failed: {reason}")]
    Handshake {
        /// The peer that tried.
        peer: Peer,
        /// The rendezvous address.
        address: String,
        /// What went wrong, and what to do.
        reason: String,
    },
    /// Peer 0 knows us and said no.
    #[error("rank 0 at {address} refused {peer}: {sentence}")]
    Refused {
        /// The peer that was refused.
        peer: Peer,
        /// The rendezvous address.
        address: String,
        /// Its sentence.
        sentence: String,
    },
    /// At rank 0: not all came in time.
    #[error(
        "rank 0 waited {waited:?} for {workers} workers; {named} did not come: start what is missing, or check its \
         network{hint}"
    )]
    Missing {
        /// How long it waited.
        waited: Duration,
        /// How many workers the job has.
        workers: u32,
        /// The peers that did not come.
        missing: Vec<Peer>,
        /// The same, in words.
        named: String,
        /// What was refused meanwhile and may have been one of them.
        hint: String,
        /// Whether none, of two or more, reaches rank 0: then it may well have been cut off itself.
        is_alone: bool,
    },
    /// At rank 0: a worker proved itself too late, though its hello had come in time.
    #[error(
        "a round trip between rank 0 and {peer} takes {round_trip:.1?}, too long for the timeout of {timeout:?}, within which \
         connecting and a handshake take three: raise it at every worker (GLEANER_TIMEOUT)"
    )]
    Slow {
        /// Whose took the longest.
        peer: Peer,
        /// How long it took.
        round_trip: Duration,
        /// How long all are waited for.
        timeout: Duration,
    },
    /// This worker's own host could not make a connection, take one in, or open a port.
    #[error(
        "the host of {peer} could make no connection for {address}: {source}; raise the limit on open files (`ulimit -n`), \
         or free ports and memory"
    )]
    Local {
        /// This worker.
        peer: Peer,
        /// The rendezvous address.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// At rank 0: a worker does not fit the job.
    #[error("the job was started wrongly: {sentence}")]
    Misfit {
        /// What differs, with both values.
        sentence: String,
    },
    /// At rank 0: a worker came and left again.
    #[error(
        "{peer} at {address} left while rank 0 was waiting for the others ({present} of {} had come): its own log \
         says why", workers - 1
    )]
    Left {
        /// The peer that left.
        peer: Peer,
        /// Where it called from.
        address: String,
        /// How many had come, it included and rank 0 not.
        present: u32,
        /// How many workers the job has.
        workers: u32,
    },
    /// Peer 0 ended the job and said why to all.
    #[error("rank 0 ended the job: {sentence}")]
    Failed {
        /// Its reason.
        sentence: String,
    },
    /// Peer 0 was reached, and left without an answer.
    #[error("lost rank 0 at {address} while it was waiting for the others: {source}; its own log says why")]
    Lost {
        /// The rendezvous address.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// Peer 0 was reached, and never said how the waiting ended.
    #[error("rank 0 at {address} said nothing for {after:?} about whether all workers came: check its host")]
    NoOutcome {
        /// The rendezvous address.
        address: String,
        /// How long this worker waited.
        after: Duration,
    },
    /// The task that answers the port ended.
    #[error("the listening port was closed while workers were joining: the tokio runtime is shutting down")]
    ListenerClosed,
    /// A task of this worker's own network panicked.
    #[error("its network panicked: {reason}; this is a bug in gleaner: please report it with this line")]
    Panicked {
        /// What the panic said.
        reason: String,
    },
    /// An adapter for a transport that uses none.
    #[error(
        "the verbs device {device} was asked for, and the transport is {transport}: leave it out (--verbs-device, \
         GLEANER_VERBS_DEVICE), or choose verbs (--transport, GLEANER_TRANSPORT)"
    )]
    Device {
        /// What was asked for.
        device: VerbsDevice,
        /// What carries links.
        transport: Transport,
    },
    /// Several sockets for a transport that has none of its own.
    #[error(
        "{sockets} sockets for each link were asked for, and the transport is {transport}: leave them out (--sockets, \
         GLEANER_SOCKETS), or choose tcp (--transport, GLEANER_TRANSPORT)"
    )]
    Sockets {
        /// What was asked for.
        sockets: Sockets,
        /// What carries links.
        transport: Transport,
    },
    /// Verbs cannot be used here.
    #[cfg(all(feature = "verbs", target_os = "linux"))]
    #[error(transparent)]
    Verbs(#[from] crate::verbs::VerbsError),
}

crate::debug_as_sentence!(JoinError);

impl JoinError {
    pub(super) fn lost(address: &str, source: io::Error) -> Self {
        JoinError::Lost { address: address.to_owned(), source }
    }
}

/// "rank 2", "ranks 2 and 5", "ranks 2, 5 and 7"; only the first of very many.
pub(super) fn listed(peers: &[Peer]) -> String {
    const MOST: usize = 32;
    let numbers: Vec<_> = peers.iter().take(MOST).map(|peer| peer.0.to_string()).collect();
    match numbers.as_slice() {
        [] => "no rank".to_owned(),
        [only] => format!("rank {only}"),
        several if peers.len() > MOST => {
            format!("ranks {} and {} more", several.join(", "), peers.len() - MOST)
        }
        [before @ .., last] => format!("ranks {} and {last}", before.join(", ")),
    }
}
