//! An allocator that counts what is held, for programs that include this file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static BEFORE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is left to the system's allocator; counting touches nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// From here on [`peak`] counts.
pub fn begin() {
    let held = HELD.load(Ordering::Relaxed);
    BEFORE.store(held, Ordering::Relaxed);
    PEAK.store(held, Ordering::Relaxed);
}

/// The most bytes that were held at once since [`begin`], beside what was held then.
pub fn peak() -> usize {
    PEAK.load(Ordering::Relaxed) - BEFORE.load(Ordering::Relaxed)
}
