//! What decoders and handshakes make of any bytes, for the fuzz targets. Nothing here is for use.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::handshake::{self, Greeted, HandshakeError, Identity, Member};
use super::heard::Heard;
use super::wire::{self, Admission, Asked, Card, Cards, Challenge, HEADER, HELLO, Header, Hello, Outcome};
use crate::seal::{HEAD, KEY, Opener};
use crate::{MAX_PAYLOAD, Message, Peer, Secret, Tag, Transport};

/// One decoder of what stands on the wire, by the first byte; the others are for it. What can be read can be written and read
/// again.
pub fn decode(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 10 {
        0 => again(bytes, Hello::decode, |hello| hello.encode().to_vec()),
        1 => again(bytes, Challenge::decode, |challenge| challenge.encode().to_vec()),
        // Three bytes of a sentence become one sign where they are not UTF-8, so it may become too long to be written whole.
        2 => again(bytes.get(..600).unwrap_or(bytes), Admission::decode, |admission| match admission {
            Admission::Refused(sentence) if sentence.len() > wire::MAX_SENTENCE => bytes.to_vec(),
            admission => admission.encode(),
        }),
        3 => again(bytes, Card::decode, Card::encode),
        4 => again(bytes, Outcome::decode, Outcome::encode),
        5 => again(bytes, Asked::decode, Asked::encode),
        6 => again(bytes, Cards::decode, Cards::encode),
        7 => again(bytes, Header::decode, |header| header.encode().to_vec()),
        8 => message(bytes),
        _ => record(bytes),
    }
}

fn again<T: PartialEq + std::fmt::Debug, E: std::fmt::Debug>(
    bytes: &[u8],
    read: impl Fn(&[u8]) -> Result<T, E>,
    write: impl Fn(&T) -> Vec<u8>,
) {
    if let Ok(value) = read(bytes) {
        assert_eq!(read(&write(&value)).expect("what was written can be read"), value);
    }
}

/// A message whose header is right, and one bit of it, or its place on the link, that is not.
fn message(bytes: &[u8]) {
    let Some((tag, rest)) = bytes.split_first_chunk::<8>() else { return };
    let Some((bit, payload)) = rest.split_first_chunk::<2>() else { return };
    let message = Message { tag: Tag(u64::from_le_bytes(*tag)), payload: payload.to_vec().into() };
    let number = u64::from(u16::from_le_bytes(*bit));
    let whole = [&Header::of(&message, Some(number)).encode(), payload].concat();
    let read = |bytes: &[u8], number: u64| {
        let (head, payload) = bytes.split_at(HEADER);
        let header = Header::decode(head).ok()?;
        assert!(header.length as usize <= MAX_PAYLOAD);
        (header.length as usize == payload.len() && header.check(payload, number).is_ok())
            .then_some(header.tag)
    };
    assert_eq!(read(&whole, number), Some(message.tag));
    assert_eq!(read(&whole, number + 1), None, "a message was dropped");
    let mut changed = whole;
    let bit = usize::from(u16::from_le_bytes(*bit)) % (8 * changed.len());
    changed[bit / 8] ^= 1 << (bit % 8);
    assert_eq!(read(&changed, number), None, "bit {bit} was changed");
}

/// A record of a peer that does not know the key.
fn record(bytes: &[u8]) {
    let Some(head) = bytes.first_chunk::<HEAD>() else { return };
    if let Ok(length) = Opener::length(*head)
        && let Some(record) = bytes.get(..length)
    {
        Opener::new(&[7; KEY]).open(&mut record.to_vec()).expect_err("the key is not known");
    }
}

/// The other end of a handshake sends what these bytes say: an unauthenticated peer or a member to an acceptor, or an acceptor
/// that is none or one to a dialler.
pub fn handshake(bytes: &[u8]) {
    thread_local! {
        static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()
            .expect("a runtime");
    }
    let Some((kind, bytes)) = bytes.split_first() else { return };
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let (here, there) = pair();
            match kind % 16 {
                0 => member_calls(here, there, bytes).await,
                1 => member_answers(here, there, bytes).await,
                2 => unauthenticated_answers(here, there, bytes).await,
                _ => unauthenticated_calls(here, there, bytes).await,
            }
        });
    });
}

/// The bytes of a hello that a member of the job has said, as an attacker may have recorded them.
pub fn hello() -> Vec<u8> {
    let us = identity(1);
    let dialled = handshake::dialler(&us.key).and_then(|mut noise| handshake::hello(&mut noise, &claims()));
    dialled.expect("a hello")
}

/// What a member says of itself.
pub fn claims_of_a_member() -> [u8; HELLO] {
    claims().encode()
}

fn claims() -> Hello {
    let (version, purpose, timeout) = (wire::VERSION, wire::JOIN, 1000);
    let (from, to) = (Peer(1), Peer(0));
    let (port, epoch, is_plain, transport, sockets, socket) = (9, 0, false, 0, 1, 0);
    let workers = 4;
    Hello { version, purpose, from, to, workers, port, epoch, is_plain, transport, sockets, socket, timeout }
}

fn identity(peer: u32) -> Identity {
    let secret = Secret::from_hex(&"2a".repeat(32)).expect("a secret");
    let (workers, timeout) = (4, Duration::from_secs(1));
    let (peer, key, card) = (Peer(peer), secret.key_of("17"), Bytes::new());
    let (epoch, is_plain, transport, sockets) = (0, false, Transport::Tcp, 1);
    Identity { peer, workers, epoch, card, key, is_plain, transport, sockets, timeout }
}

/// Two ends of a connection without a network.
fn pair() -> (TcpStream, TcpStream) {
    let stream = |end: UnixStream| {
        end.set_nonblocking(true)?;
        TcpStream::from_std(std::net::TcpStream::from(OwnedFd::from(end)))
    };
    let (here, there) = UnixStream::pair().expect("two ends");
    (stream(here).expect("a stream"), stream(there).expect("a stream"))
}

async fn accept(here: TcpStream) -> (bool, Result<Member, HandshakeError>) {
    let (us, heard) = (identity(0), Heard::default());
    match handshake::listen(here, &us, &heard).await {
        Ok(greeted) => (true, challenge(greeted, &us).await),
        Err(error) => (false, Err(error)),
    }
}

async fn challenge(greeted: Greeted, us: &Identity) -> Result<Member, HandshakeError> {
    handshake::challenge(greeted, ([192, 0, 2, 1], 9).into(), us).await
}

async fn unauthenticated_calls(here: TcpStream, mut there: TcpStream, bytes: &[u8]) {
    there.write_all(bytes).await.expect("room for a short text");
    there.shutdown().await.expect("an end");
    let (greeted, member) = accept(here).await;
    member.expect_err("an unauthenticated peer is no member");
    let mut answer = Vec::new();
    let _ = there.read_to_end(&mut answer).await;
    assert!(greeted || answer.is_empty(), "an unauthenticated peer was answered with {} bytes", answer.len());
}

async fn member_calls(here: TcpStream, mut there: TcpStream, bytes: &[u8]) {
    let Some((said, rest)) = bytes.split_first_chunk::<HELLO>() else { return };
    let Ok(claims) = Hello::decode(said) else { return };
    let key = identity(1).key;
    let caller = async {
        if rest.first().is_some_and(|flag| flag % 2 == 0) {
            // Proves it, whatever it claims.
            drop(handshake::speak(there, &key, &claims, &[]).await);
            return;
        }
        let noise = handshake::dialler(&key).and_then(|mut noise| handshake::hello(&mut noise, &claims));
        there.write_all(&noise.expect("a hello")).await.expect("room for a hello");
        let _ = there.write_all(rest).await;
        let _ = there.shutdown().await;
        let _ = there.read_to_end(&mut Vec::new()).await;
    };
    let acceptor = async {
        if let (_, Ok(mut member)) = accept(here).await {
            let us = identity(0);
            let admission = member.misfit(&us).map_or(Admission::Welcome, Admission::Refused);
            let _ = member.answer(&us, &admission).await;
        }
    };
    tokio::join!(caller, acceptor);
}

async fn unauthenticated_answers(here: TcpStream, mut there: TcpStream, bytes: &[u8]) {
    there.write_all(bytes).await.expect("room for a short text");
    there.shutdown().await.expect("an end");
    let spoken = handshake::speak(here, &identity(1).key, &claims(), &[]).await;
    spoken.expect_err("an unauthenticated peer has no admission");
}

async fn member_answers(here: TcpStream, there: TcpStream, bytes: &[u8]) {
    let dialler = async { drop(handshake::speak(here, &identity(1).key, &claims(), &[]).await) };
    let acceptor = async {
        if let (_, Ok(mut member)) = accept(there).await {
            // An admission that no worker of this version sends.
            let _ = member.stream.write_all(bytes).await;
            let _ = member.stream.flush().await;
        }
    };
    tokio::join!(dialler, acceptor);
}
