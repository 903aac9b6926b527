//! What memory, TCP and QUIC promise beyond what every network does.

#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use gleaner_transport::conformance::{event, exchange, receive, send, up};
use gleaner_transport::{
    Link, LinkError, LinkEvent, Message, Network, OpenError, Peer, Tag, Traffic, memory,
};
use support::{over_quic, over_tcp};

fn messages() -> impl Iterator<Item = Message> {
    let message = |length| Message { tag: Tag(5), payload: Bytes::from(vec![length as u8; length]) };
    [0, 1, 3, 16, 4096, 70_000].into_iter().map(message)
}

async fn linked<N: Network>(networks: &mut [N]) -> [Box<dyn Link>; 2] {
    networks[0].open(Peer(1));
    [up(&mut networks[0], Peer(1)).await, up(&mut networks[1], Peer(0)).await]
}

/// A message counts as its payload over memory, and 16 bytes more over TCP and QUIC.
#[tokio::test]
async fn headers_are_counted() {
    counted(memory::networks(2), 0).await;
    counted(over_tcp(2).await, 16).await;
    counted(over_quic(2).await, 16).await;
}

async fn counted<N: Network>(mut networks: Vec<N>, header: u64) {
    let [mut first, mut second] = linked(&mut networks).await;
    let talk =
        tokio::join!(exchange(&mut *first, messages(), 0, drop), exchange(&mut *second, messages(), 6, drop));
    assert!(talk.0.is_ok() && talk.1.is_ok());
    for _ in messages() {
        receive(&mut *first).await.unwrap();
    }
    let bytes = 1 + 3 + 16 + 4096 + 70_000 + 6 * header;
    let expected = Traffic {
        bytes_sent: bytes,
        bytes_received: bytes,
        messages_sent: 6,
        messages_received: 6,
        links: 1,
    };
    for network in networks {
        assert_eq!(network.counters().read(), expected);
    }
}

/// All keep what was sent for a reader that comes late.
#[tokio::test]
async fn what_was_sent_before_a_link_was_dropped_arrives() {
    late(memory::networks(2)).await;
    late(over_tcp(2).await).await;
    late(over_quic(2).await).await;
}

async fn late<N: Network>(mut networks: Vec<N>) {
    let [mut first, mut second] = linked(&mut networks).await;
    send(&mut *first, messages()).await.unwrap();
    drop(first);
    for expected in messages() {
        assert_eq!(receive(&mut *second).await.unwrap(), expected);
    }
    let closed = receive(&mut *second).await;
    assert!(matches!(closed, Err(LinkError::Closed { peer: Peer(0) })), "{closed:?}");
}

/// Memory knows who has left; TCP, and so QUIC, knows that nothing answers there.
#[tokio::test]
async fn a_peer_that_left_is_reported_as_the_network_knows_it() {
    let error = gone(memory::networks(2)).await;
    assert!(matches!(error, OpenError::Gone { peer: Peer(1) }), "{error:?}");
    for error in [gone(over_tcp(2).await).await, gone(over_quic(2).await).await] {
        assert!(matches!(error, OpenError::Unreachable { peer: Peer(1), .. }), "{error:?}");
    }
}

async fn gone<N: Network>(mut networks: Vec<N>) -> OpenError {
    drop(linked(&mut networks).await);
    networks.truncate(1);
    networks[0].open(Peer(1));
    match event(&mut networks[0]).await {
        Some(LinkEvent::Failed { peer: Peer(1), error }) => error,
        other => panic!("expected that no link comes about and found {other:?}"),
    }
}
