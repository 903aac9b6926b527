//! The other sockets of a link that has several. Its dialler makes them once it is welcomed and before it takes the link; its acceptor waits
//! for them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Attempt, Inner, PAUSE, Until};
use crate::tcp::cause::{Cause, panicked};
use crate::tcp::handshake::{Member, add, say_taken, taken};
use crate::tcp::links::Hold;
use crate::tcp::stream::{LinkId, Stream, prepare};
use crate::tcp::wire::Admission;
use crate::{LinkEvent, OpenError, Peer};

/// Sockets of a link that are made at the same time: where 64 workers make those of their links to rank 0 at once, no more wait there for
/// their handshake than may.
const AT_ONCE: usize = 4;

/// Links whose other sockets are to come, by peer.
#[derive(Debug, Default)]
pub(super) struct Coming(Mutex<BTreeMap<Peer, Expected>>);

#[derive(Debug)]
struct Expected {
    first: LinkId,
    /// How many were let in.
    admitted: usize,
    sender: mpsc::UnboundedSender<Admitted>,
}

/// The result of one that was accepted: which socket of the link it is, in which turn it came, and nothing else if it was lost since.
type Admitted = (u8, usize, Option<Stream>);

/// What one link waits for.
pub(super) struct Others {
    first: LinkId,
    come: mpsc::UnboundedReceiver<Admitted>,
}

impl Coming {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Peer, Expected>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, the others of the link with this first socket may come.
    pub(super) fn expect(&self, peer: Peer, first: &Stream) -> Others {
        let (sender, come) = mpsc::unbounded_channel();
        self.all().insert(peer, Expected { first: first.id(), admitted: 0, sender });
        Others { first: first.id(), come }
    }

    /// Admits one: gives its number and where it goes; nothing where it is not waited for.
    fn admit(&self, peer: Peer, link: &[u8]) -> Option<(usize, mpsc::UnboundedSender<Admitted>)> {
        let mut all = self.all();
        let expected = all.get_mut(&peer)?;
        if expected.first[..] != *link || expected.sender.is_closed() {
            return None;
        }
        expected.admitted += 1;
        Some((expected.admitted, expected.sender.clone()))
    }

    /// No more come for that link. Says how many were let in.
    fn close(&self, peer: Peer, first: LinkId) -> usize {
        match self.all().entry(peer) {
            Entry::Occupied(expected) if expected.get().first == first => expected.remove().admitted,
            _ => 0,
        }
    }
}

impl Inner {
    /// All sockets of a link that its dialler has taken, in their order: it has received a welcome for each. None if it gives the link up,
    /// or does not take it within the timeout.
    pub(super) async fn gather(&self, peer: Peer, first: Stream, mut others: Others) -> Option<Vec<Stream>> {
        let mut streams = BTreeMap::new();
        for _ in 0..self.coming.close(peer, others.first) {
            let (number, turn, stream) = others.come.recv().await?;
            // Of two, the dialler has lost the one that came first: it did not receive its welcome.
            if streams.get(&number).is_none_or(|(earlier, _)| *earlier < turn) {
                streams.insert(number, (turn, stream));
            }
        }
        let others: Option<Vec<_>> = streams.into_values().map(|(_, stream)| stream).collect();
        let all: Vec<_> = std::iter::once(first).chain(others?).collect();
        (all.len() == usize::from(self.us.sockets)).then_some(all)
    }

    /// Makes the others of a link with this first socket, several at once: gives them all in their order.
    pub(super) async fn complete(
        self: &Arc<Self>,
        peer: Peer,
        at: SocketAddr,
        first: Stream,
        until: Until,
    ) -> Result<Vec<Stream>, Attempt> {
        let (link, mut making) = (first.id(), JoinSet::new());
        let (mut numbers, mut streams) = (1..self.us.sockets, BTreeMap::from([(0, first)]));
        loop {
            for number in numbers.by_ref().take(AT_ONCE - making.len()) {
                let inner = Arc::clone(self);
                making.spawn(async move {
                    inner.another(peer, at, (link, number), until).await.map(|made| (number, made))
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

    /// Makes one of them. Its peer, or the way to it, may be overrun at the moment, so it is tried for as long as its link is.
    async fn another(
        &self,
        peer: Peer,
        at: SocketAddr,
        (link, number): (LinkId, u8),
        Until { deadline, scarce }: Until,
    ) -> Result<Stream, Attempt> {
        let (address, mut pause) = (|| at.to_string(), PAUSE.0);
        loop {
            let failed = match timeout_at(deadline, TcpStream::connect(at)).await {
                Ok(Ok(socket)) => {
                    prepare(&socket);
                    match add(socket, &self.us, peer, link, number).await {
                        Ok((Admission::Welcome, stream)) => return Ok(stream),
                        // The link is not opened any more.
                        Ok((Admission::Busy, _)) => return Err(Attempt::Again),
                        Ok((Admission::Refused(reason), _)) => {
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

/// The task that lets in one socket of a link that is being opened.
pub(super) async fn admit(inner: Arc<Inner>, mut member: Member) {
    let (peer, number) = (member.hello.from, member.hello.socket);
    let is_known = (1..inner.us.sockets).contains(&number);
    let admitted = if is_known { inner.coming.admit(peer, &member.card) } else { None };
    let Some((turn, place)) = admitted else {
        let _ = member.answer(&inner.us, &Admission::Busy).await;
        return;
    };
    let answered = member.answer(&inner.us, &Admission::Welcome).await;
    // The task that gathers them may have given up.
    let _ = place.send((number, turn, answered.is_ok().then_some(member.stream)));
}

/// The task that makes several sockets of what a rendezvous left, at the end that called: the link to rank 0.
pub(super) async fn widen(inner: Arc<Inner>, peer: Peer, at: SocketAddr, stream: Stream, hold: Hold) {
    match inner.complete(peer, at, stream, Until::after(inner.timeout)).await {
        Ok(mut streams) => {
            if let Some(first) = streams.first_mut() {
                say_taken(first).await;
            }
            inner.confirm(peer, streams, hold);
        }
        Err(attempt) => {
            inner.links.withdraw(hold);
            match attempt {
                Attempt::Failed(error) => inner.report(LinkEvent::Failed { peer, error }),
                // It is tried as other links are.
                _ => inner.open(peer),
            }
        }
    }
}

/// The same at rank 0.
pub(super) async fn await_all(inner: Arc<Inner>, peer: Peer, mut stream: Stream, hold: Hold, others: Others) {
    let whole = match taken(&mut stream, inner.timeout).await {
        Ok(true) => inner.gather(peer, stream, others).await,
        _ => None,
    };
    match whole {
        Some(streams) => inner.confirm(peer, streams, hold),
        None => inner.withdraw(peer, hold),
    }
}
