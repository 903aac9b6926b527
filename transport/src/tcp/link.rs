//! The two halves of an open link over TCP. Each works alone: neither waits for the other.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::links::Hold;
use super::wire::{HEADER, Header, WireError};
use crate::network::Counters;
use crate::{BoxFuture, Link, LinkError, MAX_PAYLOAD, Message, Peer, Receiver, Sender};

/// Messages that are offered to the kernel in one call: two slices each, well below its bound of 1024.
const BATCH: usize = 64;

/// Makes a link of a connection whose handshake is done.
pub(super) fn link(peer: Peer, stream: TcpStream, counters: &Arc<Counters>, hold: Hold) -> Link {
    counters.linked();
    let hold = Arc::new(hold);
    let (reader, writer) = stream.into_split();
    Link {
        peer,
        sender: Box::new(TcpSender {
            peer,
            half: writer,
            headers: Vec::with_capacity(BATCH),
            halfway: false,
            counters: Arc::clone(counters),
            _hold: Arc::clone(&hold),
        }),
        receiver: Box::new(TcpReceiver {
            peer,
            half: reader,
            head: BytesMut::with_capacity(HEADER),
            body: None,
            counters: Arc::clone(counters),
            _hold: hold,
        }),
    }
}

struct TcpSender {
    peer: Peer,
    half: OwnedWriteHalf,
    headers: Vec<[u8; HEADER]>,
    /// A batch was begun and not finished; stays set when its future is dropped.
    halfway: bool,
    counters: Arc<Counters>,
    // Dropped last: the next link may come once this one's socket is closed.
    _hold: Arc<Hold>,
}

impl Sender for TcpSender {
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> BoxFuture<'a, Result<(), LinkError>> {
        Box::pin(async move {
            let peer = self.peer;
            if self.halfway {
                return Err(LinkError::Abandoned { peer });
            }
            if let Some(long) = messages.iter().find(|message| message.payload.len() > MAX_PAYLOAD) {
                return Err(LinkError::TooLong { peer, length: long.payload.len() as u64 });
            }
            self.halfway = true;
            let mut result = Ok(());
            for batch in messages.chunks(BATCH) {
                result = self.write(batch).await;
                if result.is_err() {
                    break;
                }
                self.counters.sent(0, batch.len());
            }
            self.halfway = false;
            result.map_err(|error| LinkError::from_io(peer, error))
        })
    }
}

impl TcpSender {
    /// Writes headers and payloads from where they lie, however many calls that takes.
    async fn write(&mut self, batch: &[Message]) -> io::Result<()> {
        self.headers.clear();
        self.headers.extend(
            batch
                .iter()
                .map(|message| Header { length: message.payload.len() as u32, tag: message.tag }.encode()),
        );
        let mut slices = Vec::with_capacity(2 * batch.len());
        for (header, message) in self.headers.iter().zip(batch) {
            slices.push(IoSlice::new(header));
            if !message.payload.is_empty() {
                slices.push(IoSlice::new(&message.payload));
            }
        }
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            let written = self.half.write_vectored(rest).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.counters.sent(written, 0);
            IoSlice::advance_slices(&mut rest, written);
        }
        Ok(())
    }
}

/// Keeps what has come of a message, so that a `receive` that was dropped loses nothing.
struct TcpReceiver {
    peer: Peer,
    half: OwnedReadHalf,
    head: BytesMut,
    body: Option<(Header, BytesMut)>,
    counters: Arc<Counters>,
    // Dropped last: the next link may come once this one's socket is closed.
    _hold: Arc<Hold>,
}

impl Receiver for TcpReceiver {
    fn receive(&mut self) -> BoxFuture<'_, Result<Message, LinkError>> {
        Box::pin(async move {
            let peer = self.peer;
            let fail = |error| LinkError::from_io(peer, error);
            if self.body.is_none() {
                fill(&mut self.half, &mut self.head, HEADER, &self.counters).await.map_err(fail)?;
                let header = Header::decode(&self.head).map_err(|error| match error {
                    WireError::TooLong(length) => LinkError::TooLong { peer, length: u64::from(length) },
                    WireError::Check(found) => LinkError::Garbled { peer, found },
                    _ => LinkError::Garbled { peer, found: 0 },
                })?;
                self.head.clear();
                // A fresh allocation: aligned for any number that a decoder may want to see in place.
                self.body = Some((header, BytesMut::with_capacity(header.length as usize)));
            }
            if let Some((header, payload)) = &mut self.body {
                fill(&mut self.half, payload, header.length as usize, &self.counters).await.map_err(fail)?;
            }
            match self.body.take() {
                Some((header, payload)) => {
                    self.counters.received(0, 1);
                    Ok(Message { tag: header.tag, payload: payload.freeze() })
                }
                None => Err(LinkError::Closed { peer }),
            }
        })
    }
}

/// Reads until the buffer holds that many bytes and no more, from the socket straight into its spare capacity.
async fn fill(
    half: &mut OwnedReadHalf,
    buffer: &mut BytesMut,
    length: usize,
    counters: &Counters,
) -> io::Result<()> {
    while buffer.len() < length {
        let missing = length - buffer.len();
        let read = half.read_buf(&mut (&mut *buffer).limit(missing)).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        counters.received(read, 0);
    }
    Ok(())
}
