//! A network that is as awkward as the contract allows, around any other: for tests of what stands on networks.
//!
//! Messages overtake those of other lanes, completions are reported late and a few at a time, owners are woken for nothing, and
//! received payloads lie in eight buffers that all links of a worker share, at addresses that are a multiple of four and
//! of nothing more; and so do leases, in eight others. Cards come late. It needs a tokio runtime with time.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use gleaner_statistics::random::Generator;
use tokio::time::{Sleep, sleep};

use crate::{Counters, Lease, Link, LinkError, LinkEvent, Message, Moved, Network, OpenError, Peer, Tag};

/// Receive buffers of one worker, and as many send buffers.
const BUFFERS: usize = 8;

/// Messages that a link takes from the network beneath before one of them must go on.
const SHELF: usize = 64;

/// The longest that a message or a completion is held back while nothing else happens.
const LONGEST: Duration = Duration::from_millis(2);

/// Makes a network awkward. What it does depends on the seed, and on when messages come.
pub fn network<N: Network>(inner: N, seed: u64) -> impl Network {
    AdverseNetwork {
        inner,
        random: Random(Generator::seeded(seed)),
        memory: Memory::new(),
        leased: Memory::new(),
    }
}

struct AdverseNetwork<N> {
    inner: N,
    random: Random,
    memory: Arc<Memory>,
    leased: Arc<Memory>,
}

impl<N: Network> Network for AdverseNetwork<N> {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn workers(&self) -> u32 {
        self.inner.workers()
    }

    fn epoch(&self) -> u16 {
        self.inner.epoch()
    }

    fn open(&mut self, peer: Peer) {
        self.inner.open(peer);
    }

    fn poll_card(&mut self, peer: Peer, context: &mut Context<'_>) -> Poll<Result<Bytes, OpenError>> {
        if self.random.one_in(2) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.inner.poll_card(peer, context)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        if self.random.one_in(3) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let event = ready!(self.inner.poll_event(context)).map(|event| match event {
            LinkEvent::Up(inner) => LinkEvent::Up(Box::new(AdverseLink {
                inner,
                random: Random(Generator::seeded(self.random.0.bits())),
                reported: Reported::default(),
                shelf: Shelf::default(),
                memory: Arc::clone(&self.memory),
                leased: Arc::clone(&self.leased),
            })),
            other => other,
        });
        Poll::Ready(event)
    }

    fn counters(&self) -> Arc<Counters> {
        self.inner.counters()
    }
}

struct AdverseLink {
    inner: Box<dyn Link>,
    random: Random,
    reported: Reported,
    shelf: Shelf,
    memory: Arc<Memory>,
    leased: Arc<Memory>,
}

/// What was sent and is to be reported.
#[derive(Default)]
struct Reported {
    waiting: usize,
    pause: Pause,
}

/// What came and is to be handed out.
#[derive(Default)]
struct Shelf {
    /// By tag, all control data under one. None is empty.
    lanes: BTreeMap<u64, Lane>,
    messages: usize,
    /// How the link beneath ended.
    ended: Option<LinkError>,
    pause: Pause,
}

#[derive(Default)]
struct Lane {
    messages: VecDeque<Message>,
    /// Whether others go first.
    is_held: bool,
}

impl Link for AdverseLink {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn is_sealed(&self) -> bool {
        self.inner.is_sealed()
    }

    fn moved(&self) -> Moved {
        self.inner.moved()
    }

    fn lease(&mut self, length: usize) -> Lease {
        self.leased.lent(length).map_or_else(|| self.inner.lease(length), Lease::of)
    }

    fn submit(&mut self, message: Message) {
        self.inner.submit(message);
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        let Reported { waiting, pause } = &mut self.reported;
        while let Poll::Ready(sent) = self.inner.poll_sent(context) {
            *waiting += sent?;
        }
        if *waiting == 0 {
            return Poll::Pending;
        }
        ready!(pause.poll(context, &mut self.random));
        let count = 1 + self.random.below(*waiting);
        *waiting -= count;
        Poll::Ready(Ok(count))
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        let Self { inner, random, shelf, memory, .. } = self;
        while shelf.messages < SHELF
            && shelf.ended.is_none()
            && let Poll::Ready(received) = inner.poll_received(context)
        {
            match received {
                Ok(message) => shelf.put(message, random),
                Err(error) => shelf.ended = Some(error),
            }
        }
        if shelf.lanes.is_empty() {
            return shelf.ended.take().map_or(Poll::Pending, |error| Poll::Ready(Err(error)));
        }
        let may_wait = shelf.messages < SHELF && shelf.lanes.values().all(|lane| lane.is_held);
        if may_wait {
            ready!(shelf.pause.poll(context, random));
        }
        if may_wait || shelf.messages == SHELF || random.one_in(16) {
            shelf.lanes.values_mut().for_each(|lane| lane.is_held = false);
        }
        let Some(Message { tag, payload }) = shelf.take(random) else { return Poll::Pending };
        Poll::Ready(Ok(Message { tag, payload: memory.lend(&payload) }))
    }
}

impl Shelf {
    fn put(&mut self, message: Message, random: &mut Random) {
        let key = if message.tag.is_control() { Tag::CONTROL } else { message.tag.0 };
        let fresh = || Lane { messages: VecDeque::new(), is_held: random.one_in(4) };
        self.lanes.entry(key).or_insert_with(fresh).messages.push_back(message);
        self.messages += 1;
    }

    /// The first message of one of the lanes that are not held.
    fn take(&mut self, random: &mut Random) -> Option<Message> {
        let open: Vec<_> = self.lanes.iter().filter(|(_, lane)| !lane.is_held).map(|(key, _)| *key).collect();
        let key = open.get(random.below(open.len()))?;
        let lane = self.lanes.get_mut(key)?;
        let message = lane.messages.pop_front();
        lane.is_held = random.one_in(4);
        if lane.messages.is_empty() {
            self.lanes.remove(key);
        }
        self.messages -= 1;
        message
    }
}

/// Some time, or none, and another whenever it is over.
#[derive(Default)]
struct Pause(Option<Pin<Box<Sleep>>>);

impl Pause {
    fn poll(&mut self, context: &mut Context<'_>, random: &mut Random) -> Poll<()> {
        if self.0.is_none() && !random.one_in(8) {
            return Poll::Ready(());
        }
        let duration = LONGEST.mul_f64(random.below(1000) as f64 / 1000.0);
        ready!(self.0.get_or_insert_with(|| Box::pin(sleep(duration))).as_mut().poll(context));
        self.0 = None;
        Poll::Ready(())
    }
}

/// Buffers of one worker.
struct Memory(Mutex<Vec<Vec<u8>>>);

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![Vec::new(); BUFFERS])))
    }

    /// A payload in one of the buffers, or in memory of its own if all are lent.
    fn lend(self: &Arc<Self>, payload: &[u8]) -> Bytes {
        let Some(mut lent) = self.lent(payload.len()) else { return Bytes::copy_from_slice(payload) };
        lent.as_mut().copy_from_slice(payload);
        Bytes::from_owner(lent)
    }

    /// This many bytes of one of the buffers, if one is free. What is in them is left from before.
    fn lent(self: &Arc<Self>, length: usize) -> Option<Lent> {
        let mut buffer = self.buffers().pop()?;
        buffer.resize(SHIFT + length, 0xdb);
        Some(Lent { buffer, memory: Arc::clone(self) })
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes before a payload, so that it is aligned to nothing that is larger.
const SHIFT: usize = 4;

/// A buffer that comes back when it is dropped.
struct Lent {
    buffer: Vec<u8>,
    memory: Arc<Memory>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[SHIFT..]
    }
}

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[SHIFT..]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.memory.buffers().push(std::mem::take(&mut self.buffer));
    }
}

struct Random(Generator);

impl Random {
    /// A number below the bound, or 0 if that is 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.0.bits() % bound.max(1) as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{receive, up};
    use crate::memory;

    fn number_of(message: &Message) -> u32 {
        u32::from_le_bytes(message.payload[..].try_into().unwrap())
    }

    /// Control data and three tags overtake each other, each in order; and what is sent is reported later.
    #[tokio::test]
    async fn lanes_are_reordered_and_completions_are_late() {
        let mut networks: Vec<_> = memory::networks(2).into_iter().map(|inner| network(inner, 5)).collect();
        networks[0].open(Peer(1));
        let mut first = up(&mut networks[0], Peer(1)).await;
        let mut second = up(&mut networks[1], Peer(0)).await;
        let (counters, mut sent, mut late) = (networks[0].counters(), 0, 0);
        let mut order = Vec::new();
        for number in 0..400_u32 {
            let lanes = [Tag::CONTROL, 1, 2, 3];
            let tag = Tag(lanes[number as usize % 4]);
            first.submit(Message { tag, payload: Bytes::copy_from_slice(&number.to_le_bytes()) });
            if number % 20 == 19 {
                while sent <= number as usize {
                    sent += std::future::poll_fn(|context| first.poll_sent(context)).await.unwrap();
                    late += usize::from(sent < counters.read().messages_sent as usize);
                }
                for _ in 0..20 {
                    order.push(number_of(&receive(&mut *second).await.unwrap()));
                }
            }
        }
        for lane in 0..4 {
            assert!(order.iter().filter(|number| *number % 4 == lane).is_sorted());
        }
        let overtaken = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!(
            overtaken > 50 && late > 20,
            "{overtaken} of 400 messages were overtaken, {late} completions late"
        );
    }

    #[test]
    fn eight_buffers_are_lent() {
        let memory = Memory::new();
        let mut payloads: Vec<_> = (0..20).map(|i| memory.lend(&[i; 5])).collect();
        assert!(memory.buffers().is_empty());
        assert!(payloads[..8].iter().all(|payload| payload.as_ptr() as usize % 8 == 4));
        assert!((0..).zip(&payloads).all(|(i, payload)| payload[..] == [i; 5]));
        let part = payloads.remove(3).slice(1..3);
        assert!(memory.buffers().is_empty());
        drop(part);
        payloads.truncate(3);
        assert_eq!(memory.buffers().len(), 5);
    }
}
