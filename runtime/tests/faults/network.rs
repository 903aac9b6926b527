//! A network that injects a fault into its own worker at one message, or holds everything up there until the test does.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use gleaner_transport::{Counters, Link, LinkError, LinkEvent, Message, Network, Peer, Tag};
use serde::{Deserialize, Serialize};

/// What happens to the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
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

/// Which messages of a step count, by the highest four bits of their tags. The lowest three bytes are the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// What the schedule says.
    Bags = 0,
    /// Measuring the network, where rounds are counted in place of steps.
    Probe = 1,
    /// The leave message of a worker that leaves.
    Bye = 10,
    /// Calls that all ranks make, where calls are counted in place of steps.
    Note = 11,
    /// What ranks say about cancelling it.
    Cancel = 12,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injection {
    pub fault: Fault,
    pub moment: Moment,
    pub step: u32,
}

/// What passes on the links of one worker.
#[derive(Debug)]
pub struct Watch {
    injection: Option<Injection>,
    /// The messages that are counted, and of which step.
    kind: Kind,
    step: u32,
    sent: AtomicU32,
    received: AtomicU32,
    /// Behind the last step about whose cancelling a message has come.
    asked: AtomicU32,
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
    pub fn new(kind: Kind, injection: Option<Injection>) -> Arc<Self> {
        let step = injection.map_or(2, |injection| injection.step);
        let [sent, received, asked] = [(); 3].map(|()| AtomicU32::new(0));
        Arc::new(Self { injection, kind, step, sent, received, asked, hole: Mutex::default() })
    }

    /// Messages of the counted step, sent and received.
    pub fn counted(&self) -> (u32, u32) {
        (self.sent.load(Ordering::SeqCst), self.received.load(Ordering::SeqCst))
    }

    /// Whether another rank has asked to cancel this step.
    pub fn was_asked(&self, step: u32) -> bool {
        self.asked.load(Ordering::SeqCst) > step
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
        if tag.0 >> 60 == Kind::Cancel as u64 {
            self.asked.fetch_max((tag.0 & 0xff_ffff) as u32 + 1, Ordering::SeqCst);
        }
        if self.counts(tag) {
            let number = self.received.fetch_add(1, Ordering::SeqCst);
            self.look(peer, Moment::Receive(number));
        }
    }

    fn look(&self, peer: Peer, now: Moment) {
        let Some(Injection { fault, moment, .. }) = self.injection else { return };
        if moment != now {
            return;
        }
        *self.hole.lock().unwrap() = Some(match fault {
            Fault::Kill | Fault::Stop => Hole::Dam,
            Fault::CutOff => Hole::All,
            Fault::CutLink => Hole::Link(peer),
        });
        // The test waits for this line. It names the other end.
        println!("injected {}", peer.0);
    }

    /// Whether nothing goes on any more.
    fn dams(&self) -> bool {
        matches!(*self.hole.lock().unwrap(), Some(Hole::Dam))
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
    /// Links that were opened when nothing passed any more.
    swallowed: Vec<Box<dyn Link>>,
}

/// Puts a network under watch.
pub fn watched<N: Network>(inner: N, watch: Arc<Watch>) -> Watched<N> {
    Watched { inner, watch, swallowed: Vec::new() }
}

impl<N: Network> Network for Watched<N> {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn workers(&self) -> u32 {
        self.inner.workers()
    }

    fn open(&mut self, peer: Peer) {
        if !self.watch.swallows(peer) {
            self.inner.open(peer);
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        loop {
            return match std::task::ready!(self.inner.poll_event(context)) {
                Some(LinkEvent::Up(link)) if self.watch.swallows(link.peer()) => {
                    self.swallowed.push(link);
                    continue;
                }
                Some(LinkEvent::Up(inner)) => {
                    let link = WatchedLink { inner, watch: self.watch.clone(), submitted: 0, gone: 0 };
                    Poll::Ready(Some(LinkEvent::Up(Box::new(link))))
                }
                other => Poll::Ready(other),
            };
        }
    }

    fn counters(&self) -> Arc<Counters> {
        self.inner.counters()
    }
}

struct WatchedLink {
    inner: Box<dyn Link>,
    watch: Arc<Watch>,
    /// Messages that are with the link beneath.
    submitted: usize,
    /// Messages that vanished behind those.
    gone: usize,
}

impl Link for WatchedLink {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn submit(&mut self, message: Message) {
        self.watch.sends(self.peer(), message.tag);
        // What comes after the fault does not leave, nor does the message at which it happens.
        if self.watch.dams() || self.watch.swallows(self.peer()) {
            self.gone += 1;
        } else {
            self.submitted += 1;
            self.inner.submit(message);
        }
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        if self.watch.dams() {
            return Poll::Pending;
        }
        if self.submitted > 0 {
            let sent = std::task::ready!(self.inner.poll_sent(context))?;
            self.submitted -= sent;
            return Poll::Ready(Ok(sent));
        }
        match std::mem::take(&mut self.gone) {
            0 => self.inner.poll_sent(context),
            gone => Poll::Ready(Ok(gone)),
        }
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        loop {
            let result = std::task::ready!(self.inner.poll_received(context));
            if let Ok(message) = &result {
                self.watch.receives(self.peer(), message.tag);
            }
            if self.watch.dams() {
                return Poll::Pending;
            }
            match result {
                result if !self.watch.swallows(self.peer()) => return Poll::Ready(result),
                Ok(_) => {}
                // The end of a connection does not pass either.
                Err(_) => return Poll::Pending,
            }
        }
    }
}
