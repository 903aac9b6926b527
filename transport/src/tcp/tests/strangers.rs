//! Strangers get no byte, disturb nobody, and are told of; and an open link survives no damage unnoticed.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::handshake::{CHALLENGE_LABEL, HELLO_LABEL, PROOF_LABEL, mac};
use super::super::rendezvous::read_outcome;
use super::super::wire::{CHALLENGE, CHECK, Header, LINK, MAGIC, Outcome};
use super::*;
use crate::{LinkError, MAX_PAYLOAD, Network, Tag};

/// Says these bytes and gives back all that is answered until the connection ends.
async fn answer(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The other end may close before it has taken everything.
    let _ = stream.write_all(bytes).await;
    rest(&mut stream).await
}

async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut answer)).await.expect("was not closed");
    answer
}

/// A job of two whose rank 1 is played by the test, with the link to rank 0 that the rendezvous made.
async fn met() -> (Job, TcpNetwork, UnboundedReceiver<LinkEvent>, TcpStream, Link) {
    let mut job = Job::start(2, LONG).await;
    let mut stream = job.come(1).await;
    assert!(matches!(read_outcome(&mut stream).await.unwrap(), Outcome::Complete(table) if table.len() == 1));
    let (zero, mut events) = (&mut job.zero).await.unwrap().unwrap();
    let link = up(&mut events, 1).await;
    (job, zero, events, stream, link)
}

/// What strangers may send: none of it is answered.
fn rubbish(job: &Job) -> Vec<Vec<u8>> {
    let unsigned = job.hello(1).encode();
    let other = Secret::random().unwrap();
    let mut forged = unsigned.to_vec();
    forged.extend_from_slice(&mac(&other, HELLO_LABEL, &[&unsigned]));
    let mut mislabelled = unsigned.to_vec();
    mislabelled.extend_from_slice(&mac(&job.secret, PROOF_LABEL, &[&unsigned]));
    let mut altered = job.signed(&job.hello(1));
    altered[16] ^= 2;
    let mut almost = job.signed(&job.hello(1));
    almost[95] ^= 1;
    let mut huge = Header { length: u32::MAX, tag: Tag(u64::MAX) }.encode().to_vec();
    huge.resize(4096, 0xff);
    let mut magic_only = MAGIC.to_vec();
    magic_only.resize(HELLO.1, 0xff);
    let itself = job.signed(&job.hello(0));
    let http = b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n".to_vec();
    vec![forged, mislabelled, altered, almost, huge, magic_only, itself, http, vec![0; 100_000]]
}

#[tokio::test]
async fn strangers_get_no_byte_and_the_job_begins() {
    let job = Job::start(2, LONG).await;
    let silent = TcpStream::connect(job.address).await.unwrap();
    let mut halfway = TcpStream::connect(job.address).await.unwrap();
    halfway.write_all(&job.signed(&job.hello(1))[..50]).await.unwrap();
    for bytes in rubbish(&job) {
        assert_eq!(answer(job.address, &bytes).await, []);
    }
    let one = join(job.config(1)).await.unwrap();
    let (_zero, mut events) = job.zero.await.unwrap().unwrap();
    // Each was told of, except those who may still speak.
    for _ in 0..9 {
        refused(&mut events).await;
    }
    up(&mut events, 1).await;
    for mut stranger in [silent, halfway] {
        stranger.shutdown().await.unwrap();
        assert_eq!(rest(&mut stranger).await, []);
    }
    drop(one);
}

#[tokio::test]
async fn strangers_get_no_byte_while_the_job_goes_on() {
    let (job, _zero, mut events, mut stream, mut link) = met().await;
    for bytes in rubbish(&job) {
        assert_eq!(answer(job.address, &bytes).await, []);
        refused(&mut events).await;
    }
    stream.write_all(&Header { length: 2, tag: Tag(5) }.encode()).await.unwrap();
    stream.write_all(b"ok").await.unwrap();
    assert_eq!(link.receiver.receive().await.unwrap().payload, "ok");
}

#[tokio::test]
async fn a_crowd_that_says_nothing_holds_nobody_up() {
    let job = Job::start(2, LONG).await;
    let mut crowd = Vec::new();
    for _ in 0..200 {
        crowd.push(TcpStream::connect(job.address).await.unwrap());
    }
    let one = join(TcpConfig { timeout: LONG, ..job.config(1) }).await.unwrap();
    let zero = job.zero.await.unwrap().unwrap();
    drop((one, zero));
    for mut stranger in crowd {
        assert_eq!(rest(&mut stranger).await, []);
    }
}

#[tokio::test]
async fn a_recorded_hello_is_not_answered_again() {
    let (job, _zero, mut events, _stream, _link) = met().await;
    let hello = Hello { purpose: LINK, ..job.hello(1) };
    let (_stream, verdict) = job.say(&hello).await;
    assert_eq!(verdict.unwrap(), Verdict::Busy);
    assert_eq!(answer(job.address, &job.signed(&hello)).await, []);
    assert_eq!(refused(&mut events).await, "its hello was heard before, so it was recorded and sent again");
}

/// A hello that never reached us may be answered, but whoever took it cannot go on, and what it claims is void.
#[tokio::test]
async fn a_stolen_hello_leads_nowhere() {
    let job = Job::start(3, LONG).await;
    let mut earlier = Vec::new();
    for step in 0..4 {
        let hello = Hello { workers: 9, ..job.hello(1) };
        let mut stream = TcpStream::connect(job.address).await.unwrap();
        let mut said = job.signed(&hello);
        stream.write_all(&said).await.unwrap();
        let mut challenge = [0; CHALLENGE.1];
        stream.read_exact(&mut challenge).await.unwrap();
        let proof: Vec<u8> = match step {
            0 => vec![0; 32],
            1 => challenge[CHALLENGE.0..].to_vec(),
            2 => said[HELLO.0..].to_vec(),
            _ => earlier.clone(),
        };
        stream.write_all(&proof).await.unwrap();
        assert_eq!(rest(&mut stream).await, []);
        // What would have been right then, and is not for the next connection.
        said.extend_from_slice(&challenge);
        earlier = mac(&job.secret, PROOF_LABEL, &[&said]).to_vec();
    }
    // Had the claim of nine workers counted, the job would have failed.
    let (one, two) = tokio::join!(join(job.config(1)), join(job.config(2)));
    assert!(one.is_ok() && two.is_ok() && job.zero.await.unwrap().is_ok());
}

/// Someone without the secret who answers in an acceptor's place, by sending back what it is told or by
/// making things up.
#[tokio::test]
async fn whoever_answers_must_know_the_secret() {
    let job = Job::start(2, LONG).await;
    for step in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let other = Secret::random().unwrap();
        let impostor = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; HELLO.1];
            stream.read_exact(&mut hello).await.unwrap();
            let forged = mac(&other, CHALLENGE_LABEL, &[&hello, &[0; CHALLENGE.0]]);
            let answer = match step {
                0 => hello[..CHALLENGE.1].to_vec(),
                1 => hello[HELLO.1 - CHALLENGE.1..].to_vec(),
                _ => [&[0; CHALLENGE.0][..], &forged].concat(),
            };
            stream.write_all(&answer).await.unwrap();
            assert_eq!(rest(&mut stream).await, [], "an impostor was answered");
        };
        let dialler = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            speak(&mut stream, &job.secret, &job.hello(1)).await
        };
        let (verdict, ()) = tokio::join!(dialler, impostor);
        assert!(matches!(verdict, Err(HandshakeError::Impostor)), "{verdict:?}");
    }
    job.zero.abort();
}

#[tokio::test]
async fn a_worker_that_does_not_fit_is_refused_and_the_job_goes_on() {
    let (job, zero, mut events, _stream, _link) = met().await;
    for (hello, expected) in [
        (Hello { purpose: LINK, workers: 3, ..job.hello(1) }, "was started for 3 workers and rank 0 for 2"),
        (
            Hello { purpose: LINK, version: 2, ..job.hello(1) },
            "speaks protocol version 2 and rank 0 speaks version 1",
        ),
        (Hello { purpose: LINK, ..job.hello(5) }, "ranks are numbered from 0 to 1"),
        (job.hello(1), "was it started twice?"),
    ] {
        let (_stream, verdict) = job.say(&hello).await;
        let Ok(Verdict::Refused(sentence)) = verdict else { panic!("{verdict:?}") };
        assert!(sentence.contains(expected), "{sentence}");
        assert_eq!(refused(&mut events).await, sentence);
    }
    assert_eq!(zero.traffic().links, 1);
}

/// After the handshake: what is no message ends the link with a sentence, and is not allocated for.
#[tokio::test]
async fn damage_on_an_open_link_is_told() {
    let header = |length: u32| Header { length, tag: Tag(1) }.encode();
    let mut garbled = header(4);
    garbled[0] ^= 0x80;
    let (_job, _zero, _events, mut stream, mut link) = met().await;
    stream.write_all(&header(MAX_PAYLOAD as u32 + 1)).await.unwrap();
    let error = link.receiver.receive().await.unwrap_err();
    assert!(
        matches!(error, LinkError::TooLong { peer: Peer(1), length } if length == MAX_PAYLOAD as u64 + 1)
    );

    let (_job, _zero, _events, mut stream, mut link) = met().await;
    stream.write_all(&header(u32::MAX)).await.unwrap();
    let error = link.receiver.receive().await.unwrap_err();
    assert!(matches!(error, LinkError::TooLong { peer: Peer(1), length: 0xffff_ffff }));

    let (_job, _zero, _events, mut stream, mut link) = met().await;
    stream.write_all(&garbled).await.unwrap();
    let error = link.receiver.receive().await.unwrap_err();
    assert!(matches!(error, LinkError::Garbled { peer: Peer(1), found } if found == CHECK ^ 0x80));
}

#[tokio::test]
async fn an_end_in_the_middle_of_a_message_is_an_end() {
    for bytes in [0, 7, 16, 100] {
        let (_job, _zero, _events, mut stream, mut link) = met().await;
        let message = [&Header { length: 200, tag: Tag(1) }.encode()[..], &[7; 200]].concat();
        stream.write_all(&message[..bytes]).await.unwrap();
        drop(stream);
        let error = link.receiver.receive().await.unwrap_err();
        assert!(matches!(error, LinkError::Closed { peer: Peer(1) }), "{error:?}");
    }
}

#[tokio::test]
async fn a_reset_is_an_end() {
    let (_job, _zero, _events, stream, mut link) = met().await;
    stream.set_zero_linger().unwrap();
    drop(stream);
    let error = link.receiver.receive().await.unwrap_err();
    assert!(matches!(error, LinkError::Closed { peer: Peer(1) }), "{error:?}");
    let message = crate::Message { tag: Tag(0), payload: bytes::Bytes::from_static(b"late") };
    let error = link.sender.send(&[message]).await.unwrap_err();
    assert!(matches!(error, LinkError::Closed { peer: Peer(1) }), "{error:?}");
}

/// A `receive` that is dropped in the middle of a message goes on where it was.
#[tokio::test]
async fn a_receive_that_was_dropped_loses_nothing() {
    let (_job, _zero, _events, mut stream, mut link) = met().await;
    let message = [&Header { length: 50, tag: Tag(3) }.encode()[..], &[9; 50]].concat();
    for piece in message.chunks(5) {
        assert!(tokio::time::timeout(Duration::from_millis(2), link.receiver.receive()).await.is_err());
        stream.write_all(piece).await.unwrap();
    }
    let heard = link.receiver.receive().await.unwrap();
    assert_eq!((heard.tag, &heard.payload[..]), (Tag(3), &[9; 50][..]));
}

/// A `send` that is dropped in the middle may have left half a message, so the link sends no more.
#[tokio::test]
async fn a_send_that_was_dropped_ends_the_sending() {
    let (_job, _zero, _events, _stream, mut link) = met().await;
    let payload = bytes::Bytes::from(vec![0; MAX_PAYLOAD]);
    let messages = vec![crate::Message { tag: Tag(0), payload }; 64];
    assert!(tokio::time::timeout(Duration::from_millis(50), link.sender.send(&messages)).await.is_err());
    let error = link.sender.send(&messages[..1]).await.unwrap_err();
    assert!(matches!(error, LinkError::Abandoned { peer: Peer(1) }), "{error:?}");
}
