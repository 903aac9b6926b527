//! What networks share whose links begin as links of TCP and become others: those of QUIC and of verbs.

use std::collections::BTreeSet;
use std::future::{pending, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::TcpNetwork;
use super::events::Events;
use crate::{Counters, LinkEvent, Network, OpenError, Peer};

/// See the module.
#[derive(Debug)]
pub(crate) struct Upgraded {
    /// None once the network is dropped.
    inner: Mutex<Option<TcpNetwork>>,
    /// To whom a link was asked for that is not up yet.
    wanted: Mutex<BTreeSet<Peer>>,
    pub(crate) events: Arc<Events>,
    pub(crate) counters: Arc<Counters>,
}

impl Upgraded {
    pub(crate) fn new(inner: TcpNetwork, events: Arc<Events>) -> Self {
        Self { inner: Some(inner).into(), wanted: Mutex::default(), events, counters: Arc::default() }
    }

    /// The network of TCP, until its owner is dropped.
    pub(crate) fn inner(&self) -> MutexGuard<'_, Option<TcpNetwork>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To whom a link was asked for that is not up yet.
    pub(crate) fn wanted(&self) -> MutexGuard<'_, BTreeSet<Peer>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next event of the network of TCP.
    pub(crate) async fn event(&self) -> LinkEvent {
        let next = poll_fn(|context| match &mut *self.inner() {
            Some(inner) => inner.poll_event(context),
            None => Poll::Ready(None),
        });
        match next.await {
            Some(event) => event,
            None => pending().await,
        }
    }

    /// Reports to the owner an event that is not the beginning of a link.
    pub(crate) fn pass_on(&self, event: LinkEvent) {
        if let LinkEvent::Failed { peer, .. } = &event {
            self.wanted().remove(peer);
        }
        self.events.report(event);
    }

    /// See [`Network::poll_card`].
    pub(crate) fn poll_card(&self, peer: Peer, context: &mut Context<'_>) -> Poll<Result<Bytes, OpenError>> {
        match &mut *self.inner() {
            Some(inner) => inner.poll_card(peer, context),
            None => Poll::Ready(Err(OpenError::Gone { peer })),
        }
    }

    /// The owner is dropped: links that were not taken are closed, and the network of TCP ends at once, and not when the tasks that make links
    /// do, which may be in the middle of something.
    pub(crate) fn close(&self) {
        self.events.close();
        let inner = self.inner().take();
        drop(inner);
    }
}
