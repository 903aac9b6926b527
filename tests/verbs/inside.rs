//! What runs inside a machine that has a device.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use gleaner_transport::conformance::{self, exchange, up};
use gleaner_transport::tcp::TcpConfig;
use gleaner_transport::verbs::{self, VerbsNetwork};
use gleaner_transport::{Link, MAX_PAYLOAD, Message, Network, Peer, Secret, Tag, TransportChoice, adverse};

fn configs(workers: u32) -> Vec<TcpConfig> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = listener.local_addr().unwrap().to_string();
    let secret = Secret::random().unwrap();
    let mut listener = Some(listener);
    (0..workers)
        .map(|peer| TcpConfig {
            peer: Peer(peer),
            workers,
            epoch: 7,
            card: vec![peer as u8; 9].into(),
            rendezvous: rendezvous.clone(),
            secret: secret.clone(),
            job: "17".to_owned(),
            is_plain: true,
            choice: TransportChoice::default(),
            timeout: Duration::from_secs(60),
            listener: listener.take(),
        })
        .collect()
}

async fn over_verbs(workers: u32) -> Vec<VerbsNetwork> {
    let joins: Vec<_> = configs(workers).into_iter().map(|config| tokio::spawn(verbs::join(config))).collect();
    let mut networks = Vec::new();
    for join in joins {
        networks.push(join.await.unwrap().unwrap());
    }
    networks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs inside a machine that has a device"]
async fn verbs_keep_the_laws() {
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
