//! Jobs that cannot start: both sides are told why, at once where that is possible.

use tokio::net::TcpListener;
use tokio::time::Instant;

use super::super::handshake::{HANDSHAKE, Heard, Identity, challenge};
use super::super::rendezvous::read_outcome;
use super::super::wire::{LINK, Outcome};
use super::*;
use crate::Network;

fn sentence(joined: Joined) -> String {
    joined.map(|_| ()).unwrap_err().to_string()
}

async fn told(mut stream: TcpStream) -> String {
    match read_outcome(&mut stream).await.unwrap() {
        Outcome::Failed(sentence) => sentence,
        complete => panic!("expected to be told of a failure and found {complete:?}"),
    }
}

/// One worker that came is told why another fails the job; the other is told in its verdict.
async fn misfit(change: impl FnOnce(&mut Hello), expected: &str) {
    let job = Job::start(3, LONG).await;
    let came = job.come(1).await;
    let mut hello = job.hello(2);
    change(&mut hello);
    let (_stream, verdict) = job.say(&hello).await;
    let Ok(Verdict::Refused(refusal)) = verdict else { panic!("expected a refusal and found {verdict:?}") };
    assert!(refusal.contains(expected), "{refusal}");
    let failed = sentence(job.zero.await.unwrap());
    assert_eq!(failed, format!("the job was started wrongly: {refusal}"));
    assert_eq!(told(came).await, failed);
}

#[tokio::test]
async fn another_version_is_told_to_both_sides() {
    let expected = "rank 2 at 127.0.0.1 speaks protocol version 7 and rank 0 speaks version 1: install the same \
                    version of gleaner on every host";
    misfit(|hello| hello.version = 7, expected).await;
}

#[tokio::test]
async fn another_number_of_workers_is_told_to_both_sides() {
    let expected = "rank 2 at 127.0.0.1 was started for 4 workers and rank 0 for 3: start every worker with the \
                    same number";
    misfit(|hello| hello.workers = 4, expected).await;
}

#[tokio::test]
async fn a_number_out_of_range_is_told_to_both_sides() {
    let expected = "a worker at 127.0.0.1 was started as rank 3 of 3 workers: ranks are numbered from 0 to 2";
    misfit(|hello| hello.from = Peer(3), expected).await;
}

#[tokio::test]
async fn a_number_given_twice_is_told_to_both_sides() {
    misfit(|hello| hello.from = Peer(1), "two workers were started as rank 1, at 127.0.0.1:").await;
}

#[tokio::test]
async fn whoever_meant_another_peer_is_told_so() {
    let expected =
        "rank 2 at 127.0.0.1 meant to reach rank 5 and reached rank 0: check the rendezvous address";
    misfit(|hello| hello.to = Peer(5), expected).await;
}

#[tokio::test]
async fn a_worker_that_does_not_fit_reports_the_refusal() {
    let job = Job::start(3, LONG).await;
    let came = job.come(1).await;
    let wrong = sentence(join(TcpConfig { workers: 5, ..job.config(2) }).await);
    let start =
        format!("rank 0 at {} refused rank 2: rank 2 at 127.0.0.1 was started for 5 workers", job.address);
    assert!(wrong.starts_with(&start), "{wrong}");
    assert!(told(came).await.contains("for 5 workers and rank 0 for 3"));
}

#[tokio::test]
async fn another_secret_is_told_to_both_sides() {
    let job = Job::start(2, Duration::from_secs(3)).await;
    let other = Secret::random().unwrap();
    let wrong = sentence(join(TcpConfig { secret: other, ..job.config(1) }).await);
    assert!(
        wrong.contains("closed without an answer") && wrong.contains("secrets probably differ"),
        "{wrong}"
    );
    let failed = sentence(job.zero.await.unwrap());
    assert!(failed.contains("rank 1 did not come"), "{failed}");
    assert!(failed.contains("3 callers were turned away") && failed.contains("another secret"), "{failed}");
}

#[tokio::test]
async fn workers_that_do_not_come_are_named() {
    let job = Job::start(6, Duration::from_secs(2)).await;
    let (one, three, four) = (job.come(1).await, job.come(3).await, job.come(4).await);
    let Err(JoinError::Missing { missing, .. }) = &job.zero.await.unwrap() else {
        panic!("expected missing")
    };
    assert_eq!(missing, &[Peer(2), Peer(5)]);
    for came in [one, three, four] {
        let expected = "rank 0 waited 2s for 6 workers; ranks 2 and 5 did not come: start what is missing, or \
                        check its network";
        assert_eq!(told(came).await, expected);
    }
}

#[tokio::test]
async fn a_guest_reports_what_peer_zero_says() {
    let job = Job::start(3, Duration::from_secs(2)).await;
    let error = sentence(join(TcpConfig { timeout: LONG, ..job.config(2) }).await);
    assert!(
        error.starts_with("rank 0 gave the job up: rank 0 waited 2s for 3 workers; rank 1 did not"),
        "{error}"
    );
}

#[tokio::test]
async fn a_worker_that_leaves_is_named_at_once() {
    let begun = Instant::now();
    let job = Job::start(4, LONG).await;
    let two = job.come(2).await;
    drop(job.come(1).await);
    let failed = sentence(job.zero.await.unwrap());
    assert!(failed.starts_with("rank 1 at 127.0.0.1:"), "{failed}");
    assert!(failed.contains("left while rank 0 was waiting for the others (2 of 3 had come)"), "{failed}");
    assert_eq!(told(two).await, failed);
    assert!(begun.elapsed() < LONG / 2);
}

#[tokio::test]
async fn losing_peer_zero_is_told_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let secret = Secret::random().unwrap();
    let zero = Identity { peer: Peer(0), workers: 3, secret: secret.clone(), patience: HANDSHAKE };
    let config = TcpConfig {
        peer: Peer(1),
        workers: 3,
        rendezvous: listener.local_addr().unwrap().to_string(),
        secret,
        timeout: LONG,
        listener: None,
    };
    let dies = async {
        let (stream, address) = listener.accept().await.unwrap();
        let mut visitor = challenge(stream, address, &zero, &Heard::default()).await.unwrap();
        visitor.answer(&zero, &Verdict::Welcome).await.unwrap();
    };
    let (joined, ()) = tokio::join!(join(config), dies);
    let error = sentence(joined);
    assert!(error.starts_with("lost rank 0 at 127.0.0.1:"), "{error}");
}

/// These tests take addresses that no other uses, since they let go of a port and expect it to stay free.
fn free(ip: &str) -> String {
    std::net::TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap().to_string()
}

fn lone(peer: u32, rendezvous: &str, timeout: Duration) -> TcpConfig {
    let (secret, rendezvous) = (Secret::random().unwrap(), rendezvous.to_owned());
    TcpConfig { peer: Peer(peer), workers: 2, rendezvous, secret, timeout, listener: None }
}

#[tokio::test]
async fn a_peer_zero_that_is_not_there_is_told_with_its_address() {
    let address = free("127.0.0.78");
    let error = sentence(join(lone(1, &address, Duration::from_millis(300))).await);
    assert!(
        error.starts_with(&format!("rank 1 could not reach rank 0 at {address} within 300ms")),
        "{error}"
    );
    assert!(error.contains("refused"), "{error}");
}

#[tokio::test]
async fn a_peer_zero_that_says_nothing_is_told_with_its_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let error = sentence(join(lone(1, &address, Duration::from_millis(300))).await);
    assert!(
        error.starts_with(&format!("rank 1 could not reach rank 0 at {address} within 300ms")),
        "{error}"
    );
}

#[tokio::test]
async fn a_peer_zero_that_starts_later_is_waited_for() {
    let address = free("127.0.0.77");
    let guest = lone(1, &address, LONG);
    let host = TcpConfig { peer: Peer(0), secret: guest.secret.clone(), ..lone(0, &address, LONG) };
    let guest = tokio::spawn(join(guest));
    tokio::time::sleep(Duration::from_millis(150)).await;
    let (_zero, mut events) = join(host).await.unwrap();
    up(&mut events, 1).await;
    let (_one, mut events) = guest.await.unwrap().unwrap();
    up(&mut events, 0).await;
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = sentence(join(lone(0, &address.to_string(), LONG)).await);
    assert!(error.starts_with(&format!("port {} is in use", address.port())), "{error}");
}

#[tokio::test]
async fn numbers_and_addresses_that_make_no_sense_are_refused() {
    let impossible = join(TcpConfig { workers: 3, ..lone(3, "127.0.0.1:1", LONG) }).await;
    assert!(matches!(impossible, Err(JoinError::Impossible { peer: Peer(3), workers: 3 })));
    for address in ["node1", "node1:", ":7000", "node1:70000", ""] {
        let refused = join(lone(1, address, LONG)).await;
        assert!(matches!(refused, Err(JoinError::Address { .. })), "{address}");
    }
}

#[tokio::test]
async fn a_link_cannot_be_opened_before_all_have_come() {
    let job = Job::start(3, LONG).await;
    let (_stream, verdict) = job.say(&Hello { purpose: LINK, ..job.hello(1) }).await;
    assert_eq!(verdict.unwrap(), Verdict::Busy);
    assert!(!job.zero.is_finished());
    job.zero.abort();
}

/// On an address that is not a loopback one, workers listen on all interfaces and find each other by theirs,
/// whether rank 0's port takes one address family or both.
#[tokio::test]
async fn workers_meet_on_an_interface() {
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let Ok(local) = probe.connect("192.0.2.1:9").and_then(|()| probe.local_addr()) else {
        eprintln!("skipped: this host has no interface but the loopback one");
        return;
    };
    for unspecified in ["0.0.0.0:0", "[::]:0"] {
        let Ok(listener) = std::net::TcpListener::bind(unspecified) else {
            eprintln!("skipped {unspecified}: this host lacks the address family");
            continue;
        };
        let address = SocketAddr::new(local.ip(), listener.local_addr().unwrap().port());
        let secret = Secret::random().unwrap();
        let mut listener = Some(listener);
        let mut joins = Vec::new();
        for peer in (0..3).map(Peer) {
            let (secret, rendezvous, listener) = (secret.clone(), address.to_string(), listener.take());
            let config = TcpConfig { peer, workers: 3, rendezvous, secret, timeout: LONG, listener };
            joins.push(tokio::spawn(join(config)));
        }
        let mut nodes = Vec::new();
        for join in joins {
            nodes.push(join.await.unwrap().unwrap());
        }
        nodes[2].0.open(Peer(1));
        up(&mut nodes[1].1, 0).await;
        up(&mut nodes[1].1, 2).await;
    }
}
