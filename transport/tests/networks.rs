//! What every network promises, over memory and over TCP.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use bytes::Bytes;
use gleaner_transport::{Link, LinkError, LinkEvent, MAX_PAYLOAD, Message, OpenError, Peer, Tag, Traffic};
use support::{Node, both, link_to, links, message, tcp_nodes, up};

/// Says something of several lengths to the peer, and hears the same from it.
async fn talk(from: Peer, link: &mut Link) {
    let lengths = [0, 1, 3, 16, 4096, 70_000, MAX_PAYLOAD];
    let say = |from: Peer, to: Peer| -> Vec<Message> {
        lengths
            .iter()
            .enumerate()
            .map(|(i, length)| {
                message(u64::from(from.0 * 1000 + to.0) << 8 | i as u64, *length, from.0 as u8)
            })
            .collect()
    };
    let (said, expected) = (say(from, link.peer), say(link.peer, from));
    let (sender, receiver) = (&mut link.sender, &mut link.receiver);
    let hear = async {
        for expected in expected {
            let heard = receiver.receive().await.unwrap();
            assert!(heard == expected, "{:?} differs", expected.tag);
            assert!(heard.payload.len() < 4 || (heard.payload.as_ptr() as usize).is_multiple_of(4));
        }
    };
    let (sent, ()) = tokio::join!(sender.send(&said), hear);
    sent.unwrap();
}

async fn every_pair_talks(nodes: Vec<Node>, header: u64) {
    let workers = nodes.len() as u32;
    let tasks: Vec<_> = nodes
        .into_iter()
        .map(|mut node| {
            tokio::spawn(async move {
                let us = node.network.peer();
                assert_eq!(node.network.workers(), workers);
                for peer in (0..workers).map(Peer).filter(|peer| *peer != us) {
                    node.network.open(peer);
                    node.network.open(peer);
                }
                let links = links(&mut node, workers - 1).await;
                let talks: Vec<_> = links
                    .into_iter()
                    .map(|mut link| {
                        tokio::spawn(async move {
                            talk(us, &mut link).await;
                            link
                        })
                    })
                    .collect();
                let mut peers = Vec::new();
                let mut kept = Vec::new();
                for talk in talks {
                    let link = talk.await.unwrap();
                    peers.push(link.peer);
                    kept.push(link);
                }
                peers.sort();
                assert_eq!(peers, (0..workers).map(Peer).filter(|peer| *peer != us).collect::<Vec<_>>());
                (node, kept)
            })
        })
        .collect();
    let mut ended = Vec::new();
    for task in tasks {
        ended.push(task.await.unwrap());
    }
    let others = u64::from(workers - 1);
    let bytes = others * (1 + 3 + 16 + 4096 + 70_000 + MAX_PAYLOAD as u64 + 7 * header);
    for (node, _) in &mut ended {
        let expected = Traffic {
            bytes_sent: bytes,
            bytes_received: bytes,
            messages_sent: 7 * others,
            messages_received: 7 * others,
            links: others,
        };
        assert_eq!(node.network.traffic(), expected);
        assert!(node.events.try_recv().is_err(), "something else happened");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pair_talks_over_memory() {
    for workers in 1..=6 {
        every_pair_talks(support::memory_nodes(workers), 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pair_talks_over_tcp() {
    for workers in 1..=6 {
        every_pair_talks(tcp_nodes(workers).await, 16).await;
    }
}

/// 100 MiB each way at once, in calls of several messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transfers_both_ways_keep_their_order() {
    for nodes in both(2).await {
        let mut tasks = Vec::new();
        for mut node in nodes {
            tasks.push(tokio::spawn(async move {
                let us = node.network.peer();
                let Link { mut sender, mut receiver, .. } = link_to(&mut node, Peer(1 - us.0)).await;
                let payload = Bytes::from(vec![us.0 as u8; MAX_PAYLOAD]);
                let say = async {
                    for call in 0..20 {
                        let messages: Vec<_> = (0..5)
                            .map(|i| Message { tag: Tag(call * 5 + i), payload: payload.clone() })
                            .collect();
                        sender.send(&messages).await.unwrap();
                    }
                };
                let hear = async {
                    for tag in 0..100 {
                        let heard = receiver.receive().await.unwrap();
                        assert_eq!((heard.tag, heard.payload.len()), (Tag(tag), MAX_PAYLOAD));
                        assert!(heard.payload.iter().all(|byte| *byte == 1 - us.0 as u8));
                    }
                };
                tokio::join!(say, hear);
                (node, sender, receiver)
            }));
        }
        let mut ended = Vec::new();
        for task in tasks {
            ended.push(task.await.unwrap());
        }
    }
}

/// Thousands of small messages of many conversations, more than one system call takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_messages_of_many_tags_keep_their_order() {
    for mut nodes in both(2).await {
        let mut one = nodes.pop().unwrap();
        let mut zero = nodes.pop().unwrap();
        zero.network.open(Peer(1));
        let (mut from, mut to) = (up(&mut zero).await, up(&mut one).await);
        let messages: Vec<_> =
            (0..20_000).map(|i| message(i % 17, (i * 31 % 257) as usize, (i % 251) as u8)).collect();
        let expected = messages.clone();
        let say = tokio::spawn(async move {
            for messages in messages.chunks(333) {
                from.sender.send(messages).await.unwrap();
            }
            from
        });
        for expected in expected {
            assert_eq!(to.receiver.receive().await.unwrap(), expected);
        }
        say.await.unwrap();
    }
}

/// Both sides open at the same moment, again and again: each time one link comes about, the same for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crossing_dials_become_one_link() {
    const TIMES: u64 = 400;
    let mut networks = both(3).await;
    for nodes in &mut networks {
        // Peer 0 is left out: over TCP the rendezvous made its links.
        let (zero, rest) = nodes.split_first_mut().unwrap();
        let [one, two] = rest else { panic!("three workers") };
        let before = [one.network.traffic().links, two.network.traffic().links];
        for time in 0..TIMES {
            let barrier = tokio::sync::Barrier::new(2);
            let side = async |node: &mut Node, other: Peer, spins: u64| {
                barrier.wait().await;
                for _ in 0..spins {
                    tokio::task::yield_now().await;
                }
                node.network.open(other);
                let mut link = up(node).await;
                while link.peer == Peer(0) {
                    link = up(node).await;
                }
                link.sender.send(&[message(time, 8, node.network.peer().0 as u8)]).await.unwrap();
                let heard = link.receiver.receive().await.unwrap();
                assert_eq!(heard, message(time, 8, other.0 as u8));
                link
            };
            // The links are dropped only when both have heard.
            let _ = tokio::join!(side(one, Peer(2), time % 7), side(two, Peer(1), time / 7 % 7));
        }
        let after = [one.network.traffic().links, two.network.traffic().links];
        assert_eq!([after[0] - before[0], after[1] - before[1]], [TIMES; 2]);
        assert!(one.events.try_recv().is_err() && two.events.try_recv().is_err());
        drop(zero.events.try_recv());
    }
}

/// A link that one side dropped is closed for the other, and the next waits until that one dropped it too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_link_is_closed_and_can_be_opened_again() {
    for mut nodes in both(3).await {
        let mut two = nodes.pop().unwrap();
        let mut one = nodes.pop().unwrap();
        support::settle(&mut one).await;
        support::settle(&mut two).await;
        one.network.open(Peer(2));
        let (mut first, mut second) = (up(&mut one).await, up(&mut two).await);
        first.sender.send(&[message(1, 10, 1), message(2, 20, 2)]).await.unwrap();
        drop(first);
        assert_eq!(second.receiver.receive().await.unwrap(), message(1, 10, 1));
        assert_eq!(second.receiver.receive().await.unwrap(), message(2, 20, 2));
        let closed = second.receiver.receive().await;
        assert!(matches!(closed, Err(LinkError::Closed { peer: Peer(1) })), "{closed:?}");

        one.network.open(Peer(2));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(one.events.try_recv().is_err(), "a second link before the first was dropped");
        drop(second);
        let (mut first, mut second) = (up(&mut one).await, up(&mut two).await);
        second.sender.send(&[message(3, 5, 3)]).await.unwrap();
        assert_eq!(first.receiver.receive().await.unwrap(), message(3, 5, 3));
    }
}

/// Whoever does not read makes the other wait: the network holds no more than a bounded amount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_does_not_read_holds_the_sender_back() {
    for mut nodes in both(2).await {
        let mut one = nodes.pop().unwrap();
        let mut zero = nodes.pop().unwrap();
        zero.network.open(Peer(1));
        let (mut from, mut to) = (up(&mut zero).await, up(&mut one).await);
        let messages: Vec<_> = (0..300).map(|tag| message(tag, MAX_PAYLOAD, 0)).collect();
        let mut say = tokio::spawn(async move {
            from.sender.send(&messages).await.unwrap();
            from
        });
        assert!(tokio::time::timeout(Duration::from_millis(300), &mut say).await.is_err());
        for tag in 0..300 {
            assert_eq!(to.receiver.receive().await.unwrap().tag, Tag(tag));
        }
        say.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_long_a_message_is_refused_and_the_link_goes_on() {
    for mut nodes in both(2).await {
        let mut one = nodes.pop().unwrap();
        let mut zero = nodes.pop().unwrap();
        zero.network.open(Peer(1));
        let (mut from, mut to) = (up(&mut zero).await, up(&mut one).await);
        let refused = from.sender.send(&[message(0, 1, 0), message(1, MAX_PAYLOAD + 1, 0)]).await;
        let length = MAX_PAYLOAD as u64 + 1;
        assert!(matches!(refused, Err(LinkError::TooLong { peer: Peer(1), length: l }) if l == length));
        from.sender.send(&[message(2, 3, 4)]).await.unwrap();
        assert_eq!(to.receiver.receive().await.unwrap(), message(2, 3, 4));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_the_events_and_keeps_the_links() {
    for mut nodes in both(3).await {
        let mut two = nodes.pop().unwrap();
        let mut one = nodes.pop().unwrap();
        support::settle(&mut one).await;
        support::settle(&mut two).await;
        one.network.open(Peer(2));
        let (mut first, mut second) = (up(&mut one).await, up(&mut two).await);
        two.network.close().await;
        two.network.close().await;
        assert!(two.events.recv().await.is_none());
        two.network.open(Peer(1));
        first.sender.send(&[message(9, 9, 9)]).await.unwrap();
        assert_eq!(second.receiver.receive().await.unwrap(), message(9, 9, 9));
        drop((first, second));

        one.network.open(Peer(2));
        match one.events.recv().await {
            Some(LinkEvent::Failed { peer: Peer(2), error: OpenError::Gone { .. } }) => {}
            Some(LinkEvent::Failed { peer: Peer(2), error: OpenError::Unreachable { .. } }) => {}
            other => panic!("expected that rank 2 cannot be reached, found {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_opens_a_link_to_itself_or_to_a_peer_that_is_none() {
    for mut nodes in both(2).await {
        let mut one = nodes.pop().unwrap();
        support::settle(&mut one).await;
        one.network.open(Peer(1));
        one.network.open(Peer(2));
        let (first, second) = (one.events.recv().await, one.events.recv().await);
        assert!(matches!(first, Some(LinkEvent::Failed { peer: Peer(1), error: OpenError::Itself { .. } })));
        let Some(LinkEvent::Failed { peer: Peer(2), error }) = second else { panic!("{second:?}") };
        assert_eq!(error.to_string(), "there is no rank 2 in a job of 2 workers: ranks are numbered from 0");
    }
}
