//! A network that strikes its own worker at one message, or holds everything up there until the test does.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use gleaner_transport::{
    BoxFuture, Link, LinkError, LinkEvent, Message, Network, Peer, Receiver, Sender, Tag, Traffic,
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// What happens to the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blow {
    /// SIGKILL, from the test; nothing more passes while it is on its way.
    Kill,
    /// SIGSTOP, likewise.
    Stop,
    /// Nothing passes on any of its links any more, in either direction; connections stay open.
    CutOff,
    /// The same on the link of the message at which it happens; both ends live.
    CutLink,
}

/// At which message of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// Before this one of those that the victim sends, from 0.
    Send(u32),
    /// When this one of those that it receives has come, before the victim sees it.
    Receive(u32),
}

/// Which messages of a step count, by the highest byte of their tags. The lowest four bytes are the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// What the schedule says.
    Bags = 4,
    /// What ranks say about cancelling it.
    Cancel = 5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    pub blow: Blow,
    pub moment: Moment,
    pub step: u32,
}

/// What passes on the links of one worker.
#[derive(Debug)]
pub struct Watch {
    strike: Option<Strike>,
    /// The messages that are counted, and of which step.
    kind: Kind,
    step: u32,
    sent: AtomicU32,
    received: AtomicU32,
    hole: Mutex<Option<Hole>>,
}

#[derive(Clone, Copy, Debug)]
enum Hole {
    /// What is sent or comes is held up for ever.
    Dam,
    /// It vanishes, on all links.
    All,
    /// On this link.
    Link(Peer),
}

impl Watch {
    pub fn new(kind: Kind, strike: Option<Strike>) -> Arc<Self> {
        let step = strike.map_or(2, |strike| strike.step);
        let (sent, received) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { strike, kind, step, sent, received, hole: Mutex::default() })
    }

    /// Messages of the counted step, sent and received.
    pub fn counted(&self) -> (u32, u32) {
        (self.sent.load(Ordering::SeqCst), self.received.load(Ordering::SeqCst))
    }

    fn counts(&self, tag: Tag) -> bool {
        tag.0 >> 60 == self.kind as u64 && tag.0 & 0xff_ffff == u64::from(self.step)
    }

    fn sends(&self, peer: Peer, tag: Tag) {
        if self.counts(tag) {
            let number = self.sent.fetch_add(1, Ordering::SeqCst);
            self.look(peer, Moment::Send(number));
        }
    }

    fn receives(&self, peer: Peer, tag: Tag) {
        if self.counts(tag) {
            let number = self.received.fetch_add(1, Ordering::SeqCst);
            self.look(peer, Moment::Receive(number));
        }
    }

    fn look(&self, peer: Peer, now: Moment) {
        let Some(Strike { blow, moment, .. }) = self.strike else { return };
        if moment != now {
            return;
        }
        *self.hole.lock().unwrap() = Some(match blow {
            Blow::Kill | Blow::Stop => Hole::Dam,
            Blow::CutOff => Hole::All,
            Blow::CutLink => Hole::Link(peer),
        });
        // The test waits for this line. It names the other end.
        println!("struck {}", peer.0);
    }

    /// Goes on unless nothing does any more.
    async fn dam(&self) {
        let holds = matches!(*self.hole.lock().unwrap(), Some(Hole::Dam));
        if holds {
            std::future::pending().await
        }
    }

    fn swallows(&self, peer: Peer) -> bool {
        match *self.hole.lock().unwrap() {
            Some(Hole::All) => true,
            Some(Hole::Link(cut)) => cut == peer,
            Some(Hole::Dam) | None => false,
        }
    }
}

/// The network of a worker, under watch.
pub struct Watched<N> {
    inner: N,
    watch: Arc<Watch>,
}

/// Puts a network and its events under watch.
pub fn watched<N: Network>(
    inner: N,
    mut events: UnboundedReceiver<LinkEvent>,
    watch: Arc<Watch>,
) -> (Watched<N>, UnboundedReceiver<LinkEvent>) {
    let (sender, receiver) = unbounded_channel();
    let watching = watch.clone();
    tokio::spawn(async move {
        let mut swallowed = Vec::new();
        while let Some(event) = events.recv().await {
            let event = match event {
                LinkEvent::Up(link) if watching.swallows(link.peer) => {
                    swallowed.push(link);
                    continue;
                }
                LinkEvent::Up(Link { peer, sender, receiver }) => {
                    let watch = watching.clone();
                    let sender = Box::new(WatchedSender { inner: sender, peer, watch: watch.clone() });
                    let receiver = Box::new(WatchedReceiver { inner: receiver, peer, watch });
                    LinkEvent::Up(Link { peer, sender, receiver })
                }
                other => other,
            };
            let _ = sender.send(event);
        }
    });
    (Watched { inner, watch }, receiver)
}

impl<N: Network> Network for Watched<N> {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn workers(&self) -> u32 {
        self.inner.workers()
    }

    fn open(&self, peer: Peer) {
        if !self.watch.swallows(peer) {
            self.inner.open(peer);
        }
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

struct WatchedSender {
    inner: Box<dyn Sender>,
    peer: Peer,
    watch: Arc<Watch>,
}

impl Sender for WatchedSender {
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> BoxFuture<'a, Result<(), LinkError>> {
        Box::pin(async move {
            for message in messages {
                self.watch.sends(self.peer, message.tag);
                self.watch.dam().await;
                if !self.watch.swallows(self.peer) {
                    self.inner.send(std::slice::from_ref(message)).await?;
                }
            }
            Ok(())
        })
    }
}

struct WatchedReceiver {
    inner: Box<dyn Receiver>,
    peer: Peer,
    watch: Arc<Watch>,
}

impl Receiver for WatchedReceiver {
    fn receive(&mut self) -> BoxFuture<'_, Result<Message, LinkError>> {
        Box::pin(async move {
            loop {
                let result = self.inner.receive().await;
                if let Ok(message) = &result {
                    self.watch.receives(self.peer, message.tag);
                }
                self.watch.dam().await;
                match result {
                    _ if !self.watch.swallows(self.peer) => return result,
                    Ok(_) => {}
                    // The end of a connection does not pass either.
                    Err(_) => std::future::pending().await,
                }
            }
        })
    }
}
