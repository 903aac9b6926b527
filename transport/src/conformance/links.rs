//! Requirements of links as they come and go.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Barrier;
use tokio::time::{sleep, timeout};

use super::{Networks, QUIET, at_once, event, exchange, message, pair, receive, send, sent, up};
use crate::{LinkError, LinkEvent, MAX_CARD, MAX_PAYLOAD, Message, Network, OpenError, Peer};

/// All open links to all others, twice: one comes about for each pair, and leads to whom it says.
pub(super) async fn every_pair(networks: Networks) {
    let workers = networks.len() as u32;
    let tasks = networks.into_iter().zip(0..).map(|(mut network, us)| async move {
        assert_eq!((network.peer(), network.workers()), (Peer(us), workers));
        let others: Vec<_> = (0..workers).map(Peer).filter(|peer| peer.0 != us).collect();
        for peer in others.iter().chain(&others) {
            network.open(*peer);
        }
        let mut links = Vec::new();
        while links.len() < others.len() {
            match event(&mut network).await {
                Some(LinkEvent::Up(link)) => links.push(link),
                other => panic!("expected a link from rank {us} and found {other:?}"),
            }
        }
        links.sort_by_key(|link| link.peer());
        assert_eq!(links.iter().map(|link| link.peer()).collect::<Vec<_>>(), others);
        for link in &mut links {
            let (said, expected) = (word(us, link.peer().0), word(link.peer().0, us));
            exchange(&mut **link, [said], 1, |heard| assert_eq!(heard, expected))
                .await
                .expect("an open link");
        }
        assert_eq!(network.counters().read().links, u64::from(workers) - 1);
        let more = timeout(QUIET, event(&mut network)).await;
        assert!(more.is_err(), "rank {us} expected nothing more and found {more:?}");
        // The last to have received is the first that may drop.
        (network, links)
    });
    at_once(tasks).await;
}

/// What one worker says to another, and to no other.
fn word(from: u32, to: u32) -> Message {
    message(u64::from(from), to as usize, 20)
}

/// Both open at the same moment, again and again: each time there is one link, the same for both.
pub(super) async fn opened_by_both(mut networks: Networks) {
    const TIMES: usize = 200;
    let barrier = Arc::new(Barrier::new(2));
    // These two, since rank 0 may have links already.
    let sides = networks.drain(1..).zip([2, 1]).map(|(mut network, other)| {
        let barrier = Arc::clone(&barrier);
        async move {
            let us = network.peer().0;
            for time in 0..TIMES {
                barrier.wait().await;
                for _ in 0..if us == 1 { time % 7 } else { time / 7 % 7 } {
                    tokio::task::yield_now().await;
                }
                network.open(Peer(other));
                let mut link = up(&mut network, Peer(other)).await;
                let expected = message(other.into(), time, 8);
                let hear = |heard| assert_eq!(heard, expected);
                exchange(&mut *link, [message(us.into(), time, 8)], 1, hear).await.expect("an open link");
                let pause = Duration::from_millis((time % 20 / 19) as u64);
                let second = timeout(pause, up(&mut network, Peer(other))).await;
                assert!(second.is_err(), "expected one link from rank {us} to rank {other} and found two");
                barrier.wait().await;
                // One of them drops it while the other may be asked for the next.
                if time % 4 == us as usize {
                    sleep(Duration::from_millis(2)).await;
                }
                drop(link);
            }
        }
    });
    at_once(sides.collect::<Vec<_>>()).await;
}

/// The other side reads what reached it, in order, and then that the link is closed. The next comes when that side has
/// dropped it too.
pub(super) async fn dropped(mut networks: Networks) {
    let [mut first, mut second] = pair(&mut networks, [1, 2]).await;
    let said: Vec<_> = (0..20).map(|number| message(7, number, 1000)).collect();
    send(&mut *first, said.clone()).await.expect("an open link");
    drop(first);
    let mut heard = Vec::new();
    let error = loop {
        match receive(&mut *second).await {
            Ok(message) => heard.push(message),
            Err(error) => break error,
        }
    };
    let count = heard.len();
    assert!(said.starts_with(&heard), "expected the first of what was sent and found {count} other messages");
    assert!(matches!(error, LinkError::Closed { peer: Peer(1) }), "{error:?}");
    let error = loop {
        if let Err(error) = send(&mut *second, [message(0, 0, 1000)]).await {
            break error;
        }
    };
    assert!(matches!(error, LinkError::Closed { peer: Peer(1) }), "{error:?}");

    networks[1].open(Peer(2));
    let early = timeout(QUIET, up(&mut networks[1], Peer(2))).await;
    assert!(early.is_err(), "a second link came before the first was dropped at both sides");
    drop(second);
    let mut first = up(&mut networks[1], Peer(2)).await;
    let mut second = up(&mut networks[2], Peer(1)).await;
    send(&mut *second, [word(2, 1)]).await.expect("an open link");
    assert_eq!(receive(&mut *first).await.expect("an open link"), word(2, 1));
}

/// A network that was dropped opens no more links; its last goes on.
pub(super) async fn left(mut networks: Networks) {
    let [mut first, mut second] = pair(&mut networks, [1, 2]).await;
    drop(networks.pop());
    send(&mut *first, [word(1, 2)]).await.expect("an open link");
    assert_eq!(receive(&mut *second).await.expect("an open link"), word(1, 2));
    send(&mut *second, [word(2, 1)]).await.expect("an open link");
    assert_eq!(receive(&mut *first).await.expect("an open link"), word(2, 1));
    networks[1].open(Peer(2));
    let more = timeout(QUIET, failed(&mut networks[1])).await;
    assert!(more.is_err(), "the link is up: expected nothing, and found {more:?}");
    drop((first, second));
    networks[1].open(Peer(2));
    assert_eq!(failed(&mut networks[1]).await.0, Peer(2));
}

/// One side dropped its link and asks for the next, which the other, while it holds its own, ends with all others.
pub(super) async fn left_while_asked(mut networks: Networks) {
    let [first, second] = pair(&mut networks, [1, 2]).await;
    drop(first);
    networks[1].open(Peer(2));
    let early = timeout(QUIET, failed(&mut networks[1])).await;
    assert!(early.is_err(), "expected nothing while the other side may drop its link, and found {early:?}");
    drop(networks.pop());
    assert_eq!(failed(&mut networks[1]).await.0, Peer(2));
    drop(second);
}

/// One side has its link, and the other drops its network before it has asked what came about.
pub(super) async fn not_taken(mut networks: Networks) {
    networks[1].open(Peer(2));
    let mut first = up(&mut networks[1], Peer(2)).await;
    sleep(QUIET).await;
    drop(networks.pop());
    let error = receive(&mut *first).await.expect_err("expected that nothing was said");
    assert!(matches!(error, LinkError::Closed { peer: Peer(2) }), "{error:?}");
}

/// A worker goes in the middle of what it sends: the other receives the first of it, in whole messages, and that the link is closed.
pub(super) async fn gone(mut networks: Networks) {
    const COUNT: usize = 300;
    let [mut first, mut second] = pair(&mut networks, [0, 1]).await;
    let said = message(3, 0, MAX_PAYLOAD);
    (0..COUNT).for_each(|_| first.submit(said.clone()));
    while let Ok(more) = timeout(QUIET, sent(&mut *first)).await {
        more.expect("an open link");
    }
    let leaves = networks.remove(0);
    let goes = async move { drop((leaves, first)) };
    let hears = async move {
        let mut heard = 0;
        let error = loop {
            match receive(&mut *second).await {
                Ok(message) => assert!(message == said, "expected whole messages and found another"),
                Err(error) => break error,
            }
            heard += 1;
        };
        assert!(heard < COUNT, "expected the first of what was said and found all of it");
        assert!(matches!(error, LinkError::Closed { peer: Peer(0) }), "{error:?}");
    };
    let ends: [Pin<Box<dyn Future<Output = ()> + Send>>; 2] = [Box::pin(goes), Box::pin(hears)];
    at_once(ends).await;
}

/// A worker stops in the middle of what it sends, and goes on later: meanwhile the other receives whole messages, and no end.
pub(super) async fn stopped(mut networks: Networks) {
    const COUNT: usize = 100;
    let [mut first, mut second] = pair(&mut networks, [0, 1]).await;
    let of = |number| message(3, number, MAX_PAYLOAD / 3);
    (0..COUNT).for_each(|number| first.submit(of(number)));
    // A network may take less than a message from it while it is not read.
    let begun = timeout(QUIET, sent(&mut *first)).await.unwrap_or(Ok(0));
    let (mut owed, mut heard) = (COUNT - begun.expect("an open link"), 0);
    while heard < COUNT
        && let Ok(message) = timeout(QUIET, receive(&mut *second)).await
    {
        assert!(message.expect("an open link") == of(heard), "expected whole messages and found another");
        heard += 1;
    }
    let missing = COUNT - heard;
    let hear = |message: Message| {
        assert!(message == of(heard), "expected the next message and found another");
        heard += 1;
    };
    let goes_on = async {
        while owed > 0 {
            owed -= sent(&mut *first).await?;
        }
        Ok(())
    };
    let (sent, heard): (Result<(), LinkError>, _) =
        tokio::join!(goes_on, exchange(&mut *second, [], missing, hear));
    sent.and(heard).expect("an open link");
}

/// Whom the next link that does not come about was for, and why not.
async fn failed(network: &mut impl Network) -> (Peer, OpenError) {
    loop {
        match event(network).await {
            Some(LinkEvent::Failed { peer, error }) => return (peer, error),
            Some(LinkEvent::Up(link)) if link.peer() != Peer(0) => {
                panic!("expected no link and found {link:?}")
            }
            Some(_) => {}
            None => panic!("expected that a link fails and found no more events"),
        }
    }
}

/// Each sees its own card and those of all others, again and again, and what it sees of a peer is what that sees of itself.
pub(super) async fn cards(mut networks: Networks) {
    let workers = networks.len() as u32;
    let mut shown = Vec::new();
    for (us, network) in (0..).zip(&mut networks) {
        let mut cards = Vec::new();
        for peer in (0..workers).chain(0..workers) {
            let card = card(network, Peer(peer)).await;
            let card = card.unwrap_or_else(|error| panic!("expected a card of rank {peer}: {error}"));
            assert!(card.len() <= MAX_CARD, "expected {MAX_CARD} bytes at most and found {}", card.len());
            cards.push(card);
        }
        let unknown = card(network, Peer(workers)).await;
        let is_unknown = matches!(unknown, Err(OpenError::Unknown { peer, workers: w }) if (peer, w) == (Peer(workers), workers));
        assert!(is_unknown, "rank {us} expected no card of an unknown rank and found {unknown:?}");
        shown.push(cards);
    }
    for (us, cards) in shown.iter().enumerate() {
        for (peer, card) in cards.iter().enumerate() {
            let (peer, own) = (peer % networks.len(), &shown[peer % networks.len()]);
            assert!(*card == own[peer], "rank {us} expected the card of rank {peer} and found another one");
        }
    }
}

async fn card(network: &mut impl Network, peer: Peer) -> Result<Bytes, OpenError> {
    poll_fn(|context| network.poll_card(peer, context)).await
}

/// No worker has a link to itself, or to a peer that is none.
pub(super) async fn to_no_peer(mut networks: Networks) {
    networks[1].open(Peer(1));
    let (peer, error) = failed(&mut networks[1]).await;
    assert!(peer == Peer(1) && matches!(error, OpenError::Itself { peer: Peer(1) }), "{error:?}");
    networks[1].open(Peer(2));
    let (peer, error) = failed(&mut networks[1]).await;
    assert!(
        peer == Peer(2) && matches!(error, OpenError::Unknown { peer: Peer(2), workers: 2 }),
        "{error:?}"
    );
}
