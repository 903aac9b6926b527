//! A worker's place in a job over QUIC: links of TCP, over each of which both ends agree on a connection.

use std::collections::HashMap;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use quinn::{ClientConfig, Connecting, Connection, ConnectionError, ConnectionId, Endpoint, ServerConfig};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::closing::{Asked, Closing};
use super::driver::Driver;
use super::gathering::gather;
use super::keys::{Keys, Public};
use super::link::QuicLink;
use super::negotiation::{NUMBER, Negotiation};
use super::{WHAT, random};
use crate::tcp::JoinError;
use crate::tcp::cause::panicked;
use crate::tcp::upgraded::Upgraded;
use crate::{Counters, Link, LinkError, LinkEvent, Message, Network, OpenError, Peer, Tag, conformance};

/// One worker's place in a job over QUIC, made by [`join`](super::join).
#[derive(Debug)]
pub struct QuicNetwork {
    shared: Arc<Shared>,
    /// The tasks that make links, which end with the network.
    tasks: JoinSet<()>,
    /// Dropped last: it may wait until what was sent has arrived.
    pub(super) driver: Arc<Driver>,
}

/// What the tasks of a network need to make links.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) peer: Peer,
    pub(super) workers: u32,
    pub(super) epoch: u16,
    /// How long a link may take to come about.
    pub(super) timeout: Duration,
    pub(super) base: Upgraded,
    pub(super) endpoint: Endpoint,
    /// Where this worker receives datagrams.
    pub(super) port: u16,
    pub(super) keys: Keys,
    pub(super) transport: Arc<quinn::TransportConfig>,
    pub(super) expected: Expected,
    pub(super) closing: Arc<Closing>,
}

/// Connections that an agreed dialler may make, by the number to which its first datagram goes.
#[derive(Debug, Default)]
pub(super) struct Expected(Mutex<HashMap<[u8; NUMBER], Expectation>>);

#[derive(Debug)]
struct Expectation {
    config: Arc<ServerConfig>,
    come: oneshot::Sender<Result<Connecting, ConnectionError>>,
}

impl Expected {
    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; NUMBER], Expectation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes back that a connection is expected.
struct Withdraws<'a>(&'a Expected, [u8; NUMBER]);

impl Drop for Withdraws<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl QuicNetwork {
    /// Makes the links that the rendezvous left, and begins to make others.
    ///
    /// # Errors
    /// One of those that did not come about.
    pub(super) async fn start(
        shared: Arc<Shared>,
        driver: Arc<Driver>,
        reopened: UnboundedReceiver<Peer>,
    ) -> Result<Self, JoinError> {
        let mut network = Self { shared, tasks: JoinSet::new(), driver };
        let Self { shared, tasks, driver } = &mut network;
        tasks.spawn_on(answer(Arc::clone(shared)), driver.handle());
        for (connection, control) in gather(shared, driver.linger).await? {
            let link = QuicLink::new(
                connection,
                control,
                Arc::clone(driver),
                &shared.base.counters,
                &shared.closing,
            );
            shared.base.events.report(LinkEvent::Up(Box::new(link)));
        }
        tasks.spawn_on(connect(Arc::clone(shared), Arc::downgrade(driver), reopened), driver.handle());
        Ok(network)
    }

    /// Where this worker receives datagrams, until its endpoint moves.
    #[cfg(test)]
    pub(super) fn port(&self) -> u16 {
        self.shared.port
    }

    #[cfg(test)]
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.shared.endpoint
    }

    /// To whom a link was asked for that is not up yet.
    #[cfg(test)]
    pub(super) fn wants(&self) -> std::collections::BTreeSet<Peer> {
        self.shared.base.wanted().clone()
    }
}

impl Network for QuicNetwork {
    fn peer(&self) -> Peer {
        self.shared.peer
    }

    fn workers(&self) -> u32 {
        self.shared.workers
    }

    fn epoch(&self) -> u16 {
        self.shared.epoch
    }

    fn open(&mut self, peer: Peer) {
        if let Some(inner) = &mut *self.shared.base.inner() {
            self.shared.base.wanted().insert(peer);
            match self.shared.closing.asks(peer) {
                Asked::IsUp => {
                    self.shared.base.wanted().remove(&peer);
                }
                Asked::Now => inner.open(peer),
                Asked::Later => {}
            }
        }
    }

    fn poll_card(&mut self, peer: Peer, context: &mut Context<'_>) -> Poll<Result<Bytes, OpenError>> {
        self.shared.base.poll_card(peer, context)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        if let Poll::Ready(event) = self.shared.base.events.poll(context) {
            return Poll::Ready(Some(event));
        }
        while let Poll::Ready(Some(ended)) = self.tasks.poll_join_next(context) {
            if let Some(reason) = panicked(ended) {
                return Poll::Ready(Some(LinkEvent::Panicked { reason }));
            }
        }
        Poll::Pending
    }

    fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.base.counters)
    }
}

impl Drop for QuicNetwork {
    fn drop(&mut self) {
        // Links that were not taken hold the driver, whose socket holds these events.
        self.shared.base.close();
    }
}

/// The task that takes in connections. One that is not expected gets no answer.
async fn answer(shared: Arc<Shared>) {
    while let Some(incoming) = shared.endpoint.accept().await {
        let number = <[u8; NUMBER]>::try_from(&incoming.orig_dst_cid()[..]).ok();
        match number.and_then(|number| shared.expected.lock().remove(&number)) {
            // A receiver that expects it no more drops it.
            Some(Expectation { config, come }) => drop(come.send(incoming.accept_with(config))),
            None => incoming.ignore(),
        }
    }
}

/// The task that takes the links of TCP and makes those of QUIC, several at once.
async fn connect(shared: Arc<Shared>, driver: Weak<Driver>, mut reopened: UnboundedReceiver<Peer>) {
    let mut openings = JoinSet::new();
    loop {
        tokio::select! {
            event = shared.base.event() => match event {
                LinkEvent::Up(control) => {
                    openings.spawn(open(Arc::clone(&shared), Weak::clone(&driver), control));
                }
                other => shared.base.pass_on(other),
            },
            Some(peer) = reopened.recv() => {
                if let Some(inner) = &mut *shared.base.inner() {
                    inner.open(peer);
                }
            }
            Some(ended) = openings.join_next(), if !openings.is_empty() => {
                if let Some(reason) = panicked(ended) {
                    shared.base.events.report(LinkEvent::Panicked { reason });
                }
            }
        }
    }
}

/// The task that makes one link.
async fn open(shared: Arc<Shared>, driver: Weak<Driver>, mut control: Box<dyn Link>) {
    let peer = control.peer();
    let agreed = agree(&shared, &mut *control).await;
    // A dropped network needs no link.
    let Some(driver) = driver.upgrade() else { return };
    let agreed = match agreed {
        Ok(connection) => {
            Ok(QuicLink::new(connection, control, driver, &shared.base.counters, &shared.closing))
        }
        Err(error) => {
            // The peer says the same, where it does not know it yet.
            let word = Negotiation::Refused(error.to_string());
            let _ = timeout(driver.linger, say(&mut *control, &word)).await;
            Err(error)
        }
    };
    let was_wanted = shared.base.wanted().remove(&peer);
    shared.base.events.report(match agreed {
        Ok(link) => LinkEvent::Up(Box::new(link)),
        Err(error) if was_wanted => LinkEvent::Failed { peer, error },
        Err(error) => LinkEvent::Refused { address: peer.to_string(), reason: error.to_string() },
    });
}

/// Both ends exchange their sockets and keys, the higher-numbered dials, and both say that the connection is there: the end that has
/// received that knows that the other takes it.
pub(super) async fn agree(shared: &Shared, control: &mut dyn Link) -> Result<Connection, OpenError> {
    let (peer, limit) = (control.peer(), shared.timeout / 2);
    let address = control.address().map_or_else(|| peer.to_string(), |address| address.to_string());
    let slow = |last: &str| OpenError::TimedOut {
        peer,
        address: address.clone(),
        after: limit,
        last: last.to_owned(),
    };
    let connecting = async {
        if shared.peer > peer { dial(shared, control).await } else { be_dialled(shared, control).await }
    };
    let (connection, is_ready) = timeout(limit, connecting).await.map_err(|_| {
        slow("TCP reaches it, and no datagram of UDP was answered, which QUIC takes: let UDP pass between the two hosts, or choose \
              another transport (--transport tcp)")
    })??;
    let agreeing = async {
        say(control, &Negotiation::Ready).await?;
        if is_ready {
            return Ok(connection);
        }
        match hear(control).await? {
            Negotiation::Ready => Ok(connection),
            _ => Err(out_of_turn(peer)),
        }
    };
    timeout(limit, agreeing).await.map_err(|_| slow("it did not say that it takes the connection"))?
}

async fn dial(shared: &Shared, control: &mut dyn Link) -> Result<(Connection, bool), OpenError> {
    let peer = control.peer();
    say(control, &shared.offer([0; NUMBER])).await?;
    let Negotiation::Offer { port, key, number } = hear(control).await? else {
        return Err(out_of_turn(peer));
    };
    let host = control.address().ok_or_else(|| failed(peer, "its address is not known"))?;
    let mut config = ClientConfig::new(shared.keys.dialler(&key).map_err(|error| failed(peer, error))?);
    config.transport_config(Arc::clone(&shared.transport));
    config.initial_dst_cid_provider(Arc::new(move || ConnectionId::new(&number)));
    let connecting = shared.endpoint.connect_with(config, SocketAddr::new(host, port), WHAT);
    let connecting = connecting.map_err(|error| failed(peer, error))?;
    unless_refused(connecting, control).await
}

async fn be_dialled(shared: &Shared, control: &mut dyn Link) -> Result<(Connection, bool), OpenError> {
    let peer = control.peer();
    let Negotiation::Offer { key, .. } = hear(control).await? else { return Err(out_of_turn(peer)) };
    let config = shared.acceptor(&key).map_err(|error| failed(peer, error))?;
    let (number, (come, comes)) = (random(), oneshot::channel());
    shared.expected.lock().insert(number, Expectation { config: Arc::new(config), come });
    let _withdraws = Withdraws(&shared.expected, number);
    say(control, &shared.offer(number)).await?;
    let connecting = async {
        match comes.await {
            Ok(come) => come?.await,
            Err(_) => pending().await,
        }
    };
    unless_refused(connecting, control).await
}

/// Waits for a connection, for as long as the peer does. Says whether the peer has said meanwhile that it is ready.
async fn unless_refused(
    connecting: impl Future<Output = Result<Connection, ConnectionError>>,
    control: &mut dyn Link,
) -> Result<(Connection, bool), OpenError> {
    let (peer, mut is_ready) = (control.peer(), false);
    let mut connecting = pin!(connecting);
    loop {
        tokio::select! {
            connected = &mut connecting => {
                return connected.map(|connection| (connection, is_ready)).map_err(|error| failed(peer, error));
            }
            word = hear(control), if !is_ready => match word? {
                Negotiation::Ready => is_ready = true,
                _ => return Err(out_of_turn(peer)),
            },
        }
    }
}

impl Shared {
    fn offer(&self, number: [u8; NUMBER]) -> Negotiation {
        Negotiation::Offer { port: self.port, key: self.keys.public, number }
    }

    /// For who is dialled by the holder of that key.
    pub(super) fn acceptor(&self, key: &Public) -> Result<ServerConfig, quinn::rustls::Error> {
        let mut config = ServerConfig::with_crypto(self.keys.acceptor(key)?);
        config.transport_config(Arc::clone(&self.transport));
        Ok(config)
    }
}

fn failed(peer: Peer, reason: impl ToString) -> OpenError {
    OpenError::Handshake { peer, address: "its UDP port".to_owned(), reason: reason.to_string() }
}

pub(super) fn out_of_turn(peer: Peer) -> OpenError {
    failed(peer, "it sent an unexpected message: install the same version of gleaner on every host")
}

fn gone(peer: Peer, error: &LinkError) -> OpenError {
    match error {
        LinkError::Closed { .. } => OpenError::Gone { peer },
        _ => failed(peer, error),
    }
}

pub(super) async fn say(control: &mut dyn Link, word: &Negotiation) -> Result<(), OpenError> {
    let (peer, payload) = (control.peer(), word.encode());
    let message = Message { tag: Tag(Tag::CONTROL), payload };
    conformance::send(control, [message]).await.map_err(|error| gone(peer, &error))
}

pub(super) async fn hear(control: &mut dyn Link) -> Result<Negotiation, OpenError> {
    let peer = control.peer();
    let heard = conformance::receive(control).await.map_err(|error| gone(peer, &error))?;
    match Negotiation::decode(&heard.payload) {
        Some(Negotiation::Refused(reason)) => {
            Err(OpenError::Refused { peer, address: "its UDP port".to_owned(), reason })
        }
        Some(word) => Ok(word),
        None => Err(out_of_turn(peer)),
    }
}
