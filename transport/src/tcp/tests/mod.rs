//! What happens at the listening port and at the rendezvous when something is wrong. These tests speak the handshake
//! themselves, so that they can lie.

mod cards;
mod far;
mod link;
mod rendezvous;
mod sockets;
mod transport;
mod unauthenticated;
mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::handshake::{HandshakeError, speak};
use super::stream::Stream;
use super::wire::{Admission, Hello, JOIN, VERSION};
use super::{JoinConfig, JoinError, TcpNetwork, handshake, join};
use crate::secret::JobKey;
use crate::{Link, LinkEvent, Peer, Secret, TransportChoice, conformance};

type Joined = Result<TcpNetwork, JoinError>;

/// Longer than anything here takes, so that what comes at once is distinguished from what comes in the end.
const LONG: Duration = Duration::from_secs(60);

/// The epoch of their memberships.
const EPOCH: u16 = 300;

/// What each of their workers brings.
fn card(peer: u32) -> Bytes {
    format!("the card of rank {peer}").into()
}

/// The id of the jobs here.
const ID: &str = "17";

/// A job whose rank 0 waits for the others.
struct Job {
    address: SocketAddr,
    secret: Secret,
    workers: u32,
    epoch: u16,
    timeout: Duration,
    is_plain: bool,
    zero: JoinHandle<Joined>,
}

impl Job {
    /// With links that are sealed.
    async fn start(workers: u32, timeout: Duration) -> Job {
        Self::start_as(workers, timeout, false).await
    }

    async fn start_as(workers: u32, timeout: Duration, is_plain: bool) -> Job {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let secret = Secret::random().unwrap();
        let config = JoinConfig {
            peer: Peer(0),
            workers,
            epoch: EPOCH,
            card: card(0),
            rendezvous: address.to_string(),
            secret: secret.clone(),
            job: ID.to_owned(),
            is_plain,
            choice: TransportChoice::default(),
            timeout,
            listener: Some(listener),
        };
        Job { address, secret, workers, epoch: EPOCH, timeout, is_plain, zero: tokio::spawn(join(config)) }
    }

    /// The configuration of another worker of this job.
    fn config(&self, peer: u32) -> JoinConfig {
        JoinConfig {
            peer: Peer(peer),
            workers: self.workers,
            epoch: self.epoch,
            card: card(peer),
            rendezvous: self.address.to_string(),
            secret: self.secret.clone(),
            job: ID.to_owned(),
            is_plain: self.is_plain,
            choice: TransportChoice::default(),
            timeout: self.timeout,
            listener: None,
        }
    }

    fn key(&self) -> JobKey {
        self.secret.key_of(ID)
    }

    /// What an honest worker would say to join.
    fn hello(&self, from: u32) -> Hello {
        let (from, to, workers, epoch, is_plain) =
            (Peer(from), Peer(0), self.workers, self.epoch, self.is_plain);
        let timeout = self.timeout.as_millis() as u32;
        let (version, purpose, port, transport, sockets, socket) = (VERSION, JOIN, 9, 0, 1, 0);
        Hello {
            version,
            purpose,
            from,
            to,
            workers,
            port,
            epoch,
            is_plain,
            transport,
            sockets,
            socket,
            timeout,
        }
    }

    /// Says that hello and what follows.
    async fn say(&self, hello: &Hello) -> Result<(Admission, Stream), HandshakeError> {
        let socket = TcpStream::connect(self.address).await.unwrap();
        speak(socket, &self.key(), hello, &card(hello.from.0)).await
    }

    /// Says that hello, which is refused.
    async fn refusal(&self, hello: &Hello) -> String {
        match self.say(hello).await {
            Ok((Admission::Refused(sentence), _)) => sentence,
            other => panic!("expected a refusal and found {other:?}"),
        }
    }

    /// Comes to the rendezvous, and waits there for as long as the stream is kept.
    async fn come(&self, peer: u32) -> Stream {
        let (admission, stream) = self.say(&self.hello(peer)).await.unwrap();
        assert_eq!(admission, Admission::Welcome);
        stream
    }

    /// The bytes of a hello, made for it now.
    fn said(&self, hello: &Hello) -> Vec<u8> {
        said(&self.key(), hello)
    }
}

/// The bytes of a hello with that key.
fn said(key: &JobKey, hello: &Hello) -> Vec<u8> {
    handshake::hello(&mut handshake::dialler(key).unwrap(), hello).unwrap()
}

/// Writes these bytes, sealed where the stream is.
async fn write(stream: &mut Stream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
}

/// The next link, which must be to that peer.
async fn up(network: &mut TcpNetwork, peer: u32) -> Box<dyn Link> {
    loop {
        match timeout(LONG, conformance::event(network)).await.unwrap() {
            Some(LinkEvent::Up(link)) if link.peer() == Peer(peer) => return link,
            Some(LinkEvent::Refused { .. }) => {}
            other => panic!("expected a link to rank {peer} and found {other:?}"),
        }
    }
}

/// The next time that someone was refused.
async fn refused(network: &mut TcpNetwork) -> String {
    match timeout(LONG, conformance::event(network)).await.unwrap() {
        Some(LinkEvent::Refused { reason, .. }) => reason,
        other => panic!("expected a refusal and found {other:?}"),
    }
}
