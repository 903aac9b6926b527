//! An open link over TCP.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

use super::links::Hold;
use super::stream::Stream;
use super::wire::{HEADER, Header, WireError};
use crate::{Counters, Link, LinkError, MAX_PAYLOAD, Message, Moved, Peer};

/// Messages that are offered to the kernel in one call: two slices each, well below its bound of 1024.
const BATCH: usize = 64;

/// Bytes that may be read behind the payload of a long message: the next header, and what follows if it is short.
const BEHIND: usize = 512;

/// Bytes that are read where no payload is awaited. A message that fits in with its header is short: it is copied out, and
/// so are the first bytes of a long one, which costs less than to read its header alone.
const AHEAD: usize = 8 << 10;

/// See the module.
pub(super) struct TcpLink {
    peer: Peer,
    outgoing: Outgoing,
    incoming: Incoming,
    counters: Arc<Counters>,
    stream: Stream,
    // Dropped last: the next link may come once this one's socket is closed. None where a link of several sockets has it.
    _hold: Option<Hold>,
}

/// What was submitted and is not written yet.
#[derive(Default)]
struct Outgoing {
    /// Each with its header.
    messages: VecDeque<([u8; HEADER], Bytes)>,
    /// Bytes of the first that are written.
    written: usize,
    /// How many were submitted in all.
    count: u64,
    /// The length of a message that is too long. It ended the sending.
    refused: Option<u64>,
}

/// What was read and is not handed out yet.
struct Incoming {
    /// Headers, short messages, and the beginning of a long one. Nothing while the payload of a long one is awaited.
    ahead: Box<[u8]>,
    /// Which of them were read and not taken.
    range: Range<usize>,
    /// The long message whose payload is coming. Its buffer has room for what is read behind it.
    begun: Option<(Header, BytesMut)>,
    is_sealed: bool,
    /// Whether something came that is no message of ours: what follows is discarded.
    is_damaged: bool,
    /// How many messages were handed out.
    count: u64,
    /// Reads that brought something.
    #[cfg(test)]
    reads: usize,
}

impl Incoming {
    fn new(is_sealed: bool) -> Self {
        Self {
            ahead: vec![0; AHEAD].into(),
            range: 0..0,
            begun: None,
            is_sealed,
            is_damaged: false,
            count: 0,
            #[cfg(test)]
            reads: 0,
        }
    }

    /// The next message of what was read, if all of it is there. Begins a long one otherwise.
    fn take(&mut self) -> Result<Option<Message>, WireError> {
        let Some((header, payload)) = self.whole()? else { return Ok(None) };
        if !self.is_sealed {
            header.check(&payload, self.count)?;
        }
        self.count += 1;
        Ok(Some(Message { tag: header.tag, payload }))
    }

    fn whole(&mut self) -> Result<Option<(Header, Bytes)>, WireError> {
        if let Some((header, payload)) = &mut self.begun {
            let length = header.length as usize;
            if payload.len() < length {
                return Ok(None);
            }
            self.range = 0..payload.len() - length;
            self.ahead[self.range.clone()].copy_from_slice(&payload[length..]);
            payload.truncate(length);
            return Ok(self.begun.take().map(|(header, payload)| (header, payload.freeze())));
        }
        let here = &self.ahead[self.range.clone()];
        if here.len() < HEADER {
            return Ok(None);
        }
        let header = Header::decode(&here[..HEADER])?;
        let whole = HEADER + header.length as usize;
        // Either is a fresh allocation: aligned for any number that is to be seen in place.
        if whole > AHEAD {
            let mut payload = BytesMut::with_capacity(header.length as usize + BEHIND);
            payload.put_slice(&here[HEADER..]);
            self.range = 0..0;
            self.begun = Some((header, payload));
        } else if here.len() >= whole {
            let payload = Bytes::copy_from_slice(&here[HEADER..whole]);
            self.range.start += whole;
            return Ok(Some((header, payload)));
        }
        Ok(None)
    }

    /// Reads once, and says how many bytes: the rest of a payload and a little more, or what follows the last message.
    fn poll_read(&mut self, stream: &mut Stream, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let read = if let Some((header, payload)) = &mut self.begun {
            let room = header.length as usize + BEHIND - payload.len();
            ready!(pin!(stream.read_buf(&mut payload.limit(room))).poll(context))?
        } else {
            self.ahead.copy_within(self.range.clone(), 0);
            self.range = 0..self.range.len();
            let read = ready!(pin!(stream.read(&mut self.ahead[self.range.end..])).poll(context))?;
            self.range.end += read;
            read
        };
        #[cfg(test)]
        {
            self.reads += 1;
        }
        Poll::Ready(if read > 0 { Ok(read) } else { Err(io::ErrorKind::UnexpectedEof.into()) })
    }
}

impl TcpLink {
    /// A link of a connection whose handshake is done.
    pub(super) fn new(peer: Peer, stream: Stream, counters: &Arc<Counters>, hold: Option<Hold>) -> Self {
        let (outgoing, incoming) = (Outgoing::default(), Incoming::new(stream.is_sealed()));
        Self { peer, outgoing, incoming, counters: Arc::clone(counters), stream, _hold: hold }
    }

    pub(super) fn socket(&self) -> &TcpStream {
        self.stream.socket()
    }

    /// Whether the kernel takes more now.
    pub(super) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_room(context)
    }

    /// How many reads have brought something.
    #[cfg(test)]
    pub(super) fn reads(&self) -> usize {
        self.incoming.reads
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        let peer = self.peer;
        loop {
            let message = self.incoming.take().map_err(|error| match error {
                WireError::TooLong(length) => LinkError::TooLong { peer, length: length.into() },
                _ => LinkError::Damaged { peer, what: error.to_string() },
            });
            if let Some(message) = message? {
                self.counters.received(0, 1);
                return Poll::Ready(Ok(message));
            }
            let read = ready!(self.incoming.poll_read(&mut self.stream, context));
            let read = read.map_err(|error| LinkError::from_io(peer, error))?;
            self.counters.received(read, 0);
        }
    }
}

impl Link for TcpLink {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn address(&self) -> Option<IpAddr> {
        self.stream.socket().peer_addr().ok().map(|address| address.ip().to_canonical())
    }

    fn is_sealed(&self) -> bool {
        self.stream.is_sealed()
    }

    fn moved(&self) -> Moved {
        self.stream.moved()
    }

    fn submit(&mut self, message: Message) {
        let Outgoing { messages, refused, count, .. } = &mut self.outgoing;
        if refused.is_some() {
            return;
        }
        if message.payload.len() > MAX_PAYLOAD {
            *refused = Some(message.payload.len() as u64);
            messages.clear();
            return;
        }
        let number = (!self.stream.is_sealed()).then_some(*count);
        messages.push_back((Header::of(&message, number).encode(), message.payload));
        *count += 1;
    }

    /// Writes headers and payloads from where they lie.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        let peer = self.peer;
        let Outgoing { messages, written, refused, .. } = &mut self.outgoing;
        if let Some(length) = *refused {
            return Poll::Ready(Err(LinkError::TooLong { peer, length }));
        }
        let mut sent = 0;
        loop {
            // What a sealed stream has taken is written when it is flushed.
            match Pin::new(&mut self.stream).poll_flush(context) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(LinkError::from_io(peer, error))),
                Poll::Ready(Ok(())) => {}
            }
            let before = sent;
            while let Some((_, payload)) = messages.front()
                && *written >= HEADER + payload.len()
            {
                *written -= HEADER + payload.len();
                messages.pop_front();
                sent += 1;
            }
            self.counters.sent(0, sent - before);
            if messages.is_empty() {
                break;
            }
            let mut slices = [IoSlice::new(&[]); 2 * BATCH];
            let mut count = 0;
            let mut skip = *written;
            for (header, payload) in messages.iter().take(BATCH) {
                for part in [header.as_slice(), payload] {
                    let gone = skip.min(part.len());
                    skip -= gone;
                    if gone < part.len() {
                        slices[count] = IoSlice::new(&part[gone..]);
                        count += 1;
                    }
                }
            }
            match Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..count]) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(LinkError::from_io(peer, io::ErrorKind::WriteZero.into())));
                }
                Poll::Ready(Ok(wrote)) => {
                    *written += wrote;
                    self.counters.sent(wrote, 0);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(LinkError::from_io(peer, error))),
            }
        }
        // What is left is looked at when the caller asks again, and it does until nothing is sent.
        if sent == 0 { Poll::Pending } else { Poll::Ready(Ok(sent)) }
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        let peer = self.peer;
        if self.incoming.is_damaged {
            let ended = ready!(self.stream.poll_discard(&mut self.incoming.ahead, context));
            return Poll::Ready(Err(LinkError::from_io(peer, ended)));
        }
        let received = ready!(self.poll_message(context));
        self.incoming.is_damaged =
            matches!(received, Err(LinkError::Damaged { .. } | LinkError::TooLong { .. }));
        Poll::Ready(received)
    }
}
