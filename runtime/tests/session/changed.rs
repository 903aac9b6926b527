//! A network that does not bring what was sent.

use std::sync::Arc;
use std::task::{Context, Poll};

use gleaner_transport::memory::MemoryNetwork;
use gleaner_transport::{Counters, Link, LinkError, LinkEvent, Message, Network, Peer};

/// What is done to a message.
pub type Change = fn(Message) -> Result<Message, LinkError>;

/// A network that changes what it receives.
pub struct Changed(pub MemoryNetwork, pub Change);

struct ChangedLink(Box<dyn Link>, Change);

impl Network for Changed {
    fn peer(&self) -> Peer {
        self.0.peer()
    }

    fn workers(&self) -> u32 {
        self.0.workers()
    }

    fn open(&mut self, peer: Peer) {
        self.0.open(peer);
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        self.0.poll_event(context).map(|event| {
            Some(match event? {
                LinkEvent::Up(inner) => LinkEvent::Up(Box::new(ChangedLink(inner, self.1))),
                event => event,
            })
        })
    }

    fn counters(&self) -> Arc<Counters> {
        self.0.counters()
    }
}

impl Link for ChangedLink {
    fn peer(&self) -> Peer {
        self.0.peer()
    }

    fn submit(&mut self, message: Message) {
        self.0.submit(message);
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        self.0.poll_sent(context)
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        self.0.poll_received(context).map(|received| received.and_then(self.1))
    }
}
