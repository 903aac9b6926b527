//! Where peers listen is asked of rank 0, by those who need it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::rendezvous::read_frame;
use super::super::wire::{ASK, Asked, CHALLENGE, Card, Cards, NOISE, Place, frame};
use super::unauthenticated::met;
use super::*;
use crate::{MAX_CARD, MAX_PAYLOAD, Network, OpenError};

/// Passes on what is said to rank 0 and by it, and counts the bytes. So few at a time have not been answered yet that rank 0 does not
/// close connections that are silent for a while, as all are when the machine stands still.
async fn counted(zero: SocketAddr) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, bytes) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
    let (total, unanswered) = (Arc::clone(&bytes), Arc::new(Semaphore::new(200)));
    tokio::spawn(async move {
        while let Ok((outer, _)) = listener.accept().await {
            let total = Arc::clone(&total);
            let place = Arc::clone(&unanswered).acquire_owned().await.unwrap();
            tokio::spawn(async move {
                let inner = TcpStream::connect(zero).await.unwrap();
                let ((outer_read, outer_write), (inner_read, inner_write)) =
                    (outer.into_split(), inner.into_split());
                let said = pump(outer_read, inner_write, &total, None);
                tokio::join!(said, pump(inner_read, outer_write, &total, Some(place)));
            });
        }
    });
    (address, bytes)
}

/// The place is kept until more has come than the challenge.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    total: &AtomicU64,
    mut place: Option<OwnedSemaphorePermit>,
) {
    let (mut buffer, mut came) = ([0; 4096], 0);
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        came += count;
        if came > CHALLENGE + NOISE {
            place = None;
        }
        total.fetch_add(count as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    drop(place);
}

/// Bytes to and from rank 0 until all have joined, and each has links to the next two.
async fn bytes_at_rank_zero(workers: u32) -> u64 {
    let mut job = Job::start(workers, LONG).await;
    let (address, bytes) = counted(job.address).await;
    let joins: Vec<_> = (1..workers)
        .map(|peer| tokio::spawn(join(JoinConfig { rendezvous: address.to_string(), ..job.config(peer) })))
        .collect();
    let _zero = (&mut job.zero).await.unwrap().unwrap();
    let mut tasks = Vec::new();
    for joined in joins {
        let mut network = joined.await.unwrap().unwrap();
        tasks.push(tokio::spawn(async move {
            let us = network.peer().0;
            let next = |step| Peer((us - 1 + step) % (workers - 1) + 1);
            network.open(next(1));
            network.open(next(2));
            let mut links = Vec::new();
            while links.len() < 5 {
                match timeout(LONG, conformance::event(&mut network)).await.unwrap() {
                    Some(LinkEvent::Up(link)) => links.push(link),
                    other => panic!("rank {us} expected a link and found {other:?}"),
                }
            }
            let mut peers: Vec<_> = links.iter().map(|link| link.peer()).collect();
            let mut expected = vec![Peer(0), next(1), next(2), next(workers - 2), next(workers - 3)];
            peers.sort();
            expected.sort();
            assert_eq!(peers, expected);
            (network, links)
        }));
    }
    let mut kept = Vec::new();
    for task in tasks {
        kept.push(task.await.unwrap());
    }
    bytes.load(Ordering::Relaxed)
}

/// A table of all addresses to all is 19 bytes for each pair: 6.8 MB for 600 workers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joining_costs_rank_zero_as_much_for_each_of_many_workers_as_of_few() {
    for workers in [50, 600] {
        let bytes = bytes_at_rank_zero(workers).await;
        println!("{workers} workers: {bytes} bytes at rank 0, {} for each", bytes / u64::from(workers));
        assert!(bytes < 1000 * u64::from(workers), "{bytes} bytes for {workers} workers");
    }
}

#[tokio::test]
async fn cards_are_shown_to_those_who_ask() {
    let (job, mut zero, _stream, _link) = met().await;
    let (admission, mut stream) = job.say(&Hello { purpose: ASK, ..job.hello(1) }).await.unwrap();
    assert_eq!(admission, Admission::Welcome);
    write(&mut stream, &frame(&Asked(vec![Peer(1), Peer(2), Peer(u32::MAX)]).encode())).await;
    let shown = Cards::decode(&read_frame(&mut stream, MAX_PAYLOAD).await.unwrap()).unwrap();
    assert_eq!(shown, Cards(vec![Card { place: Place::BesidePeerZero(9), bytes: card(1) }.encode()]));

    let (admission, mut stream) = job.say(&Hello { purpose: ASK, ..job.hello(1) }).await.unwrap();
    assert_eq!(admission, Admission::Welcome);
    write(&mut stream, &frame(&[0; 4000])).await;
    assert_eq!(stream.read(&mut [0; 9]).await.unwrap_or(0), 0);
    let reason = refused(&mut zero).await;
    assert!(
        reason.starts_with("rank 1 asked where others listen and left: a message of 4000 bytes"),
        "{reason}"
    );
}

/// Each sees what the others brought, whether it got it at the rendezvous or asks for it.
#[tokio::test]
async fn every_worker_sees_the_cards_of_all() {
    let job = Job::start(9, LONG).await;
    let participants: Vec<_> = (1..9).map(|rank| tokio::spawn(join(job.config(rank)))).collect();
    let mut networks = vec![job.zero.await.unwrap().unwrap()];
    for participant in participants {
        networks.push(participant.await.unwrap().unwrap());
    }
    for network in &mut networks {
        for peer in (0..9).rev() {
            let shown = std::future::poll_fn(|context| network.poll_card(Peer(peer), context)).await;
            assert_eq!(shown.unwrap(), card(peer));
        }
    }
    let length = MAX_CARD + 1;
    let refused = join(JoinConfig { card: vec![0; length].into(), ..alone() }).await;
    assert!(matches!(refused, Err(JoinError::Card { length: found }) if found == length), "{refused:?}");
}

pub(super) fn alone() -> JoinConfig {
    JoinConfig {
        peer: Peer(0),
        workers: 2,
        epoch: 0,
        card: Bytes::new(),
        rendezvous: "127.0.0.1:0".into(),
        secret: Secret::random().unwrap(),
        job: ID.into(),
        is_plain: false,
        choice: TransportChoice::default(),
        timeout: LONG,
        listener: None,
    }
}

/// A worker whose card is too long is refused.
#[tokio::test]
async fn a_card_that_is_too_long_is_refused() {
    let mut job = Job::start(2, Duration::from_secs(3)).await;
    let socket = TcpStream::connect(job.address).await.unwrap();
    let said = speak(socket, &job.key(), &job.hello(1), &[7; MAX_CARD + 1]).await;
    assert!(matches!(said, Err(HandshakeError::Cut)), "{said:?}");
    let failed = (&mut job.zero).await.unwrap().unwrap_err().to_string();
    assert!(failed.contains("a message of 1025 bytes is longer than"), "{failed}");
}

/// The next four are known without it, the fifth is not.
#[tokio::test]
async fn a_rank_zero_that_is_gone_is_reported() {
    let job = Job::start(7, LONG).await;
    let participants: Vec<_> = (1..7).map(|rank| tokio::spawn(join(job.config(rank)))).collect();
    let mut networks = Vec::new();
    for participant in participants {
        networks.push(participant.await.unwrap().unwrap());
    }
    let one = &mut networks[0];
    drop(up(one, 0).await);
    drop(job.zero.await.unwrap().unwrap());
    one.open(Peer(6));
    match timeout(LONG, conformance::event(one)).await.unwrap() {
        Some(LinkEvent::Failed { peer: Peer(6), error: error @ OpenError::NoCard { .. } }) => {
            let start = format!("rank 0 at {} did not say where rank 6 listens: ", job.address);
            assert!(error.to_string().starts_with(&start), "{error}");
        }
        other => panic!("expected that no link comes about and found {other:?}"),
    }
    for peer in [Peer(0), Peer(6)] {
        let shown = std::future::poll_fn(|context| one.poll_card(peer, context)).await;
        assert!(matches!(shown, Err(OpenError::NoCard { .. })), "{shown:?}");
    }
    for near in 2..6 {
        one.open(Peer(near));
        drop(up(one, near).await);
    }
}
