//! Networks to test on.
#![allow(dead_code)] // each test binary asks only some

use std::net::TcpListener;
use std::time::Duration;

use bytes::Bytes;
use gleaner_transport::tcp::{self, TcpConfig, TcpNetwork};
use gleaner_transport::{MAX_CARD, Peer, Secret};

/// What a worker brings: of every length, up to the longest.
pub fn card(peer: u32) -> Bytes {
    let length = [MAX_CARD, 0, 9, 100][peer as usize % 4];
    Bytes::from(vec![peer as u8 + 1; length])
}

pub fn configs(workers: u32, timeout: Duration, is_plain: bool) -> Vec<TcpConfig> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = listener.local_addr().unwrap().to_string();
    let secret = Secret::random().unwrap();
    let mut listener = Some(listener);
    (0..workers)
        .map(|peer| TcpConfig {
            peer: Peer(peer),
            workers,
            epoch: 7,
            card: card(peer),
            rendezvous: rendezvous.clone(),
            secret: secret.clone(),
            job: "17".to_owned(),
            is_plain,
            sockets: 1,
            timeout,
            listener: listener.take(),
        })
        .collect()
}

/// With sealed links.
pub async fn over_tcp(workers: u32) -> Vec<TcpNetwork> {
    over(configs(workers, Duration::from_secs(60), false)).await
}

/// With links that are not.
pub async fn over_plain_tcp(workers: u32) -> Vec<TcpNetwork> {
    over(configs(workers, Duration::from_secs(60), true)).await
}

/// With links of so many sockets.
pub async fn over_sockets(workers: u32, sockets: u8, is_plain: bool) -> Vec<TcpNetwork> {
    let configs = configs(workers, Duration::from_secs(60), is_plain);
    over(configs.into_iter().map(|config| TcpConfig { sockets, ..config }).collect()).await
}

async fn over(configs: Vec<TcpConfig>) -> Vec<TcpNetwork> {
    let joins: Vec<_> = configs.into_iter().map(tcp::join).map(tokio::spawn).collect();
    let mut networks = Vec::new();
    for join in joins {
        networks.push(join.await.unwrap().unwrap());
    }
    networks
}
