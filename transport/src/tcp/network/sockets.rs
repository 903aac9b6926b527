//! The other sockets of a link that has several. Its dialler makes them once it is welcomed and before it takes the link; its acceptor waits
//! for them.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Attempt, Inner, PAUSE, deadlines};
use crate::tcp::cause::{Cause, panicked};
use crate::tcp::handshake::{Visitor, add};
use crate::tcp::links::Hold;
use crate::tcp::stream::{LinkId, Stream, prepare};
use crate::tcp::wire::Verdict;
use crate::{LinkEvent, OpenError, Peer};

/// Sockets of a link that are made at the same time: where 64 workers make those of their links to rank 0 at once, no more wait there for
/// their handshake than may.
const AT_ONCE: usize = 4;

/// How long, once the first socket of a link has ended, others may take to come that were made before.
const ENDING: Duration = Duration::from_secs(1);

/// Links whose other sockets are to come, by peer.
#[derive(Debug, Default)]
pub(super) struct Coming(Mutex<BTreeMap<Peer, (LinkId, mpsc::Sender<Numbered>)>>);

/// A socket and which one it is.
type Numbered = (u8, Stream);

/// What one link waits for.
pub(super) struct Others {
    first: LinkId,
    come: mpsc::Receiver<Numbered>,
}

impl Coming {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Peer, (LinkId, mpsc::Sender<Numbered>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, the others of the link with this first socket may come.
    pub(super) fn expect(&self, peer: Peer, first: &Stream) -> Others {
        let (sender, come) = mpsc::channel(1);
        self.all().insert(peer, (first.id(), sender));
        Others { first: first.id(), come }
    }

    /// Where one goes; none where nobody waits for it.
    fn expected(&self, peer: Peer, link: &[u8]) -> Option<mpsc::Sender<Numbered>> {
        let all = self.all();
        let (expected, sender) = all.get(&peer)?;
        (expected[..] == *link && !sender.is_closed()).then(|| sender.clone())
    }

    /// No more come for that link.
    fn forget(&self, peer: Peer, first: LinkId) {
        let mut all = self.all();
        if all.get(&peer).is_some_and(|(expected, _)| *expected == first) {
            all.remove(&peer);
        }
    }
}

impl Inner {
    /// Waits until all sockets of a link have come: gives them in their order. None if they do not come within the time-out, or the first
    /// ends, by which the dialler says that it gives the link up.
    pub(super) async fn gather(&self, peer: Peer, first: Stream, mut others: Others) -> Option<Vec<Stream>> {
        let deadline = Instant::now() + self.timeout;
        let all = usize::from(self.us.sockets);
        let mut streams = BTreeMap::new();
        {
            let mut come = pin!(async {
                while streams.len() + 1 < all
                    && let Some((number, stream)) = others.come.recv().await
                {
                    // Where there is one already, the dialler has lost it.
                    streams.insert(number, stream);
                }
            });
            tokio::select! {
                _ = timeout_at(deadline, &mut come) => {}
                () = ended(&first) => {
                    let _ = timeout(ENDING, come).await;
                }
            }
        }
        self.coming.forget(peer, others.first);
        (streams.len() + 1 == all).then(|| std::iter::once(first).chain(streams.into_values()).collect())
    }

    /// Makes the others of a link with this first socket, several at once: gives them all in their order.
    pub(super) async fn complete(
        self: &Arc<Self>,
        peer: Peer,
        at: SocketAddr,
        first: Stream,
    ) -> Result<Vec<Stream>, Attempt> {
        let (link, mut making) = (first.id(), JoinSet::new());
        let (mut numbers, mut streams) = (1..self.us.sockets, BTreeMap::from([(0, first)]));
        loop {
            for number in numbers.by_ref().take(AT_ONCE - making.len()) {
                let inner = Arc::clone(self);
                making.spawn(async move {
                    inner.another(peer, at, link, number).await.map(|made| (number, made))
                });
            }
            let Some(made) = making.join_next().await else { break };
            match made {
                Ok(made) => {
                    let (number, stream) = made?;
                    streams.insert(number, stream);
                }
                ended => {
                    let address = at.to_string();
                    let reason = panicked(ended).unwrap_or_else(|| "it was given up".into());
                    return Err(Attempt::Failed(OpenError::Handshake { peer, address, reason }));
                }
            }
        }
        Ok(streams.into_values().collect())
    }

    /// Makes one of them. Its peer, or the way to it, may be overrun at the moment, so it is tried for as long as a link is.
    async fn another(&self, peer: Peer, at: SocketAddr, link: LinkId, number: u8) -> Result<Stream, Attempt> {
        let address = || at.to_string();
        let ((deadline, scarce), mut pause) = (deadlines(self.timeout), PAUSE.0);
        loop {
            let failed = match timeout_at(deadline, TcpStream::connect(at)).await {
                Ok(Ok(socket)) => {
                    prepare(&socket);
                    match add(socket, &self.us, peer, link, number).await {
                        Ok((Verdict::Welcome, stream)) => return Ok(stream),
                        // The link is not opened any more.
                        Ok((Verdict::Busy, _)) => return Err(Attempt::Again),
                        Ok((Verdict::Refused(reason), _)) => {
                            let address = address();
                            return Err(Attempt::Failed(OpenError::Refused { peer, address, reason }));
                        }
                        Err(error) if error.passes() => Attempt::Silent(error.to_string()),
                        Err(error) => {
                            let (address, reason) = (address(), error.to_string());
                            return Err(Attempt::Failed(OpenError::Handshake { peer, address, reason }));
                        }
                    }
                }
                Ok(Err(source)) if Cause::of(&source) == Cause::Gone => {
                    let address = address();
                    return Err(Attempt::Failed(OpenError::Unreachable { peer, address, source }));
                }
                Ok(Err(source)) if Cause::of(&source) == Cause::Here && Instant::now() >= scarce => {
                    return Err(Attempt::Failed(OpenError::Local { peer, address: address(), source }));
                }
                Ok(Err(source)) => Attempt::Unreached(source),
                Err(_) => Attempt::Unreached(std::io::ErrorKind::TimedOut.into()),
            };
            if timeout_at(deadline, sleep(pause)).await.is_err() {
                return Err(failed);
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}

/// Returns when that connection has ended, and never where its dialler has said something: then it has made all sockets.
async fn ended(first: &Stream) {
    if matches!(first.socket().peek(&mut [0]).await, Ok(1..)) {
        pending().await
    }
}

/// The task that lets in one socket of a link that is being opened.
pub(super) async fn admit(inner: Arc<Inner>, mut visitor: Visitor) {
    let (peer, number) = (visitor.hello.from, visitor.hello.socket);
    let place = inner.coming.expected(peer, &visitor.card);
    let Some(place) = place.filter(|_| (1..inner.us.sockets).contains(&number)) else {
        let _ = visitor.answer(&inner.us, &Verdict::Busy).await;
        return;
    };
    if visitor.answer(&inner.us, &Verdict::Welcome).await.is_ok() {
        let _ = place.send((number, visitor.stream)).await;
    }
}

/// The task that makes several sockets of what a rendezvous left, at the end that called: the link to rank 0.
pub(super) async fn widen(inner: Arc<Inner>, peer: Peer, at: SocketAddr, stream: Stream, hold: Hold) {
    match inner.complete(peer, at, stream).await {
        Ok(streams) => inner.confirm(peer, streams, hold),
        Err(attempt) => {
            inner.links.withdraw(hold);
            match attempt {
                Attempt::Failed(error) => inner.tell(LinkEvent::Failed { peer, error }),
                // It is tried as other links are.
                _ => inner.open(peer),
            }
        }
    }
}

/// The same at rank 0.
pub(super) async fn await_all(inner: Arc<Inner>, peer: Peer, stream: Stream, hold: Hold, others: Others) {
    match inner.gather(peer, stream, others).await {
        Some(streams) => inner.confirm(peer, streams, hold),
        None => inner.withdraw(peer, hold),
    }
}
