//! The network over QUIC: for long links that lose packets, where a late message holds up no other.
//!
//! # Finding each other
//!
//! Workers find each other [over TCP](crate::tcp), with its rendezvous and its handshake. Over each link of TCP, which is sealed, both
//! ends agree on one connection of QUIC:
//!
//! | | message | bytes |
//! |---|---|---|
//! | dialler → acceptor | offer | `0 u8 ‖ port u16 ‖ public key (44) ‖ zeros (20)` |
//! | acceptor → dialler | offer | the same, with a random number instead of zeros |
//! | both, once the connection is there | ready | `1 u8` |
//! | either | refused | `2 u8 ‖ sentence` |
//! | rank 0 → each, once it has a connection with all | complete | `3 u8` |
//!
//! The higher-numbered dials. Its first datagram goes to the connection number that the acceptor drew, and no other connection's is looked at.
//! Each end takes exactly the key that the other has offered (Ed25519, in TLS 1.3, without a certificate), so who is
//! who follows from the rendezvous, whatever addresses datagrams come from, and whatever addresses they come from later.
//! There is no early data, and no session is resumed.
//!
//! The link of TCP then carries nothing. It closes when a side drops the link or its process ends, which datagrams do not show.
//!
//! # Unauthenticated peers
//!
//! QUIC answers any peer that begins a handshake. So datagrams of handshakes have a tag by a key that is made of the job's, and those that
//! lack it are dropped before QUIC sees them: see `socket`.
//!
//! # Messages
//!
//! Each lane has a stream, which ends when the lane has nothing more to send; control data have one lane. A message is a header of 16
//! bytes, that of [TCP](crate::tcp#messages) with the checksum 0, and the payload. A length above
//! [`MAX_PAYLOAD`](crate::MAX_PAYLOAD) is refused before anything is allocated. If a lane goes on after its stream has ended, the next one
//! opens when the peer has all of the last.
//!
//! Control data go first. QUIC buffers no more than twice what the path takes at once and 128 KiB.
//!
//! # Ends
//!
//! All of this runs on a thread of its own. When a link is dropped, its streams end, and the connection is closed when the peer has all
//! of them, after the eighth part of the timeout, or after two seconds. The thread that drops the last of the network and its links waits
//! for that.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Weak};
use std::time::Duration;

use quinn::congestion::{BbrConfig, CubicConfig};
use quinn::{
    ConnectionError, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use socket2::SockRef;
use tokio::task::JoinSet;

mod closing;
mod driver;
mod gathering;
mod incoming;
mod keys;
mod link;
mod negotiation;
mod network;
mod outgoing;
mod ready;
mod socket;
#[cfg(test)]
mod tests;

pub use network::QuicNetwork;

use crate::tcp::upgraded::Upgraded;
use crate::tcp::{self, JoinConfig, JoinError, Joining};
use crate::{Congestion, LinkError, Network, Peer, Tag, Transport};
use closing::Closing;
use driver::Driver;
use keys::Keys;
use network::Shared;
use socket::{DatagramKey, GuardedSocket, Numbers, TAG};

/// What connections are named, as TLS wants it. It is not checked.
const WHAT: &str = "gleaner";
/// Lanes that have a stream at the same time.
const LANES: usize = 128;
/// Streams that the peer may have open: those of its lanes, and as many that have ended and are not read.
const STREAMS: u32 = 2 * LANES as u32;
/// Bytes that may be under way to a worker that does not read, and that one keeps to send them again: twice what 1 Gbit/s carries in a
/// round trip of 80 ms, since what follows a lost packet waits for another one.
const WINDOW: u32 = 24 << 20;
/// What is taken for a round trip before it is known (RFC 9002, section 6.2.2).
const ROUND_TRIP: Duration = Duration::from_millis(333);
/// What is asked of the system to buffer for the socket, in bytes. It gives what it may.
const BUFFER: usize = 8 << 20;
/// The largest datagram that is tried, in bytes: that of Ethernet with jumbo frames.
const LONGEST: u16 = 9000 - 40 - 8;

/// Takes part in a job: returns when all workers have come and those that rank 0 is linked to are linked by QUIC, or says why they
/// are not.
///
/// # Errors
/// What [`tcp::join`] says; links that were asked to be plain, or to have several sockets; and no way for datagrams between a worker and
/// rank 0, which is sent to all.
pub fn join(config: JoinConfig) -> Joining<QuicNetwork> {
    Box::pin(async move {
        let transport = Transport::Quic;
        config.choice.check(transport)?;
        if config.is_plain {
            return Err(JoinError::Sealed { transport });
        }
        let linger = (config.timeout / 8).min(Duration::from_secs(2));
        let driver = Arc::new(Driver::start(linger).map_err(setup(config.peer, "start its thread"))?);
        // It ends if this is dropped.
        let mut beginning = JoinSet::new();
        beginning.spawn_on(begin(config, Arc::downgrade(&driver)), driver.handle());
        match beginning.join_next().await {
            Some(Ok(begun)) => begun,
            ended => Err(match ended.and_then(crate::tcp::cause::panicked) {
                Some(reason) => JoinError::Panicked { reason },
                None => JoinError::ListenerClosed,
            }),
        }
    })
}

/// What [`join`] does on the thread of QUIC.
async fn begin(config: JoinConfig, driver: Weak<Driver>) -> Result<QuicNetwork, JoinError> {
    let (peer, workers, timeout) = (config.peer, config.workers, config.timeout);
    let congestion = config.choice.congestion.unwrap_or_default();
    let key = DatagramKey::new(&config.secret.key_of(&config.job));
    let keys = Keys::new().map_err(setup(peer, "make its key"))?;
    let inner = tcp::meet(config, Transport::Quic).await?;
    let (socket, port) = bind(inner.listens_at()).map_err(setup(peer, "open a UDP port"))?;
    let events = Arc::default();
    let (closing, reopened) = Closing::new();
    let runtime = Arc::new(TokioRuntime);
    let socket =
        quinn::Runtime::wrap_udp_socket(&*runtime, socket).map_err(setup(peer, "use its UDP port"))?;
    let socket = Arc::new(GuardedSocket::new(socket, key, Arc::clone(&events)));
    let endpoint = Endpoint::new_with_abstract_socket(endpoint(), None, socket, runtime);
    let shared = Arc::new(Shared {
        peer,
        workers,
        epoch: inner.epoch(),
        timeout,
        base: Upgraded::new(inner, events),
        endpoint: endpoint.map_err(setup(peer, "use its UDP port"))?,
        port,
        keys,
        transport: Arc::new(transport(congestion, timeout)),
        expected: Default::default(),
        closing,
    });
    // A connection gets the answer of its expectation; one that is not expected gets no further than that.
    let base = shared.acceptor(&shared.keys.public).map_err(setup(peer, "use its key"))?;
    shared.endpoint.set_server_config(Some(base));
    let driver = driver.upgrade().ok_or(JoinError::ListenerClosed)?;
    let _ = driver.endpoint.set(shared.endpoint.clone());
    QuicNetwork::start(shared, driver, reopened).await
}

fn setup<E: ToString>(peer: Peer, what: &'static str) -> impl FnOnce(E) -> JoinError {
    move |error| JoinError::Setup { peer, transport: Transport::Quic, what, reason: error.to_string() }
}

/// A socket at that address, and its port.
fn bind(ip: IpAddr) -> io::Result<(UdpSocket, u16)> {
    let socket = UdpSocket::bind((ip, 0))?;
    let buffers = SockRef::from(&socket);
    // With smaller ones it is slower.
    let _ = buffers.set_recv_buffer_size(BUFFER).and_then(|()| buffers.set_send_buffer_size(BUFFER));
    let port = socket.local_addr()?.port();
    Ok((socket, port))
}

fn endpoint() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.cid_generator(|| Box::new(Numbers));
    // It is within what QUIC allows.
    let _ = config.max_udp_payload_size(LONGEST + TAG as u16);
    config
}

fn transport(congestion: Congestion, timeout: Duration) -> TransportConfig {
    let mut config = TransportConfig::default();
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(LONGEST);
    // A silent peer is noticed by the owner of links, within the timeout. This is for links without an owner yet.
    let idle = IdleTimeout::try_from(timeout * 2).unwrap_or_else(|_| VarInt::MAX.into());
    // What is lost before a round trip is known is sent again after three of these, and later: twice while a connection may come about.
    config
        .initial_rtt(ROUND_TRIP.min(timeout / 24))
        .max_concurrent_uni_streams(STREAMS.into())
        .max_concurrent_bidi_streams(0_u32.into())
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(timeout / 6))
        .stream_receive_window(WINDOW.into())
        .receive_window(WINDOW.into())
        .datagram_receive_buffer_size(None)
        .mtu_discovery_config(Some(mtu));
    match congestion {
        Congestion::Cubic => config.congestion_controller_factory(Arc::new(CubicConfig::default())),
        Congestion::Bbr => config.congestion_controller_factory(Arc::new(BbrConfig::default())),
    };
    config
}

/// The lane of a message.
fn lane_of(tag: Tag) -> u64 {
    if tag.is_control() { Tag::CONTROL } else { tag.0 }
}

/// How a connection ended, as its links report it.
fn link_error(peer: Peer, error: ConnectionError) -> LinkError {
    match error {
        ConnectionError::TimedOut => LinkError::Io { peer, source: io::ErrorKind::TimedOut.into() },
        ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed | ConnectionError::Reset => {
            LinkError::Closed { peer }
        }
        error => LinkError::Io { peer, source: io::Error::other(error) },
    }
}

/// Random bytes.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    #[expect(clippy::expect_used)]
    getrandom::fill(&mut bytes)
        .expect("the system has random numbers, since it had some when the worker joined");
    bytes
}
