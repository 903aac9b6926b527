//! The first links, and those that are not taken or asked for.

use super::*;

/// A worker that rank 0 reaches by TCP and by no datagram is named by all in the same sentence, also by those that are linked to rank 0 already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_that_takes_no_datagrams_is_reported_by_all_in_the_same_sentence() {
    let [zero, one, two]: [_; 3] = configs(3, Duration::from_secs(4)).try_into().unwrap();
    let (zero, two) = (tokio::spawn(join(zero)), tokio::spawn(join(two)));
    let mut one = tcp::meet(one, Transport::Quic).await.unwrap();
    let mut control = up(&mut one, Peer(0)).await;
    let offer = Negotiation::Offer { port: 9, key: Keys::new().unwrap().public, number: [0; NUMBER] };
    send(&mut *control, [Message { tag: Tag(Tag::CONTROL), payload: offer.encode() }]).await.unwrap();
    let expected = zero.await.unwrap().map(drop).unwrap_err().to_string();
    assert!(expected.starts_with("rank 0 and rank 1 have found each other, and no link of"), "{expected}");
    match two.await.unwrap() {
        Err(JoinError::Failed { sentence }) => assert_eq!(sentence, expected),
        other => panic!("expected what rank 0 says and found {other:?}"),
    }
    let found = loop {
        match Negotiation::decode(&receive(&mut *control).await.unwrap().payload) {
            Some(Negotiation::Refused(sentence)) => break sentence,
            Some(Negotiation::Offer { .. }) => {}
            other => panic!("expected a refusal and found {other:?}"),
        }
    };
    assert_eq!(found, expected);
}

/// A worker that leaves before all are linked is named by those that are linked, as rank 0 names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_before_all_are_linked_is_named_by_all() {
    let [zero, one, two]: [_; 3] = configs(3, LONG).try_into().unwrap();
    let (zero, two) = (tokio::spawn(join(zero)), tokio::spawn(join(two)));
    let mut one = tcp::meet(one, Transport::Quic).await.unwrap();
    drop(up(&mut one, Peer(0)).await);
    match (zero.await.unwrap(), two.await.unwrap()) {
        (
            Err(
                error @ JoinError::Unlinked {
                    other: Peer(1), error: OpenError::Gone { peer: Peer(1) }, ..
                },
            ),
            Err(JoinError::Failed { sentence }),
        ) => assert_eq!(sentence, error.to_string()),
        other => panic!("expected that rank 1 is gone and found {other:?}"),
    }
}

/// Also where links were opened that were not asked for: they hold the thread of QUIC, whose socket would hold them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_network_that_is_dropped_nothing_is_left() {
    let [zero, one] = two().await;
    let drivers = [&zero, &one].map(|network| Arc::downgrade(&network.driver));
    drop((zero, one));
    assert!(drivers.iter().all(|driver| driver.upgrade().is_none()), "a thread is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_up_is_wanted_no_more() {
    let [mut zero, mut one] = two().await;
    let _links = [up(&mut zero, Peer(1)).await, up(&mut one, Peer(0)).await];
    zero.open(Peer(1));
    assert!(zero.wants().is_empty(), "{:?}", zero.wants());
}
