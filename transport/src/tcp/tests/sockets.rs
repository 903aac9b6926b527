//! Links of several sockets: what they are made of, in what order messages come, and how they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, copy};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::wire::{CHALLENGE, NOISE};
use super::*;
use crate::conformance::{exchange, receive, send};
use crate::{LinkError, Message, Network, Tag};

/// Sockets of each link here.
const SOCKETS: u8 = 3;

/// What happens to one of the connections that pass a relay.
#[derive(Default)]
struct Fault {
    /// From the beginning, and ended by `now`.
    holds: AtomicBool,
    now: Notify,
    /// This many connections after the first are closed at once.
    cuts: usize,
    /// It ends when its acceptor has welcomed it, and before its dialler receives that.
    unheard: bool,
}

/// A relay before an address: gives where it listens. The connection of that number is disturbed.
async fn relay(to: SocketAddr, faulty: usize, fault: Arc<Fault>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut passing = JoinSet::new();
        for number in 0.. {
            let (near, _) = listener.accept().await.unwrap();
            if (1..=fault.cuts).contains(&number) {
                continue;
            }
            let far = TcpStream::connect(to).await.unwrap();
            let fault = (number == faulty).then(|| Arc::clone(&fault));
            passing.spawn(pass(near, far, fault));
        }
    });
    (at, tasks)
}

async fn pass(near: TcpStream, far: TcpStream, fault: Option<Arc<Fault>>) {
    let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (near.into_split(), far.into_split());
    if fault.as_ref().is_some_and(|fault| fault.unheard) {
        let back = async {
            // What comes after the challenge is the welcome.
            let challenge = (CHALLENGE + NOISE) as u64;
            copy(&mut (&mut from_far).take(challenge), &mut to_near).await.unwrap();
            from_far.read_u8().await.unwrap();
        };
        return tokio::select! {
            _ = copy(&mut from_near, &mut to_far) => {}
            () = back => {}
        };
    }
    let all = async {
        let there = forward(&mut from_near, &mut to_far, fault.as_deref());
        let back = forward(&mut from_far, &mut to_near, None);
        tokio::join!(there, back)
    };
    match &fault {
        // It ends in the middle, in both directions.
        Some(fault) if !fault.holds.load(Ordering::Relaxed) => tokio::select! {
            _ = all => {}
            () = fault.now.notified() => {}
        },
        _ => drop(all.await),
    }
}

/// Beyond the handshake, what may pass only once it is time.
async fn forward(from: &mut tcp::OwnedReadHalf, to: &mut tcp::OwnedWriteHalf, fault: Option<&Fault>) {
    const HANDSHAKE: u64 = 1000;
    if let Some(fault) = fault.filter(|fault| fault.holds.load(Ordering::Relaxed)) {
        let passed = copy(&mut (&mut *from).take(HANDSHAKE), to).await;
        if passed.is_ok_and(|passed| passed == HANDSHAKE) {
            fault.now.notified().await;
        }
    }
    let _ = copy(from, to).await;
    let _ = to.shutdown().await;
}

/// Two workers of a job with such links, the second of which reaches the first through a relay.
async fn joined(faulty: usize, fault: &Arc<Fault>) -> ([TcpNetwork; 2], JoinSet<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (relayed, relay) = relay(listener.local_addr().unwrap(), faulty, Arc::clone(fault)).await;
    let secret = Secret::random().unwrap();
    let config = |peer: u32, listener| JoinConfig {
        choice: choice(SOCKETS),
        listener,
        ..config(peer, relayed.to_string(), secret.clone())
    };
    let (zero, one) = tokio::join!(join(config(0, Some(listener))), join(config(1, None)));
    ([zero.unwrap(), one.unwrap()], relay)
}

/// Two workers with such links, the second of which reaches the first through a relay, and the link between them.
struct Pair {
    _networks: [TcpNetwork; 2],
    links: [Box<dyn Link>; 2],
    _relay: JoinSet<()>,
}

impl Pair {
    async fn with(faulty: usize, fault: &Arc<Fault>) -> Self {
        let ([mut zero, mut one], relay) = joined(faulty, fault).await;
        let links = [up(&mut zero, 1).await, up(&mut one, 0).await];
        Self { _networks: [zero, one], links, _relay: relay }
    }
}

fn choice(sockets: u8) -> TransportChoice {
    TransportChoice { sockets: sockets.to_string().parse().unwrap(), ..TransportChoice::default() }
}

fn config(peer: u32, rendezvous: String, secret: Secret) -> JoinConfig {
    let (peer, card, job) = (Peer(peer), card(peer), ID.to_owned());
    let (workers, epoch, is_plain, choice, timeout, listener) = (2, EPOCH, false, choice(1), LONG, None);
    JoinConfig { peer, workers, epoch, card, rendezvous, secret, job, is_plain, choice, timeout, listener }
}

fn messages(count: u64, length: usize) -> impl Iterator<Item = Message> + Clone {
    (0..count).map(move |number| Message { tag: Tag(5), payload: Bytes::from(vec![number as u8; length]) })
}

/// Whichever of its sockets ends, the link ends on both sides, and each names the other.
#[tokio::test]
async fn a_link_ends_with_any_of_its_sockets() {
    for faulty in 0..usize::from(SOCKETS) {
        let fault = Arc::<Fault>::default();
        let Pair { _networks, links: [mut zero, mut one], _relay } = Pair::with(faulty, &fault).await;
        let talk = tokio::join!(
            exchange(&mut *zero, messages(50, 10_000), 50, drop),
            exchange(&mut *one, messages(50, 10_000), 50, drop)
        );
        assert!(talk.0.is_ok() && talk.1.is_ok());
        fault.now.notify_one();
        let ends = async { tokio::join!(receive(&mut *zero), receive(&mut *one)) };
        let (at_zero, at_one) = timeout(LONG, ends).await.unwrap();
        assert!(matches!(at_zero, Err(LinkError::Closed { peer: Peer(1) })), "{faulty}: {at_zero:?}");
        assert!(matches!(at_one, Err(LinkError::Closed { peer: Peer(0) })), "{faulty}: {at_one:?}");
        let sends = timeout(LONG, send(&mut *one, messages(1000, 100_000))).await.unwrap();
        assert!(matches!(sends, Err(LinkError::Closed { peer: Peer(0) })), "{faulty}: {sends:?}");
    }
}

/// While nothing comes on one socket, what comes on the others waits, within bounds, and all comes in its order in the end.
#[tokio::test]
async fn what_comes_before_its_turn_waits_for_it() {
    const COUNT: u64 = 2000;
    const LENGTH: usize = 64 << 10;
    for faulty in 0..usize::from(SOCKETS) {
        let fault = Arc::<Fault>::default();
        fault.holds.store(true, Ordering::Relaxed);
        let Pair { _networks, links: [mut zero, mut one], _relay } = Pair::with(faulty, &fault).await;
        let sends = tokio::spawn(async move {
            let sent = send(&mut *one, messages(COUNT, LENGTH)).await;
            (sent, one)
        });
        let mut heard = 0;
        let mut hear = async |most: u64| {
            while heard < most
                && let Ok(message) = timeout(Duration::from_secs(1), receive(&mut *zero)).await
            {
                let payload = message.unwrap().payload;
                assert!(payload.len() == LENGTH && payload[0] == heard as u8, "message {heard} of {faulty}");
                heard += 1;
            }
            heard
        };
        assert!(hear(COUNT).await < COUNT, "nothing was missing");
        assert!(!sends.is_finished(), "all was taken while a part of it could not come");
        fault.now.notify_one();
        while hear(COUNT).await < COUNT {
            sleep(Duration::from_millis(1)).await;
        }
        sends.await.unwrap().0.unwrap();
    }
}

/// What a peer has sent before it closed the link arrives, whichever socket ends first.
#[tokio::test]
async fn what_was_sent_before_it_was_closed_arrives() {
    for round in 0..20 {
        let Pair { _networks, links: [mut zero, mut one], _relay } = Pair::with(9, &Arc::default()).await;
        let sent = send(&mut *one, messages(40 + round, 3000)).await;
        sent.unwrap();
        drop(one);
        for number in 0..40 + round {
            let payload = timeout(LONG, receive(&mut *zero)).await.unwrap().unwrap().payload;
            assert_eq!(payload[0], number as u8);
        }
        let end = timeout(LONG, receive(&mut *zero)).await.unwrap();
        assert!(matches!(end, Err(LinkError::Closed { peer: Peer(1) })), "{end:?}");
    }
}

/// As by a port that is overrun: the others are made again, for as long as a link is tried.
#[tokio::test]
async fn sockets_that_are_closed_while_a_link_opens_are_made_again() {
    let fault = Arc::new(Fault { cuts: 12, ..Fault::default() });
    let opened = timeout(LONG / 2, Pair::with(usize::MAX, &fault)).await;
    let Pair { _networks, links: [mut zero, mut one], _relay } = opened.expect("a link");
    assert_eq!(zero.address(), Some(std::net::Ipv4Addr::LOCALHOST.into()));
    let talk = tokio::join!(
        exchange(&mut *zero, messages(5, 100_000), 5, drop),
        exchange(&mut *one, messages(5, 100_000), 5, drop)
    );
    assert!(talk.0.is_ok() && talk.1.is_ok());
}

/// It is made again, and the one that the acceptor had let in is none of the link: also when no other is missing.
#[tokio::test]
async fn a_socket_whose_welcome_is_lost_is_made_again() {
    for faulty in 1..usize::from(SOCKETS) {
        let fault = Arc::new(Fault { unheard: true, ..Fault::default() });
        let Pair { _networks, links: [mut zero, mut one], _relay } = Pair::with(faulty, &fault).await;
        let talk = tokio::join!(
            exchange(&mut *zero, messages(50, 10_000), 50, drop),
            exchange(&mut *one, messages(50, 10_000), 50, drop)
        );
        assert!(talk.0.is_ok() && talk.1.is_ok(), "{faulty}: {talk:?}");
    }
}

/// Its other sockets, which never come, are not waited for.
#[tokio::test]
async fn who_goes_while_the_sockets_of_its_link_are_made_is_noticed() {
    let fault = Arc::new(Fault { cuts: usize::MAX, ..Fault::default() });
    let ([mut zero, one], _relay) = joined(usize::MAX, &fault).await;
    drop(one);
    zero.open(Peer(1));
    match timeout(LONG / 4, conformance::event(&mut zero)).await.expect("an end of the waiting") {
        Some(LinkEvent::Failed { peer: Peer(1), .. }) => {}
        other => panic!("expected that no link comes about and found {other:?}"),
    }
}

#[tokio::test]
async fn workers_that_differ_in_their_sockets_get_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, secret) = (listener.local_addr().unwrap().to_string(), Secret::random().unwrap());
    let zero = JoinConfig {
        choice: choice(4),
        listener: Some(listener),
        ..config(0, address.clone(), secret.clone())
    };
    let one = config(1, address, secret);
    let (zero, one) = tokio::join!(join(zero), join(one));
    for refused in [zero.map(drop), one.map(drop)] {
        let sentence = refused.unwrap_err().to_string();
        let expected = "was started with 1 socket for each link and rank 0 with 4 sockets for each link: give every worker \
                        the same number (--sockets, GLEANER_SOCKETS)";
        assert!(sentence.contains(expected), "{sentence}");
    }
}

/// A run is read as it was announced, and nothing else is a run.
#[test]
fn runs_are_announced_in_order() {
    use super::super::bundle::{announce, announced};
    for run in [0..1, 7..71, (1 << 56) - 64..1 << 56] {
        assert_eq!(announced(&announce(&run), 0), Some(run.clone()));
        assert_eq!(announced(&announce(&run), run.start), Some(run.clone()));
        assert_eq!(announced(&announce(&run), run.start + 1), None, "it was handed out before");
    }
    let empty = |tag| Message { tag: Tag(tag), payload: Bytes::new() };
    assert_eq!(announced(&empty(9 << 8), 0), None, "no message");
    assert_eq!(announced(&empty(9 << 8 | 65), 0), None, "too many");
    let long = Message { payload: Bytes::from_static(b"1"), ..empty(9 << 8 | 1) };
    assert_eq!(announced(&long, 0), None, "it has a payload");
}
