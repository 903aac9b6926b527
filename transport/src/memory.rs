//! A network within one process: channels instead of wires, for tests and for many workers on one host.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::{Counters, Link, LinkError, LinkEvent, MAX_CARD, MAX_PAYLOAD, Message, Network, OpenError, Peer};

/// Messages that wait in one direction of a link before its sender does.
const WAITING: usize = 64;

/// One worker's place in a network within one process.
#[derive(Debug)]
pub struct MemoryNetwork {
    peer: Peer,
    hub: Arc<Hub>,
    events: UnboundedReceiver<LinkEvent>,
}

/// Makes the networks of `workers` peers that can all reach each other.
pub fn networks(workers: u32) -> Vec<MemoryNetwork> {
    networks_with(vec![Bytes::new(); workers as usize])
}

/// The same of peers that have these cards.
///
/// # Panics
/// If a card is longer than any may be.
pub fn networks_with(cards: Vec<Bytes>) -> Vec<MemoryNetwork> {
    assert!(cards.iter().all(|card| card.len() <= MAX_CARD), "expected cards of at most {MAX_CARD} bytes");
    let workers = cards.len() as u32;
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers)
        .map(|_| mpsc::unbounded_channel())
        .map(|(sender, receiver)| (Some(sender), receiver))
        .unzip();
    let state = State { events: senders, pairs: HashMap::new() };
    let counters = (0..workers).map(|_| Arc::default()).collect();
    let hub = Arc::new(Hub { state: Mutex::new(state), counters, cards });
    let place = |(number, events)| MemoryNetwork { peer: Peer(number), hub: Arc::clone(&hub), events };
    (0..workers).zip(receivers).map(place).collect()
}

impl Network for MemoryNetwork {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn workers(&self) -> u32 {
        self.hub.counters.len() as u32
    }

    fn open(&mut self, peer: Peer) {
        let error = if peer.0 >= self.workers() {
            Some(OpenError::Unknown { peer, workers: self.workers() })
        } else if peer == self.peer {
            Some(OpenError::Itself { peer })
        } else {
            self.hub.open(self.peer, peer).err()
        };
        if let Some(error) = error {
            self.hub.report(self.peer, LinkEvent::Failed { peer, error });
        }
    }

    fn poll_card(&mut self, peer: Peer, _: &mut Context<'_>) -> Poll<Result<Bytes, OpenError>> {
        let card = self.hub.cards.get(peer.0 as usize).cloned();
        Poll::Ready(card.ok_or(OpenError::Unknown { peer, workers: self.workers() }))
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        self.events.poll_recv(context)
    }

    fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.hub.counters[self.peer.0 as usize])
    }
}

impl Drop for MemoryNetwork {
    fn drop(&mut self) {
        self.hub.leave(self.peer);
    }
}

/// What all workers of the process share.
#[derive(Debug)]
struct Hub {
    state: Mutex<State>,
    counters: Vec<Arc<Counters>>,
    cards: Vec<Bytes>,
}

#[derive(Debug)]
struct State {
    /// Where each peer receives the events of its links; none once it left.
    events: Vec<Option<UnboundedSender<LinkEvent>>>,
    /// By the lower and the higher peer.
    pairs: HashMap<(Peer, Peer), Pair>,
}

/// Which sides still hold the link of a pair, and whether one that does not has asked for the next.
#[derive(Debug, Default)]
struct Pair {
    lower: bool,
    higher: bool,
    wanted: bool,
}

impl Hub {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Events are sent outside the lock: one without a receiver is dropped with its link, which takes the lock.
    fn report(&self, peer: Peer, event: LinkEvent) {
        let events = self.state().events[peer.0 as usize].clone();
        if let Some(events) = events {
            let _ = events.send(event);
        }
    }

    fn open(self: &Arc<Self>, from: Peer, to: Peer) -> Result<(), OpenError> {
        let key = (from.min(to), from.max(to));
        {
            let mut state = self.state();
            let is_gone = state.events[to.0 as usize].is_none();
            let pair = state.pairs.entry(key).or_default();
            let (ours, theirs) =
                if from < to { (pair.lower, pair.higher) } else { (pair.higher, pair.lower) };
            if ours {
                return Ok(());
            }
            if is_gone {
                return Err(OpenError::Gone { peer: to });
            }
            if theirs {
                pair.wanted = true;
                return Ok(());
            }
            *pair = Pair { lower: true, higher: true, wanted: false };
        }
        self.connect(key);
        Ok(())
    }

    /// Makes the link of a pair that was marked as held on both sides.
    fn connect(self: &Arc<Self>, key: (Peer, Peer)) {
        let pipes = [Arc::new(Pipe::default()), Arc::new(Pipe::default())];
        for (side, (peer, other)) in [(key.0, key.1), (key.1, key.0)].into_iter().enumerate() {
            let counters = Arc::clone(&self.counters[peer.0 as usize]);
            counters.linked();
            self.report(
                peer,
                LinkEvent::Up(Box::new(MemoryLink {
                    peer: other,
                    submitted: VecDeque::new(),
                    refused: None,
                    to: Arc::clone(&pipes[side]),
                    from: Arc::clone(&pipes[1 - side]),
                    counters,
                    hold: (Arc::clone(self), key, peer),
                })),
            );
        }
    }

    /// A peer accepts and opens no more. Those that wait for a link to it are notified.
    fn leave(&self, peer: Peer) {
        let mut waiting = Vec::new();
        {
            let mut state = self.state();
            state.events[peer.0 as usize] = None;
            for (&(lower, higher), pair) in &mut state.pairs {
                if pair.wanted && (lower == peer || higher == peer) {
                    pair.wanted = false;
                    waiting.push(if pair.lower { higher } else { lower });
                }
            }
        }
        for other in waiting.into_iter().filter(|other| *other != peer) {
            self.report(other, LinkEvent::Failed { peer, error: OpenError::Gone { peer } });
        }
    }

    /// Notes that a side has dropped its link, and makes the next if that was asked for.
    fn release(self: &Arc<Self>, key: (Peer, Peer), peer: Peer) {
        {
            let mut state = self.state();
            let pair = state.pairs.entry(key).or_default();
            if peer == key.0 {
                pair.lower = false;
            } else {
                pair.higher = false;
            }
            if pair.lower || pair.higher || !pair.wanted {
                return;
            }
            *pair = Pair { lower: true, higher: true, wanted: false };
        }
        self.connect(key);
    }
}

/// One direction of a link.
#[derive(Debug, Default)]
struct Pipe(Mutex<Flow>);

#[derive(Debug, Default)]
struct Flow {
    messages: VecDeque<Message>,
    /// One of its ends was dropped.
    is_closed: bool,
    /// The task that waits for room, and the one that waits for a message.
    writer: Option<Waker>,
    reader: Option<Waker>,
}

impl Pipe {
    fn flow(&self) -> MutexGuard<'_, Flow> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let wakers = {
            let mut flow = self.flow();
            flow.is_closed = true;
            [flow.writer.take(), flow.reader.take()]
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// One side of a link.
struct MemoryLink {
    peer: Peer,
    submitted: VecDeque<Message>,
    /// The length of a message that is too long. It ended the sending.
    refused: Option<u64>,
    to: Arc<Pipe>,
    from: Arc<Pipe>,
    counters: Arc<Counters>,
    hold: (Arc<Hub>, (Peer, Peer), Peer),
}

impl Link for MemoryLink {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn submit(&mut self, message: Message) {
        if self.refused.is_none() && message.payload.len() > MAX_PAYLOAD {
            self.refused = Some(message.payload.len() as u64);
            self.submitted.clear();
        } else if self.refused.is_none() {
            self.submitted.push_back(message);
        }
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        let peer = self.peer;
        if let Some(length) = self.refused {
            return Poll::Ready(Err(LinkError::TooLong { peer, length }));
        }
        let (sent, reader) = {
            let mut flow = self.to.flow();
            if flow.is_closed {
                return Poll::Ready(Err(LinkError::Closed { peer }));
            }
            let mut sent = 0;
            while flow.messages.len() < WAITING
                && let Some(message) = self.submitted.pop_front()
            {
                self.counters.sent(message.payload.len(), 1);
                flow.messages.push_back(message);
                sent += 1;
            }
            if sent == 0 {
                if !self.submitted.is_empty() {
                    flow.writer = Some(context.waker().clone());
                }
                return Poll::Pending;
            }
            (sent, flow.reader.take())
        };
        reader.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(sent))
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        let (message, writer) = {
            let mut flow = self.from.flow();
            match flow.messages.pop_front() {
                Some(message) => (message, flow.writer.take()),
                None if flow.is_closed => return Poll::Ready(Err(LinkError::Closed { peer: self.peer })),
                None => {
                    flow.reader = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        };
        writer.into_iter().for_each(Waker::wake);
        self.counters.received(message.payload.len(), 1);
        Poll::Ready(Ok(message))
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.to.close();
        self.from.close();
        let (hub, key, peer) = &self.hold;
        hub.release(*key, *peer);
    }
}
