//! What a link sends: a stream for each lane that has something to send, or had a while ago.
//!
//! Lanes come and go with the steps of a job. A stream stays open while its lane is one of the last that sent, and ends then. If its
//! lane sends again, the next stream opens once the peer has all of the last one, so that the peer meets them in their order.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use quinn::{Connection, ConnectionError, SendStream, WriteError};

use super::ready::{ReadyQueue, StreamWaker};
use super::{LANES, lane_of, link_error};
use crate::tcp::wire::{HEADER, Header};
use crate::{Counters, LinkError, MAX_PAYLOAD, Message, Peer, Tag};

/// Streams that stay open though nothing is to be sent.
const IDLE: usize = 32;
/// A payload up to this length, in bytes, is copied behind its header: one piece costs less than two.
const SHORT: usize = 1024;
/// What is handed to QUIC beyond twice what the path takes at once, in bytes: it is chosen again what goes first as late as may be.
const AHEAD: u64 = 128 << 10;
/// After this many bytes it is asked again what the path takes.
const MEASURE: u64 = 64 << 10;
/// Bytes of messages that have begun to be handed to QUIC and are not handed over whole: half of what the peer has memory for, which therefore
/// never waits for the rest of messages that finds no room behind others.
const BEGUN: usize = super::WINDOW as usize / 2;
/// The priority of control data; that of all other lanes is 0.
const FIRST: i32 = 1;

/// Resolves when the peer has all of a stream, or the connection has ended.
pub(super) type Last = Pin<Box<dyn Future<Output = ()> + Send>>;

type Opening = Pin<Box<dyn Future<Output = Result<SendStream, ConnectionError>> + Send>>;

/// See the module.
pub(super) struct Outgoing {
    peer: Peer,
    connection: Connection,
    counters: Arc<Counters>,
    lanes: HashMap<u64, Lane>,
    ready: Arc<ReadyQueue>,
    /// Lanes that wait for a stream, in order, and the stream that the first of them is to have.
    wanting: VecDeque<u64>,
    opening: Option<Opening>,
    /// Lanes that have sent all, and when; those that sent again since stay until it is their turn.
    idle: VecDeque<(u64, u64)>,
    /// Streams that are open.
    open: usize,
    /// Bytes of messages that have begun and are not handed over whole, and the lanes whose next message waits until there are fewer.
    begun: usize,
    waiting: VecDeque<u64>,
    /// Of each message that was submitted and not reported as sent, whether it is; and the number of the first.
    done: VecDeque<bool>,
    first: u64,
    /// The length of a message that is too long. It ended the sending.
    refused: Option<u64>,
    /// Bytes that were handed over, and how many there were when it was last asked what the path takes.
    pub(super) moved: u64,
    measured: Option<u64>,
}

struct Lane {
    waker: Arc<StreamWaker>,
    state: State,
    queue: VecDeque<Waiting>,
    /// When it had last sent all, as a count of such moments.
    idle_since: Option<u64>,
}

enum State {
    Closed,
    Wanting,
    Open(SendStream),
    /// The stream has ended, and the peer may not have all of it.
    Ending(Last),
}

/// A message, without what was handed over.
struct Waiting {
    number: u64,
    /// Of all of it, in bytes.
    length: usize,
    has_begun: bool,
    parts: [Bytes; 2],
}

impl Waiting {
    fn new(message: Message, number: u64) -> Self {
        let head = Header::of(&message, None).encode();
        let payload = message.payload;
        let length = HEADER + payload.len();
        let parts = if payload.len() <= SHORT {
            let mut whole = BytesMut::with_capacity(HEADER + payload.len());
            whole.extend_from_slice(&head);
            whole.extend_from_slice(&payload);
            [whole.freeze(), Bytes::new()]
        } else {
            [Bytes::copy_from_slice(&head), payload]
        };
        Self { number, length, has_begun: false, parts }
    }
}

impl Outgoing {
    pub(super) fn new(peer: Peer, connection: Connection, counters: Arc<Counters>) -> Self {
        Self {
            peer,
            connection,
            counters,
            lanes: HashMap::new(),
            ready: Arc::default(),
            wanting: VecDeque::new(),
            opening: None,
            idle: VecDeque::new(),
            open: 0,
            begun: 0,
            waiting: VecDeque::new(),
            done: VecDeque::new(),
            first: 0,
            refused: None,
            moved: 0,
            measured: None,
        }
    }

    pub(super) fn submit(&mut self, message: Message) {
        if self.refused.is_some() {
            return;
        }
        if message.payload.len() > MAX_PAYLOAD {
            self.refused = Some(message.payload.len() as u64);
            self.lanes.values_mut().for_each(|lane| lane.queue.clear());
            return;
        }
        let key = lane_of(message.tag);
        let ready = &self.ready;
        let lane = self.lanes.entry(key).or_insert_with(|| Lane {
            waker: StreamWaker::new(key, ready),
            state: State::Closed,
            queue: VecDeque::new(),
            idle_since: None,
        });
        lane.queue.push_back(Waiting::new(message, self.first + self.done.len() as u64));
        lane.idle_since = None;
        lane.waker.mark_ready();
        self.done.push_back(false);
    }

    pub(super) fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        if let Some(length) = self.refused {
            return Poll::Ready(Err(LinkError::TooLong { peer: self.peer, length }));
        }
        self.ready.register(context);
        loop {
            self.measure();
            self.open(context)?;
            let Some(key) = self.ready.next() else { break };
            // It takes what room there is before the others do.
            if self.lanes.get(&Tag::CONTROL).is_some_and(|lane| !lane.queue.is_empty()) {
                self.advance(Tag::CONTROL)?;
            }
            self.advance(key)?;
            self.resume();
        }
        let sent = self.done.iter().take_while(|is_done| **is_done).count();
        self.done.drain(..sent);
        self.first += sent as u64;
        if sent == 0 { Poll::Pending } else { Poll::Ready(Ok(sent)) }
    }

    /// What is buffered follows what the path takes at once.
    fn measure(&mut self) {
        if self.measured.is_none_or(|measured| self.moved - measured >= MEASURE) {
            self.measured = Some(self.moved);
            let window = self.connection.congestion_state().window();
            self.connection.set_send_window((2 * window + AHEAD).min(super::WINDOW.into()));
        }
    }

    /// Opens the streams that lanes wait for.
    fn open(&mut self, context: &mut Context<'_>) -> Result<(), LinkError> {
        while let Some(key) = self.wanting.front().copied() {
            if self.open >= LANES && !self.end_oldest() {
                break;
            }
            let connection = &self.connection;
            let opening = self.opening.get_or_insert_with(|| {
                let connection = connection.clone();
                Box::pin(async move { connection.open_uni().await })
            });
            let Poll::Ready(opened) = opening.as_mut().poll(context) else { break };
            self.opening = None;
            let stream = opened.map_err(|error| link_error(self.peer, error))?;
            if key == Tag::CONTROL {
                // It was opened a moment ago.
                let _ = stream.set_priority(FIRST);
            }
            self.wanting.pop_front();
            self.open += 1;
            if let Some(lane) = self.lanes.get_mut(&key) {
                lane.state = State::Open(stream);
                lane.waker.mark_ready();
            }
        }
        Ok(())
    }

    /// Goes on with one lane, as far as it goes.
    fn advance(&mut self, key: u64) -> Result<(), LinkError> {
        let Some(lane) = self.lanes.get_mut(&key) else { return Ok(()) };
        let waker = lane.waker.arm();
        let context = &mut Context::from_waker(&waker);
        if let State::Ending(last) = &mut lane.state
            && last.as_mut().poll(context).is_ready()
        {
            lane.state = State::Closed;
            if lane.queue.is_empty() {
                self.lanes.remove(&key);
                return Ok(());
            }
        }
        match &mut lane.state {
            State::Closed if !lane.queue.is_empty() => {
                lane.state = State::Wanting;
                self.wanting.push_back(key);
            }
            State::Open(stream) => {
                while let Some(message) = lane.queue.front_mut() {
                    if !message.has_begun {
                        if key != Tag::CONTROL && self.begun > 0 && self.begun + message.length > BEGUN {
                            if !self.waiting.contains(&key) {
                                self.waiting.push_back(key);
                            }
                            return Ok(());
                        }
                        message.has_begun = true;
                        self.begun += message.length;
                    }
                    let written = match pin!(stream.write_chunks(&mut message.parts)).poll(context) {
                        Poll::Pending => return Ok(()),
                        Poll::Ready(Err(WriteError::ConnectionLost(error))) => {
                            return Err(link_error(self.peer, error));
                        }
                        // The peer has dropped its end.
                        Poll::Ready(Err(_)) => return Err(LinkError::Closed { peer: self.peer }),
                        Poll::Ready(Ok(written)) => written.bytes,
                    };
                    self.moved += written as u64;
                    let is_whole = message.parts.iter().all(Bytes::is_empty);
                    self.counters.sent(written, usize::from(is_whole));
                    if is_whole {
                        self.begun -= message.length;
                        if let Some(done) = self.done.get_mut((message.number - self.first) as usize) {
                            *done = true;
                        }
                        lane.queue.pop_front();
                    }
                }
                self.rest(key);
            }
            _ => {}
        }
        Ok(())
    }

    /// The lanes that wait for it may begin their next message, for as long as there is room for the longest.
    fn resume(&mut self) {
        while (self.begun == 0 || self.begun + HEADER + MAX_PAYLOAD <= BEGUN)
            && let Some(key) = self.waiting.pop_front()
        {
            if let Some(lane) = self.lanes.get(&key) {
                lane.waker.mark_ready();
            }
        }
    }

    /// A lane has sent all.
    fn rest(&mut self, key: u64) {
        // Control data never rests for long.
        if key == Tag::CONTROL {
            return;
        }
        let now = self.first + self.done.len() as u64;
        if let Some(lane) = self.lanes.get_mut(&key)
            && lane.idle_since.is_none()
        {
            lane.idle_since = Some(now);
            self.idle.push_back((key, now));
        }
        while self.idle.len() > IDLE && self.end_oldest() {}
    }

    /// Ends the stream of the lane that has had nothing to send for the longest time. False if there is none.
    fn end_oldest(&mut self) -> bool {
        while let Some((key, since)) = self.idle.pop_front() {
            if let Some(lane) = self.lanes.get_mut(&key).filter(|lane| lane.idle_since == Some(since))
                && let State::Open(stream) = &mut lane.state
            {
                lane.state = State::Ending(end(stream));
                lane.idle_since = None;
                lane.waker.mark_ready();
                self.open -= 1;
                return true;
            }
        }
        false
    }

    /// Ends all streams. What was not handed over stays unsaid.
    pub(super) fn end_all(&mut self) -> Vec<Last> {
        let lanes = self.lanes.drain().map(|(_, lane)| lane.state);
        let lasts = lanes.filter_map(|state| match state {
            State::Open(mut stream) => Some(end(&mut stream)),
            State::Ending(last) => Some(last),
            State::Closed | State::Wanting => None,
        });
        lasts.collect()
    }
}

fn end(stream: &mut SendStream) -> Last {
    // One that the peer has stopped has ended, too.
    let _ = stream.finish();
    let stopped = stream.stopped();
    Box::pin(async move {
        let _ = stopped.await;
    })
}
