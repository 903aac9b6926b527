//! A worker's membership in a job.

mod agreeing;
mod joining;
mod together;

use std::borrow::Cow;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake};
use std::thread::{self, JoinHandle, Thread};
use std::time::Instant;

use gleaner_algorithms::device::Device;
use gleaner_algorithms::{Element, Membership, Method, Rank, Reduction};
use gleaner_transport::{Counters, Traffic};
use tokio::sync::oneshot;

use crate::compute::Compute;
use crate::failure::{Error, Failure};
use crate::gradients::Gradients;
use crate::layout::Layout;
use crate::mailbox::{Command, Mailbox};
use crate::notes::Purpose;
use crate::probe::{self, Probed};
use crate::reducer::{Reducer, SparseReducer};
use crate::roles::RoleMap;
use crate::server;
use crate::tag::SERVED;
use crate::timeline::{Recorder, Timeline};

/// One worker's membership in a job. All calls block; the I/O runs on a thread of its own. Dropping the session leaves the job.
///
/// ```
/// use gleaner_runtime::{Layout, Session};
/// use gleaner_algorithms::{Element, Method, Reduction};
///
/// // Without a launcher, this is a job of one worker.
/// let session = Session::join()?;
/// let layout = Layout::new().parameter("weights", 4).parameter("bias", 2);
/// let mut gradients = session.gradients(&layout, Method::spardl().density(0.5))?;
/// gradients.ready("bias", &[0.1, -3.0])?;
/// gradients.ready("weights", &[4.0, 0.2, 0.0, 0.3])?;
/// let update = gradients.wait()?;
/// let mut weights = vec![0.0; 4];
/// update.add_to("weights", &mut weights, -1.0)?;
/// assert_eq!(weights, [-4.0, 0.0, 0.0, -0.3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    pub(crate) inner: Arc<Inner>,
    /// How many `Gradients` and reducers were made.
    pub(crate) channels: AtomicU64,
    reducers: AtomicU64,
}

/// A worker's place in a job, and the means to reach the others.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) rank: Rank,
    pub(crate) workers: u32,
    pub(crate) role_map: RoleMap,
    pub(crate) coordinator: Rank,
    /// How often the set of workers has changed: part of the tags of all that belongs to steps and calls.
    pub(crate) epoch: u16,
    pub(crate) mailbox: Mailbox,
    failure: Arc<OnceLock<Failure>>,
}

pub(crate) struct Inner {
    pub(crate) job: Job,
    pub(crate) compute: Compute,
    pub(crate) counters: Arc<Counters>,
    pub(crate) recorder: Arc<Recorder>,
    /// Numbers that were given to groups.
    numbers: AtomicU32,
    /// Speeds of the network and the workers, once they were measured.
    pub(crate) probed: OnceLock<Probed>,
    /// The id of the run, once the coordinator has sent it.
    run: OnceLock<String>,
    /// The I/O thread, until the session ends.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Session {
    /// This worker's number, from 0 to world size − 1; parameter servers have the numbers after it.
    pub fn rank(&self) -> usize {
        self.inner.rank.index()
    }

    /// The number of workers, P.
    pub fn world_size(&self) -> usize {
        self.inner.workers as usize
    }

    /// Whether this rank is a parameter server and no worker: its program calls only [`serve`](Self::serve).
    pub fn is_server(&self) -> bool {
        self.inner.role_map.server(self.inner.rank.0).is_some()
    }

    /// The number of parameter servers, S.
    pub fn servers(&self) -> usize {
        self.inner.role_map.roles.servers as usize
    }

    /// Whether the servers live in the processes of the first workers.
    pub fn is_colocated(&self) -> bool {
        self.inner.role_map.roles.colocated
    }

    /// Serves until all workers have left. On a worker it returns at once.
    ///
    /// # Errors
    /// The job has failed.
    pub fn serve(&self) -> Result<(), Error> {
        if !self.is_server() {
            return Ok(());
        }
        let (served, serves) = oneshot::channel();
        self.inner.mailbox.send(Command::To(SERVED, Box::new(server::Message::Serve(served))));
        self.inner.answer(serves)
    }

    /// Bytes and messages that this worker sent and received, and links that it opened.
    pub fn traffic(&self) -> Traffic {
        self.inner.counters.read()
    }

    /// Agrees with all ranks on a layout and a method, and returns the handle that exchanges gradients. All ranks call it together. Where a sparse
    /// method is asked for no density and no k, each group delivers at least 256 entries.
    ///
    /// # Errors
    /// Ranks whose layout or method differs, named with the first difference; an invalid layout or method.
    pub fn gradients(&self, layout: &Layout, method: Method) -> Result<Gradients, Error> {
        self.inner.expect_worker()?;
        let channel = self.channels.fetch_add(1, Ordering::Relaxed);
        Gradients::new(self.inner.clone(), channel, layout, method, None)
    }

    /// [`gradients`](Self::gradients) whose residuals lie on a device, for gradients that are
    /// [handed over there](Gradients::ready_on_device). Other ranks may have theirs in main memory, or on other devices.
    ///
    /// # Errors
    /// As [`gradients`](Self::gradients); not enough memory on the device, and a method with momentum correction or local clipping,
    /// which are done in main memory.
    pub fn gradients_on(
        &self,
        device: Arc<dyn Device>,
        layout: &Layout,
        method: Method,
    ) -> Result<Gradients, Error> {
        self.inner.expect_worker()?;
        let channel = self.channels.fetch_add(1, Ordering::Relaxed);
        Gradients::new(self.inner.clone(), channel, layout, method, Some(device))
    }

    /// Agrees with all ranks on an all-reduce of n entries by a method. Its steps are started and run in the background, and
    /// several reducers may be under way at once. The name is for errors and for the update's one parameter.
    ///
    /// `Method::auto()` takes the method that is [expected](Self::probe) to be cheapest for n values of 32 bits, and stays
    /// with it. Measuring and steps that are under way disturb each other: make such a reducer before the first step.
    ///
    /// # Errors
    /// Ranks whose name, n or method differs; an invalid method.
    pub fn reducer(&self, name: &str, n: usize, method: Method) -> Result<Reducer, Error> {
        self.reducer_of(name, n, method, Reduction::Sum)
    }

    /// [`reducer`](Self::reducer) for values of another type, or by another reduction than the sum. Both are the same on all ranks.
    ///
    /// # Errors
    /// As [`reducer`](Self::reducer), and a reduction that has no residual with a method that leaves entries out.
    pub fn reducer_of<T: Element>(
        &self,
        name: &str,
        n: usize,
        method: Method,
        reduction: Reduction<T>,
    ) -> Result<Reducer<T>, Error> {
        self.inner.expect_worker()?;
        let stream = REDUCERS + self.reducers.fetch_add(1, Ordering::Relaxed);
        Reducer::new(self.inner.clone(), stream, name, n, method, reduction)
    }

    /// Agrees with all ranks on an all-reduce of vectors of n values that are sparse already, and given as entries. Otherwise like
    /// [`reducer`](Self::reducer). A method without a density delivers all entries.
    ///
    /// # Errors
    /// As [`reducer`](Self::reducer); n above 2³² − 1, and a method that cannot deliver all entries without looking at all n.
    pub fn sparse_reducer(&self, name: &str, n: usize, method: Method) -> Result<SparseReducer, Error> {
        self.sparse_reducer_of(name, n, method)
    }

    /// [`sparse_reducer`](Self::sparse_reducer) for values of another type. All ranks give the same.
    ///
    /// # Errors
    /// As [`sparse_reducer`](Self::sparse_reducer).
    pub fn sparse_reducer_of<T: Element>(
        &self,
        name: &str,
        n: usize,
        method: Method,
    ) -> Result<SparseReducer<T>, Error> {
        self.inner.expect_worker()?;
        let stream = REDUCERS + self.reducers.fetch_add(1, Ordering::Relaxed);
        SparseReducer::new(self.inner.clone(), stream, name, n, &method)
    }

    /// Measures the network and the workers' speed, for a gradient of about n entries: once in a session, all ranks
    /// together, in less than two seconds. The method `auto` chooses by these measurements.
    ///
    /// # Errors
    /// The job has failed.
    pub fn probe(&self, n: usize) -> Result<Probed, Error> {
        probe::probe(&self.inner, n)
    }

    /// Begins to record a timeline of all ranks; all ranks call it together. A recording that is running ends.
    ///
    /// # Errors
    /// The job has failed.
    pub fn timeline(&self) -> Result<Timeline, Error> {
        Timeline::start(Arc::clone(&self.inner))
    }

    /// Records what this program did in a step on the [timeline](Self::timeline); without one it does nothing.
    pub fn record(&self, step: u64, what: impl Into<Cow<'static, str>>, during: Range<Instant>) {
        self.inner.recorder.program(step, what, during);
    }

    /// [`record`](Self::record) for work of a device, on a track of its own, since the program continues meanwhile.
    pub fn record_on_device(&self, step: u64, what: impl Into<Cow<'static, str>>, during: Range<Instant>) {
        self.inner.recorder.device(step, what, during);
    }

    /// Ends the job on all ranks because this program cannot go on, and leaves. Every rank's calls and steps fail with this
    /// rank's name and the reason. A session that is dropped by a panic does the same with the panic's message.
    ///
    /// Returns why the job failed; if it had failed before, that earlier reason.
    pub fn abort(self, reason: &dyn std::fmt::Display) -> Error {
        self.give_up(reason)
    }

    /// [`abort`](Self::abort) for a program that shares the session, and leaves the job when the last owner is dropped.
    pub fn give_up(&self, reason: &dyn std::fmt::Display) -> Error {
        self.inner.fail(Failure {
            rank: self.inner.rank.0,
            step: None,
            reason: format!("its program failed: {reason}"),
        })
    }

    /// Waits until all ranks have called it.
    ///
    /// # Errors
    /// The job has failed.
    pub fn barrier(&self) -> Result<(), Error> {
        self.inner.agree(Purpose::Barrier, "")
    }

    /// Returns the notes of all ranks, in the order of the ranks: `notes[r]` has the bytes of rank r, whatever their
    /// number. For small control data: a note has less than 1 MiB. Of a worker that the others go on without it is empty.
    ///
    /// # Errors
    /// The job has failed.
    pub fn all_gather(&self, note: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        Ok(self.inner.gather(Purpose::Gather, note)?.into_iter().map(Vec::from).collect())
    }
}

/// Where the streams of reducers begin; those of gradients are below.
const REDUCERS: u64 = 255 << 16;

impl std::ops::Deref for Inner {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.job
    }
}

impl Job {
    /// Whether this worker is the coordinator.
    pub(crate) fn coordinates(&self) -> bool {
        self.rank == self.coordinator
    }

    /// This worker's place in the present membership.
    pub(crate) fn membership(&self) -> Membership {
        Membership { epoch: self.epoch, rank: self.rank, workers: self.workers }
    }

    /// Why the job failed, if it did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure.get().cloned()
    }

    /// Why something has no answer.
    pub(crate) fn ended(&self, step: Option<u64>) -> Failure {
        let reason = "its session ended before the call or the step did".into();
        self.failure().unwrap_or(Failure { rank: self.rank.0, step, reason })
    }
}

impl Inner {
    /// Numbers for this many groups, from this one on; all ranks ask in the same order.
    pub(crate) fn number(&self, count: u32) -> Option<u32> {
        let next = |first: u32| first.checked_add(count).filter(|next| *next <= SERVED);
        self.numbers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    /// Waits for an answer of the I/O thread.
    pub(crate) fn answer<T>(&self, answer: oneshot::Receiver<T>) -> Result<T, Error> {
        block_on(answer).map_err(|_| self.ended(None).into())
    }

    /// Ends the job for all ranks, and says why once they know: the first failure counts.
    pub(crate) fn fail(&self, failure: Failure) -> Error {
        let (answer, first) = oneshot::channel();
        self.mailbox.send(Command::Fail(failure.clone(), answer));
        Error::Failed(block_on(first).unwrap_or(failure))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if thread::panicking() {
            let said = joining::said();
            let reason = format!("its program panicked: {}", said.as_deref().unwrap_or("no message"));
            self.fail(Failure { rank: self.rank.0, step: None, reason });
        }
        let (left, leaves) = oneshot::channel();
        // A worker that dropped a handle and leaves has still promised its part of the step to the others.
        self.mailbox.send(Command::Leave(left));
        let _ = block_on(leaves);
        let io = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        io.into_iter().for_each(|io| drop(io.join()));
    }
}

/// Waits for a future on this thread, within a task of an async runtime too.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
