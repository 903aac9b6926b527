//! What stands on the wire, as pure functions on bytes: nothing here does I/O, and nothing panics on any input.
//! All numbers are little-endian.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use bytes::{Buf, BufMut, Bytes};
use twox_hash::XxHash3_64;

use crate::{MAX_CARD, MAX_PAYLOAD, Message, Peer, Tag};

/// What every hello starts with.
pub const MAGIC: [u8; 8] = *b"gleaner\0";
/// The version of everything that follows the handshake. The shape of the handshake itself stays the same in
/// all versions, so that two versions recognise each other and say so.
pub const VERSION: u32 = 8;
/// Bytes that a message of the Noise handshake has besides its payload: a public key and a tag.
pub const NOISE: usize = 32 + 16;
/// Bytes of what a hello claims.
pub const HELLO: usize = 32;
/// Bytes of what a challenge claims.
pub const CHALLENGE: usize = 8;
/// Bytes that precede an admission's sentence.
pub const ADMISSION: usize = 8;
/// The most bytes an admission's sentence has.
pub const MAX_SENTENCE: usize = 1024;
/// Bytes in the header of a message.
pub const HEADER: usize = 16;
/// The number of a message that is sent before there is a link. Those of a link count from 0 in each direction.
pub const UNLINKED: u64 = u64::MAX;
/// Bits of a header's second word that are the payload's length. The others are a checksum of the header.
const LENGTH_BITS: u32 = 21;
/// Purpose of a hello: to take part in the rendezvous.
pub const JOIN: u32 = 1;
/// Purpose of a hello: to open a link.
pub const LINK: u32 = 2;
/// Purpose of a hello: to ask for cards.
pub const ASK: u32 = 3;
/// Purpose of a hello: to add a socket to a link that is being opened.
pub const ADD: u32 = 4;
/// What a dialler says that was welcomed and takes the link.
pub const TAKEN: [u8; 8] = *b"taken\0\0\0";
/// The most cards that are asked for at once: they fit in one payload.
pub const MAX_ASKED: usize = 512;

/// Bytes that are not what should stand there.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// There are too few or too many of them.
    #[error("expected {expected} bytes and found {found}")]
    Length {
        /// How many there should be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// Not the header of a message.
    #[error("expected the header of a message and found {0:02x?}, whose checksum is wrong")]
    Header([u8; HEADER]),
    /// The payload of a message is not what was sent, or the message is not the next one.
    #[error(
        "expected message {number} to have the checksum {expected:#010x} and found one with {found:#010x}, so its payload was \
         changed, or messages were repeated, dropped or reordered"
    )]
    Payload {
        /// Which message was expected, counted from 0 in its direction on the link.
        number: u64,
        /// What its header says.
        expected: u32,
        /// What it has.
        found: u32,
    },
    /// A message longer than any may be.
    #[error("a message of {0} bytes is longer than the {MAX_PAYLOAD} bytes it may have")]
    TooLong(u32),
    /// A card that is longer than any may be, or ends early.
    #[error(
        "a card of {0} bytes has not the {PLACE} to {MOST} bytes it may have, or is longer than what came"
    )]
    Card(u16),
    /// A refusal with more to say than it may.
    #[error("a sentence of {0} bytes is longer than the {MAX_SENTENCE} bytes it may have")]
    Rambling(u32),
    /// A kind of admission, outcome or address that this version does not know.
    #[error("{0} is no kind of admission, outcome or address that this version knows")]
    Kind(u32),
}

crate::debug_as_sentence!(WireError);

fn expect(bytes: &[u8], expected: usize) -> Result<(), WireError> {
    if bytes.len() == expected { Ok(()) } else { Err(WireError::Length { expected, found: bytes.len() }) }
}

/// What a dialler claims first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version it speaks.
    pub version: u32,
    /// What it wants: [`JOIN`], [`LINK`], [`ASK`] or [`ADD`].
    pub purpose: u32,
    /// The peer that it claims to be.
    pub from: Peer,
    /// Whom it means to reach.
    pub to: Peer,
    /// How many workers it thinks there are.
    pub workers: u32,
    /// The port at which it listens itself.
    pub port: u16,
    /// In which epoch of the membership it is.
    pub epoch: u16,
    /// Whether it was set not to encrypt links.
    pub is_plain: bool,
    /// The number of the transport that carries its links.
    pub transport: u8,
    /// How many sockets its links have.
    pub sockets: u8,
    /// Which of them this is, counted from 0.
    pub socket: u8,
    /// After how many milliseconds without a heartbeat it counts a peer as dead.
    pub timeout: u32,
}

impl Hello {
    /// Writes it.
    pub fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        let mut rest = &mut bytes[..];
        rest.put_u32_le(self.version);
        rest.put_u32_le(self.purpose);
        rest.put_u32_le(self.from.0);
        rest.put_u32_le(self.to.0);
        rest.put_u32_le(self.workers);
        rest.put_u16_le(self.port);
        rest.put_u16_le(self.epoch);
        rest.put_u8(u8::from(self.is_plain));
        rest.put_u8(self.transport);
        rest.put_u8(self.sockets);
        rest.put_u8(self.socket);
        rest.put_u32_le(self.timeout);
        bytes
    }

    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        expect(bytes, HELLO)?;
        let mut rest = bytes;
        Ok(Hello {
            version: rest.get_u32_le(),
            purpose: rest.get_u32_le(),
            from: Peer(rest.get_u32_le()),
            to: Peer(rest.get_u32_le()),
            workers: rest.get_u32_le(),
            port: rest.get_u16_le(),
            epoch: rest.get_u16_le(),
            is_plain: rest.get_u8() != 0,
            transport: rest.get_u8(),
            sockets: rest.get_u8(),
            socket: rest.get_u8(),
            timeout: rest.get_u32_le(),
        })
    }
}

/// What an acceptor answers to a hello that was made with the job's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The version it speaks.
    pub version: u32,
    /// The sender.
    pub from: Peer,
}

impl Challenge {
    /// Writes it.
    pub fn encode(&self) -> [u8; CHALLENGE] {
        let mut bytes = [0; CHALLENGE];
        let mut rest = &mut bytes[..];
        rest.put_u32_le(self.version);
        rest.put_u32_le(self.from.0);
        bytes
    }

    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        expect(bytes, CHALLENGE)?;
        let mut rest = bytes;
        Ok(Challenge { version: rest.get_u32_le(), from: Peer(rest.get_u32_le()) })
    }
}

/// An acceptor's reply to a dialler that has proved its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The connection is a link from here on.
    Welcome,
    /// There is, or is about to be, another link between the two. Ask again if it does not come.
    Busy,
    /// No, and why.
    Refused(String),
}

impl Admission {
    /// Writes it.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, sentence) = match self {
            Admission::Welcome => (0, ""),
            Admission::Busy => (1, ""),
            Admission::Refused(sentence) => (2, sentence.as_str()),
        };
        let sentence = &sentence.as_bytes()[..sentence.len().min(MAX_SENTENCE)];
        let mut bytes = Vec::with_capacity(ADMISSION + sentence.len());
        bytes.put_u32_le(kind);
        bytes.put_u32_le(sentence.len() as u32);
        bytes.put_slice(sentence);
        bytes
    }

    /// Reads how long the sentence is that follows the first [`ADMISSION`] bytes.
    pub fn sentence(head: &[u8]) -> Result<usize, WireError> {
        expect(head, ADMISSION)?;
        let length = (&head[4..]).get_u32_le();
        if length as usize > MAX_SENTENCE { Err(WireError::Rambling(length)) } else { Ok(length as usize) }
    }

    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let head = bytes.get(..ADMISSION).unwrap_or(bytes);
        expect(bytes, ADMISSION + Self::sentence(head)?)?;
        match (&head[..4]).get_u32_le() {
            0 => Ok(Admission::Welcome),
            1 => Ok(Admission::Busy),
            2 => Ok(Admission::Refused(String::from_utf8_lossy(&bytes[ADMISSION..]).into_owned())),
            kind => Err(WireError::Kind(kind)),
        }
    }
}

/// XXH3's lowest 32 bits: as fast as a CRC with the widest instructions, and faster where there are none of those.
fn checksum(bytes: &[u8], seed: u64) -> u32 {
    XxHash3_64::oneshot_with_seed(seed, bytes) as u32
}

/// What precedes the payload of every message on an open link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of payload that follow, at most [`MAX_PAYLOAD`].
    pub length: u32,
    /// The conversation it belongs to.
    pub tag: Tag,
    /// The checksum (XXH3) of the payload, seeded with tag, length and the message's number: the few bits that the header has
    /// for itself find a change early, these find it surely. 0 where the message is sealed, which says more.
    pub sum: u32,
}

impl Header {
    /// Of a message that is sent: with its number in this direction of the link, or none if it is sealed.
    pub fn of(Message { tag, payload }: &Message, number: Option<u64>) -> Self {
        let header = Self { length: payload.len() as u32, tag: *tag, sum: 0 };
        number.map_or(header, |number| Self { sum: header.sum_of(payload, number), ..header })
    }

    fn sum_of(&self, payload: &[u8], number: u64) -> u32 {
        checksum(payload, self.tag.0 ^ u64::from(self.length).rotate_right(LENGTH_BITS) ^ number)
    }

    /// Writes it.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut rest = &mut bytes[..];
        rest.put_u32_le(self.sum);
        rest.put_u32_le(self.length);
        rest.put_u64_le(self.tag.0);
        let check = checksum(&bytes, 0) << LENGTH_BITS;
        bytes[4..8].copy_from_slice(&(self.length | check).to_le_bytes());
        bytes
    }

    /// Reads it, and refuses a length above the bound: nothing was allocated yet.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let wrong = WireError::Length { expected: HEADER, found: bytes.len() };
        let found: [u8; HEADER] = bytes.try_into().map_err(|_| wrong)?;
        let mut rest = bytes;
        let (sum, word, tag) = (rest.get_u32_le(), rest.get_u32_le(), Tag(rest.get_u64_le()));
        let header = Self { length: word & ((1 << LENGTH_BITS) - 1), tag, sum };
        if header.encode() != found {
            return Err(WireError::Header(found));
        }
        if header.length as usize > MAX_PAYLOAD { Err(WireError::TooLong(header.length)) } else { Ok(header) }
    }

    /// Whether this is the payload that was sent, and the message with that number, where it is not sealed.
    ///
    /// # Errors
    /// Another checksum.
    pub fn check(&self, payload: &[u8], number: u64) -> Result<(), WireError> {
        let (expected, found) = (self.sum, self.sum_of(payload, number));
        if found == expected { Ok(()) } else { Err(WireError::Payload { number, expected, found }) }
    }
}

/// A payload of control data with its header, as it stands on the wire before there are links.
pub fn frame(payload: &[u8]) -> Vec<u8> {
    let message = Message { tag: Tag(0), payload: Bytes::copy_from_slice(payload) };
    [&Header::of(&message, Some(UNLINKED)).encode(), payload].concat()
}

/// Where a peer listens: what is on its card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the host of rank 0, at this port. Each peer reaches that host by the address that it dialled.
    BesidePeerZero(u16),
    /// There.
    At(SocketAddr),
}

/// The most bytes that a card has with its place.
const MOST: usize = PLACE + MAX_CARD;

/// Bytes of one place: its kind, an IPv6 (or mapped IPv4) address, a port.
const PLACE: usize = 1 + 16 + 2;

impl Place {
    /// Writes it.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, ip, port) = match self {
            Place::BesidePeerZero(port) => (0, Ipv6Addr::UNSPECIFIED, *port),
            Place::At(SocketAddr::V4(at)) => (1, at.ip().to_ipv6_mapped(), at.port()),
            Place::At(SocketAddr::V6(at)) => (1, *at.ip(), at.port()),
        };
        [&[kind], &ip.octets()[..], &port.to_le_bytes()].concat()
    }

    /// Reads it.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, WireError> {
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
}

/// Where a peer listens, and what it brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Where it listens.
    pub place: Place,
    /// What its own card says, which is not looked into.
    pub bytes: Bytes,
}

impl Card {
    /// Writes it.
    pub fn encode(&self) -> Vec<u8> {
        [&self.place.encode(), &self.bytes[..]].concat()
    }

    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let Some((place, own)) = bytes.split_at_checked(PLACE).filter(|(_, own)| own.len() <= MAX_CARD)
        else {
            return Err(WireError::Card(bytes.len().try_into().unwrap_or(u16::MAX)));
        };
        Ok(Card { place: Place::decode(place)?, bytes: Bytes::copy_from_slice(own) })
    }
}

/// How the rendezvous ended: the payload of the one message that rank 0 sends to every other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everyone came; and the cards of the next few peers.
    Complete(Cards),
    /// The job cannot start, and why.
    Failed(String),
}

impl Outcome {
    /// Writes it.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Outcome::Complete(cards) => [&0_u32.to_le_bytes(), &cards.encode()[..]].concat(),
            Outcome::Failed(sentence) => [&1_u32.to_le_bytes(), sentence.as_bytes()].concat(),
        }
    }

    /// Reads it.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, WireError> {
        let short = WireError::Length { expected: 4, found: bytes.len() };
        match bytes.try_get_u32_le().map_err(|_| short)? {
            0 => Ok(Outcome::Complete(Cards::decode(bytes)?)),
            1 => Ok(Outcome::Failed(String::from_utf8_lossy(bytes).into_owned())),
            kind => Err(WireError::Kind(kind)),
        }
    }
}

/// Whose cards are asked for, at most [`MAX_ASKED`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked(pub Vec<Peer>);

impl Asked {
    /// Writes it.
    pub fn encode(&self) -> Vec<u8> {
        self.0.iter().flat_map(|peer| peer.0.to_le_bytes()).collect()
    }

    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let count = bytes.len() / 4;
        expect(bytes, 4 * count.min(MAX_ASKED))?;
        Ok(Asked(bytes.chunks(4).map(|mut number| Peer(number.get_u32_le())).collect()))
    }
}

/// The cards that were asked for, in that order, as [`Card`] writes them; who passes them on does not read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cards(pub Vec<Vec<u8>>);

impl Cards {
    /// Writes them, each after its length.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for card in &self.0 {
            bytes.put_u16_le(card.len() as u16);
            bytes.put_slice(card);
        }
        bytes
    }

    /// Reads them.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, WireError> {
        let mut cards = Vec::new();
        while !bytes.is_empty() {
            let short = WireError::Length { expected: 2, found: 1 };
            let length = bytes.try_get_u16_le().map_err(|_| short)?;
            if usize::from(length) > MOST.min(bytes.len()) {
                return Err(WireError::Card(length));
            }
            let (card, rest) = bytes.split_at(length.into());
            cards.push(card.to_vec());
            bytes = rest;
        }
        Ok(Cards(cards))
    }
}
