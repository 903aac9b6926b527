//! A worker's place in a job over TCP, once all have found each other.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::door::{Caller, Door};
use super::handshake::{Identity, Visitor, greet};
use super::link::link;
use super::links::{Dial, Hold, Links, Turn};
use super::rendezvous::Met;
use super::wire::{LINK, Verdict};
use crate::network::Counters;
use crate::{BoxFuture, LinkEvent, Network, OpenError, Peer, Traffic};

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
    places: Vec<Option<SocketAddr>>,
    links: Arc<Links>,
    counters: Arc<Counters>,
    runtime: Handle,
    /// None once the network is closed.
    open: Mutex<Option<Open>>,
}

/// What ends with the network.
#[derive(Debug)]
struct Open {
    events: mpsc::UnboundedSender<LinkEvent>,
    tasks: JoinSet<()>,
}

impl TcpNetwork {
    /// Begins to accept, and tells of the links that the rendezvous left.
    pub(super) fn start(
        us: Identity,
        timeout: Duration,
        met: Met,
        events: mpsc::UnboundedSender<LinkEvent>,
    ) -> Self {
        let Met { door, places, streams } = met;
        let inner = Arc::new(Inner {
            links: Links::new(us.peer, us.workers),
            us,
            timeout,
            places,
            counters: Arc::default(),
            runtime: Handle::current(),
            open: Mutex::new(Some(Open { events, tasks: JoinSet::new() })),
        });
        for (peer, stream) in streams {
            if let Some(hold) = inner.links.welcomed(peer) {
                inner.up(peer, stream, hold);
            }
        }
        inner.spawn(answer(Arc::clone(&inner), door));
        TcpNetwork { inner }
    }
}

impl Network for TcpNetwork {
    fn peer(&self) -> Peer {
        self.inner.us.peer
    }

    fn workers(&self) -> u32 {
        self.inner.us.workers
    }

    fn open(&self, peer: Peer) {
        let workers = self.workers();
        if peer.0 >= workers {
            self.inner.tell(LinkEvent::Failed { peer, error: OpenError::Unknown { peer, workers } });
        } else if peer == self.peer() {
            self.inner.tell(LinkEvent::Failed { peer, error: OpenError::Itself { peer } });
        } else {
            self.inner.open(peer);
        }
    }

    fn traffic(&self) -> Traffic {
        self.inner.counters.read()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let open = self.inner.lock().take();
            if let Some(mut open) = open {
                open.tasks.shutdown().await;
            }
        })
    }
}

impl Drop for TcpNetwork {
    fn drop(&mut self) {
        // The tasks hold what they run on, so they must end for it to be freed.
        let open = self.inner.lock().take();
        drop(open);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(open) = &mut *self.lock() {
            while open.tasks.try_join_next().is_some() {}
            open.tasks.spawn_on(task, &self.runtime);
        }
    }

    fn tell(&self, event: LinkEvent) {
        let events = self.lock().as_ref().map(|open| open.events.clone());
        if let Some(events) = events {
            let _ = events.send(event);
        }
    }

    fn up(&self, peer: Peer, stream: TcpStream, hold: Hold) {
        self.tell(LinkEvent::Up(link(peer, stream, &self.counters, hold)));
    }

    fn refuse(&self, address: SocketAddr, reason: String) {
        self.tell(LinkEvent::Refused { address: address.to_string(), reason });
    }

    fn open(self: &Arc<Self>, peer: Peer) {
        if self.links.want(peer) {
            self.spawn(dial(Arc::clone(self), peer));
        }
    }

    /// Decides about a caller that has proved itself, and tells it.
    async fn receive(self: &Arc<Self>, mut visitor: Visitor) {
        let (peer, address) = (visitor.hello.from, visitor.address);
        let mut misfit = visitor.misfit(&self.us);
        if misfit.is_none() && visitor.hello.purpose != LINK {
            misfit = Some(format!(
                "{peer} at {} asks to join, but the job has all its workers, {peer} among them: was it started \
                 twice?",
                address.ip()
            ));
        }
        if let Some(sentence) = misfit {
            let _ = visitor.answer(&self.us, &Verdict::Refused(sentence.clone())).await;
            return self.refuse(address, sentence);
        }
        let Some(hold) = self.links.offer(peer) else {
            let _ = visitor.answer(&self.us, &Verdict::Busy).await;
            return;
        };
        match visitor.answer(&self.us, &Verdict::Welcome).await {
            Ok(()) => {
                self.links.settle(peer);
                self.up(peer, visitor.stream, hold);
            }
            Err(error) => {
                if self.links.withdraw(hold) {
                    self.open(peer);
                }
                self.refuse(address, format!("{peer} left while its link was being opened: {error}"));
            }
        }
    }

    /// Dials until there is a link, whichever side made it, or none can come.
    async fn reach(&self, peer: Peer, at: SocketAddr) -> Result<(), OpenError> {
        let address = at.to_string();
        let deadline = Instant::now() + self.timeout;
        let mut last = "it holds an older link, or is opening one".to_owned();
        let (mut silent, mut pause) = (0, PAUSE.0);
        while Instant::now() < deadline {
            match self.attempt(peer, at, deadline).await {
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
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
        Err(OpenError::TimedOut { peer, address, after: self.timeout, last })
    }

    async fn attempt(&self, peer: Peer, at: SocketAddr, deadline: Instant) -> Attempt {
        let address = at.to_string();
        match self.links.turn(peer, Dial::Knocking) {
            Turn::Go => {}
            Turn::Wait => return Attempt::Again,
            Turn::Done => return Attempt::Done,
        }
        let mut stream = match timeout_at(deadline, TcpStream::connect(at)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(source)) => return Attempt::Failed(OpenError::Unreachable { peer, address, source }),
            Err(_) => {
                let source = io::ErrorKind::TimedOut.into();
                return Attempt::Failed(OpenError::Unreachable { peer, address, source });
            }
        };
        let _ = stream.set_nodelay(true);
        match self.links.turn(peer, Dial::Speaking) {
            Turn::Go => {}
            Turn::Wait => return Attempt::Again,
            Turn::Done => return Attempt::Done,
        }
        match greet(&mut stream, &self.us, peer, LINK, 0).await {
            Ok(Verdict::Welcome) => {
                if let Some(hold) = self.links.welcomed(peer) {
                    self.up(peer, stream, hold);
                }
                Attempt::Done
            }
            Ok(Verdict::Busy) => {
                self.links.knock(peer);
                Attempt::Again
            }
            Ok(Verdict::Refused(reason)) => Attempt::Failed(OpenError::Refused { peer, address, reason }),
            Err(error) => {
                self.links.knock(peer);
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

/// What came of dialling once.
enum Attempt {
    /// There is a link.
    Done,
    /// The other side makes one, or will take one later.
    Again,
    /// The connection was closed without a verdict.
    Silent(String),
    /// Another attempt would meet the same.
    Failed(OpenError),
}

/// The task that dials one peer.
async fn dial(inner: Arc<Inner>, peer: Peer) {
    let Some(at) = inner.places.get(peer.0 as usize).copied().flatten() else {
        return;
    };
    if let Err(error) = inner.reach(peer, at).await
        && inner.links.rest(peer)
    {
        inner.tell(LinkEvent::Failed { peer, error });
    }
}

/// The task that answers the door.
async fn answer(inner: Arc<Inner>, mut door: Door) {
    while let Some(caller) = door.callers.recv().await {
        match caller {
            Caller::Visitor(visitor) => inner.receive(visitor).await,
            Caller::Stranger { address, reason } => inner.refuse(address, reason.to_string()),
        }
    }
}
