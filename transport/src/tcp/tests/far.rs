//! A rank that is far away from rank 0.

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, sleep};

use super::rendezvous::sentence;
use super::*;

/// A handshake takes two round trips.
#[tokio::test]
async fn a_round_trip_of_three_seconds_is_no_hindrance() {
    let job = Job::start(2, LONG).await;
    let (config, relayed) = far_away(&job, Duration::from_millis(1500)).await;
    let begun = Instant::now();
    let (one, zero) = tokio::join!(join(config), job.zero);
    assert!(one.is_ok() && zero.unwrap().is_ok());
    assert!(begun.elapsed() >= Duration::from_secs(6), "{:?}", begun.elapsed());
    relayed.abort();
}

/// All ranks say the same, and no rank is said to be missing or dead.
#[tokio::test]
async fn a_round_trip_too_long_for_the_time_out_is_reported_to_all() {
    // The challenge arrives well within the timeout, and the proof behind it and well within a half more.
    let (timeout, half) = (Duration::from_secs(8), Duration::from_millis(2800));
    let job = Job::start(3, timeout).await;
    let ((config, relayed), near) = (far_away(&job, half).await, job.config(2));
    let address = job.address;
    let (far, near, zero) = tokio::join!(join(config), join(near), job.zero);
    let failed = match zero.unwrap() {
        Err(error @ JoinError::Slow { peer: Peer(1), .. }) => error.to_string(),
        other => panic!("expected that the round trip is too long and found {other:?}"),
    };
    let said = failed.strip_prefix("a round trip between rank 0 and rank 1 takes ").expect(&failed);
    let (round_trip, rest) = said.split_once("s, ").expect(&failed);
    // Rounded to a tenth of a second.
    let round_trip: f64 = round_trip.parse().expect(&failed);
    assert!((5.5..8.0).contains(&round_trip), "{failed}");
    assert!(
        rest.starts_with("too long for the timeout of 8s") && rest.contains("GLEANER_TIMEOUT"),
        "{failed}"
    );
    assert_eq!(sentence(near), format!("rank 0 ended the job: {failed}"));
    let refused = sentence(far);
    assert!(refused.ends_with(&format!(" refused rank 1: {failed}")), "{refused} at {address}");
    relayed.abort();
}

/// How rank 1 joins, whose connection to rank 0 has a round trip of twice that while the task runs.
async fn far_away(job: &Job, half: Duration) -> (JoinConfig, JoinHandle<()>) {
    let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = JoinConfig { rendezvous: relay.local_addr().unwrap().to_string(), ..job.config(1) };
    let address = job.address;
    let relayed = tokio::spawn(async move {
        let (near, _) = relay.accept().await.unwrap();
        let far = TcpStream::connect(address).await.unwrap();
        let (near, far) = (near.into_split(), far.into_split());
        tokio::join!(delay(near.0, far.1, half), delay(far.0, near.1, half));
    });
    (config, relayed)
}

/// Passes on what is said, half a round trip later.
async fn delay(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, half: Duration) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        sleep(half).await;
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
