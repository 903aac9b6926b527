//! What a link receives: streams in the order in which they were opened, each of one lane.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut, BytesMut};
use quinn::{Connection, ConnectionError, RecvStream};
use tokio::io::AsyncReadExt;

use super::ready::{ReadyQueue, StreamWaker};
use super::{WINDOW, lane_of, link_error};
use crate::tcp::wire::{HEADER, Header, WireError};
use crate::{Counters, LinkError, Message, Peer, Tag};

/// Bytes that are read at once of what is discarded.
const SCRATCH: usize = 16 << 10;

/// Bytes of messages that may have begun and not ended, by their announced lengths. A peer of ours has no more than half of it in messages
/// of which it has not handed all to QUIC, and QUIC takes bytes only where this end has given room for them: so some of so many end by what
/// is on its way, whatever else is not read.
const HELD: usize = WINDOW as usize;

/// See the module.
pub(super) struct Incoming {
    peer: Peer,
    connection: Connection,
    counters: Arc<Counters>,
    /// The next stream. None once the connection has ended.
    accepting: Option<Accepting>,
    ended: Option<ConnectionError>,
    /// By the order in which they were opened.
    streams: HashMap<u64, Stream>,
    count: u64,
    /// The streams of each lane that are known to be its, in order: the first is read.
    lanes: HashMap<u64, VecDeque<u64>>,
    /// Bytes for which there is memory in messages that have begun, and the streams whose next message waits until there is less.
    pub(super) held: usize,
    waiting: VecDeque<u64>,
    ready: Arc<ReadyQueue>,
    /// Whether something came that is no message of ours: what follows is discarded.
    is_damaged: bool,
    /// Bytes that came.
    pub(super) moved: u64,
}

type Accepting = Pin<Box<dyn Future<Output = Result<RecvStream, ConnectionError>> + Send>>;

struct Stream {
    inner: RecvStream,
    waker: Arc<StreamWaker>,
    /// None until its first message has begun.
    lane: Option<u64>,
    head: [u8; HEADER],
    /// Bytes of the next header that have come.
    filled: usize,
    /// What is announced, and what has arrived of it once there is memory for it.
    begun: Option<(Header, Option<BytesMut>)>,
}

/// How far one stream came.
enum Progress {
    Message(Message),
    /// More may come later.
    Waits,
    /// Nothing will.
    Ended,
}

impl Incoming {
    pub(super) fn new(peer: Peer, connection: Connection, counters: Arc<Counters>) -> Self {
        Self {
            peer,
            accepting: Some(accept(&connection)),
            connection,
            counters,
            ended: None,
            streams: HashMap::new(),
            count: 0,
            lanes: HashMap::new(),
            held: 0,
            waiting: VecDeque::new(),
            ready: Arc::default(),
            is_damaged: false,
            moved: 0,
        }
    }

    pub(super) fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        self.ready.register(context);
        loop {
            self.accept(context);
            let Some(number) = self.ready.next() else { break };
            match self.advance(number) {
                Ok(Progress::Message(message)) => {
                    if let Some(stream) = self.streams.get(&number) {
                        stream.waker.mark_ready();
                    }
                    return Poll::Ready(Ok(message));
                }
                Ok(Progress::Waits) => {}
                Ok(Progress::Ended) => self.end(number),
                Err(error) => {
                    self.is_damaged = true;
                    self.streams.values().for_each(|stream| stream.waker.mark_ready());
                    return Poll::Ready(Err(error));
                }
            }
        }
        match &self.ended {
            Some(error) if self.streams.is_empty() => Poll::Ready(Err(link_error(self.peer, error.clone()))),
            _ => Poll::Pending,
        }
    }

    /// Takes in the streams that the peer has opened.
    fn accept(&mut self, context: &mut Context<'_>) {
        while let Some(accepting) = &mut self.accepting
            && let Poll::Ready(accepted) = accepting.as_mut().poll(context)
        {
            self.accepting = None;
            match accepted {
                Ok(inner) => {
                    self.accepting = Some(accept(&self.connection));
                    let waker = StreamWaker::new(self.count, &self.ready);
                    waker.mark_ready();
                    let (lane, head, filled, begun) = (None, [0; HEADER], 0, None);
                    self.streams.insert(self.count, Stream { inner, waker, lane, head, filled, begun });
                    self.count += 1;
                }
                Err(error) => self.ended = Some(error),
            }
        }
    }

    /// Reads one stream to the end of its next message.
    fn advance(&mut self, number: u64) -> Result<Progress, LinkError> {
        let Some(stream) = self.streams.get_mut(&number) else { return Ok(Progress::Waits) };
        let waker = stream.waker.arm();
        let context = &mut Context::from_waker(&waker);
        if self.is_damaged {
            return Ok(stream.discard(context));
        }
        loop {
            if let Some(lane) = stream.lane
                && self.lanes.get(&lane).and_then(VecDeque::front) != Some(&number)
            {
                return Ok(Progress::Waits);
            }
            if let Some((header, payload)) = &mut stream.begun {
                let length = header.length as usize;
                let payload = match payload {
                    Some(payload) => payload,
                    // Control data go first; of these only one message at a time has memory.
                    None if stream.lane != Some(Tag::CONTROL)
                        && self.held > 0
                        && self.held + length > HELD =>
                    {
                        self.waiting.push_back(number);
                        return Ok(Progress::Waits);
                    }
                    None => {
                        self.held += length;
                        // A fresh allocation: aligned for any number that is to be seen in place.
                        payload.insert(BytesMut::with_capacity(length))
                    }
                };
                let room = length - payload.len();
                if room == 0 {
                    let message = Message { tag: header.tag, payload: std::mem::take(payload).freeze() };
                    stream.begun = None;
                    self.release(length);
                    self.counters.received(0, 1);
                    return Ok(Progress::Message(message));
                }
                match pin!(stream.inner.read_buf(&mut payload.limit(room))).poll(context) {
                    Poll::Pending => return Ok(Progress::Waits),
                    Poll::Ready(Ok(read @ 1..)) => {
                        self.moved += read as u64;
                        self.counters.received(read, 0);
                    }
                    // A message that its sender did not end does not count, and why the connection ended is reported by it.
                    Poll::Ready(_) => return Ok(Progress::Ended),
                }
                continue;
            }
            match pin!(stream.inner.read(&mut stream.head[stream.filled..])).poll(context) {
                Poll::Pending => return Ok(Progress::Waits),
                Poll::Ready(Ok(Some(read @ 1..))) => {
                    stream.filled += read;
                    self.moved += read as u64;
                    self.counters.received(read, 0);
                }
                Poll::Ready(_) => return Ok(Progress::Ended),
            }
            if stream.filled == HEADER {
                stream.filled = 0;
                let header = Header::decode(&stream.head).map_err(|error| damage(self.peer, &error))?;
                let lane = lane_of(header.tag);
                match stream.lane {
                    None => {
                        stream.lane = Some(lane);
                        self.lanes.entry(lane).or_default().push_back(number);
                    }
                    Some(known) if known == lane => {}
                    Some(_) => {
                        let what = "a message of another lane came on the stream of one".to_owned();
                        return Err(LinkError::Damaged { peer: self.peer, what });
                    }
                }
                stream.begun = Some((header, None));
            }
        }
    }

    /// A message of that length needs no memory here any more: those that wait for some look again.
    fn release(&mut self, length: usize) {
        self.held -= length;
        for number in self.waiting.drain(..) {
            if let Some(stream) = self.streams.get(&number) {
                stream.waker.mark_ready();
            }
        }
    }

    /// A stream has ended: the next of its lane goes on.
    fn end(&mut self, number: u64) {
        let Some(stream) = self.streams.remove(&number) else { return };
        if let Some((header, Some(_))) = &stream.begun {
            self.release(header.length as usize);
        }
        let Some(lane) = stream.lane else { return };
        let Some(queue) = self.lanes.get_mut(&lane) else { return };
        queue.retain(|other| *other != number);
        match queue.front().map(|next| self.streams.get(next)) {
            Some(next) => next.into_iter().for_each(|stream| stream.waker.mark_ready()),
            None => drop(self.lanes.remove(&lane)),
        }
    }
}

impl Stream {
    /// Reads what comes, and throws it away.
    fn discard(&mut self, context: &mut Context<'_>) -> Progress {
        let mut scratch = [0; SCRATCH];
        loop {
            match pin!(self.inner.read(&mut scratch)).poll(context) {
                Poll::Pending => return Progress::Waits,
                Poll::Ready(Ok(Some(_))) => {}
                Poll::Ready(_) => return Progress::Ended,
            }
        }
    }
}

fn accept(connection: &Connection) -> Accepting {
    let connection = connection.clone();
    Box::pin(async move { connection.accept_uni().await })
}

fn damage(peer: Peer, error: &WireError) -> LinkError {
    match error {
        WireError::TooLong(length) => LinkError::TooLong { peer, length: u64::from(*length) },
        _ => LinkError::Damaged { peer, what: error.to_string() },
    }
}
