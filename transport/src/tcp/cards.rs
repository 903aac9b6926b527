//! Where peers listen, and what they brought. Rank 0 knows it of all; the others ask it when they first need a link, for several at once, each
//! time on a connection of its own: what a job costs rank 0 grows with its workers, not with their pairs.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::handshake::{HandshakeError, Identity, Member, greet};
use super::rendezvous::read_frame;
use super::stream::prepare;
use super::wire::{ASK, Admission, Asked, Card, Cards, MAX_ASKED, Place, WireError, frame};
use crate::{MAX_PAYLOAD, OpenError, Peer};

/// How many peers behind each are known to it from the beginning. When rank 0 is gone, there is no one to ask where others are.
const NEIGHBOURS: u32 = 4;

/// Where a member can be reached by all others, not only from here.
pub(super) fn place(member: &Member) -> Place {
    let seen = member.address.ip();
    let local = member.stream.socket().local_addr().map(|address| address.ip().to_canonical());
    if seen.is_loopback() || local.is_ok_and(|local| local == seen) {
        Place::BesidePeerZero(member.hello.port)
    } else {
        Place::At(SocketAddr::new(seen, member.hello.port))
    }
}

/// The next peers of one, but for rank 0.
pub(super) fn neighbours(peer: Peer, workers: u32) -> impl Iterator<Item = Peer> {
    let next = (1..workers).take(NEIGHBOURS as usize).map(move |i| (peer.0 + i) % workers);
    next.filter(|&next| next != 0).map(Peer)
}

/// What is known of a peer.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Where it listens.
    pub(super) at: Option<SocketAddr>,
    pub(super) card: Option<Bytes>,
    /// Whether its card was asked for, and why that failed.
    pub(super) is_asked: bool,
    pub(super) error: Option<OpenError>,
}

impl Known {
    /// What its card says to a worker that reached rank 0 at `host`.
    pub(super) fn new(card: Card, host: IpAddr) -> Self {
        let at = match card.place {
            Place::BesidePeerZero(port) => SocketAddr::new(host, port),
            Place::At(address) => address,
        };
        Self { at: Some(at), card: Some(card.bytes), ..Self::default() }
    }
}

/// Rank 0's part. A worker that asks for cards that do not exist is sent fewer.
pub(super) async fn show(mut member: Member, us: &Identity, cards: &[Vec<u8>]) -> Result<(), HandshakeError> {
    let show = async {
        member.answer(us, &Admission::Welcome).await?;
        let asked = Asked::decode(&read_frame(&mut member.stream, 4 * MAX_ASKED).await?)
            .map_err(std::io::Error::other)?;
        let found = asked.0.iter().filter_map(|peer| cards.get(peer.0 as usize).cloned()).collect();
        member.stream.write_all(&frame(&Cards(found).encode())).await?;
        member.stream.flush().await
    };
    timeout(us.timeout, show).await.map_err(|_| HandshakeError::Slow(us.timeout))?.map_err(HandshakeError::Io)
}

/// Asks rank 0, which listens at `zero`, for the cards of these peers.
pub(super) async fn ask(
    us: &Identity,
    zero: SocketAddr,
    peers: &[Peer],
) -> Result<Vec<Known>, HandshakeError> {
    let slow = |_| HandshakeError::Slow(us.timeout);
    let connected = timeout(us.timeout, TcpStream::connect(zero)).await.map_err(slow)?;
    let socket = connected.map_err(HandshakeError::Connect)?;
    prepare(&socket);
    let (admission, mut stream) = greet(socket, us, Peer(0), ASK, 0).await?;
    match admission {
        Admission::Welcome => {}
        Admission::Busy => return Err(HandshakeError::Cut),
        Admission::Refused(sentence) => return Err(HandshakeError::Io(std::io::Error::other(sentence))),
    }
    let ask = async {
        let asked = frame(&Asked(peers.to_vec()).encode());
        stream.write_all(&asked).await.map_err(HandshakeError::Io)?;
        stream.flush().await.map_err(HandshakeError::Io)?;
        let shown = read_frame(&mut stream, MAX_PAYLOAD).await.map_err(HandshakeError::Io)?;
        let cards = Cards::decode(&shown)?.0;
        if cards.len() != peers.len() {
            return Err(WireError::Length { expected: peers.len(), found: cards.len() }.into());
        }
        cards.iter().map(|card| Ok(Known::new(Card::decode(card)?, zero.ip()))).collect()
    };
    timeout(us.timeout, ask).await.map_err(slow)?
}
