//! What goes on beside a job, in a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// What goes on until it is told to end, or dropped.
pub struct Ongoing<T> {
    is_over: Arc<AtomicBool>,
    /// Nothing once it has ended.
    thread: Option<JoinHandle<T>>,
}

impl<T: Default + Send + 'static> Ongoing<T> {
    /// Begins what looks often whether it is over.
    pub fn start(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        Self { is_over, thread: Some(thread::spawn(move || work(&over))) }
    }

    /// Ends it.
    pub fn end(mut self) -> T {
        self.stop().unwrap_or_default()
    }
}

impl<T> Ongoing<T> {
    fn stop(&mut self) -> Option<T> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl<T> Drop for Ongoing<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_goes_on_ends_when_it_is_dropped() {
        let ended = Arc::new(AtomicBool::new(false));
        let last = ended.clone();
        let ongoing = Ongoing::start(move |over| {
            while !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            last.store(true, Ordering::Relaxed);
        });
        drop(ongoing);
        assert!(ended.load(Ordering::Relaxed));
        assert_eq!(Ongoing::start(|_| 2).end(), 2);
    }
}
