//! The bytes of one connection, sealed or not.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::Moved;
use crate::seal::{HEAD, KEY, MOST, Opener, SealError, Sealer};

/// Bytes that are read behind a record: the head of the next, and all of it if it is short.
const BEHIND: usize = 8 << 10;

/// Bytes that the kernel holds beyond those on their way.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 128 << 10;

/// What only both ends know a connection by: it follows from its handshake. A link is known by that of its first
/// socket.
pub(super) type LinkId = [u8; 8];

/// A connection. What is written to a sealed one is on its way once it is flushed.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Socket,
    seal: Option<Box<Seal>>,
    id: LinkId,
}

/// A socket that counts the bytes it takes and brings.
#[derive(Debug)]
struct Socket {
    inner: TcpStream,
    moved: Moved,
}

impl Socket {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        self.moved.received += (buffer.filled().len() - before) as u64;
        Poll::Ready(Ok(()))
    }

    fn poll_write(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let wrote = ready!(Pin::new(&mut self.inner).poll_write_vectored(context, slices))?;
        self.moved.sent += wrote as u64;
        Poll::Ready(Ok(wrote))
    }
}

/// Has a socket send what it is given at once, and take only a little more than what is on its way: what the kernel has
/// nothing overtakes, and the news of a failure must.
pub(super) fn prepare(socket: &TcpStream) {
    // Without them all still works, only later.
    let _ = socket.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(socket).set_tcp_notsent_lowat(UNSENT);
}

/// Records on their way out and in.
struct Seal {
    sealer: Sealer,
    opener: Opener,
    /// Sealed, and not written yet from `written` on.
    out: Vec<u8>,
    written: usize,
    /// Read, and which of it was not opened yet.
    input: Vec<u8>,
    raw: Range<usize>,
    /// What was opened and not taken yet.
    open: Range<usize>,
    /// Whether more is read than the next record, so that fewer reads do.
    reads_ahead: bool,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(..)")
    }
}

fn broken(error: SealError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Stream {
    /// Sealed from here on, with a key for each direction. It reads no byte further than it is asked to.
    pub(super) fn new(socket: TcpStream, send: &[u8; KEY], receive: &[u8; KEY]) -> Self {
        let seal = Seal {
            sealer: Sealer::new(send),
            opener: Opener::new(receive),
            out: Vec::new(),
            written: 0,
            input: Vec::new(),
            raw: 0..0,
            open: 0..0,
            reads_ahead: false,
        };
        let socket = Socket { inner: socket, moved: Moved::default() };
        Self { socket, seal: Some(Box::new(seal)), id: LinkId::default() }
    }

    /// The same, known by what its handshake has made.
    pub(super) fn named(self, id: LinkId) -> Self {
        Self { id, ..self }
    }

    pub(super) fn id(&self) -> LinkId {
        self.id
    }

    /// The handshake is over: both sides have agreed whether what follows is sealed.
    pub(super) fn finish_handshake(&mut self, is_sealed: bool) {
        match &mut self.seal {
            Some(seal) if is_sealed => seal.reads_ahead = true,
            _ => self.seal = None,
        }
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket.inner
    }

    pub(super) fn moved(&self) -> Moved {
        self.socket.moved
    }

    /// Whether the kernel takes more now, or a write would fail. It is asked itself: what tokio knows may be of before the last
    /// write.
    pub(super) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        let socket = &self.socket.inner;
        let ask = || {
            let mut asked = [PollFd::new(socket, PollFlags::OUT)];
            match rustix::event::poll(&mut asked, Some(&Timespec::default())) {
                Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            }
        };
        loop {
            if ready!(socket.poll_write_ready(context)).is_err() {
                return Poll::Ready(());
            }
            match socket.try_io(Interest::WRITABLE, ask) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return Poll::Ready(()),
            }
        }
    }

    /// Reads what comes, sealed or not, and throws it away, until the connection ends: says how.
    pub(super) fn poll_discard(&mut self, room: &mut [u8], context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let mut buffer = ReadBuf::new(room);
            match ready!(self.socket.poll_read(context, &mut buffer)) {
                Ok(()) if buffer.filled().is_empty() => {
                    return Poll::Ready(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(()) => {}
                Err(error) => return Poll::Ready(error),
            }
        }
    }

    /// Writes what is sealed.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, seal: Some(seal), .. } = self else { return Poll::Ready(Ok(())) };
        while seal.written < seal.out.len() {
            let wrote = ready!(socket.poll_write(context, &[IoSlice::new(&seal.out[seal.written..])]))?;
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            seal.written += wrote;
        }
        seal.out.clear();
        seal.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl Seal {
    /// Opens the next record if it is there whole. Otherwise says how many bytes are needed, as far as that is known.
    fn next(&mut self) -> Result<Option<usize>, SealError> {
        let here = &mut self.input[self.raw.clone()];
        let Some(head) = here.first_chunk() else { return Ok(Some(HEAD)) };
        let length = Opener::length(*head)?;
        let Some(record) = here.get_mut(..length) else { return Ok(Some(length)) };
        let bytes = self.opener.open(record)?;
        self.open = self.raw.start + HEAD..self.raw.start + HEAD + bytes;
        self.raw.start += length;
        Ok(None)
    }

    /// Room for a record of this many bytes, behind what is there of it.
    fn room(&mut self, needed: usize) -> &mut [u8] {
        let most = if self.reads_ahead { needed + BEHIND } else { needed };
        if self.raw.is_empty() || self.input.len() < self.raw.start + most {
            self.input.copy_within(self.raw.clone(), 0);
            self.raw = 0..self.raw.len();
        }
        if self.input.len() < most {
            self.input.resize(most, 0);
        }
        let most = if self.reads_ahead { self.input.len() } else { self.raw.start + needed };
        &mut self.input[self.raw.end..most]
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { socket, seal, .. } = self.get_mut();
        let Some(seal) = seal else { return socket.poll_read(context, buffer) };
        while seal.open.is_empty() {
            let Some(needed) = seal.next().map_err(broken)? else { continue };
            let mut room = ReadBuf::new(seal.room(needed));
            ready!(socket.poll_read(context, &mut room))?;
            let read = room.filled().len();
            if read == 0 {
                // In the middle of a record or not: the reader knows whether it had to go on.
                return Poll::Ready(Ok(()));
            }
            seal.raw.end += read;
        }
        let taken = seal.open.len().min(buffer.remaining());
        buffer.put_slice(&seal.input[seal.open.start..seal.open.start + taken]);
        seal.open.start += taken;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    /// To a sealed one, at most one record, once all before it are written.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_drain(context))?;
        let Some(seal) = &mut this.seal else {
            return this.socket.poll_write(context, slices);
        };
        seal.out.resize(HEAD, 0);
        for slice in slices {
            let room = HEAD + MOST - seal.out.len();
            seal.out.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        let taken = seal.out.len() - HEAD;
        seal.sealer.seal(&mut seal.out, 0).map_err(broken)?;
        match this.poll_drain(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(taken)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_drain(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket.inner).poll_shutdown(context)
    }
}
