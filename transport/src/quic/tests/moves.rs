//! Addresses that change: who speaks follows from the connection, and from no address.

use std::collections::BTreeMap;
use std::iter::repeat_n;

use super::*;

/// Has a worker speak from that socket from now on.
fn move_to(network: &QuicNetwork, key: &DatagramKey, socket: UdpSocket) {
    let socket = quinn::Runtime::wrap_udp_socket(&TokioRuntime, socket).unwrap();
    let guarded = GuardedSocket::new(socket, key.clone(), Arc::default());
    network.endpoint().rebind_abstract(Arc::new(guarded)).unwrap();
}

/// Both ends of each link say which rank they are, at length.
async fn introduced(links: &mut [[(u8, Box<dyn Link>); 2]]) {
    const COUNT: usize = 20;
    for [(first, near), (second, far)] in links {
        let word = |rank: u8| Message { tag: Tag(rank.into()), payload: vec![rank; 50_000].into() };
        let hears = |rank| move |heard: Message| assert!(heard == word(rank), "expected rank {rank}");
        let (said, heard) = tokio::join!(
            exchange(&mut **near, repeat_n(word(*first), COUNT), COUNT, hears(*second)),
            exchange(&mut **far, repeat_n(word(*second), COUNT), COUNT, hears(*first))
        );
        said.and(heard).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_moves_and_one_that_takes_its_address_stay_who_they_are() {
    let configs = configs(3, LONG);
    let key = DatagramKey::new(&configs[0].secret.key_of("17"));
    let [mut zero, mut one, mut two]: [_; 3] = all(configs).await;
    let mut near = BTreeMap::new();
    while near.len() < 2 {
        match event(&mut zero).await {
            Some(LinkEvent::Up(link)) => drop(near.insert(link.peer().0 as u8, link)),
            other => panic!("expected links to both and found {other:?}"),
        }
    }
    let [first, second] = [1, 2].map(|rank| (0, near.remove(&rank).unwrap()));
    let mut links = [[first, (1, up(&mut one, Peer(0)).await)], [second, (2, up(&mut two, Peer(0)).await)]];
    introduced(&mut links).await;
    move_to(&one, &key, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    introduced(&mut links).await;
    // Its socket of before is closed once it has received something at the new one.
    let begun = Instant::now();
    let socket = loop {
        match UdpSocket::bind((Ipv4Addr::LOCALHOST, one.port())) {
            Ok(socket) => break socket,
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    move_to(&two, &key, socket);
    introduced(&mut links).await;
    assert_eq!(two.endpoint().local_addr().unwrap().port(), one.port());
    assert_ne!(one.endpoint().local_addr().unwrap().port(), one.port());
}
