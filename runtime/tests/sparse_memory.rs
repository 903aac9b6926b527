//! A step of gradients that are sparse already takes memory for its entries, however long the vector is.

#![allow(clippy::unwrap_used)]

mod held;

use std::sync::Barrier;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::bag::Entries;
use gleaner_runtime::{Roles, Session};
use gleaner_transport::memory;

const WORKERS: u32 = 4;
/// Of each rank.
const ENTRIES: usize = 1000;
/// For four workers in one process.
const MIB: usize = 4;

/// Entries spread over n, half of them the same on all ranks.
fn entries(n: usize, rank: u32) -> Entries {
    let apart = n / ENTRIES;
    let place = |i: usize| i * apart + if i.is_multiple_of(2) { 0 } else { 1 + rank as usize };
    (0..ENTRIES).map(|i| (place(i) as u32, i as f32 - 500.5)).collect()
}

/// The most memory that was held, beside that of the sessions, while all ranks made some steps at this length.
fn peak(method: &Method, n: usize) -> usize {
    let joined = Barrier::new(WORKERS as usize);
    std::thread::scope(|scope| {
        for network in memory::networks(WORKERS) {
            let joined = &joined;
            scope.spawn(move || {
                let timeout = Duration::from_secs(10);
                let session = Session::over_as(async { Ok(network) }, timeout, Roles::default()).unwrap();
                if joined.wait().is_leader() {
                    held::begin();
                }
                joined.wait();
                let mut reducer = session.sparse_reducer("w", n, method.clone()).unwrap();
                for _ in 0..3 {
                    let given = entries(n, session.rank() as u32);
                    let update = reducer.start(&given).unwrap().wait().unwrap();
                    let delivered = update.sparse("w").unwrap();
                    assert_eq!(delivered.len(), ENTRIES / 2 * (1 + WORKERS as usize));
                    assert!(reducer.residual().unwrap().is_empty());
                }
            });
        }
    });
    held::peak()
}

#[test]
fn a_step_takes_memory_for_its_entries() {
    for name in ["ssar-recursive-double", "ssar-split-all-gather", "topka", "topkdsa", "spardl", "gtopk"] {
        let method = Method::named(name).unwrap();
        let [short, long] = [1_000_000, 1_000_000_000].map(|n| peak(&method, n));
        println!("{name}: {} KiB held at 10^6, {} KiB at 10^9", short >> 10, long >> 10);
        assert!(long < MIB << 20, "{name} holds {long} bytes at 10^9");
    }
}
