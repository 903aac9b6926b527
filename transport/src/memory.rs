//! A network within one process: channels instead of wires, for tests and for many workers on one host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::network::Counters;
use crate::{
    BoxFuture, Link, LinkError, LinkEvent, MAX_PAYLOAD, Message, Network, OpenError, Peer, Receiver, Sender,
    Traffic,
};

/// Messages that wait in one direction of a link before its sender does.
const WAITING: usize = 64;

/// One worker's place in a network within one process.
#[derive(Debug)]
pub struct MemoryNetwork {
    peer: Peer,
    hub: Arc<Hub>,
}

/// Makes the networks of `workers` peers that can all reach each other, each with its stream of events.
pub fn networks(workers: u32) -> Vec<(MemoryNetwork, UnboundedReceiver<LinkEvent>)> {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers)
        .map(|_| mpsc::unbounded_channel())
        .map(|(sender, receiver)| (Some(sender), receiver))
        .unzip();
    let state = State { events: senders, pairs: HashMap::new() };
    let counters = (0..workers).map(|_| Arc::default()).collect();
    let hub = Arc::new(Hub { state: Mutex::new(state), counters });
    let places = (0..workers).map(|number| MemoryNetwork { peer: Peer(number), hub: Arc::clone(&hub) });
    places.zip(receivers).collect()
}

impl Network for MemoryNetwork {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn workers(&self) -> u32 {
        self.hub.counters.len() as u32
    }

    fn open(&self, peer: Peer) {
        let error = if peer.0 >= self.workers() {
            Some(OpenError::Unknown { peer, workers: self.workers() })
        } else if peer == self.peer {
            Some(OpenError::Itself { peer })
        } else {
            self.hub.open(self.peer, peer).err()
        };
        if let Some(error) = error {
            self.hub.tell(self.peer, LinkEvent::Failed { peer, error });
        }
    }

    fn traffic(&self) -> Traffic {
        self.hub.counters[self.peer.0 as usize].read()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.hub.leave(self.peer);
        Box::pin(std::future::ready(()))
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
}

#[derive(Debug)]
struct State {
    /// Where each peer hears of its links; none once it left.
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

    /// Events are sent outside the lock: one that nobody hears is dropped with its link, which takes the lock.
    fn tell(&self, peer: Peer, event: LinkEvent) {
        let events = self.state().events[peer.0 as usize].clone();
        if let Some(events) = events {
            let _ = events.send(event);
        }
    }

    fn open(self: &Arc<Self>, from: Peer, to: Peer) -> Result<(), OpenError> {
        let key = (from.min(to), from.max(to));
        {
            let mut state = self.state();
            if state.events[from.0 as usize].is_none() {
                return Ok(());
            }
            if state.events[to.0 as usize].is_none() {
                return Err(OpenError::Gone { peer: to });
            }
            let pair = state.pairs.entry(key).or_default();
            let (ours, theirs) =
                if from < to { (pair.lower, pair.higher) } else { (pair.higher, pair.lower) };
            if ours {
                return Ok(());
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
        let (upward, from_lower) = mpsc::channel(WAITING);
        let (downward, from_higher) = mpsc::channel(WAITING);
        for (peer, other, sender, receiver) in
            [(key.0, key.1, upward, from_higher), (key.1, key.0, downward, from_lower)]
        {
            let counters = Arc::clone(&self.counters[peer.0 as usize]);
            counters.linked();
            let hold = Arc::new(Hold { hub: Arc::clone(self), key, peer });
            let link = Link {
                peer: other,
                sender: Box::new(MemorySender {
                    peer: other,
                    channel: sender,
                    counters: Arc::clone(&counters),
                    _hold: Arc::clone(&hold),
                }),
                receiver: Box::new(MemoryReceiver { peer: other, channel: receiver, counters, _hold: hold }),
            };
            self.tell(peer, LinkEvent::Up(link));
        }
    }

    fn leave(&self, peer: Peer) {
        self.state().events[peer.0 as usize] = None;
    }

    /// Notes that a side has dropped its link, and makes the next if that was asked for.
    fn release(self: &Arc<Self>, key: (Peer, Peer), peer: Peer) {
        {
            let mut state = self.state();
            let listening = [key.0, key.1].iter().all(|peer| state.events[peer.0 as usize].is_some());
            let pair = state.pairs.entry(key).or_default();
            if peer == key.0 {
                pair.lower = false;
            } else {
                pair.higher = false;
            }
            if pair.lower || pair.higher || !pair.wanted || !listening {
                return;
            }
            *pair = Pair { lower: true, higher: true, wanted: false };
        }
        self.connect(key);
    }
}

/// Held by both halves of one side of a link.
struct Hold {
    hub: Arc<Hub>,
    key: (Peer, Peer),
    peer: Peer,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.hub.release(self.key, self.peer);
    }
}

struct MemorySender {
    peer: Peer,
    channel: mpsc::Sender<Message>,
    counters: Arc<Counters>,
    _hold: Arc<Hold>,
}

impl Sender for MemorySender {
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> BoxFuture<'a, Result<(), LinkError>> {
        Box::pin(async move {
            let peer = self.peer;
            if let Some(long) = messages.iter().find(|message| message.payload.len() > MAX_PAYLOAD) {
                return Err(LinkError::TooLong { peer, length: long.payload.len() as u64 });
            }
            for message in messages {
                self.channel.send(message.clone()).await.map_err(|_| LinkError::Closed { peer })?;
                self.counters.sent(message.payload.len(), 1);
            }
            Ok(())
        })
    }
}

struct MemoryReceiver {
    peer: Peer,
    channel: mpsc::Receiver<Message>,
    counters: Arc<Counters>,
    _hold: Arc<Hold>,
}

impl Receiver for MemoryReceiver {
    fn receive(&mut self) -> BoxFuture<'_, Result<Message, LinkError>> {
        Box::pin(async move {
            let message = self.channel.recv().await.ok_or(LinkError::Closed { peer: self.peer })?;
            self.counters.received(message.payload.len(), 1);
            Ok(message)
        })
    }
}
