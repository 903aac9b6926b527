//! Joining a job, over each network between processes: unauthenticated peers change nothing, and a worker that gives up at any moment is named.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use gleaner_transport::conformance::{exchange, up};
use gleaner_transport::{
    JoinConfig, JoinError, Message, Network, Peer, Secret, Tag, Transport, TransportChoice, join,
};
use support::configs;
use tokio::time::timeout;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// The tests of each network: one line makes all of them.
macro_rules! networks {
    ($($name:ident: $choice:expr, $is_plain:expr;)*) => {$(
        mod $name {
            use super::*;

            fn job(workers: u32, timeout: Duration) -> Vec<JoinConfig> {
                let over = |config| JoinConfig { choice: $choice.into(), ..config };
                configs(workers, timeout, $is_plain).into_iter().map(over).collect()
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_wrong_secret_is_reported_and_the_job_begins() {
                unauthenticated(job, |config| config.secret = Secret::random().unwrap()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_worker_of_another_job_with_the_same_secret_is_reported_and_the_job_begins() {
                unauthenticated(job, |config| config.job = "18".to_owned()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn garbage_gets_no_answer_and_the_job_begins() {
                garbage(job).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_worker_that_gives_up_at_any_moment_is_named_and_no_other_hangs() {
                gives_up(job).await;
            }
        }
    )*};
}

networks! {
    tcp: Transport::Tcp, false;
    plain_tcp: Transport::Tcp, true;
    sockets: TransportChoice { sockets: "3".parse().unwrap(), ..TransportChoice::default() }, false;
    quic: Transport::Quic, false;
}

/// Makes the configurations of the workers of a job.
type Job = fn(u32, Duration) -> Vec<JoinConfig>;

type Joined = Result<Box<dyn Network>, JoinError>;

/// Two that have joined exchange a message.
async fn talk(zero: Joined, one: Joined) {
    let (mut zero, mut one) = (zero.unwrap(), one.unwrap());
    zero.open(Peer(1));
    let (mut near, mut far) = (up(&mut zero, Peer(1)).await, up(&mut one, Peer(0)).await);
    let word = |rank: u8| Message { tag: Tag(5), payload: vec![rank; 100_000].into() };
    let (said, heard) = tokio::join!(
        exchange(&mut *near, [word(0)], 1, |heard| assert!(heard == word(1))),
        exchange(&mut *far, [word(1)], 1, |heard| assert!(heard == word(0)))
    );
    said.and(heard).unwrap();
}

/// One with another configuration than the others is refused, since it does not belong to them, before the right one comes.
async fn unauthenticated(job: Job, change: fn(&mut JoinConfig)) {
    let [zero, one]: [_; 2] = job(2, LONG).try_into().unwrap();
    let mut other = again(&one);
    change(&mut other);
    let zero = tokio::spawn(join(zero));
    let error = join(other).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("the secrets or the jobs' ids probably differ"), "{error}");
    let one = join(one).await;
    talk(zero.await.unwrap(), one).await;
}

/// The same once more.
fn again(config: &JoinConfig) -> JoinConfig {
    JoinConfig {
        secret: config.secret.clone(),
        job: config.job.clone(),
        card: config.card.clone(),
        rendezvous: config.rendezvous.clone(),
        choice: config.choice.clone(),
        listener: None,
        ..*config
    }
}

/// What is no hello at the port of rank 0.
async fn garbage(job: Job) {
    let [zero, one]: [_; 2] = job(2, LONG).try_into().unwrap();
    let address = one.rendezvous.clone();
    let zero = tokio::spawn(join(zero));
    let speaks = move || {
        for number in 0..50_usize {
            let bytes: Vec<u8> = (0..number * 97).map(|i| ((i * 31) ^ (number * 57)) as u8).collect();
            let mut socket = TcpStream::connect(&address).unwrap();
            // It may be closed before all is said.
            let _ = socket.write_all(&bytes).and_then(|()| socket.shutdown(Shutdown::Write));
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            assert!(answer.is_empty(), "expected no answer to {number} times 97 bytes");
        }
    };
    tokio::task::spawn_blocking(speaks).await.unwrap();
    let one = join(one).await;
    talk(zero.await.unwrap(), one).await;
}

/// Rank 1 lets go of its joining after so long, or after it has been polled so often: rank 0 ends with a sentence that names it, or has
/// all that it waited for.
async fn gives_up(job: Job) {
    let (mut cases, mut gave_up) = (tokio::task::JoinSet::new(), 0);
    for moment in 0..24_u32 {
        // A few at a time: where all processors are taken, no one leaves in time.
        if cases.len() == 6
            && let Some(ended) = cases.join_next().await
        {
            gave_up += usize::from(ended.unwrap());
        }
        cases.spawn(gives_up_at(job, moment));
    }
    gave_up += cases.join_all().await.into_iter().filter(|gave_up| *gave_up).count();
    assert!(gave_up > 0, "expected that some give up, and none did");
}

/// Whether it let go before it had joined.
async fn gives_up_at(job: Job, moment: u32) -> bool {
    let [zero, one]: [_; 2] = job(2, Duration::from_millis(1500)).try_into().unwrap();
    let zero = tokio::spawn(join(zero));
    let gave_up = if moment.is_multiple_of(2) {
        let after = Duration::from_micros(u64::from(moment * moment) * 40);
        timeout(after, join(one)).await.is_err()
    } else {
        !polled(join(one), moment / 2).await
    };
    let ended = timeout(LONG, zero).await.expect("rank 0 ends").unwrap().map(|_| ());
    let names = ended.as_ref().is_err_and(|error| error.to_string().contains("rank 1"));
    assert!(ended.is_ok() || names, "{ended:?}");
    gave_up
}

/// Polls it so often at most, and lets go of it. Whether it came to its end.
async fn polled(joining: impl Future<Output = Joined>, mut times: u32) -> bool {
    let mut joining = std::pin::pin!(joining);
    std::future::poll_fn(|context| {
        let joined = joining.as_mut().poll(context);
        match times.checked_sub(1) {
            Some(left) if joined.is_pending() => times = left,
            _ => return std::task::Poll::Ready(joined.is_ready()),
        }
        std::task::Poll::Pending
    })
    .await
}
