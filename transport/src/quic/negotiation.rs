//! What two workers exchange over their link of TCP before they have one of QUIC. All numbers are little-endian.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::keys::{PUBLIC, Public};

/// Bytes of the number by which an acceptor knows the connection of one dialler.
pub(super) const NUMBER: usize = 20;

/// The most bytes of a refusal's sentence that are read.
const MAX_SENTENCE: usize = 1024;

/// What is noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Negotiation {
    /// Where this worker receives datagrams, and its key. From the acceptor also the number to which the dialler sends its first.
    Offer { port: u16, key: Public, number: [u8; NUMBER] },
    /// The connection is there.
    Ready,
    /// It will not be, and why not.
    Refused(String),
    /// From rank 0: all have the first link.
    Complete,
}

impl Negotiation {
    /// Writes it.
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        match self {
            Self::Offer { port, key, number } => {
                bytes.put_u8(0);
                bytes.put_u16_le(*port);
                bytes.put_slice(key);
                bytes.put_slice(number);
            }
            Self::Ready => bytes.put_u8(1),
            Self::Refused(sentence) => {
                bytes.put_u8(2);
                bytes.put_slice(&sentence.as_bytes()[..sentence.len().min(MAX_SENTENCE)]);
            }
            Self::Complete => bytes.put_u8(3),
        }
        bytes.freeze()
    }

    /// Reads it; None if it is invalid.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        match bytes.try_get_u8().ok()? {
            0 if bytes.len() == 2 + PUBLIC + NUMBER => {
                let port = bytes.get_u16_le();
                let (key, number) = bytes.split_first_chunk()?;
                Some(Self::Offer { port, key: *key, number: number.try_into().ok()? })
            }
            1 if bytes.is_empty() => Some(Self::Ready),
            2 if bytes.len() <= MAX_SENTENCE => {
                Some(Self::Refused(String::from_utf8_lossy(bytes).into_owned()))
            }
            3 if bytes.is_empty() => Some(Self::Complete),
            _ => None,
        }
    }
}
