//! An open link over QUIC, and what keeps its connection for as long as it takes.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::{Connection, VarInt};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::closing::Closing;
use super::driver::Driver;
use super::incoming::Incoming;
use super::outgoing::{Last, Outgoing};
use crate::{Counters, Link, LinkError, Message, Moved, Peer, conformance};

/// See the module.
pub(super) struct QuicLink {
    peer: Peer,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Takes what is on its way when the link is dropped.
    keeper: Option<oneshot::Sender<Vec<Last>>>,
    closing: Arc<Closing>,
    /// Dropped last: it may wait until what was sent has arrived.
    _driver: Arc<Driver>,
}

impl QuicLink {
    /// A link of a connection that both ends have agreed on over `control`.
    pub(super) fn new(
        connection: Connection,
        control: Box<dyn Link>,
        driver: Arc<Driver>,
        counters: &Arc<Counters>,
        closing: &Arc<Closing>,
    ) -> Self {
        counters.linked();
        let (peer, counters) = (control.peer(), Arc::clone(counters));
        closing.up(peer);
        let (keeper, dropped) = oneshot::channel();
        let keeping = keep(control, connection.clone(), dropped, driver.linger);
        let closed = Arc::clone(closing);
        driver.outlive(async move {
            keeping.await;
            closed.end(peer);
        });
        Self {
            peer,
            outgoing: Outgoing::new(peer, connection.clone(), Arc::clone(&counters)),
            incoming: Incoming::new(peer, connection, counters),
            keeper: Some(keeper),
            closing: Arc::clone(closing),
            _driver: driver,
        }
    }

    /// Bytes for which there is memory in messages that have begun.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.incoming.held
    }
}

impl Link for QuicLink {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn is_sealed(&self) -> bool {
        true
    }

    fn moved(&self) -> Moved {
        Moved { sent: self.outgoing.moved, received: self.incoming.moved }
    }

    fn submit(&mut self, message: Message) {
        self.outgoing.submit(message);
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        self.outgoing.poll_sent(context)
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        self.incoming.poll_received(context)
    }
}

impl Drop for QuicLink {
    fn drop(&mut self) {
        let lasts = self.outgoing.end_all();
        self.closing.begin(self.peer);
        // If there is no keeper any more, there is no connection either.
        let _ = self.keeper.take().map(|keeper| keeper.send(lasts));
    }
}

/// Keeps a connection until its link is dropped and what it sent has arrived, and closes it when the peer's process is gone: the link
/// of TCP to it ends then at once, where datagrams only cease to come. That link is dropped last, since the next may come then.
async fn keep(
    mut control: Box<dyn Link>,
    connection: Connection,
    dropped: oneshot::Receiver<Vec<Last>>,
    linger: Duration,
) {
    const DONE: VarInt = VarInt::from_u32(0);
    let mut dropped = pin!(dropped);
    tokio::select! {
        () = ended(&mut *control) => {
            connection.close(DONE, b"");
            // Its owner reads what has come.
            let _ = dropped.await;
        }
        lasts = &mut dropped => {
            let arrived = async {
                for last in lasts.unwrap_or_default() {
                    last.await;
                }
            };
            tokio::select! {
                () = ended(&mut *control) => {}
                _ = timeout(linger, arrived) => {}
            }
            connection.close(DONE, b"");
        }
    }
}

/// Nothing more is said over a link of TCP whose links are of QUIC, until it ends.
async fn ended(control: &mut dyn Link) {
    while conformance::receive(control).await.is_ok() {}
}
