//! What every network promises, over each of those that are here: as it is, as awkward as may be, and at the size of a cluster. What
//! needs a device is tested in `verbs.rs`.

#![allow(clippy::unwrap_used)]

mod support;

use gleaner_transport::conformance::Scale;
use gleaner_transport::memory::{MemoryNetwork, networks_with};
use gleaner_transport::{Network, adverse, conformance};
use support::{card, over_plain_tcp, over_quic, over_sockets, over_tcp};

/// The tests of each network: one line makes all of them.
macro_rules! networks {
    ($($name:ident: $make:expr;)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn it_keeps_the_requirements() {
                conformance::check($make).await;
            }

            #[tokio::test]
            async fn it_keeps_the_requirements_in_one_thread() {
                conformance::check($make).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn it_keeps_the_requirements_as_awkward_as_may_be() {
                conformance::check(async |workers| awkward($make(workers).await, 7)).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn it_carries_a_gibibyte_and_links_64_workers() {
                conformance::check_at_scale(Scale { workers: 64, bytes: 1 << 30 }, $make).await;
            }
        }
    )*};
}

networks! {
    memory: over_memory;
    tcp: over_tcp;
    plain_tcp: over_plain_tcp;
    sockets: async |workers| over_sockets(workers, "3", false).await;
    plain_sockets: async |workers| over_sockets(workers, "3", true).await;
    quic: over_quic;
}

async fn over_memory(workers: u32) -> Vec<MemoryNetwork> {
    networks_with((0..workers).map(card).collect())
}

fn awkward<N: Network>(networks: Vec<N>, seed: u64) -> Vec<impl Network> {
    networks.into_iter().zip(seed..).map(|(inner, seed)| adverse::network(inner, seed)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_awkwardness_keeps_the_requirements_as_well() {
    for seed in 0..2 {
        conformance::check(async |workers| awkward(over_memory(workers).await, seed * 100)).await;
    }
}
