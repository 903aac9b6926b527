//! What unauthenticated peers, wrong keys and damage meet. That links keep the requirements of all networks is tested from outside.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};

use super::driver::Driver;
use super::keys::Keys;
use super::link::QuicLink;
use super::negotiation::{NUMBER, Negotiation};
use super::socket::{DatagramKey, TAG};
use super::*;
use crate::conformance::{event, exchange, receive, send, up};
use crate::{Link, LinkError, LinkEvent, MAX_PAYLOAD, Message, OpenError, Secret, memory};

mod first;
mod lanes;
mod moves;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
/// How long nothing comes until it is taken that nothing will.
const QUIET: Duration = Duration::from_millis(300);

fn configs(workers: u32, timeout: Duration) -> Vec<JoinConfig> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = listener.local_addr().unwrap().to_string();
    let (secret, mut listener) = (Secret::random().unwrap(), Some(listener));
    (0..workers)
        .map(|peer| JoinConfig {
            peer: Peer(peer),
            workers,
            epoch: 0,
            card: Bytes::new(),
            rendezvous: rendezvous.clone(),
            secret: secret.clone(),
            job: "17".to_owned(),
            is_plain: false,
            choice: Transport::Quic.into(),
            timeout,
            listener: listener.take(),
        })
        .collect()
}

/// All workers of a job.
async fn all<const WORKERS: usize>(configs: Vec<JoinConfig>) -> [QuicNetwork; WORKERS] {
    let joins: Vec<_> = configs.into_iter().map(|config| tokio::spawn(join(config))).collect();
    let mut networks = Vec::new();
    for join in joins {
        networks.push(join.await.unwrap().unwrap());
    }
    networks.try_into().unwrap()
}

/// Two workers of a job.
async fn two() -> [QuicNetwork; 2] {
    all(configs(2, LONG)).await
}

fn plain_endpoint(is_server: Option<ServerConfig>) -> Endpoint {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    Endpoint::new(EndpointConfig::default(), is_server, socket, Arc::new(TokioRuntime)).unwrap()
}

/// The first datagram of a dialler that knows all of QUIC.
async fn first_datagram(keys: &Keys) -> Vec<u8> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = socket.local_addr().unwrap();
    let config = ClientConfig::new(keys.dialler(&keys.public).unwrap());
    let endpoint = plain_endpoint(None);
    let _connecting = endpoint.connect_with(config, to, WHAT).unwrap();
    let reads = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; 2000];
        let count = socket.recv(&mut bytes).unwrap();
        bytes.truncate(count);
        bytes
    });
    reads.await.unwrap()
}

/// Whether that is answered by as much as a byte, within so long.
async fn is_answered(to: u16, datagrams: Vec<Vec<u8>>, within: Duration) -> bool {
    let asks = move || {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.connect((Ipv4Addr::LOCALHOST, to)).unwrap();
        for datagram in datagrams {
            socket.send(&datagram).unwrap();
        }
        socket.set_read_timeout(Some(within)).unwrap();
        socket.recv(&mut [0; 2000]).is_ok()
    };
    tokio::task::spawn_blocking(asks).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthenticated_peers_get_no_byte_and_are_reported() {
    let [mut zero, mut one] = two().await;
    let keys = Keys::new().unwrap();
    let genuine = first_datagram(&keys).await;
    // QUIC itself answers it.
    let open = plain_endpoint(Some(ServerConfig::with_crypto(keys.acceptor(&keys.public).unwrap())));
    let accepts = open.clone();
    let accepting = tokio::spawn(async move { accepts.accept().await.unwrap().accept().unwrap().await });
    assert!(is_answered(open.local_addr().unwrap().port(), vec![genuine.clone()], LONG).await);
    accepting.abort();

    let other = DatagramKey::new(&Secret::random().unwrap().key_of("17"));
    let mut version = genuine.clone();
    version[1..5].copy_from_slice(&[9, 8, 7, 6]);
    let mut short = vec![0x40; 1300];
    short[1..9].fill(7);
    let number = vec![0xff; 1300];
    let said = vec![genuine.clone(), other.tagged(&genuine), version.clone(), short, number, vec![0], vec![]];
    for port in [zero.port(), one.port()] {
        assert!(!is_answered(port, said.clone(), QUIET).await);
    }
    for network in [&mut zero, &mut one] {
        let refused = loop {
            match event(network).await {
                Some(LinkEvent::Refused { reason, .. }) => break reason,
                other => assert!(matches!(other, Some(LinkEvent::Up(_))), "{other:?}"),
            }
        };
        assert!(refused.contains("not made with the job's key"), "{refused}");
    }
}

/// One that a worker of the job made, and that was recorded, or meant for another worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unexpected_datagram_of_the_job_is_not_answered() {
    let configs = configs(2, LONG);
    let key = DatagramKey::new(&configs[0].secret.key_of("17"));
    let networks: [_; 2] = all(configs).await;
    let genuine = first_datagram(&Keys::new().unwrap()).await;
    let mut version = genuine.clone();
    version[1..5].copy_from_slice(&[9, 8, 7, 6]);
    assert!(is_answered(networks[0].port(), vec![key.tagged(&version)], LONG).await, "the tag is right");
    assert!(!is_answered(networks[0].port(), vec![key.tagged(&genuine)], QUIET).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_at_the_ports_changes_nothing() {
    let [mut zero, mut one] = two().await;
    let [mut first, mut second] = [up(&mut zero, Peer(1)).await, up(&mut one, Peer(0)).await];
    let ports = [zero.port(), one.port()];
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let floods = std::thread::spawn(move || {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for number in (0..).take_while(|_| !stopped.load(std::sync::atomic::Ordering::Relaxed)) {
            let length = number * 37 % 1400;
            let datagram: Vec<u8> = (0..length).map(|i| (i * number) as u8 ^ (number as u8)).collect();
            let _ = ports.map(|port| socket.send_to(&datagram, (Ipv4Addr::LOCALHOST, port)));
        }
    });
    let message = |number: u64| Message { tag: Tag(number % 7), payload: vec![number as u8; 20_000].into() };
    let talk = tokio::join!(
        exchange(&mut *first, (0..300).map(message), 300, drop),
        exchange(&mut *second, (0..300).map(message), 300, drop)
    );
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    floods.join().unwrap();
    assert!(talk.0.is_ok() && talk.1.is_ok(), "{talk:?}");
}

#[tokio::test]
async fn a_connection_comes_about_between_the_two_keys_that_were_offered_and_no_others() {
    let keys: [Keys; 3] = std::array::from_fn(|_| Keys::new().unwrap());
    // The dialler, the peer that it expects; the acceptor, the peer that it expects.
    for ([dialler, meant, acceptor, expected], is_up) in
        [([0, 1, 1, 0], true), ([0, 2, 1, 0], false), ([0, 1, 1, 2], false), ([0, 1, 2, 0], false)]
    {
        let config = ServerConfig::with_crypto(keys[acceptor].acceptor(&keys[expected].public).unwrap());
        let (server, client) = (plain_endpoint(Some(config)), plain_endpoint(None));
        let config = ClientConfig::new(keys[dialler].dialler(&keys[meant].public).unwrap());
        let connecting = client.connect_with(config, server.local_addr().unwrap(), WHAT).unwrap();
        let accepting = async { server.accept().await.unwrap().accept().unwrap().await };
        let (ours, theirs) = tokio::join!(connecting, accepting);
        let theirs = theirs.is_ok();
        // The dialler is done before the acceptor has looked at its key, and learns of that next.
        let ours = match ours {
            Ok(connection) if !is_up => connection.accept_uni().await.is_ok(),
            ours => ours.is_ok(),
        };
        assert_eq!(
            (ours && theirs, ours || theirs),
            (is_up, is_up),
            "{dialler} {meant} {acceptor} {expected}"
        );
    }
}

/// A link, the bare connection at its other end, and the link that ends when that end's process does.
async fn half() -> (QuicLink, Connection, Box<dyn Link>, [Endpoint; 2]) {
    let keys = Keys::new().unwrap();
    let config = transport(Congestion::Cubic, LONG);
    let shared = Arc::new(config);
    let mut server = ServerConfig::with_crypto(keys.acceptor(&keys.public).unwrap());
    server.transport_config(Arc::clone(&shared));
    let mut client = ClientConfig::new(keys.dialler(&keys.public).unwrap());
    client.transport_config(shared);
    let (server, dials) = (plain_endpoint(Some(server)), plain_endpoint(None));
    let connecting = dials.connect_with(client, server.local_addr().unwrap(), WHAT).unwrap();
    let accepting = async { server.accept().await.unwrap().accept().unwrap().await };
    let (ours, theirs) = tokio::join!(connecting, accepting);
    let mut networks = memory::networks(2);
    networks[0].open(Peer(1));
    let control = [up(&mut networks[0], Peer(1)).await, up(&mut networks[1], Peer(0)).await];
    let [near, far] = control;
    let driver = Arc::new(Driver::start(Duration::from_secs(1)).unwrap());
    let link = QuicLink::new(ours.unwrap(), near, driver, &Arc::default(), &Closing::new().0);
    (link, theirs.unwrap(), far, [server, dials])
}

#[tokio::test]
async fn what_is_no_message_is_damage_and_the_peer_is_still_heard_of() {
    let message = |tag, length| Message { tag: Tag(tag), payload: vec![1; length].into() };
    let header = |tag, length| crate::tcp::wire::Header { length, tag: Tag(tag), sum: 0 }.encode().to_vec();
    for (bytes, is_long) in [
        (vec![7; 100], false),
        (header(5, MAX_PAYLOAD as u32 + 1), true),
        ([header(5, 1), vec![0], header(6, 1), vec![0]].concat(), false),
    ] {
        let (mut link, raw, _control, _endpoints) = half().await;
        let mut stream = raw.open_uni().await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let error = loop {
            if let Err(error) = receive(&mut link).await {
                break error;
            }
        };
        let is_right = if is_long {
            matches!(error, LinkError::TooLong { peer: Peer(1), length } if length == MAX_PAYLOAD as u64 + 1)
        } else {
            matches!(error, LinkError::Damaged { peer: Peer(1), .. })
        };
        assert!(is_right, "{error:?}");
        // What this side says still arrives, while what comes is discarded.
        stream.write_all(&vec![0; 100_000]).await.unwrap();
        send(&mut link, [message(Tag::CONTROL, 3)]).await.unwrap();
        let mut heard = raw.accept_uni().await.unwrap();
        let mut said = [0; 19];
        heard.read_exact(&mut said).await.unwrap();
        raw.close(0_u32.into(), b"");
        let error = receive(&mut link).await.unwrap_err();
        assert!(matches!(error, LinkError::Closed { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_peer_whose_process_ends_is_reported_at_once_after_what_it_said() {
    let (mut link, raw, control, _endpoints) = half().await;
    let mut stream = raw.open_uni().await.unwrap();
    let message = Message { tag: Tag(5), payload: vec![1; 3000].into() };
    let head = crate::tcp::wire::Header::of(&message, None).encode();
    stream.write_all(&[&head[..], &message.payload].concat()).await.unwrap();
    assert_eq!(receive(&mut link).await.unwrap(), message);
    let begun = Instant::now();
    drop(control);
    let error = receive(&mut link).await.unwrap_err();
    assert!(matches!(error, LinkError::Closed { peer: Peer(1) }), "{error:?}");
    assert!(begun.elapsed() < LONG / 4);
}

/// A worker that is reached by TCP and by no datagram.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_that_takes_no_datagrams_is_reported_to_both_sides_with_both_names() {
    let mut configs = configs(2, Duration::from_secs(4)).into_iter();
    let zero = tokio::spawn(join(configs.next().unwrap()));
    let mut one = tcp::meet(configs.next().unwrap(), Transport::Quic).await.unwrap();
    let mut control = up(&mut one, Peer(0)).await;
    let (port, key, number) = (9, Keys::new().unwrap().public, [0; NUMBER]);
    let tag = Tag(Tag::CONTROL);
    let payload = Negotiation::Offer { port, key, number }.encode();
    send(&mut *control, [Message { tag, payload }]).await.unwrap();
    assert!(matches!(
        Negotiation::decode(&receive(&mut *control).await.unwrap().payload),
        Some(Negotiation::Offer { number: [_, ..], .. })
    ));
    let error = zero.await.unwrap().map(|_| ()).unwrap_err().to_string();
    let begins = "rank 0 and rank 1 have found each other, and no link of the transport quic between them could be opened: no link to \
                  rank 1 at 127.0.0.1 within 2s: TCP reaches it, and no datagram of UDP was answered";
    assert!(error.starts_with(begins), "{error}");
    match Negotiation::decode(&receive(&mut *control).await.unwrap().payload) {
        Some(Negotiation::Refused(sentence)) => assert!(sentence.contains("let UDP pass"), "{sentence}"),
        other => panic!("expected a refusal and found {other:?}"),
    }
}

#[tokio::test]
async fn links_that_are_to_be_plain_are_refused() {
    let mut config = configs(2, LONG).remove(1);
    config.is_plain = true;
    let error = join(config).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("the transport quic encrypts all that it carries"), "{error}");
}

#[tokio::test]
async fn links_that_are_to_have_several_sockets_are_refused() {
    let mut config = configs(2, LONG).remove(1);
    config.choice.sockets = "3".parse().unwrap();
    let error = join(config).await.map(|_| ()).unwrap_err().to_string();
    assert!(
        error.starts_with("3 sockets for each link were asked for, and the transport is quic"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn no_negotiation_and_no_datagram_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Some(word) = Negotiation::decode(&bytes) {
            prop_assert!(Negotiation::decode(&word.encode()).is_some());
        }
        let key = DatagramKey::new(&Secret::from_hex(&"2a".repeat(32)).unwrap().key_of("17"));
        prop_assert_eq!(key.open(&bytes), None);
        let mut tagged = key.tagged(&bytes);
        prop_assert_eq!(key.open(&tagged), Some(&bytes[..]));
        let bit = bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>() % (8 * tagged.len());
        tagged[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(key.open(&tagged), None);
        prop_assert_eq!(tagged.len(), bytes.len() + TAG);
    }

    #[test]
    fn words_are_read_as_they_are_written(port in any::<u16>(), number in any::<[u8; NUMBER]>(), sentence in ".{0,200}") {
        let key = [9; super::keys::PUBLIC];
        for word in [Negotiation::Offer { port, key, number }, Negotiation::Ready, Negotiation::Refused(sentence), Negotiation::Complete] {
            prop_assert_eq!(Negotiation::decode(&word.encode()), Some(word));
        }
    }
}
