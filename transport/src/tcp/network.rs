//! A worker's place in a job over TCP, once all have found each other.

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::HOST;
use super::acceptor::{Acceptor, Caller};
use super::bundle::Bundle;
use super::cards;
use super::cause::{Cause, panicked};
use super::events::Events;
use super::handshake::{Identity, Member, greet, say_taken};
use super::link::TcpLink;
use super::links::{Dial, Hold, Links, Turn};
use super::rendezvous::Met;
use super::stream::{Stream, prepare};
use super::wire::{ADD, ASK, Admission, LINK};
use crate::{Counters, Link, LinkEvent, Network, OpenError, Peer};

mod asking;
mod sockets;

use asking::{Places, Want};
use sockets::Coming;

/// Times that a dialler which was closed without an answer tries again before it says so.
const ATTEMPTS: u32 = 3;
/// The shortest and the longest pause before dialling again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// One worker's place in a job over TCP, made by [`join`](super::join).
#[derive(Debug)]
pub struct TcpNetwork {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    us: Identity,
    /// How long to try for a link.
    timeout: Duration,
    places: Mutex<Places>,
    /// At rank 0 the cards of all, by number.
    cards: Vec<Vec<u8>>,
    links: Arc<Links>,
    coming: Coming,
    counters: Arc<Counters>,
    /// The address at which it listens: that of one interface, or of all.
    #[cfg_attr(not(feature = "quic"), expect(dead_code, reason = "QUIC asks for it"))]
    ip: IpAddr,
    runtime: Handle,
    /// The tasks, which end with the network. None once it is closed.
    open: Mutex<Option<JoinSet<()>>>,
    events: Events,
}

impl TcpNetwork {
    /// Begins to accept, and reports the links that the rendezvous left.
    pub(super) fn start(us: Identity, timeout: Duration, met: Met, events: Events) -> Self {
        let Met { acceptor, known, cards, streams } = met;
        let inner = Arc::new(Inner {
            links: Links::new(us.peer, us.workers),
            us,
            timeout,
            places: Places::new(known),
            cards,
            coming: Coming::default(),
            counters: Arc::default(),
            ip: acceptor.ip,
            runtime: Handle::current(),
            open: Mutex::new(Some(JoinSet::new())),
            events,
        });
        for (peer, stream) in streams {
            if let Some(hold) = inner.links.offer(peer) {
                inner.begin(peer, stream, hold);
            }
        }
        inner.spawn(answer(Arc::clone(&inner), acceptor));
        TcpNetwork { inner }
    }

    /// The address at which this worker listens: that of one interface, or of all.
    #[cfg(feature = "quic")]
    pub(crate) fn listens_at(&self) -> IpAddr {
        self.inner.ip
    }

    /// Has something done as if it belonged to the network.
    #[cfg(test)]
    pub(super) fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.spawn(task);
    }
}

impl Network for TcpNetwork {
    fn peer(&self) -> Peer {
        self.inner.us.peer
    }

    fn workers(&self) -> u32 {
        self.inner.us.workers
    }

    fn epoch(&self) -> u16 {
        self.inner.us.epoch
    }

    fn open(&mut self, peer: Peer) {
        let workers = self.workers();
        if peer.0 >= workers {
            self.inner.report(LinkEvent::Failed { peer, error: OpenError::Unknown { peer, workers } });
        } else if peer == self.peer() {
            self.inner.report(LinkEvent::Failed { peer, error: OpenError::Itself { peer } });
        } else {
            self.inner.open(peer);
        }
    }

    fn poll_card(&mut self, peer: Peer, context: &mut Context<'_>) -> Poll<Result<Bytes, OpenError>> {
        self.inner.poll_card(peer, context)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        if let Poll::Ready(event) = self.inner.events.poll(context) {
            return Poll::Ready(Some(event));
        }
        // One task is always there, so that this is polled again when the next ends.
        while let Some(tasks) = &mut *self.inner.lock()
            && let Poll::Ready(Some(ended)) = tasks.poll_join_next(context)
        {
            if let Some(reason) = panicked(ended) {
                return Poll::Ready(Some(LinkEvent::Panicked { reason }));
            }
        }
        Poll::Pending
    }

    fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.inner.counters)
    }
}

impl Drop for TcpNetwork {
    fn drop(&mut self) {
        // The tasks hold what they run on, so they must end for it to be freed.
        let open = self.inner.lock().take();
        drop(open);
        self.inner.events.close();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = &mut *self.lock() {
            tasks.spawn_on(task, &self.runtime);
        }
    }

    fn report(&self, event: LinkEvent) {
        if self.lock().is_some() {
            self.events.report(event);
        }
    }

    fn up(&self, peer: Peer, mut streams: Vec<Stream>, hold: Hold) {
        self.counters.linked();
        let link: Box<dyn Link> = match (streams.pop(), streams.is_empty()) {
            (Some(only), true) => Box::new(TcpLink::new(peer, only, &self.counters, Some(hold))),
            (last, _) => {
                streams.extend(last);
                Box::new(Bundle::new(peer, streams, &self.counters, hold))
            }
        };
        self.report(LinkEvent::Up(link));
    }

    /// Goes on with a connection that the rendezvous left.
    fn begin(self: &Arc<Self>, peer: Peer, stream: Stream, hold: Hold) {
        let called = self.places().known[peer.0 as usize].at.filter(|_| self.us.peer != HOST);
        match called {
            _ if self.us.sockets == 1 => self.confirm(peer, vec![stream], hold),
            Some(at) => self.spawn(sockets::widen(Arc::clone(self), peer, at, stream, hold)),
            None => {
                let others = self.coming.expect(peer, &stream);
                self.spawn(sockets::await_all(Arc::clone(self), peer, stream, hold, others));
            }
        }
    }

    /// What was offered is the link.
    fn confirm(&self, peer: Peer, streams: Vec<Stream>, hold: Hold) {
        self.links.confirm(peer);
        self.up(peer, streams, hold);
    }

    /// It is none.
    fn withdraw(self: &Arc<Self>, peer: Peer, hold: Hold) {
        if self.links.withdraw(hold) {
            self.open(peer);
        }
    }

    fn refuse(&self, address: SocketAddr, reason: String) {
        self.report(LinkEvent::Refused { address: address.to_string(), reason });
    }

    fn open(self: &Arc<Self>, peer: Peer) {
        let Some(dialling) = self.links.want(peer) else { return };
        let known = self.places().known[peer.0 as usize].at;
        match known {
            Some(at) => self.spawn(dial(Arc::clone(self), peer, dialling, at)),
            None => self.want(Want::Dial(peer, dialling)),
        }
    }

    /// Decides about a caller that has proved itself, and answers it.
    async fn receive(self: &Arc<Self>, mut member: Member) {
        let (peer, address) = (member.hello.from, member.address);
        let mut misfit = member.misfit(&self.us);
        if misfit.is_none() && member.hello.purpose == ASK {
            return self.spawn(show(Arc::clone(self), member));
        }
        if misfit.is_none() && member.hello.purpose == ADD {
            return self.spawn(sockets::admit(Arc::clone(self), member));
        }
        if misfit.is_none() && member.hello.purpose != LINK {
            misfit = Some(format!(
                "{peer} at {} asks to join, but the job has all its workers, {peer} among them: was it started \
                 twice?",
                address.ip()
            ));
        }
        if let Some(sentence) = misfit {
            let _ = member.answer(&self.us, &Admission::Refused(sentence.clone())).await;
            return self.refuse(address, sentence);
        }
        match self.links.offer(peer) {
            Some(hold) => self.spawn(welcome(Arc::clone(self), member, hold)),
            None => {
                let _ = member.answer(&self.us, &Admission::Busy).await;
            }
        }
    }

    /// Dials until there is a link, whichever side made it, or none can come.
    async fn reach(self: &Arc<Self>, peer: Peer, dialling: u64, at: SocketAddr) -> Result<(), OpenError> {
        let address = at.to_string();
        let until @ Until { deadline, scarce } = Until::after(self.timeout);
        let mut last = "it holds an older link, or is opening one".to_owned();
        let (mut silent, mut pause, mut unreached) = (0, PAUSE.0, None);
        while Instant::now() < deadline {
            match self.attempt(peer, dialling, at, until).await {
                Attempt::Done => return Ok(()),
                Attempt::Failed(error) => return Err(error),
                Attempt::Again => {}
                Attempt::Silent(reason) => {
                    silent += 1;
                    if silent == ATTEMPTS {
                        return Err(OpenError::Handshake { peer, address, reason });
                    }
                    last = reason;
                }
                Attempt::Unreached(source)
                    if Cause::of(&source) == Cause::Here && Instant::now() >= scarce =>
                {
                    return Err(OpenError::Local { peer, address, source });
                }
                Attempt::Unreached(source) => unreached = Some(source),
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
        Err(match unreached {
            Some(source) => OpenError::Unreachable { peer, address, source },
            None => OpenError::TimedOut { peer, address, after: self.timeout, last },
        })
    }

    async fn attempt(self: &Arc<Self>, peer: Peer, dialling: u64, at: SocketAddr, until: Until) -> Attempt {
        let address = at.to_string();
        match self.links.turn(peer, dialling, Dial::Knocking) {
            Turn::Go => {}
            Turn::Wait => return Attempt::Again,
            Turn::Done => return Attempt::Done,
        }
        let socket = match timeout_at(until.deadline, TcpStream::connect(at)).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(source)) => {
                return match Cause::of(&source) {
                    Cause::Gone => Attempt::Failed(OpenError::Unreachable { peer, address, source }),
                    Cause::Here | Cause::Passes => Attempt::Unreached(source),
                };
            }
            Err(_) => return Attempt::Unreached(io::ErrorKind::TimedOut.into()),
        };
        prepare(&socket);
        match self.links.turn(peer, dialling, Dial::Speaking) {
            Turn::Go => {}
            Turn::Wait => return Attempt::Again,
            Turn::Done => return Attempt::Done,
        }
        match greet(socket, &self.us, peer, LINK, 0).await {
            Ok((Admission::Welcome, stream)) => match self.complete(peer, at, stream, until).await {
                Ok(streams) => {
                    self.take(peer, dialling, streams).await;
                    Attempt::Done
                }
                Err(attempt) => {
                    self.links.knock(peer, dialling);
                    attempt
                }
            },
            Ok((Admission::Busy, _)) => {
                self.links.knock(peer, dialling);
                Attempt::Again
            }
            Ok((Admission::Refused(reason), _)) => {
                Attempt::Failed(OpenError::Refused { peer, address, reason })
            }
            Err(error) => {
                self.links.knock(peer, dialling);
                let reason = error.to_string();
                if error.passes() {
                    Attempt::Silent(reason)
                } else {
                    Attempt::Failed(OpenError::Handshake { peer, address, reason })
                }
            }
        }
    }
}

impl Inner {
    /// Takes a link that was welcomed, unless another one has come meanwhile.
    async fn take(&self, peer: Peer, dialling: u64, mut streams: Vec<Stream>) {
        let Some(hold) = self.links.welcomed(peer, dialling) else { return };
        if let Some(first) = streams.first_mut() {
            say_taken(first).await;
        }
        self.up(peer, streams, hold);
    }
}

/// Until when a connection is tried, and until when where this host lacks what it takes: that is reported while those who wait
/// for this worker still do. All sockets of a link share both.
#[derive(Clone, Copy)]
struct Until {
    deadline: Instant,
    scarce: Instant,
}

impl Until {
    fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        Self { deadline: now + timeout, scarce: now + timeout / 2 }
    }
}

/// The result of dialling once.
enum Attempt {
    /// There is a link.
    Done,
    /// The other side makes one, or will take one later.
    Again,
    /// The connection was closed without an admission.
    Silent(String),
    /// No connection was made, and one may be later.
    Unreached(io::Error),
    /// Another attempt would meet the same.
    Failed(OpenError),
}

/// The task that dials one peer.
async fn dial(inner: Arc<Inner>, peer: Peer, dialling: u64, at: SocketAddr) {
    if let Err(error) = inner.reach(peer, dialling, at).await
        && inner.links.rest(peer, dialling)
    {
        inner.report(LinkEvent::Failed { peer, error });
    }
}

/// The task that offers one caller a link.
async fn welcome(inner: Arc<Inner>, mut member: Member, hold: Hold) {
    let (peer, address) = (member.hello.from, member.address);
    let others = inner.coming.expect(peer, &member.stream);
    let taken = member.welcome(&inner.us).await;
    let whole = match taken {
        Ok(true) => inner.gather(peer, member.stream, others).await,
        _ => None,
    };
    if let Some(streams) = whole {
        return inner.confirm(peer, streams, hold);
    }
    inner.withdraw(peer, hold);
    if let Err(error) = taken {
        inner.refuse(address, format!("{peer} left while its link was being opened: {error}"));
    }
}

/// The task that shows one caller the cards it asks for.
async fn show(inner: Arc<Inner>, member: Member) {
    let (peer, address) = (member.hello.from, member.address);
    if let Err(error) = cards::show(member, &inner.us, &inner.cards).await {
        inner.refuse(address, format!("{peer} asked where others listen and left: {error}"));
    }
}

/// The task that answers incoming connections.
async fn answer(inner: Arc<Inner>, mut acceptor: Acceptor) {
    loop {
        match acceptor.next().await {
            Ok(Caller::Member(member)) => inner.receive(member).await,
            Ok(Caller::Unauthenticated { address, reason }) => inner.refuse(address, reason.to_string()),
            Err(reason) => {
                inner.report(LinkEvent::Panicked { reason });
                // The network's owner ends it.
                return pending().await;
            }
        }
    }
}
