//! Compute actors: threads that choose entries, merge large bags and commit residuals, so that links and trainers go on.
//!
//! A task takes what it works on with it and sends it back as a message. The queue is bounded: a thread that brings more work than is
//! done waits. A task that panics ends the job with a sentence. What waits for a gradient on a device has a queue and a thread of its own: a
//! program that runs ahead of its device begins all groups before the first gradient is there, and the groups that have theirs go on.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::mailbox::{Command, Mailbox};

/// A piece of work.
pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// Tasks that may wait.
const WAITING: usize = 1024;

/// Threads at most. Selection runs at the speed of memory, which few threads exhaust.
const THREADS: usize = 4;

/// See the module. The threads start with the first task, as many as there are processors and at most [`THREADS`], and end
/// with the last of it.
#[derive(Clone)]
pub(crate) struct Compute(Arc<Queues>);

struct Queues {
    mailbox: Mailbox,
    works: Threads,
    waits: Threads,
}

/// Threads that share a queue.
#[derive(Default)]
struct Threads {
    started: OnceLock<()>,
    queue: Arc<Queue>,
}

/// Tasks that wait. Each wakes one thread, and no other.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    has_room: Condvar,
}

#[derive(Default)]
struct Waiting {
    tasks: VecDeque<Task>,
    threads: usize,
    is_closed: bool,
}

impl Compute {
    pub(crate) fn new(mailbox: Mailbox) -> Self {
        Self(Arc::new(Queues { mailbox, works: Threads::default(), waits: Threads::default() }))
    }

    /// Hands a task in; waits while the queue is full, and says how long it did.
    pub(crate) fn submit(&self, task: Task) -> Duration {
        self.queue().submit(task)
    }

    /// The same for a task that waits for a gradient on a device. Such tasks are done one after the other: a device adds gradients in the
    /// order in which they are given, and a task hands what follows to the other threads. With two devices, one waits for the other.
    pub(crate) fn submit_wait(&self, task: Task) -> Duration {
        let Queues { mailbox, waits, .. } = &*self.0;
        waits.started("wait", || 1, mailbox).submit(task)
    }

    /// Hands a task in, or gives it back while the queue is full.
    pub(crate) fn offer(&self, task: Task) -> Result<(), Task> {
        let queue = self.queue();
        let waiting = queue.waiting();
        if waiting.tasks.len() == WAITING {
            return Err(task);
        }
        queue.push(waiting, task);
        Ok(())
    }

    fn queue(&self) -> &Queue {
        let Queues { mailbox, works, .. } = &*self.0;
        let threads = || thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        works.started("work", threads, mailbox)
    }
}

impl Threads {
    /// The queue, with threads of this name that take from it.
    fn started(&self, name: &str, threads: impl FnOnce() -> usize, mailbox: &Mailbox) -> &Queue {
        self.started
            .get_or_init(|| (0..threads()).for_each(|number| start(name, number, &self.queue, mailbox)));
        &self.queue
    }
}

impl Queue {
    fn submit(&self, task: Task) -> Duration {
        let (mut waiting, mut since) = (self.waiting(), None);
        while waiting.tasks.len() == WAITING {
            since.get_or_insert_with(Instant::now);
            waiting = self.has_room.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        self.push(waiting, task);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, mut waiting: MutexGuard<'_, Waiting>, task: Task) {
        if waiting.threads == 0 {
            // The system refused threads: it is slow here, and right.
            drop(waiting);
            return task();
        }
        waiting.tasks.push_back(task);
        drop(waiting);
        self.filled.notify_one();
    }

    /// The next task; none when no more will come.
    fn next(&self) -> Option<Task> {
        let mut waiting = self.waiting();
        loop {
            if let Some(task) = waiting.tasks.pop_front() {
                let was_full = waiting.tasks.len() + 1 == WAITING;
                drop(waiting);
                if was_full {
                    self.has_room.notify_all();
                }
                return Some(task);
            }
            if waiting.is_closed {
                return None;
            }
            waiting = self.filled.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queue.waiting().is_closed = true;
        self.queue.filled.notify_all();
    }
}

fn start(name: &str, number: usize, queue: &Arc<Queue>, mailbox: &Mailbox) {
    let (tasks, mailbox) = (Arc::clone(queue), mailbox.clone());
    let work = move || {
        while let Some(task) = tasks.next() {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(task)) {
                mailbox.send(Command::Panicked(sentence(&*panic)));
            }
        }
    };
    // One is enough, and without any the tasks are done where they are handed in.
    let started = thread::Builder::new().name(format!("gleaner-{name}-{number}")).spawn(work);
    queue.waiting().threads += usize::from(started.is_ok());
}

/// What a panic of ours said, as a reason to fail.
pub(crate) fn sentence(panic: &(dyn Any + Send)) -> String {
    format!("it panicked: {}; this is a defect of Gleaner or of a method, please report it", said(panic))
}

/// What a panic said.
pub(crate) fn said(panic: &(dyn Any + Send)) -> &str {
    let said = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    said.unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::mailbox;

    /// Fills the queue while the threads are held up, says for how long the next task waited, and on which threads tasks ran.
    fn overfill() -> (Duration, Vec<String>) {
        let (mailbox, _commands, _bell) = mailbox::mailbox();
        let compute = Compute::new(mailbox);
        let gate = Arc::new(Mutex::new(()));
        let (names, ran) = mpsc::channel();
        let task = || -> Task {
            let (gate, names) = (Arc::clone(&gate), names.clone());
            Box::new(move || {
                drop(gate.lock());
                names.send(thread::current().name().unwrap_or_default().to_owned()).unwrap();
            })
        };
        let held = gate.lock().unwrap();
        compute.queue();
        let threads = compute.queue().waiting().threads;
        for _ in 0..WAITING + threads {
            compute.submit(task());
        }
        assert!(compute.offer(task()).is_err(), "the queue is full");
        let last = task();
        let blocked = thread::scope(|scope| {
            let submitted = scope.spawn(|| compute.submit(last));
            thread::sleep(Duration::from_millis(20));
            drop(held);
            submitted.join().unwrap()
        });
        let names = ran.iter().take(WAITING + threads + 1).collect();
        (blocked, names)
    }

    /// A trainer that brings more than is done waits, and learns how long; none of it is done on its own thread.
    #[test]
    fn a_full_queue_holds_up_who_brings_more() {
        // The thread that submits may begin when the others have gone on already.
        let (blocked, names) =
            (0..10).map(|_| overfill()).find(|(blocked, _)| !blocked.is_zero()).expect("it waited once");
        assert!(blocked < Duration::from_secs(5), "{blocked:?}");
        assert!(names.iter().all(|name| name.starts_with("gleaner-work-")), "{names:?}");
    }

    /// Many groups whose gradients are still to come hold up none that has its own: what waits has a thread of its own, and goes on in order.
    #[test]
    fn what_waits_for_a_device_holds_up_no_work() {
        let (mailbox, _commands, _bell) = mailbox::mailbox();
        let compute = Compute::new(mailbox);
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock().unwrap();
        let (done, came) = mpsc::channel();
        for number in 0..2 * THREADS {
            let (gate, done, compute) = (Arc::clone(&gate), done.clone(), compute.clone());
            compute.clone().submit_wait(Box::new(move || {
                drop(gate.lock());
                compute.submit(Box::new(move || done.send(Some(number)).unwrap()));
            }));
        }
        compute.submit(Box::new(move || done.send(None).unwrap()));
        assert_eq!(came.recv_timeout(Duration::from_secs(60)), Ok(None));
        drop(held);
        let mut rest: Vec<Option<usize>> = came.iter().collect();
        rest.sort_unstable();
        assert_eq!(rest, (0..2 * THREADS).map(Some).collect::<Vec<_>>());
    }
}
