//! Jobs that cannot start: both sides report why, at once where that is possible.

use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, sleep_until};

use super::super::handshake::{Identity, challenge, listen};
use super::super::heard::Heard;
use super::super::rendezvous::read_outcome;
use super::super::wire::{LINK, Outcome};
use super::*;
use crate::{Network, Transport};

pub(super) fn sentence(joined: Joined) -> String {
    joined.map(|_| ()).unwrap_err().to_string()
}

async fn answered(mut stream: Stream) -> String {
    match read_outcome(&mut stream).await.unwrap() {
        Outcome::Failed(sentence) => sentence,
        complete => panic!("expected the answer that the job fails and found {complete:?}"),
    }
}

/// One worker that came learns why another fails the job; the other learns it from its admission.
pub(super) async fn misfit(change: impl FnOnce(&mut Hello), expected: &str) {
    let job = Job::start(3, LONG).await;
    let came = job.come(1).await;
    let mut hello = job.hello(2);
    change(&mut hello);
    let refusal = job.refusal(&hello).await;
    assert!(refusal.contains(expected), "{refusal}");
    let failed = sentence(job.zero.await.unwrap());
    assert_eq!(failed, format!("the job was started wrongly: {refusal}"));
    assert_eq!(answered(came).await, failed);
}

#[tokio::test]
async fn another_version_is_reported_to_both_sides() {
    let expected = "rank 2 at 127.0.0.1 speaks protocol version 9 and rank 0 speaks version 8: install the same \
                    version of gleaner on every host";
    misfit(|hello| hello.version = 9, expected).await;
}

#[tokio::test]
async fn another_number_of_workers_is_reported_to_both_sides() {
    let expected = "rank 2 at 127.0.0.1 was started for 4 workers and rank 0 for 3: start every worker with the \
                    same number";
    misfit(|hello| hello.workers = 4, expected).await;
}

#[tokio::test]
async fn another_epoch_is_reported_to_both_sides() {
    let expected = "rank 2 at 127.0.0.1 belongs to membership epoch 301 of the job and rank 0 to epoch 300: it was started \
                    before or after the set of workers changed; end it, or start all workers again";
    misfit(|hello| hello.epoch += 1, expected).await;
}

#[tokio::test]
async fn links_that_one_side_would_not_seal_are_reported_to_both_sides() {
    let expected = "rank 2 was started with --plain (GLEANER_PLAIN) and rank 0 was not: start every worker in the same way";
    misfit(|hello| hello.is_plain = true, expected).await;
}

#[tokio::test]
async fn a_number_out_of_range_is_reported_to_both_sides() {
    let expected = "a worker at 127.0.0.1 was started as rank 3 of 3 workers: ranks are numbered from 0 to 2";
    misfit(|hello| hello.from = Peer(3), expected).await;
}

#[tokio::test]
async fn a_number_given_twice_is_reported_to_both_sides() {
    misfit(|hello| hello.from = Peer(1), "two workers were started as rank 1, at 127.0.0.1:").await;
}

/// It may have been recorded there.
#[tokio::test]
async fn a_hello_for_another_worker_is_not_answered() {
    let job = Job::start(2, Duration::from_secs(2)).await;
    let said = job.say(&Hello { to: Peer(1), from: Peer(3), ..job.hello(1) }).await;
    assert!(matches!(said, Err(HandshakeError::Silent)), "{said:?}");
    let failed = sentence(job.zero.await.unwrap());
    assert!(failed.contains("its hello was made for rank 1, and may have been recorded there"), "{failed}");
}

#[tokio::test]
async fn a_worker_that_does_not_fit_reports_the_refusal() {
    let job = Job::start(3, LONG).await;
    let came = job.come(1).await;
    let wrong = sentence(join(JoinConfig { workers: 5, ..job.config(2) }).await);
    let start =
        format!("rank 0 at {} refused rank 2: rank 2 at 127.0.0.1 was started for 5 workers", job.address);
    assert!(wrong.starts_with(&start), "{wrong}");
    assert!(answered(came).await.contains("for 5 workers and rank 0 for 3"));
}

#[tokio::test]
async fn another_secret_is_reported_to_both_sides() {
    turned_away(|config| config.secret = Secret::random().unwrap()).await;
}

/// Jobs with one secret do not meet, whatever their numbers of workers.
#[tokio::test]
async fn another_job_is_refused_on_both_sides() {
    turned_away(|config| config.job = "18".to_owned()).await;
    turned_away(|config| (config.job, config.workers) = ("18".to_owned(), 3)).await;
}

/// One that gives up sooner than the others blames whom they wait for.
#[tokio::test]
async fn another_time_out_is_reported_to_both_sides() {
    let job = Job::start(2, Duration::from_secs(3)).await;
    let wrong = sentence(join(JoinConfig { timeout: LONG, ..job.config(1) }).await);
    let said = "rank 1 at 127.0.0.1 was started with a timeout of 60 s and rank 0 with 3 s";
    assert!(wrong.contains(said), "{wrong}");
    let failed = sentence(job.zero.await.unwrap());
    assert!(failed.contains(said), "{failed}");
}

/// One that was stopped in the middle of the handshake is missing, and one that comes at the last moment is not far away.
#[tokio::test]
async fn who_begins_a_handshake_and_does_not_end_it_is_missing() {
    let begun = Instant::now();
    let job = Job::start(3, Duration::from_secs(8)).await;
    sleep(Duration::from_secs(3)).await;
    let mut stopped = TcpStream::connect(job.address).await.unwrap();
    stopped.write_all(&job.said(&job.hello(1))).await.unwrap();
    // Behind the timeout, and well within a half more.
    sleep_until(begun + Duration::from_millis(9500)).await;
    let late = job.say(&job.hello(2)).await;
    match job.zero.await.unwrap() {
        Err(JoinError::Missing { missing, .. }) => assert_eq!(missing, [Peer(1), Peer(2)]),
        other => panic!("expected missing and found {other:?}"),
    }
    drop(stopped);
    match late {
        Ok((Admission::Refused(sentence), _)) => {
            assert!(sentence.contains("ranks 1 and 2 did not come"), "{sentence}")
        }
        other => panic!("expected a refusal and found {other:?}"),
    }
}

async fn turned_away(change: impl FnOnce(&mut JoinConfig)) {
    let job = Job::start(2, Duration::from_secs(3)).await;
    let mut config = job.config(1);
    change(&mut config);
    let wrong = sentence(join(config).await);
    assert!(
        wrong.contains("closed without an answer")
            && wrong.contains("the secrets or the jobs' ids probably differ"),
        "{wrong}"
    );
    let failed = sentence(job.zero.await.unwrap());
    assert!(failed.contains("rank 1 did not come"), "{failed}");
    assert!(failed.contains("3 callers were refused") && failed.contains("another secret"), "{failed}");
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
        assert_eq!(answered(came).await, expected);
    }
}

/// Rank 0 that no rank reaches was cut off, as far as it can know; where any rank has received its answer, others are missing.
#[tokio::test]
async fn rank_0_knows_whether_any_rank_hears_it() {
    let alone = async |job: Job| match job.zero.await.unwrap() {
        Err(JoinError::Missing { is_alone, hint, .. }) => (is_alone, hint.contains("rank 0 was cut off")),
        other => panic!("expected missing and found {other:?}"),
    };
    let soon = Duration::from_millis(500);
    assert_eq!(alone(Job::start(3, soon).await).await, (true, false));
    // Of two, each may be the one.
    assert_eq!(alone(Job::start(2, soon).await).await, (false, false));
    // Long enough that they come in time.
    let timeout = Duration::from_secs(5);
    let (first, second) = (Job::start(3, timeout).await, Job::start(4, timeout).await);
    // This one does not answer any more when it is asked.
    let _one = first.come(1).await;
    // And of these one does.
    let _other = second.come(1).await;
    let two = tokio::spawn(join(second.config(2)));
    assert_eq!(tokio::join!(alone(first), alone(second)), ((true, true), (false, false)));
    assert!(sentence(two.await.unwrap()).starts_with("rank 0 ended the job"));
}

#[tokio::test]
async fn a_guest_reports_what_peer_zero_says() {
    let job = Job::start(3, Duration::from_secs(2)).await;
    let error = sentence(join(job.config(2)).await);
    assert!(
        error.starts_with("rank 0 ended the job: rank 0 waited 2s for 3 workers; rank 1 did not"),
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
    assert_eq!(answered(two).await, failed);
    assert!(begun.elapsed() < LONG / 2);
}

#[tokio::test]
async fn losing_peer_zero_is_reported_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let secret = Secret::random().unwrap();
    let (peer, key) = (Peer(0), secret.key_of(ID));
    let (is_plain, transport, sockets, timeout) = (false, Transport::Tcp, 1, LONG);
    let zero =
        Identity { peer, workers: 3, epoch: 0, card: card(0), key, is_plain, transport, sockets, timeout };
    let config = JoinConfig {
        peer: Peer(1),
        workers: 3,
        epoch: 0,
        card: card(1),
        rendezvous: listener.local_addr().unwrap().to_string(),
        secret,
        job: ID.to_owned(),
        is_plain: false,
        choice: TransportChoice::default(),
        timeout: LONG,
        listener: None,
    };
    let dies = async {
        let (stream, address) = listener.accept().await.unwrap();
        let greeted = listen(stream, &zero, &Heard::default()).await.unwrap();
        let mut visitor = challenge(greeted, address, &zero).await.unwrap();
        visitor.answer(&zero, &Admission::Welcome).await.unwrap();
    };
    let (joined, ()) = tokio::join!(join(config), dies);
    let error = sentence(joined);
    assert!(error.starts_with("lost rank 0 at 127.0.0.1:"), "{error}");
}

/// These tests take addresses that no other uses, since they let go of a port and expect it to stay free.
fn free(ip: &str) -> String {
    std::net::TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap().to_string()
}

fn lone(peer: u32, rendezvous: &str, timeout: Duration) -> JoinConfig {
    let (secret, rendezvous, job) = (Secret::random().unwrap(), rendezvous.to_owned(), ID.to_owned());
    JoinConfig {
        peer: Peer(peer),
        workers: 2,
        epoch: 0,
        card: card(1),
        rendezvous,
        secret,
        job,
        is_plain: false,
        choice: TransportChoice::default(),
        timeout,
        listener: None,
    }
}

#[tokio::test]
async fn a_peer_zero_that_is_not_there_is_reported_with_its_address() {
    let address = free("127.0.0.78");
    let error = sentence(join(lone(1, &address, Duration::from_millis(300))).await);
    assert!(
        error.starts_with(&format!("rank 1 could not reach rank 0 at {address} within 300ms")),
        "{error}"
    );
    assert!(error.contains("refused"), "{error}");
}

#[tokio::test]
async fn a_peer_zero_that_says_nothing_is_reported_with_its_address() {
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
    let participant = lone(1, &address, LONG);
    let host = JoinConfig { peer: Peer(0), secret: participant.secret.clone(), ..lone(0, &address, LONG) };
    let participant = tokio::spawn(join(participant));
    tokio::time::sleep(Duration::from_millis(150)).await;
    let mut zero = join(host).await.unwrap();
    up(&mut zero, 1).await;
    let mut one = participant.await.unwrap().unwrap();
    up(&mut one, 0).await;
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
    let impossible = join(JoinConfig { workers: 3, ..lone(3, "127.0.0.1:1", LONG) }).await;
    assert!(matches!(impossible, Err(JoinError::Impossible { peer: Peer(3), workers: 3 })));
    for address in ["node1", "node1:", ":7000", "node1:70000", ""] {
        let refused = join(lone(1, address, LONG)).await;
        assert!(matches!(refused, Err(JoinError::Address { .. })), "{address}");
    }
}

#[tokio::test]
async fn a_link_cannot_be_opened_before_all_have_come() {
    let job = Job::start(3, LONG).await;
    let (admission, _stream) = job.say(&Hello { purpose: LINK, ..job.hello(1) }).await.unwrap();
    assert_eq!(admission, Admission::Busy);
    assert!(!job.zero.is_finished());
    job.zero.abort();
}

/// On an address that is not a loopback one, workers listen on all interfaces and find each other by theirs,
/// whether rank 0's port takes one address family or both.
#[tokio::test]
async fn workers_meet_on_an_interface() {
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let Ok(local) = probe.connect("192.0.2.1:9").and_then(|()| probe.local_addr()) else {
        gleaner_skips::skip("interface", "this host has no interface but the loopback one");
        return;
    };
    for (unspecified, need) in [("0.0.0.0:0", "ipv4"), ("[::]:0", "ipv6")] {
        let Ok(listener) = std::net::TcpListener::bind(unspecified) else {
            gleaner_skips::skip(need, format!("this host lacks the address family of {unspecified}"));
            continue;
        };
        let address = SocketAddr::new(local.ip(), listener.local_addr().unwrap().port());
        let secret = Secret::random().unwrap();
        let mut listener = Some(listener);
        let mut joins = Vec::new();
        for peer in (0..3).map(Peer) {
            let (secret, rendezvous, listener) = (secret.clone(), address.to_string(), listener.take());
            let config = JoinConfig { peer, workers: 3, secret, listener, ..lone(0, &rendezvous, LONG) };
            joins.push(tokio::spawn(join(config)));
        }
        let mut networks = Vec::new();
        for join in joins {
            networks.push(join.await.unwrap().unwrap());
        }
        networks[2].open(Peer(1));
        up(&mut networks[1], 0).await;
        up(&mut networks[1], 2).await;
    }
}

/// A part of a network that panicked is reported with its message, whether its owner waits or comes later.
#[tokio::test]
async fn a_panic_in_a_task_of_the_network_is_reported() {
    let job = Job::start(2, LONG).await;
    let one = tokio::spawn(join(job.config(1)));
    let (mut zero, one) = (job.zero.await.unwrap().unwrap(), one.await.unwrap().unwrap());
    assert!(matches!(conformance::event(&mut zero).await, Some(LinkEvent::Up(_))));
    for waits in [true, false] {
        zero.run(async move {
            if waits {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            panic!("{} is not a link", 7)
        });
        if !waits {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        match timeout(LONG, conformance::event(&mut zero)).await {
            Ok(Some(LinkEvent::Panicked { reason })) => assert_eq!(reason, "7 is not a link"),
            other => panic!("expected the panic and found {other:?}"),
        }
    }
    drop(one);
}
