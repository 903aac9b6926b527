//! What runs inside a machine that has a device.

use std::process::Command;
use std::time::{Duration, Instant};

use gleaner_transport::conformance::{self, event, exchange};
use gleaner_transport::verbs::{self, VerbsNetwork};
use gleaner_transport::{JoinConfig, Link, LinkEvent, MAX_PAYLOAD, Message, Network, Peer, Tag, adverse};

use crate::support::{self, over_verbs};

/// Of workers whose links are plain, as verbs want them.
fn configs(workers: u32) -> Vec<JoinConfig> {
    support::configs(workers, Duration::from_secs(60), true)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs inside a machine that has a device"]
async fn verbs_keep_the_requirements() {
    let since = Instant::now();
    conformance::check(over_verbs).await;
    println!("as they are: {:.1?}", since.elapsed());
    conformance::check(async |workers| {
        let networks = over_verbs(workers).await.into_iter().zip(1..);
        networks.map(|(inner, seed)| adverse::network(inner, seed)).collect()
    })
    .await;
    println!("and as awkward as may be: {:.1?}", since.elapsed());
}

/// Every worker sends as many bytes to its next, in messages as long as may be, and a last that is shorter.
async fn round(networks: Vec<VerbsNetwork>, bytes: usize) {
    let workers = networks.len() as u32;
    let tasks = networks.into_iter().zip(0..).map(|(mut network, us)| async move {
        let (next, before) = (Peer((us + 1) % workers), Peer((us + workers - 1) % workers));
        let mut links = to(&mut network, next, before).await;
        let lengths =
            || (0..bytes.div_ceil(MAX_PAYLOAD)).map(move |i| MAX_PAYLOAD.min(bytes - i * MAX_PAYLOAD));
        let said = |from: u32, number: usize, length: usize| {
            let payload: Vec<u8> = (0..length).map(|i| (i * 31 + number * 7 + from as usize) as u8).collect();
            Message { tag: Tag(5), payload: payload.into() }
        };
        let ours = lengths().zip(0..).map(|(length, number)| said(us, number, length)).collect::<Vec<_>>();
        let mut expected = lengths().zip(0..).map(|(length, number)| said(before.0, number, length));
        let count = ours.len();
        let hear = |heard| assert!(expected.next() == Some(heard), "rank {us} expected other bytes");
        match links.as_mut_slice() {
            [both] => exchange(&mut **both, ours, count, hear).await.unwrap(),
            [next, before] => {
                let (sent, came) = tokio::join!(
                    exchange(&mut **next, ours, 0, |_| {}),
                    exchange(&mut **before, [], count, hear)
                );
                sent.and(came).unwrap();
            }
            _ => unreachable!(),
        }
        (network, links)
    });
    let tasks: Vec<_> = tasks.map(tokio::spawn).collect();
    let mut kept = Vec::new();
    for task in tasks {
        kept.push(task.await.unwrap());
    }
}

/// The links to the next and from the one before, which may be one, in this order.
async fn to(network: &mut VerbsNetwork, next: Peer, before: Peer) -> Vec<Box<dyn Link>> {
    network.open(next);
    let mut links: Vec<Box<dyn Link>> = Vec::new();
    let all = if next == before { 1 } else { 2 };
    while links.len() < all {
        match event(network).await {
            // Rank 0 has links to all others from the beginning.
            Some(LinkEvent::Up(link)) if [next, before].contains(&link.peer()) => links.push(link),
            Some(LinkEvent::Up(_)) => {}
            // One of those that dropped it before it was up here.
            Some(LinkEvent::Refused { address, reason })
                if ![next, before].map(|peer| peer.to_string()).contains(&address)
                    && reason.contains("has left the network") => {}
            other => panic!("expected links to {next} and from {before} and found {other:?}"),
        }
    }
    links.sort_by_key(|link| link.peer() != next);
    links
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs inside a machine that has a device"]
async fn messages_of_every_size_reach_up_to_eight_peers() {
    for (workers, bytes) in
        [(2, 1), (3, 4096), (4, 4097), (5, 100_000), (8, 1 << 20), (8, 5 << 20), (2, 64 << 20)]
    {
        let since = Instant::now();
        round(over_verbs(workers).await, bytes).await;
        println!("{workers} workers, {bytes} bytes: {:.2?}", since.elapsed());
    }
}

/// Why a worker cannot use that device.
async fn refusal(device: &str) -> String {
    let mut config = configs(1).remove(0);
    config.choice.device = Some(device.parse().unwrap());
    verbs::join(config).await.unwrap_err().to_string()
}

fn shell(script: &str) {
    assert!(Command::new("sh").args(["-ec", script]).status().unwrap().success(), "{script}");
}

#[tokio::test]
#[ignore = "runs inside a machine that has a device"]
async fn what_is_wrong_is_reported_in_a_sentence() {
    let holds = |sentence: String, words: &[&str]| {
        println!("{sentence}");
        assert!(words.iter().all(|word| sentence.contains(word)), "{sentence}");
    };
    drop(verbs::join(configs(1).remove(0)).await.unwrap());
    // Its task ends when this one lets it. Until then the device is in use and cannot be deleted.
    tokio::task::yield_now().await;
    holds(refusal("mlx5_7").await, &["mlx5_7", "found rxe0"]);
    holds(refusal("rxe0:9").await, &["rxe0", "no port 9"]);
    holds(refusal("rxe0:1:200").await, &["port 1", "GID 200"]);
    holds(refusal("rxe0,pkey=500").await, &["port 1", "no partition key 500", "pkeys"]);
    shell("ip link set v1 down");
    holds(refusal("rxe0").await, &["port 1 of the verbs device rxe0 is", "ip link"]);
    shell("ip link set v1 up");

    // Root may lock as much as it likes, others may not.
    let exe = std::env::current_exe().unwrap();
    let limited = format!(
        "chmod 666 /dev/infiniband/uverbs0; ulimit -l 512; \
         setpriv --reuid 65534 --clear-groups '{}' --ignored --exact --nocapture inside::this_user_is_reported",
        exe.display()
    );
    let said = |script: &str| {
        let output = Command::new("sh").args(["-c", script]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    holds(said(&limited), &["could not be registered", "512 KiB", "memlock"]);
    holds(
        said(&format!("chmod 600 /dev/infiniband/uverbs0; {}", limited.split_once("; ").unwrap().1)),
        &["rxe0 cannot be opened: Permission denied", "/dev/infiniband"],
    );
    shell("rdma link delete rxe0");
    holds(
        verbs::join(configs(1).remove(0)).await.unwrap_err().to_string(),
        &["no RDMA device", "rdma link add"],
    );
}

/// Says why this user cannot use verbs.
#[tokio::test]
#[ignore = "run by another test, as another user"]
async fn this_user_is_reported() {
    println!("{}", verbs::join(configs(1).remove(0)).await.unwrap_err());
}
