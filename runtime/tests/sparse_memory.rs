//! A step of gradients that are sparse already takes memory for its entries, however long the vector is.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::bag::Entries;
use gleaner_runtime::{Roles, Session};
use gleaner_transport::memory;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is left to the system's allocator; counting touches nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        let held = HELD.fetch_add(memory.size(), Ordering::Relaxed) + memory.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(memory) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, memory: Memory) {
        HELD.fetch_sub(memory.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, memory) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

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
    let (joined, before) = (Barrier::new(WORKERS as usize), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for network in memory::networks(WORKERS) {
            let (joined, before) = (&joined, &before);
            scope.spawn(move || {
                let timeout = Duration::from_secs(10);
                let session = Session::over_as(async { Ok(network) }, timeout, Roles::default()).unwrap();
                if joined.wait().is_leader() {
                    before.store(HELD.load(Ordering::Relaxed), Ordering::Relaxed);
                    PEAK.store(HELD.load(Ordering::Relaxed), Ordering::Relaxed);
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
    PEAK.load(Ordering::Relaxed) - before.load(Ordering::Relaxed)
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
