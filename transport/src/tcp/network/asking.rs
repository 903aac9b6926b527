//! What is known of peers, and the task that asks rank 0 for more.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{ATTEMPTS, Inner, PAUSE, Until, dial};
use crate::tcp::HOST;
use crate::tcp::cards::{self, Known};
use crate::tcp::cause::Cause;
use crate::tcp::handshake::HandshakeError;
use crate::tcp::wire::MAX_ASKED;
use crate::{LinkEvent, OpenError, Peer};

/// What is known of peers, and what else is wanted.
#[derive(Debug)]
pub(super) struct Places {
    /// By number.
    pub(super) known: Vec<Known>,
    wanted: Vec<Want>,
    /// Whether a task asks for it.
    is_asking: bool,
    /// The task that waits for the card.
    owner: Option<Waker>,
}

/// Why a peer's card is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// To dial the peer; with the number of the dialling.
    Dial(Peer, u64),
    /// To show it to the owner of the network.
    Show(Peer),
}

impl Want {
    fn peer(self) -> Peer {
        match self {
            Want::Dial(peer, _) | Want::Show(peer) => peer,
        }
    }
}

impl Places {
    pub(super) fn new(known: Vec<Known>) -> Mutex<Self> {
        Mutex::new(Self { known, wanted: Vec::new(), is_asking: false, owner: None })
    }
}

impl Inner {
    pub(super) fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has rank 0 asked for the card of a peer.
    pub(super) fn want(self: &Arc<Self>, want: Want) {
        let is_asking = {
            let mut places = self.places();
            places.wanted.push(want);
            std::mem::replace(&mut places.is_asking, true)
        };
        if !is_asking {
            self.spawn(ask(Arc::clone(self)));
        }
    }

    pub(super) fn poll_card(
        self: &Arc<Self>,
        peer: Peer,
        context: &mut Context<'_>,
    ) -> Poll<Result<Bytes, OpenError>> {
        let is_asked = {
            let mut places = self.places();
            let Places { known, owner, .. } = &mut *places;
            let Some(known) = known.get_mut(peer.0 as usize) else {
                return Poll::Ready(Err(OpenError::Unknown { peer, workers: self.us.workers }));
            };
            if let Some(card) = &known.card {
                return Poll::Ready(Ok(card.clone()));
            }
            if let Some(error) = known.error.take() {
                known.is_asked = false;
                return Poll::Ready(Err(error));
            }
            *owner = Some(context.waker().clone());
            std::mem::replace(&mut known.is_asked, true)
        };
        if !is_asked {
            self.want(Want::Show(peer));
        }
        Poll::Pending
    }

    /// What is wanted next, at most as much as is asked for at once. If it is nothing, the task ends.
    fn wanted(&self) -> Vec<Want> {
        let mut places = self.places();
        let count = places.wanted.len().min(MAX_ASKED);
        places.is_asking = count > 0;
        places.wanted.drain(..count).collect()
    }

    /// A card has come.
    fn found(self: &Arc<Self>, want: Want, Known { at, card, .. }: Known) {
        let owner = {
            let mut places = self.places();
            let known = &mut places.known[want.peer().0 as usize];
            // Rank 0 is where it was dialled.
            known.at = known.at.or(at);
            known.card = card;
            places.owner.take()
        };
        owner.into_iter().for_each(Waker::wake);
        if let (Want::Dial(peer, dialling), Some(at)) = (want, at) {
            self.spawn(dial(Arc::clone(self), peer, dialling, at));
        }
    }

    /// It has not.
    fn missed(&self, want: Want, error: OpenError) {
        match want {
            Want::Dial(peer, dialling) => {
                if self.links.rest(peer, dialling) {
                    self.report(LinkEvent::Failed { peer, error });
                }
            }
            Want::Show(peer) => {
                let owner = {
                    let mut places = self.places();
                    places.known[peer.0 as usize].error = Some(error);
                    places.owner.take()
                };
                owner.into_iter().for_each(Waker::wake);
            }
        }
    }
}

/// The task that asks rank 0 for cards, for as long as some are wanted.
async fn ask(inner: Arc<Inner>) {
    let Some(zero) = inner.places().known[0].at else { return };
    loop {
        let wanted = inner.wanted();
        if wanted.is_empty() {
            return;
        }
        let peers: Vec<_> = wanted.iter().map(|want| want.peer()).collect();
        let (mut attempts, Until { deadline, scarce }) = (0, Until::after(inner.timeout));
        let found = loop {
            attempts += 1;
            match cards::ask(&inner.us, zero, &peers).await {
                Err(HandshakeError::Connect(error))
                    if match Cause::of(&error) {
                        Cause::Gone => false,
                        Cause::Here => Instant::now() < scarce,
                        Cause::Passes => Instant::now() < deadline,
                    } =>
                {
                    sleep(PAUSE.1).await;
                }
                Err(error) if error.passes() && attempts < ATTEMPTS => sleep(PAUSE.1).await,
                found => break found,
            }
        };
        match found {
            Ok(found) => wanted.into_iter().zip(found).for_each(|(want, known)| inner.found(want, known)),
            Err(error) => {
                let lack = match &error {
                    HandshakeError::Connect(error) if Cause::of(error) == Cause::Here => Some(error),
                    _ => None,
                };
                for want in wanted {
                    let (peer, address) = (want.peer(), zero.to_string());
                    let error = match lack.map(|lack| io::Error::new(lack.kind(), lack.to_string())) {
                        Some(source) => OpenError::Local { peer, address, source },
                        None => OpenError::NoCard { host: HOST, peer, address, reason: error.to_string() },
                    };
                    inner.missed(want, error);
                }
            }
        }
    }
}
