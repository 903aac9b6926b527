//! The network over TCP.
//!
//! # Finding each other
//!
//! [`join`] is given the address of rank 0, which every worker knows. Peer 0 listens there; every other worker
//! listens at a port of its own choice, dials rank 0 until it is there, and names that port. Once all have come,
//! rank 0 tells all so. The connections to rank 0 stay as the links to it; all others are made when they are
//! first needed, by whichever side needs them. That side asks rank 0 where its peer listens, for all peers that it
//! needs at the moment, over a connection of its own with the purpose to ask: after the welcome it sends a header and
//! their numbers (u32 each, at most 512), and is sent a header and their cards (u16 length, and bytes),
//! in that order. A card begins with what rank 0 knows: its first byte says whether the peer is on rank 0's host (0) or
//! elsewhere (1), then there are its IPv6 or mapped IPv4 address, and its port u16. Behind them are the bytes, at most 1 KiB, that
//! the peer brought.
//!
//! # The handshake
//!
//! Both ends of every connection prove that they hold the job's key, HMAC-SHA-256 of `"gleaner job\0" ‖ job id` under the
//! job's [`Secret`], and agree on fresh keys: `Noise_NNpsk0_25519_ChaChaPoly_SHA256` with the job's key. The dialler D speaks
//! first, and its first message opens with the job's key alone, so an acceptor A never answers others with as much as a
//! byte. Numbers are little-endian; `‖` joins bytes:
//!
//! | | message | bytes |
//! |---|---|---|
//! | D → A | hello | `"gleaner\0" ‖` the first message of Noise with the payload `version u32 ‖ purpose u32 ‖ D's number u32 ‖ A's number u32 ‖ workers u32 ‖ D's port u16 ‖ membership epoch u16 ‖ plain u8 ‖ transport u8 ‖ sockets u8 ‖ socket u8 ‖ timeout in ms u32` |
//! | A → D | challenge | the second message of Noise with the payload `version u32 ‖ A's number u32` |
//! | D → A | proof | a record of `"gleaner proof"` |
//! | D → A | card | only to join, or to add a socket to a link: a record of a header and the bytes of D's card, or the link's 8 |
//! | A → D | admission | records of `kind u32 ‖ length u32 ‖ sentence` |
//!
//! Records are those of [`seal`](crate::seal), with the two keys that Noise ends with. A hello that was received before (the last
//! 65,536 are remembered), or that names A itself as its sender, is not answered. What a hello claims (version, number of
//! workers, epoch, numbers) counts only after the proof, so a recorded hello cannot fail a job; what differs is named in the admission's
//! sentence, with both values. A handshake takes at most the timeout, 256 callers may be waiting for their hello, and each runs by itself, so
//! that silent callers delay no other.
//!
//! # Messages
//!
//! A dialler that wants a link and is welcomed says `"taken\0\0\0"` and takes it, or leaves if it has another link to A by then.
//! After that, or after a welcome to the rendezvous, both sides send messages: a header of 16 bytes (the lowest 32 bits of the payload's XXH3; the payload's
//! length in 21 bits and the lowest 11 of the XXH3 of the header without them; the tag u64) and the payload. The payload's XXH3 is
//! seeded with the tag, the length rotated right by 21 bits and the message's number, joined by exclusive or; numbers count from
//! 0 in each direction of a link, and what is sent before there is a link has 2⁶⁴ − 1. A length above [`MAX_PAYLOAD`](crate::MAX_PAYLOAD) is refused before anything is allocated.
//!
//! They travel in records, and the payload's checksum is 0: who reads packets between two hosts learns how much is sent when, and
//! who changes, repeats or leaves out any ends the link. An end without the leave message of the runtime is
//! taken for a failure. With [`is_plain`](JoinConfig::is_plain) they travel as they are: payloads are written from where they
//! lie and read to where they stay, **what is sent can be read and forged between two hosts**, and the checksums find damage
//! that happens by accident: bytes that are changed, and messages that are repeated, dropped or swapped.
//!
//! # Several sockets
//!
//! A link of [several sockets](crate::Sockets) begins as one of a single socket. The first 8 bytes of the hash with which its Noise
//! ends are the link's name. Before the dialler takes the link it makes the other connections, each with a handshake to add a
//! socket, in which it says the link's name and which socket it is. A participant does so once the rendezvous is complete, and then says that it
//! takes the link. The acceptor has the link once it receives that: whichever welcome was lost before, the dialler has made that socket again.
//! Messages are numbered from 0 in each direction of the link. Each socket carries runs of messages that follow one another: before a run
//! stands a message without payload, whose tag is the number of the run's first, shifted left by 8 bits, and how many there
//! are, at most 64. The receiver hands messages out in the order of their numbers.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream, lookup_host};

mod acceptor;
mod bundle;
mod cards;
pub(crate) mod cause;
mod error;
pub(crate) mod events;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod heard;
mod link;
mod links;
mod network;
mod rendezvous;
mod stream;
#[cfg(any(feature = "quic", all(feature = "verbs", target_os = "linux")))]
pub(crate) mod upgraded;
pub mod wire;

pub use error::JoinError;
pub use network::TcpNetwork;

use crate::{MAX_CARD, Peer, Secret, Transport, TransportChoice};
use acceptor::Acceptor;
use cause::is_scarce;
use events::Events;
use handshake::Identity;
use rendezvous::Met;

/// The worker at the rendezvous address, which keeps all cards.
pub(crate) const HOST: Peer = Peer(0);

/// Connections that may wait for this process to look at them, as far as the system lets so many.
const BACKLOG: i32 = 1024;

/// What a worker needs to know to find the others.
#[derive(Debug)]
pub struct JoinConfig {
    /// This worker.
    pub peer: Peer,
    /// How many workers the job has.
    pub workers: u32,
    /// How often the set of workers has changed; the same at all workers that meet.
    pub epoch: u16,
    /// What the others are [shown](crate::Network::poll_card) of this worker, besides where it listens: at most
    /// [`MAX_CARD`] bytes, for what is built on this network.
    pub card: Bytes,
    /// Where rank 0 is found: a host and a port, such as `node1:7000`. If the host is a loopback address or
    /// `localhost`, all workers listen there only; otherwise each listens at the address by which others reach it, as far as
    /// it knows that, and else on all interfaces.
    pub rendezvous: String,
    /// What all workers of the job share.
    pub secret: Secret,
    /// Keeps jobs with the same secret apart; the same at all workers of one. Any text.
    pub job: String,
    /// Whether links are not encrypted, on a network that is trusted.
    pub is_plain: bool,
    /// What carries links once the workers have found each other. The rendezvous is TCP's whatever it is.
    pub choice: TransportChoice,
    /// How long to wait for all workers to come, and later for a link to come about; in milliseconds the same at all workers.
    pub timeout: Duration,
    /// A socket that is bound already, listening or not yet, and used instead of binding one: at rank 0 to the rendezvous
    /// port, so that a launcher can choose a free one and no other process takes it in between; elsewhere the worker's own.
    pub listener: Option<std::net::TcpListener>,
}

/// A network that is being joined. It is boxed, so that what joining takes is compiled here once, and not wherever it is awaited.
pub type Joining<N> = Pin<Box<dyn Future<Output = Result<N, JoinError>> + Send>>;

/// Takes part in a job over TCP, whatever the [choice](JoinConfig::choice) says: returns when all workers have come, or says why they
/// did not.
///
/// # Errors
/// Workers that do not come, or differ; an address that cannot be listened at or reached.
pub fn join(config: JoinConfig) -> Joining<TcpNetwork> {
    Box::pin(meet(config, Transport::Tcp))
}

/// The same for a job whose links that transport carries.
pub(crate) async fn meet(mut config: JoinConfig, transport: Transport) -> Result<TcpNetwork, JoinError> {
    let (peer, workers) = (config.peer, config.workers);
    if peer.0 >= workers {
        return Err(JoinError::Impossible { peer, workers });
    }
    let length = config.card.len();
    if length > MAX_CARD {
        return Err(JoinError::Card { length });
    }
    let (_, port) = split(&config.rendezvous)?;
    let key = config.secret.key_of(&config.job);
    config.secret.wipe();
    let us = Identity {
        peer,
        workers,
        epoch: config.epoch,
        card: std::mem::take(&mut config.card),
        key,
        is_plain: config.is_plain,
        transport,
        sockets: config.choice.sockets.number(),
        timeout: config.timeout,
    };
    let events = Events::default();
    let met: Met = if peer == HOST {
        let listener = bind(&mut config, None, port).await?;
        let failed = |source| JoinError::Bind { address: config.rendezvous.clone(), source };
        let acceptor = Acceptor::open(listener, us.clone()).map_err(failed)?;
        rendezvous::host(&config, &us, acceptor, &events).await?
    } else {
        rendezvous::participant(&mut config, &us).await?
    };
    Ok(TcpNetwork::start(us, config.timeout, met, events))
}

/// Host and port of a rendezvous address; the brackets around an IPv6 address are not part of it.
fn split(address: &str) -> Result<(String, u16), JoinError> {
    let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or_else(|| JoinError::Address { address: address.to_owned() })?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() {
        return Err(JoinError::Address { address: address.to_owned() });
    }
    Ok((host.to_owned(), port))
}

/// Whether the job stays on this host. A name that happens to resolve to a loopback address does not say so:
/// many hosts resolve their own name to one.
fn stays_local(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Listens at the address by which others reach this worker, or on all interfaces where that is not known.
async fn bind(
    config: &mut JoinConfig,
    dialled: Option<&TcpStream>,
    port: u16,
) -> Result<TcpListener, JoinError> {
    let (peer, address) = (config.peer, config.rendezvous.clone());
    let failed = |source: io::Error| match source.kind() {
        _ if is_scarce(&source) => JoinError::Local { peer, address, source },
        io::ErrorKind::AddrInUse => JoinError::PortInUse { address, port },
        _ => JoinError::Bind { address, source },
    };
    if let Some(listener) = config.listener.take() {
        let listens = SockRef::from(&listener).listen(BACKLOG);
        let taken = listens.and_then(|()| listener.set_nonblocking(true));
        return taken.and_then(|()| TcpListener::from_std(listener)).map_err(failed);
    }
    let (host, _) = split(&config.rendezvous)?;
    let bound = match reached_at(&host, dialled).await {
        Some(own) => match TcpListener::bind(SocketAddr::new(own, port)).await {
            // It may be the address of something that forwards to this host.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse && !stays_local(&host) => {
                bind_everywhere(port).await
            }
            bound => bound,
        },
        None => bind_everywhere(port).await,
    };
    bound.map_err(failed)
}

async fn bind_everywhere(port: u16) -> io::Result<TcpListener> {
    // Both families if the host has both; the first fails as a whole where it has no IPv6.
    match TcpListener::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).await
        }
        bound => bound,
    }
}

/// By which of this host's addresses others reach this worker: by the one from which it has dialled rank 0, or, on rank 0's
/// host, by the one by which they reach rank 0. That is not known if rank 0's name has several, or here none that others
/// could use.
async fn reached_at(host: &str, dialled: Option<&TcpStream>) -> Option<IpAddr> {
    let ends =
        dialled.and_then(|socket| Some((socket.local_addr().ok()?.ip(), socket.peer_addr().ok()?.ip())));
    match ends {
        Some((own, zero)) if own != zero || stays_local(host) => return Some(own),
        None if stays_local(host) => {
            return Some(host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        }
        _ => {}
    }
    let found: BTreeSet<IpAddr> = lookup_host((host, 0)).await.ok()?.map(|address| address.ip()).collect();
    let only = found.first().filter(|ip| found.len() == 1 && !ip.is_loopback() && !ip.is_unspecified());
    only.copied()
}

#[cfg(test)]
mod tests;
