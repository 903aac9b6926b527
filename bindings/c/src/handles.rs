//! What callers hold: numbers in the shape of pointers. Nothing is read through them, so that a handle that was freed, or never made,
//! is refused with a sentence.

use std::collections::BTreeMap;
use std::process;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::status::{Refused, null};

/// Between two handles. Their numbers are never used again, and are aligned as pointers are.
const STRIDE: usize = 16;

static NEXT: AtomicUsize = AtomicUsize::new(STRIDE);

/// All handles of one kind that were not freed.
pub(crate) struct Handles<T> {
    what: &'static str,
    made_by: &'static str,
    freed_by: &'static str,
    live: Mutex<BTreeMap<usize, Held<T>>>,
}

struct Held<T> {
    /// The process that made it: a forked one has a copy, and none of the threads that it needs.
    process: u32,
    value: Arc<T>,
}

impl<T> Handles<T> {
    pub(crate) const fn new(what: &'static str, made_by: &'static str, freed_by: &'static str) -> Self {
        Self { what, made_by, freed_by, live: Mutex::new(BTreeMap::new()) }
    }

    /// A new handle.
    pub(crate) fn put(&self, value: T) -> *mut T {
        let number = NEXT.fetch_add(STRIDE, Ordering::Relaxed);
        let held = Held { process: process::id(), value: Arc::new(value) };
        lock(&self.live).insert(number, held);
        without_provenance_mut(number)
    }

    /// The object of a handle. It lives on while a call needs it, also where another thread frees the handle meanwhile.
    pub(crate) fn get(&self, handle: *mut T) -> Result<Arc<T>, Refused> {
        let Self { what, made_by, freed_by, live } = self;
        if handle.is_null() {
            return Err(null(what));
        }
        let live = lock(live);
        let Some(Held { process, value }) = live.get(&handle.addr()) else {
            return Err(Refused::argument(format!(
                "{what} at {handle:p}: found no such handle; expected one that {made_by} wrote and {freed_by} has not had"
            )));
        };
        if *process != process::id() {
            return Err(Refused::argument(format!(
                "{what} belongs to process {process}, and this is process {}, which was forked from it and has none of its \
                 threads; call from process {process}, or fork before {made_by}",
                process::id()
            )));
        }
        Ok(value.clone())
    }

    /// Frees a handle; nothing for null, and for one that was freed.
    pub(crate) fn free(&self, handle: *mut T) {
        let held = lock(&self.live).remove(&handle.addr());
        match held {
            // Leaving would wait for threads that are not here, and would speak for the process that has them.
            Some(held) if held.process != process::id() => std::mem::forget(held),
            held => drop(held),
        }
    }
}

/// What a call that panicked left behind is as good as before: the session it belongs to has failed by it, or nothing has changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
