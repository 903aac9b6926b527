//! What happens at the door and at the rendezvous when something is wrong. These tests speak the handshake
//! themselves, so that they can lie.

mod rendezvous;
mod strangers;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use super::handshake::{HandshakeError, speak};
use super::wire::{HELLO, Hello, JOIN, VERSION, Verdict};
use super::{JoinError, TcpConfig, TcpNetwork, handshake, join};
use crate::secret::random_bytes;
use crate::{Link, LinkEvent, Peer, Secret};

type Joined = Result<(TcpNetwork, UnboundedReceiver<LinkEvent>), JoinError>;

/// Longer than anything here takes, so that what comes at once is told from what comes in the end.
const LONG: Duration = Duration::from_secs(60);

/// A job whose rank 0 waits for the others.
struct Job {
    address: SocketAddr,
    secret: Secret,
    workers: u32,
    timeout: Duration,
    zero: JoinHandle<Joined>,
}

impl Job {
    async fn start(workers: u32, timeout: Duration) -> Job {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let secret = Secret::random().unwrap();
        let config = TcpConfig {
            peer: Peer(0),
            workers,
            rendezvous: address.to_string(),
            secret: secret.clone(),
            timeout,
            listener: Some(listener),
        };
        Job { address, secret, workers, timeout, zero: tokio::spawn(join(config)) }
    }

    /// What another worker of this job is told.
    fn config(&self, peer: u32) -> TcpConfig {
        TcpConfig {
            peer: Peer(peer),
            workers: self.workers,
            rendezvous: self.address.to_string(),
            secret: self.secret.clone(),
            timeout: self.timeout,
            listener: None,
        }
    }

    /// What an honest worker would say to join.
    fn hello(&self, from: u32) -> Hello {
        let nonce = random_bytes().unwrap();
        let (from, to, workers) = (Peer(from), Peer(0), self.workers);
        Hello { version: VERSION, purpose: JOIN, from, to, workers, port: 9, nonce }
    }

    /// Says that hello and what follows.
    async fn say(&self, hello: &Hello) -> (TcpStream, Result<Verdict, HandshakeError>) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let verdict = speak(&mut stream, &self.secret, hello).await;
        (stream, verdict)
    }

    /// Comes to the rendezvous, and waits there for as long as the stream is kept.
    async fn come(&self, peer: u32) -> TcpStream {
        let (stream, verdict) = self.say(&self.hello(peer)).await;
        assert_eq!(verdict.unwrap(), Verdict::Welcome);
        stream
    }

    /// The bytes of a hello.
    fn signed(&self, hello: &Hello) -> Vec<u8> {
        let mut bytes = hello.encode().to_vec();
        bytes.extend_from_slice(&handshake::mac(&self.secret, handshake::HELLO_LABEL, &[&bytes]));
        assert_eq!(bytes.len(), HELLO.1);
        bytes
    }
}

/// The next link, which must be to that peer.
async fn up(events: &mut UnboundedReceiver<LinkEvent>, peer: u32) -> Link {
    loop {
        match tokio::time::timeout(LONG, events.recv()).await.unwrap() {
            Some(LinkEvent::Up(link)) if link.peer == Peer(peer) => return link,
            Some(LinkEvent::Refused { .. }) => {}
            other => panic!("expected a link to rank {peer} and found {other:?}"),
        }
    }
}

/// The next time that someone was turned away.
async fn refused(events: &mut UnboundedReceiver<LinkEvent>) -> String {
    match tokio::time::timeout(LONG, events.recv()).await.unwrap() {
        Some(LinkEvent::Refused { reason, .. }) => reason,
        other => panic!("expected a refusal and found {other:?}"),
    }
}
