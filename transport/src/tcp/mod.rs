//! The network over TCP.
//!
//! # Finding each other
//!
//! [`join`] is given the address of rank 0, which every worker knows. Peer 0 listens there; every other worker
//! listens at a port of its own choice, dials rank 0 until it is there, and names that port. Once all have come,
//! rank 0 sends everyone where the others listen. The connections to rank 0 stay as the links to it; all others
//! are made when they are first needed, by whichever side needs them.
//!
//! # The handshake
//!
//! Both ends of every connection prove that they hold the job's [`Secret`], with HMAC-SHA-256 under it. The
//! dialler D speaks first, so an acceptor A never answers a stranger with as much as a byte; a nonce is 32 random
//! bytes; numbers are little-endian; `‖` joins bytes:
//!
//! | | message | bytes |
//! |---|---|---|
//! | D → A | hello | `claims ‖ HMAC("gleaner hello\0" ‖ claims)`, claims = `"gleaner\0" ‖ version u32 ‖ purpose u32 ‖ D's number u32 ‖ A's number u32 ‖ workers u32 ‖ D's port u32 ‖ nonce` |
//! | A → D | challenge | `claims ‖ HMAC("gleaner challenge\0" ‖ hello ‖ claims)`, claims = `version u32 ‖ A's number u32 ‖ nonce` |
//! | D → A | proof | `HMAC("gleaner proof\0" ‖ hello ‖ challenge)` |
//! | A → D | verdict | `claims ‖ HMAC("gleaner verdict\0" ‖ hello ‖ challenge ‖ claims)`, claims = `kind u32 ‖ length u32 ‖ sentence` |
//!
//! `hello` and `challenge` include their MACs. The labels keep a message from being taken for another; the nonces
//! keep one from being taken for another connection's; a hello that was heard before, or that names A itself as
//! its sender, is a stranger's. What a hello claims (version, number of workers, numbers) counts only after the
//! proof, so a recorded hello cannot fail a job; what differs is told in the verdict's sentence, with both values.
//! A handshake takes at most 5 s, 64 callers may be in one at a time, and each runs by itself, so that strangers
//! who say nothing hold nobody up.
//!
//! **What follows is not encrypted, and not authenticated message by message**: a stranger cannot join, but
//! whoever can read or change packets between two hosts can read or change gradients. On a network that is not
//! your own, put a tunnel beneath.
//!
//! # Messages
//!
//! After a verdict of welcome, both sides send messages: a header of 16 bytes (a check word u32, the payload's
//! length u32, the tag u64) and the payload. A length above [`MAX_PAYLOAD`](crate::MAX_PAYLOAD) is refused before
//! anything is allocated; payloads are written from where they lie and read to where they stay.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, UnboundedReceiver};

mod door;
mod error;
mod handshake;
mod link;
mod links;
mod network;
mod rendezvous;
pub mod wire;

pub use error::JoinError;
pub use network::TcpNetwork;

use crate::{LinkEvent, Peer, Secret};
use door::Door;
use handshake::{HANDSHAKE, Identity};
use rendezvous::Met;

/// What a worker needs to know to find the others.
#[derive(Debug)]
pub struct TcpConfig {
    /// Who this worker is.
    pub peer: Peer,
    /// How many workers the job has.
    pub workers: u32,
    /// Where rank 0 is found: a host and a port, such as `node1:7000`. If the host is a loopback address or
    /// `localhost`, all workers listen there only; otherwise they listen on all interfaces.
    pub rendezvous: String,
    /// What all workers of the job share.
    pub secret: Secret,
    /// How long to wait for all workers to come, and later for a link to come about.
    pub timeout: Duration,
    /// A listener that is bound already and used instead of binding one: at rank 0 the rendezvous port, so that
    /// a launcher can choose a free one and nobody takes it in between; elsewhere the worker's own.
    pub listener: Option<std::net::TcpListener>,
}

/// Takes part in a job: returns when all workers have come, or says why they did not.
pub async fn join(mut config: TcpConfig) -> Result<(TcpNetwork, UnboundedReceiver<LinkEvent>), JoinError> {
    let (peer, workers) = (config.peer, config.workers);
    if peer.0 >= workers {
        return Err(JoinError::Impossible { peer, workers });
    }
    let (host, port) = split(&config.rendezvous)?;
    let patience = HANDSHAKE.min(config.timeout);
    let us = Identity { peer, workers, secret: config.secret.clone(), patience };
    let (sender, events) = mpsc::unbounded_channel();
    let met: Met = if peer == Peer(0) {
        let ip = host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let listener = bind(&mut config, ip, port).await?;
        let failed = |source| JoinError::Bind { address: config.rendezvous.clone(), source };
        let door = Door::open(listener, us.clone()).map_err(failed)?;
        rendezvous::host(&config, &us, door, &sender).await?
    } else {
        rendezvous::guest(&mut config, &us).await?
    };
    Ok((TcpNetwork::start(us, config.timeout, met, sender), events))
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

/// Listens on all interfaces, or if the job stays on this host, at that address only.
async fn bind(config: &mut TcpConfig, local: IpAddr, port: u16) -> Result<TcpListener, JoinError> {
    let address = || config.rendezvous.clone();
    if let Some(listener) = config.listener.take() {
        let taken = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
        return taken.map_err(|source| JoinError::Bind { address: address(), source });
    }
    let (host, _) = split(&config.rendezvous)?;
    let bound = if stays_local(&host) {
        TcpListener::bind(SocketAddr::new(local, port)).await
    } else {
        // Both families if the host has both; the first fails as a whole where it has no IPv6.
        match TcpListener::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).await {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).await
            }
            bound => bound,
        }
    };
    bound.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => JoinError::PortInUse { address: address(), port },
        _ => JoinError::Bind { address: address(), source },
    })
}

#[cfg(test)]
mod tests;
