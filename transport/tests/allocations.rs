//! What a message costs in allocations, counted by an allocator of this binary's own.

#![allow(clippy::unwrap_used)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use gleaner_transport::conformance::{receive, send, up};
use gleaner_transport::{Message, Peer, Tag};

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(size, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The memory of a short payload is one allocation. So is that of a long one, with room for what is read behind it, and
/// `Bytes` counts its holders in a second of 24 bytes. Sending allocates nothing.
#[tokio::test]
async fn a_message_costs_its_payload() {
    const COUNT: usize = 1000;
    let mut networks = support::over_tcp(2).await;
    let (mut first, mut second) = {
        let (zero, one) = networks.split_at_mut(1);
        (up(&mut zero[0], Peer(1)).await, up(&mut one[0], Peer(0)).await)
    };
    for (length, calls, beyond) in
        [(100, 1, 0), (8000, 1, 0), (64 << 10, 2, 512 + 24), (256 << 10, 2, 512 + 24)]
    {
        let payload = Bytes::from(vec![3; length]);
        let mut before = (0, 0);
        for number in 0..COUNT + 10 {
            if number == 10 {
                before = (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
            }
            let message = Message { tag: Tag(1), payload: payload.clone() };
            let (sent, received) = tokio::join!(send(&mut *first, [message]), receive(&mut *second));
            sent.unwrap();
            assert_eq!(received.unwrap().payload.len(), length);
        }
        let found = (CALLS.load(Ordering::Relaxed) - before.0, BYTES.load(Ordering::Relaxed) - before.1);
        println!("{COUNT} messages of {length} bytes: {} allocations of {} bytes", found.0, found.1);
        assert!(found.0 <= COUNT * calls + COUNT / 50, "{found:?}");
        assert!(found.1 <= COUNT * (length + beyond) + COUNT * length / 50, "{found:?}");
    }
}
