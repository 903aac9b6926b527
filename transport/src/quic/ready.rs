//! Which of a link's many streams can go on: each has a waker of its own, so that a link looks at those alone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

/// The streams of one direction of a link that can go on, in the order in which they could.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue(Mutex<Ready>);

#[derive(Debug, Default)]
struct Ready {
    keys: VecDeque<u64>,
    owner: Option<Waker>,
}

impl ReadyQueue {
    fn ready(&self) -> MutexGuard<'_, Ready> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task that is woken when the next stream can go on.
    pub(super) fn register(&self, context: &Context<'_>) {
        let owner = &mut self.ready().owner;
        if !owner.as_ref().is_some_and(|owner| owner.will_wake(context.waker())) {
            *owner = Some(context.waker().clone());
        }
    }

    /// The key of the next stream that can go on.
    pub(super) fn next(&self) -> Option<u64> {
        self.ready().keys.pop_front()
    }
}

/// The waker of one stream.
#[derive(Debug)]
pub(super) struct StreamWaker {
    key: u64,
    is_ready: AtomicBool,
    queue: Arc<ReadyQueue>,
}

impl StreamWaker {
    pub(super) fn new(key: u64, queue: &Arc<ReadyQueue>) -> Arc<Self> {
        Arc::new(Self { key, is_ready: AtomicBool::new(false), queue: Arc::clone(queue) })
    }

    /// The stream can go on, as its owner knows, who looks for the next one anyway.
    pub(super) fn mark_ready(&self) {
        if !self.is_ready.swap(true, Ordering::AcqRel) {
            self.queue.ready().keys.push_back(self.key);
        }
    }

    /// The stream is looked at now: what comes from here on makes it ready again. Returns the waker for it.
    pub(super) fn arm(self: &Arc<Self>) -> Waker {
        self.is_ready.store(false, Ordering::Release);
        Arc::clone(self).into()
    }
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.mark_ready();
        let owner = self.queue.ready().owner.take();
        owner.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_ready_once_until_it_is_armed_again_and_in_order() {
        let queue = Arc::new(ReadyQueue::default());
        let [one, two] = [1, 2].map(|key| StreamWaker::new(key, &queue));
        [&two, &one, &two].into_iter().for_each(|waker| Arc::clone(waker).wake());
        assert_eq!([queue.next(), queue.next(), queue.next()], [Some(2), Some(1), None]);
        two.mark_ready();
        assert_eq!(queue.next(), None, "it was not armed");
        two.arm().wake();
        assert_eq!(queue.next(), Some(2));
    }
}
