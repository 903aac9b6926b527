//! The socket of a worker. What unauthenticated peers send is dropped before QUIC sees it, so that nothing ever answers it.
//!
//! QUIC as it stands answers any peer that begins a handshake, or speaks another version. Therefore all datagrams of handshakes, which
//! are those whose first packet has a long header, end with 16 bytes: the first of HMAC-SHA-256 of all bytes before them, by a
//! key that is made of the job's. All others are authenticated by the keys of their connection, and what belongs to none is
//! dropped: there are no stateless resets.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, ConnectionId, ConnectionIdGenerator, UdpPoller};
use quinn_proto::InvalidCid;
use ring::hmac;

use super::{LONGEST, random};
use crate::LinkEvent;
use crate::secret::JobKey;
use crate::tcp::events::Events;

/// Bytes of a tag.
pub(super) const TAG: usize = 16;
/// The bit of a datagram's first byte that says that its first packet has a long header.
const LONG: u8 = 0x80;
/// Datagrams of handshakes that wait beside those of connections. QUIC sends again what finds no room.
const MOST_HELD: usize = 256;
/// Datagrams of the longest that the system sends at once: all together are a packet of at most 64 KiB, with its headers.
const TOGETHER: usize = (u16::MAX as usize - 64) / LONGEST as usize;

/// The key of datagrams: only those of its holders are read.
#[derive(Clone)]
pub(super) struct DatagramKey(hmac::Key);

impl fmt::Debug for DatagramKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatagramKey(..)")
    }
}

impl DatagramKey {
    pub(super) fn new(key: &JobKey) -> Self {
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.bytes()), b"gleaner datagrams");
        Self(hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref()))
    }

    /// The datagram and its tag.
    pub(super) fn tagged(&self, datagram: &[u8]) -> Vec<u8> {
        [datagram, &hmac::sign(&self.0, datagram).as_ref()[..TAG]].concat()
    }

    /// What stands before the tag, if the tag is right.
    pub(super) fn open<'a>(&self, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let (said, tag) = datagram.split_at_checked(datagram.len().checked_sub(TAG)?)?;
        let expected = hmac::sign(&self.0, said);
        let differs = expected.as_ref().iter().zip(tag).fold(0, |differs, (a, b)| differs | (a ^ b));
        (std::hint::black_box(differs) == 0).then_some(said)
    }
}

fn is_long(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & LONG != 0)
}

/// See the module.
#[derive(Debug)]
pub(super) struct GuardedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    key: DatagramKey,
    events: Arc<Events>,
    /// Datagrams of handshakes that came, without their tags.
    held: Mutex<VecDeque<(RecvMeta, Vec<u8>)>>,
}

impl GuardedSocket {
    pub(super) fn new(inner: Arc<dyn AsyncUdpSocket>, key: DatagramKey, events: Arc<Events>) -> Self {
        Self { inner, key, events, held: Mutex::default() }
    }

    /// Hands out what is held. None if nothing is.
    fn take_held(&self, bufs: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> Option<usize> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.len().min(bufs.len()).min(metas.len());
        for ((buf, to), (meta, datagram)) in bufs.iter_mut().zip(metas).zip(held.drain(..count)) {
            buf[..datagram.len()].copy_from_slice(&datagram);
            *to = meta;
        }
        (count > 0).then_some(count)
    }

    /// Leaves what connections are to read of what came in one read, and holds what is of handshakes and of the job.
    fn sift(&self, buf: &mut [u8], meta: &mut RecvMeta) {
        let stride = meta.stride.max(1);
        if !buf[..meta.len].chunks(stride).any(is_long) {
            return;
        }
        let mut kept = 0;
        for from in (0..meta.len).step_by(stride) {
            let datagram = from..meta.len.min(from + stride);
            if is_long(&buf[datagram.clone()]) {
                self.hold(&buf[datagram], *meta);
            } else {
                buf.copy_within(datagram.clone(), kept);
                kept += datagram.len();
            }
        }
        meta.len = kept;
    }

    fn hold(&self, datagram: &[u8], meta: RecvMeta) {
        let Some(said) = self.key.open(datagram) else {
            return self.events.report(LinkEvent::Refused {
                address: meta.addr.to_string(),
                reason: "it sent a datagram that was not made with the job's key: it belongs to another job, or something else \
                         calls this port"
                    .to_owned(),
            });
        };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() < MOST_HELD {
            held.push_back((RecvMeta { len: said.len(), stride: said.len(), ..meta }, said.to_vec()));
        }
    }
}

impl AsyncUdpSocket for GuardedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        if !transmit.contents.chunks(size).any(is_long) {
            return self.inner.try_send(transmit);
        }
        // Where one finds no room, all of them are sent again: QUIC takes a datagram once.
        for datagram in transmit.contents.chunks(size) {
            let tagged = is_long(datagram).then(|| self.key.tagged(datagram));
            let contents = tagged.as_deref().unwrap_or(datagram);
            self.inner.try_send(&Transmit { contents, segment_size: None, ..transmit.clone() })?;
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if let Some(count) = self.take_held(bufs, metas) {
            return Poll::Ready(Ok(count));
        }
        let count = ready!(self.inner.poll_recv(context, bufs, metas))?;
        for (buf, meta) in bufs.iter_mut().zip(metas).take(count) {
            self.sift(buf, meta);
        }
        // Where nothing is left it is asked again, and hands out what is held.
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments().min(TOGETHER)
    }

    /// What the system joins fills 64 KiB at most, which one more of the longest exceed.
    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments().min(TOGETHER + 1)
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

/// Random numbers of connections. None is known once its connection is forgotten: a stateless reset would answer any peer that repeats a
/// packet of it.
#[derive(Debug)]
pub(super) struct Numbers;

impl Numbers {
    const LENGTH: usize = 8;
}

impl ConnectionIdGenerator for Numbers {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&random::<{ Self::LENGTH }>())
    }

    fn validate(&self, _: &ConnectionId) -> Result<(), InvalidCid> {
        Err(InvalidCid)
    }

    fn cid_len(&self) -> usize {
        Self::LENGTH
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}
