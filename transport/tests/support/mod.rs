//! Networks to test on.
#![allow(dead_code)] // each test binary asks only some

use std::net::TcpListener;
use std::time::Duration;

use bytes::Bytes;
use gleaner_transport::tcp::{self, TcpNetwork};
use gleaner_transport::{JoinConfig, JoinError, MAX_CARD, Network, Peer, Secret, TransportChoice};

/// What a worker brings: of every length, up to the longest.
pub fn card(peer: u32) -> Bytes {
    let length = [MAX_CARD, 0, 9, 100][peer as usize % 4];
    Bytes::from(vec![peer as u8 + 1; length])
}

pub fn configs(workers: u32, timeout: Duration, is_plain: bool) -> Vec<JoinConfig> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = listener.local_addr().unwrap().to_string();
    let secret = Secret::random().unwrap();
    let mut listener = Some(listener);
    (0..workers)
        .map(|peer| JoinConfig {
            peer: Peer(peer),
            workers,
            epoch: 7,
            card: card(peer),
            rendezvous: rendezvous.clone(),
            secret: secret.clone(),
            job: "17".to_owned(),
            is_plain,
            choice: TransportChoice::default(),
            timeout,
            listener: listener.take(),
        })
        .collect()
}

/// With sealed links.
pub async fn over_tcp(workers: u32) -> Vec<TcpNetwork> {
    over(configs(workers, Duration::from_secs(60), false), tcp::join).await
}

/// With links that are not.
pub async fn over_plain_tcp(workers: u32) -> Vec<TcpNetwork> {
    over(configs(workers, Duration::from_secs(60), true), tcp::join).await
}

/// Over QUIC.
#[cfg(feature = "quic")]
pub async fn over_quic(workers: u32) -> Vec<gleaner_transport::quic::QuicNetwork> {
    over(configs(workers, Duration::from_secs(60), false), gleaner_transport::quic::join).await
}

/// With links of this many sockets.
pub async fn over_sockets(workers: u32, sockets: &str, is_plain: bool) -> Vec<TcpNetwork> {
    let choice = TransportChoice { sockets: sockets.parse().unwrap(), ..TransportChoice::default() };
    let configs = configs(workers, Duration::from_secs(60), is_plain).into_iter();
    over(configs.map(|config| JoinConfig { choice: choice.clone(), ..config }).collect(), tcp::join).await
}

/// Over queue pairs, where there is an RDMA device.
#[cfg(all(feature = "verbs", target_os = "linux"))]
pub async fn over_verbs(workers: u32) -> Vec<gleaner_transport::verbs::VerbsNetwork> {
    over(configs(workers, Duration::from_secs(60), true), gleaner_transport::verbs::join).await
}

async fn over<N, F>(configs: Vec<JoinConfig>, join: fn(JoinConfig) -> F) -> Vec<N>
where
    N: Network + 'static,
    F: Future<Output = Result<N, JoinError>> + Send + 'static,
{
    let joins: Vec<_> = configs.into_iter().map(join).map(tokio::spawn).collect();
    let mut networks = Vec::new();
    for join in joins {
        networks.push(join.await.unwrap().unwrap());
    }
    networks
}
