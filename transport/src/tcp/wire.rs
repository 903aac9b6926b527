//! What stands on the wire, as pure functions on bytes: nothing here does I/O, and nothing panics on any input.
//! All numbers are little-endian.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use bytes::{Buf, BufMut};

use crate::{MAX_PAYLOAD, Peer, Tag};

/// What every hello starts with.
pub const MAGIC: [u8; 8] = *b"gleaner\0";
/// The version of everything that follows the handshake. The shape of the handshake itself stays the same in
/// all versions, so that two of them can tell each other apart and say so.
pub const VERSION: u32 = 1;
/// Bytes in a nonce, and in a MAC (HMAC-SHA-256).
pub const WORD: usize = 32;
/// Bytes in a hello, without and with its MAC.
pub const HELLO: (usize, usize) = (64, 96);
/// Bytes in a challenge, without and with its MAC.
pub const CHALLENGE: (usize, usize) = (40, 72);
/// Bytes that precede a verdict's sentence.
pub const VERDICT: usize = 8;
/// The most bytes a verdict's sentence has.
pub const MAX_SENTENCE: usize = 1024;
/// Bytes in the header of a message.
pub const HEADER: usize = 16;
/// The word that every header holds, so that a stream that lost its place is noticed.
pub const CHECK: u32 = 0x4e61_6c67;
/// Purpose of a hello: to take part in the rendezvous.
pub const JOIN: u32 = 1;
/// Purpose of a hello: to open a link.
pub const LINK: u32 = 2;

/// Bytes that are not what should stand there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// There are too few or too many of them.
    #[error("expected {expected} bytes and found {found}")]
    Length {
        /// How many there should be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// Not a hello of this protocol.
    #[error("expected a gleaner hello and found something else")]
    Magic,
    /// Not the header of a message.
    #[error("expected the check word of a message header and found {0:#010x}")]
    Check(u32),
    /// A message longer than any may be.
    #[error("a message of {0} bytes is longer than the {MAX_PAYLOAD} bytes it may have")]
    TooLong(u32),
    /// A refusal with more to say than it may.
    #[error("a sentence of {0} bytes is longer than the {MAX_SENTENCE} bytes it may have")]
    Rambling(u32),
    /// A kind of verdict, outcome or address that this version does not know.
    #[error("{0} is no kind of verdict, outcome or address that this version knows")]
    Kind(u32),
}

fn expect(bytes: &[u8], expected: usize) -> Result<(), WireError> {
    if bytes.len() == expected { Ok(()) } else { Err(WireError::Length { expected, found: bytes.len() }) }
}

fn word(bytes: &mut &[u8]) -> [u8; WORD] {
    let mut word = [0; WORD];
    bytes.copy_to_slice(&mut word);
    word
}

/// What a dialler says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version it speaks.
    pub version: u32,
    /// What it wants: [`JOIN`] or [`LINK`].
    pub purpose: u32,
    /// Who it says it is.
    pub from: Peer,
    /// Whom it means to reach.
    pub to: Peer,
    /// How many workers it thinks there are.
    pub workers: u32,
    /// The port at which it listens itself.
    pub port: u16,
    /// Fresh for every hello.
    pub nonce: [u8; WORD],
}

impl Hello {
    /// Writes the part that comes before the MAC.
    pub fn encode(&self) -> [u8; HELLO.0] {
        let mut bytes = [0; HELLO.0];
        let mut rest = &mut bytes[..];
        rest.put_slice(&MAGIC);
        rest.put_u32_le(self.version);
        rest.put_u32_le(self.purpose);
        rest.put_u32_le(self.from.0);
        rest.put_u32_le(self.to.0);
        rest.put_u32_le(self.workers);
        rest.put_u32_le(u32::from(self.port));
        rest.put_slice(&self.nonce);
        bytes
    }

    /// Reads the part that comes before the MAC.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        expect(bytes, HELLO.0)?;
        let mut rest = bytes.strip_prefix(&MAGIC).ok_or(WireError::Magic)?;
        Ok(Hello {
            version: rest.get_u32_le(),
            purpose: rest.get_u32_le(),
            from: Peer(rest.get_u32_le()),
            to: Peer(rest.get_u32_le()),
            workers: rest.get_u32_le(),
            port: (rest.get_u32_le() & 0xffff) as u16,
            nonce: word(&mut rest),
        })
    }
}

/// What an acceptor answers to a hello that bears the right MAC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The version it speaks.
    pub version: u32,
    /// Who it is.
    pub from: Peer,
    /// Fresh for every challenge.
    pub nonce: [u8; WORD],
}

impl Challenge {
    /// Writes the part that comes before the MAC.
    pub fn encode(&self) -> [u8; CHALLENGE.0] {
        let mut bytes = [0; CHALLENGE.0];
        let mut rest = &mut bytes[..];
        rest.put_u32_le(self.version);
        rest.put_u32_le(self.from.0);
        rest.put_slice(&self.nonce);
        bytes
    }

    /// Reads the part that comes before the MAC.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        expect(bytes, CHALLENGE.0)?;
        let mut rest = bytes;
        Ok(Challenge { version: rest.get_u32_le(), from: Peer(rest.get_u32_le()), nonce: word(&mut rest) })
    }
}

/// An acceptor's last word to a dialler that has proved who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The connection is a link from here on.
    Welcome,
    /// There is, or is about to be, another link between the two. Ask again if it does not come.
    Busy,
    /// No, and why.
    Refused(String),
}

impl Verdict {
    /// Writes all but the MAC.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, sentence) = match self {
            Verdict::Welcome => (0, ""),
            Verdict::Busy => (1, ""),
            Verdict::Refused(sentence) => (2, sentence.as_str()),
        };
        let sentence = &sentence.as_bytes()[..sentence.len().min(MAX_SENTENCE)];
        let mut bytes = Vec::with_capacity(VERDICT + sentence.len() + WORD);
        bytes.put_u32_le(kind);
        bytes.put_u32_le(sentence.len() as u32);
        bytes.put_slice(sentence);
        bytes
    }

    /// Reads how long the sentence is that follows the first [`VERDICT`] bytes.
    pub fn sentence(head: &[u8]) -> Result<usize, WireError> {
        expect(head, VERDICT)?;
        let length = (&head[4..]).get_u32_le();
        if length as usize > MAX_SENTENCE { Err(WireError::Rambling(length)) } else { Ok(length as usize) }
    }

    /// Reads all but the MAC.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let head = bytes.get(..VERDICT).unwrap_or(bytes);
        expect(bytes, VERDICT + Self::sentence(head)?)?;
        match (&head[..4]).get_u32_le() {
            0 => Ok(Verdict::Welcome),
            1 => Ok(Verdict::Busy),
            2 => Ok(Verdict::Refused(String::from_utf8_lossy(&bytes[VERDICT..]).into_owned())),
            kind => Err(WireError::Kind(kind)),
        }
    }
}

/// What precedes the payload of every message on an open link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of payload that follow, at most [`MAX_PAYLOAD`].
    pub length: u32,
    /// The conversation it belongs to.
    pub tag: Tag,
}

impl Header {
    /// Writes it.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut rest = &mut bytes[..];
        rest.put_u32_le(CHECK);
        rest.put_u32_le(self.length);
        rest.put_u64_le(self.tag.0);
        bytes
    }

    /// Reads it, and refuses a length above the bound: nothing was allocated yet.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, WireError> {
        expect(bytes, HEADER)?;
        let check = bytes.get_u32_le();
        if check != CHECK {
            return Err(WireError::Check(check));
        }
        let length = bytes.get_u32_le();
        if length as usize > MAX_PAYLOAD {
            return Err(WireError::TooLong(length));
        }
        Ok(Header { length, tag: Tag(bytes.get_u64_le()) })
    }
}

/// Where a peer listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the host of rank 0, at this port. Each peer reaches that host by the address that it dialled.
    BesidePeerZero(u16),
    /// There.
    At(SocketAddr),
}

/// How the rendezvous ended: the payload of the one message that rank 0 sends to every other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everyone came; where ranks 1, 2, … listen.
    Complete(Vec<Place>),
    /// The job cannot start, and why.
    Failed(String),
}

/// Bytes of one place: its kind, an IPv6 (or mapped IPv4) address, a port.
const PLACE: usize = 1 + 16 + 2;

impl Outcome {
    /// Writes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Outcome::Complete(places) => {
                bytes.put_u32_le(0);
                for place in places {
                    let (kind, ip, port) = match place {
                        Place::BesidePeerZero(port) => (0, Ipv6Addr::UNSPECIFIED, *port),
                        Place::At(SocketAddr::V4(at)) => (1, at.ip().to_ipv6_mapped(), at.port()),
                        Place::At(SocketAddr::V6(at)) => (1, *at.ip(), at.port()),
                    };
                    bytes.put_u8(kind);
                    bytes.put_slice(&ip.octets());
                    bytes.put_u16_le(port);
                }
            }
            Outcome::Failed(sentence) => {
                bytes.put_u32_le(1);
                bytes.put_slice(sentence.as_bytes());
            }
        }
        bytes
    }

    /// Reads it.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, WireError> {
        let short = WireError::Length { expected: 4, found: bytes.len() };
        match bytes.try_get_u32_le().map_err(|_| short)? {
            0 => bytes.chunks(PLACE).map(decode_place).collect::<Result<_, _>>().map(Outcome::Complete),
            1 => Ok(Outcome::Failed(String::from_utf8_lossy(bytes).into_owned())),
            kind => Err(WireError::Kind(kind)),
        }
    }
}

fn decode_place(mut bytes: &[u8]) -> Result<Place, WireError> {
    expect(bytes, PLACE)?;
    let kind = bytes.get_u8();
    let mut octets = [0; 16];
    bytes.copy_to_slice(&mut octets);
    let port = bytes.get_u16_le();
    match kind {
        0 => Ok(Place::BesidePeerZero(port)),
        1 => Ok(Place::At(SocketAddr::new(IpAddr::V6(octets.into()).to_canonical(), port))),
        kind => Err(WireError::Kind(u32::from(kind))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words() -> impl Strategy<Value = [u8; WORD]> {
        proptest::array::uniform32(any::<u8>())
    }

    proptest! {
        #[test]
        fn no_decoder_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Hello::decode(&bytes);
            let _ = Challenge::decode(&bytes);
            let _ = Verdict::sentence(&bytes);
            let _ = Verdict::decode(&bytes);
            let _ = Header::decode(&bytes);
            let _ = Outcome::decode(&bytes);
        }

        #[test]
        fn no_decoder_panics_on_bytes_of_the_right_length(bytes in proptest::collection::vec(any::<u8>(), 96)) {
            let mut hello = bytes[..HELLO.0].to_vec();
            let _ = Hello::decode(&hello);
            hello[..8].copy_from_slice(&MAGIC);
            prop_assert!(Hello::decode(&hello).is_ok());
            let _ = Challenge::decode(&bytes[..CHALLENGE.0]);
            let mut header = bytes[..HEADER].to_vec();
            let _ = Header::decode(&header);
            header[..4].copy_from_slice(&CHECK.to_le_bytes());
            let _ = Header::decode(&header);
        }

        #[test]
        fn what_is_written_is_read(
            numbers in proptest::array::uniform5(any::<u32>()), port in any::<u16>(), nonce in words(),
            length in 0..=MAX_PAYLOAD as u32, tag in any::<u64>(), sentence in ".{0,200}",
        ) {
            let [version, purpose, from, to, workers] = numbers;
            let (from, to) = (Peer(from), Peer(to));
            let hello = Hello { version, purpose, from, to, workers, port, nonce };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            let challenge = Challenge { version, from, nonce };
            prop_assert_eq!(Challenge::decode(&challenge.encode()), Ok(challenge));
            let header = Header { length, tag: Tag(tag) };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
            for verdict in [Verdict::Welcome, Verdict::Busy, Verdict::Refused(sentence.clone())] {
                prop_assert_eq!(Verdict::decode(&verdict.encode()), Ok(verdict));
            }
            let ip = IpAddr::V6(nonce[..16].try_into().map(<[u8; 16]>::into).unwrap()).to_canonical();
            let places = vec![
                Place::BesidePeerZero(port),
                Place::At(SocketAddr::new(ip, port)),
                Place::At(SocketAddr::from((workers.to_le_bytes(), port))),
            ];
            for outcome in [Outcome::Complete(places), Outcome::Failed(sentence)] {
                prop_assert_eq!(Outcome::decode(&outcome.encode()), Ok(outcome));
            }
        }
    }

    #[test]
    fn a_length_above_the_bound_is_refused() {
        let header = Header { length: MAX_PAYLOAD as u32 + 1, tag: Tag(0) };
        assert_eq!(Header::decode(&header.encode()), Err(WireError::TooLong(MAX_PAYLOAD as u32 + 1)));
    }

    #[test]
    fn a_sentence_too_long_is_cut() {
        let verdict = Verdict::Refused("x".repeat(5000)).encode();
        assert_eq!(Verdict::decode(&verdict), Ok(Verdict::Refused("x".repeat(MAX_SENTENCE))));
    }
}
