//! Networks to test on, and the questions that most tests ask them.
#![allow(dead_code)] // each test binary asks only some

use std::net::TcpListener;
use std::time::Duration;

use bytes::Bytes;
use gleaner_transport::tcp::{self, TcpConfig};
use gleaner_transport::{Link, LinkEvent, Message, Network, Peer, Secret, Tag, memory};
use tokio::sync::mpsc::UnboundedReceiver;

/// One worker's network and what it tells.
pub struct Node {
    pub network: Box<dyn Network>,
    pub events: UnboundedReceiver<LinkEvent>,
    /// Over TCP the rendezvous leaves links; these many are still to be told.
    pub left: u32,
}

pub fn memory_nodes(workers: u32) -> Vec<Node> {
    let node = |(network, events)| Node { network: Box::new(network) as Box<dyn Network>, events, left: 0 };
    memory::networks(workers).into_iter().map(node).collect()
}

pub fn configs(workers: u32, timeout: Duration) -> Vec<TcpConfig> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = listener.local_addr().unwrap().to_string();
    let secret = Secret::random().unwrap();
    let mut listener = Some(listener);
    (0..workers)
        .map(|peer| TcpConfig {
            peer: Peer(peer),
            workers,
            rendezvous: rendezvous.clone(),
            secret: secret.clone(),
            timeout,
            listener: listener.take(),
        })
        .collect()
}

pub async fn tcp_nodes(workers: u32) -> Vec<Node> {
    let joins: Vec<_> =
        configs(workers, Duration::from_secs(60)).into_iter().map(tcp::join).map(tokio::spawn).collect();
    let mut nodes = Vec::new();
    for (peer, join) in joins.into_iter().enumerate() {
        let (network, events) = join.await.unwrap().unwrap();
        let left = if peer == 0 { workers - 1 } else { 1 };
        nodes.push(Node { network: Box::new(network), events, left });
    }
    nodes
}

pub async fn both(workers: u32) -> Vec<Vec<Node>> {
    vec![memory_nodes(workers), tcp_nodes(workers).await]
}

/// The next link that comes about.
pub async fn up(node: &mut Node) -> Link {
    match tokio::time::timeout(Duration::from_secs(60), node.events.recv()).await {
        Ok(Some(LinkEvent::Up(link))) => link,
        other => panic!("{} expected a link and found {other:?}", node.network.peer()),
    }
}

pub async fn links(node: &mut Node, count: u32) -> Vec<Link> {
    let mut links = Vec::new();
    for _ in 0..count {
        links.push(up(node).await);
    }
    links
}

/// Opens a link to that peer, and lets all others go.
pub async fn link_to(node: &mut Node, peer: Peer) -> Link {
    node.network.open(peer);
    loop {
        let link = up(node).await;
        if link.peer == peer {
            return link;
        }
    }
}

/// Lets the links go that the rendezvous left.
pub async fn settle(node: &mut Node) {
    links(node, node.left).await;
}

/// A message whose content tells its tag, length and author.
pub fn message(tag: u64, length: usize, author: u8) -> Message {
    let payload: Vec<u8> = (0..length).map(|i| (i as u8).wrapping_mul(31) ^ author ^ tag as u8).collect();
    Message { tag: Tag(tag), payload: Bytes::from(payload) }
}
