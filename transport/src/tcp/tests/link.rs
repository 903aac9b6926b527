//! An open link: what stands on its wire, how it ends, and what it costs.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::super::link::TcpLink;
use super::super::links::Links;
use super::super::wire::{HEADER, Header, LINK, TAKEN, frame};
use super::unauthenticated::{met, met_as};
use super::*;
use crate::conformance::{receive, send};
use crate::{LinkError, MAX_PAYLOAD, Message, Tag};

/// A message as it is written: on a plain link, with its number there.
fn framed(tag: u64, payload: &[u8], number: Option<u64>) -> Vec<u8> {
    let message = Message { tag: Tag(tag), payload: Bytes::copy_from_slice(payload) };
    [&Header::of(&message, number).encode()[..], payload].concat()
}

/// A dialler that has another link by the time it is welcomed, which has come and gone here, leaves. That was no link.
#[tokio::test]
async fn a_welcome_that_is_not_taken_is_no_link() {
    let (job, mut zero, _stream, first) = met().await;
    drop(first);
    let hello = Hello { purpose: LINK, ..job.hello(1) };
    for leaves in [true, true, false] {
        let (mut admission, mut stream) = job.say(&hello).await.unwrap();
        while admission == Admission::Busy {
            tokio::time::sleep(Duration::from_millis(5)).await;
            (admission, stream) = job.say(&hello).await.unwrap();
        }
        assert_eq!(admission, Admission::Welcome);
        if leaves {
            continue;
        }
        write(&mut stream, &TAKEN).await;
        write(&mut stream, &framed(1, b"taken", None)).await;
        let mut link = up(&mut zero, 1).await;
        assert_eq!(receive(&mut *link).await.unwrap().payload, "taken");
    }
}

/// After the handshake: what is no message ends the link with a sentence, and is not allocated for.
#[tokio::test]
async fn damage_on_an_open_link_is_reported() {
    for is_plain in [false, true] {
        let header = |length: u32| Header { length, tag: Tag(1), sum: 0 }.encode();
        let (_job, _zero, mut stream, mut link) = met_as(is_plain).await;
        write(&mut stream, &header(MAX_PAYLOAD as u32 + 1)).await;
        let error = receive(&mut *link).await.unwrap_err();
        assert!(
            matches!(error, LinkError::TooLong { peer: Peer(1), length } if length == MAX_PAYLOAD as u64 + 1)
        );

        for length in [u32::MAX, 4 | 1 << 30] {
            let (_job, _zero, mut stream, mut link) = met_as(is_plain).await;
            let mut garbled = header(4);
            garbled[4..8].copy_from_slice(&length.to_le_bytes());
            write(&mut stream, &garbled).await;
            let error = receive(&mut *link).await.unwrap_err();
            assert!(
                matches!(&error, LinkError::Damaged { peer: Peer(1), what } if what.contains("checksum"))
            );
        }
    }
}

/// Packets show nothing of what is sent, and the same message looks different each time.
#[tokio::test]
async fn nothing_of_a_sealed_message_is_seen_on_the_wire() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut reader, _) = listener.accept().await.unwrap();
    let mut stream = Stream::new(socket, &[1; 32], &[2; 32]);
    stream.finish_handshake(true);
    let message = framed(7, &[0x5a; 100], None);
    let mut seen = Vec::new();
    for _ in 0..2 {
        write(&mut stream, &message).await;
        let mut record = vec![0; 4 + message.len() + 16];
        reader.read_exact(&mut record).await.unwrap();
        assert!(!record.windows(4).any(|bytes| bytes == [0x5a; 4]), "{record:02x?}");
        seen.push(record);
    }
    assert!(seen[0][..4] == seen[1][..4] && seen[0][4..] != seen[1][4..]);
}

/// What is changed on the way, in the payload too, ends the link: sealed or not.
#[tokio::test]
async fn a_byte_that_was_changed_on_the_way_is_reported() {
    for (is_plain, expected) in [(true, "found one with"), (false, "not sealed by the peer")] {
        let (_job, _zero, mut stream, mut link) = met_as(is_plain).await;
        write(&mut stream, &framed(1, b"heard", is_plain.then_some(0))).await;
        assert_eq!(receive(&mut *link).await.unwrap().payload, "heard");
        let mut changed = framed(1, b"heard", None);
        if is_plain {
            changed = framed(1, b"heard", Some(1));
            changed[HEADER] ^= 1;
        }
        // Past the seal, as one writes who is not the peer.
        let mut sent = vec![changed.len() as u8, 0, 0, 0];
        sent.extend_from_slice(&[changed.as_slice(), &[0; 16]].concat());
        let bytes = if is_plain { &changed } else { &sent };
        stream.socket().writable().await.unwrap();
        assert_eq!(stream.socket().try_write(bytes).unwrap(), bytes.len());
        let error = receive(&mut *link).await.unwrap_err();
        assert!(
            matches!(&error, LinkError::Damaged { peer: Peer(1), what } if what.contains(expected)),
            "{error}"
        );
    }
}

/// A relay that repeats, drops or swaps whole messages of a plain link ends it, and so does one that sends an acceptor's words
/// from before the link again: the first message that is not the next one is reported.
#[tokio::test]
async fn a_message_of_a_plain_link_that_is_repeated_dropped_or_swapped_is_reported() {
    let sent: Vec<_> = (0..6).map(|number| framed(1, b"same", Some(number))).collect();
    let before = frame(b"same");
    for (relayed, next) in [
        (vec![&sent[0], &sent[0]], 1),
        (vec![&sent[0], &sent[1], &sent[2], &sent[1]], 3),
        (vec![&sent[1]], 0),
        (vec![&sent[0], &sent[1], &sent[5]], 2),
        (vec![&sent[1], &sent[0]], 0),
        (vec![&sent[0], &sent[1], &sent[3], &sent[2]], 2),
        (vec![&before], 0),
    ] {
        let (_job, _zero, mut stream, mut link) = met_as(true).await;
        write(&mut stream, &relayed.into_iter().flatten().copied().collect::<Vec<u8>>()).await;
        for _ in 0..next {
            assert_eq!(receive(&mut *link).await.unwrap().payload, "same");
        }
        let error = receive(&mut *link).await.unwrap_err();
        let expected = format!("expected message {next} to have the checksum");
        assert!(
            matches!(&error, LinkError::Damaged { peer: Peer(1), what } if what.contains(&expected)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_end_in_the_middle_of_a_message_is_an_end() {
    for bytes in [0, 7, 16, 100] {
        let (_job, _zero, mut stream, mut link) = met().await;
        write(&mut stream, &framed(1, &[7; 200], None)[..bytes]).await;
        drop(stream);
        let error = receive(&mut *link).await.unwrap_err();
        assert!(matches!(error, LinkError::Closed { peer: Peer(1) }), "{error:?}");
    }
}

#[tokio::test]
async fn a_reset_is_an_end() {
    let (_job, _zero, stream, mut link) = met().await;
    stream.socket().set_zero_linger().unwrap();
    drop(stream);
    let error = receive(&mut *link).await.unwrap_err();
    assert!(matches!(error, LinkError::Closed { peer: Peer(1) }), "{error:?}");
    let late = Message { tag: Tag(0), payload: Bytes::from_static(b"late") };
    let error = send(&mut *link, [late]).await.unwrap_err();
    assert!(matches!(error, LinkError::Closed { peer: Peer(1) }), "{error:?}");
}

/// However the bytes come, in pieces or many messages at once, the messages are the same.
#[tokio::test]
async fn messages_are_read_from_pieces_of_any_length() {
    let lengths =
        [50, 0, 1, 8 << 10, (8 << 10) - HEADER, (8 << 10) - HEADER + 1, 30_000, 3, 511, 512, 513, 20_000, 7];
    let payloads: Vec<Vec<u8>> =
        lengths.iter().map(|n| (0..*n).map(|i| (i * 7 + n) as u8).collect()).collect();
    let length = payloads.iter().map(|payload| HEADER + payload.len()).sum();
    let pieces = [5, 16, 17, 1000, 8 << 10, (8 << 10) + 1, 30_000, length];
    for (piece, is_plain) in pieces.into_iter().flat_map(|piece| [(piece, false), (piece, true)]) {
        let framed = |(tag, payload): (u64, &Vec<u8>)| framed(tag, payload, is_plain.then_some(tag));
        let bytes: Vec<u8> = (0..).zip(&payloads).flat_map(framed).collect();
        let (_job, _zero, mut stream, mut link) = met_as(is_plain).await;
        let write = async {
            for piece in bytes.chunks(piece) {
                write(&mut stream, piece).await;
                tokio::task::yield_now().await;
            }
        };
        let read = async {
            for (tag, payload) in (0..).zip(&payloads) {
                let heard = receive(&mut *link).await.unwrap();
                assert!(
                    heard.tag == Tag(tag) && heard.payload == payload[..],
                    "message {tag} in pieces of {piece}"
                );
            }
        };
        tokio::join!(write, read);
    }
}

/// A message that was read in part is read on, whatever else its owner did meanwhile.
#[tokio::test]
async fn a_receive_that_was_dropped_loses_nothing() {
    let (_job, _zero, mut stream, mut link) = met().await;
    for length in [50, 20_000] {
        for piece in framed(3, &vec![9; length], None).chunks(length / 10) {
            assert!(timeout(Duration::from_millis(2), receive(&mut *link)).await.is_err());
            write(&mut stream, piece).await;
        }
        let heard = receive(&mut *link).await.unwrap();
        assert_eq!((heard.tag, &heard.payload[..]), (Tag(3), &vec![9; length][..]));
    }
}

/// What a slow reader takes late is what was submitted, and is reported as sent when it was taken.
#[tokio::test]
async fn messages_are_written_in_pieces() {
    for is_plain in [false, true] {
        written_in_pieces(is_plain).await;
    }
}

async fn written_in_pieces(is_plain: bool) {
    let (_job, _zero, mut stream, mut link) = met_as(is_plain).await;
    let payload: Vec<u8> = (0..MAX_PAYLOAD).map(|i| (i / 3) as u8).collect();
    let messages = vec![Message { tag: Tag(4), payload: Bytes::from(payload.clone()) }; 20];
    let read = async {
        for number in 0..20 {
            let expected = framed(4, &payload, is_plain.then_some(number));
            let mut found = vec![0; expected.len()];
            tokio::time::sleep(Duration::from_millis(1)).await;
            stream.read_exact(&mut found).await.unwrap();
            assert!(found == expected);
        }
    };
    let (sent, ()) = tokio::join!(send(&mut *link, messages), read);
    sent.unwrap();
}

/// A link that is not sealed, and the other end of its connection, with room for several messages in the kernel.
async fn connected() -> (TcpLink, TcpStream) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(400_000).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let hold = Links::new(Peer(0), 2).offer(Peer(1)).unwrap();
    let mut stream = Stream::new(listener.accept().await.unwrap().0, &[0; 32], &[0; 32]);
    stream.finish_handshake(false);
    (TcpLink::new(Peer(1), stream, &Arc::default(), Some(hold)), dialled)
}

/// While the peer is ahead, a read brings the rest of one payload and the header of the next, or several short messages.
#[tokio::test]
async fn there_is_at_most_one_read_for_each_message() {
    const COUNT: usize = 1000;
    for (length, most) in [(64 << 10, COUNT + COUNT / 50), (100, COUNT / 20)] {
        let (mut link, mut stream) = connected().await;
        let ahead = if length > 1000 { 2 } else { 100 };
        let message = |number: usize| framed(1, &vec![5; length], Some(number as u64));
        for number in 0..ahead {
            stream.write_all(&message(number)).await.unwrap();
        }
        for number in 0..COUNT {
            assert_eq!(receive(&mut link).await.unwrap().payload.len(), length);
            if number + ahead < COUNT {
                stream.write_all(&message(number + ahead)).await.unwrap();
            }
        }
        let reads = link.reads();
        println!("{COUNT} messages of {length} bytes: {reads} reads");
        assert!(reads <= most, "{reads} reads for {COUNT} messages of {length} bytes");
    }
}
