//! What every network promises, over memory and TCP, plain and as awkward as may be.

#![allow(clippy::unwrap_used)]

mod support;

use gleaner_transport::memory::{self, MemoryNetwork};
use gleaner_transport::{Network, adverse, conformance};
use support::{card, over_plain_tcp, over_sockets, over_tcp};

fn over_memory(workers: u32) -> Vec<MemoryNetwork> {
    memory::networks_with((0..workers).map(card).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_keeps_the_laws() {
    conformance::check(async |workers| over_memory(workers)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_keeps_the_laws() {
    conformance::check(over_tcp).await;
    conformance::check(over_plain_tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_of_several_sockets_keeps_the_laws() {
    for is_plain in [false, true] {
        conformance::check(async |workers| over_sockets(workers, "3", is_plain).await).await;
    }
}

#[tokio::test]
async fn both_keep_the_laws_in_one_thread() {
    conformance::check(async |workers| over_memory(workers)).await;
    conformance::check(over_tcp).await;
}

fn awkward<N: Network>(networks: Vec<N>, seed: u64) -> Vec<impl Network> {
    networks.into_iter().zip(seed..).map(|(inner, seed)| adverse::network(inner, seed)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adverse_network_keeps_the_laws() {
    for seed in 0..3 {
        conformance::check(async |workers| awkward(over_memory(workers), seed * 100)).await;
    }
    conformance::check(async |workers| awkward(over_tcp(workers).await, 7)).await;
}
