//! Which of a link's many streams can go on: each has a waker of its own, so that a link looks at those alone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

/// The streams of one direction of a link that can go on, in the order in which they could.
#[derive(Debug, Default)]
pub(super) struct Bells(Mutex<Rung>);

#[derive(Debug, Default)]
struct Rung {
    keys: VecDeque<u64>,
    owner: Option<Waker>,
}

impl Bells {
    fn rung(&self) -> MutexGuard<'_, Rung> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is woken when the next one rings.
    pub(super) fn attend(&self, context: &Context<'_>) {
        let owner = &mut self.rung().owner;
        if !owner.as_ref().is_some_and(|owner| owner.will_wake(context.waker())) {
            *owner = Some(context.waker().clone());
        }
    }

    /// The key of the next stream that can go on.
    pub(super) fn next(&self) -> Option<u64> {
        self.rung().keys.pop_front()
    }
}

/// The waker of one stream.
#[derive(Debug)]
pub(super) struct Bell {
    key: u64,
    is_rung: AtomicBool,
    bells: Arc<Bells>,
}

impl Bell {
    pub(super) fn new(key: u64, bells: &Arc<Bells>) -> Arc<Self> {
        Arc::new(Self { key, is_rung: AtomicBool::new(false), bells: Arc::clone(bells) })
    }

    /// The stream can go on, as its owner knows, who looks for the next one anyway.
    pub(super) fn ring(&self) {
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            self.bells.rung().keys.push_back(self.key);
        }
    }

    /// The stream is looked at now: what comes from here on rings again. Returns the waker for it.
    pub(super) fn answer(self: &Arc<Self>) -> Waker {
        self.is_rung.store(false, Ordering::Release);
        Arc::clone(self).into()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
        let owner = self.bells.rung().owner.take();
        owner.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rings_once_until_it_is_answered_and_in_order() {
        let bells = Arc::new(Bells::default());
        let [one, two] = [1, 2].map(|key| Bell::new(key, &bells));
        [&two, &one, &two].into_iter().for_each(|bell| Arc::clone(bell).wake());
        assert_eq!([bells.next(), bells.next(), bells.next()], [Some(2), Some(1), None]);
        two.ring();
        assert_eq!(bells.next(), None, "it was not answered");
        two.answer().wake();
        assert_eq!(bells.next(), Some(2));
    }
}
