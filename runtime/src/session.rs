//! A worker's membership in a job.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;
use std::panic;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, mpsc};
use std::task::{Context, Poll, Wake};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use gleaner_algorithms::{Element, Membership, Method, Rank, Reduction};
use gleaner_transport::tcp::JoinError;
use gleaner_transport::{Counters, Network, Traffic, memory, tcp};
use tokio::sync::oneshot;

use crate::compute::{self, Compute};
use crate::engine::Engine;
use crate::environment::Config;
use crate::failure::{Error, Failure, culprit};
use crate::gradients::Gradients;
use crate::io::Io;
use crate::layout::Layout;
use crate::mailbox::{Command, Mailbox, mailbox};
use crate::notes::Purpose;
use crate::probe::{self, Probed};
use crate::reducer::Reducer;
use crate::report;
use crate::seat::Seat;
use crate::tag::GRADIENTS;
use crate::timeline::{Recorder, Timeline};
use crate::worker::Worker;

mod agreeing;

/// One worker's membership in a job: the calls block, the work happens behind them. Dropping it leaves the job.
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
    /// How many gradient exchanges and reducers were made.
    pub(crate) channels: AtomicU64,
    reducers: AtomicU64,
}

/// A worker's place in a job, and whom to ask there.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) rank: Rank,
    pub(crate) workers: u32,
    pub(crate) coordinator: Rank,
    /// See [`Seat::epoch`].
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
    /// What the network and the workers are like, once it was measured.
    pub(crate) probed: OnceLock<Probed>,
    /// Which run this is, once the coordinator has said it.
    run: OnceLock<String>,
    /// The I/O thread, until the session ends.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Session {
    /// Joins the job that the environment describes: as started by `gleaner launch`, torchrun, Slurm or Open MPI.
    /// Without any of them, the job is this one worker.
    ///
    /// # Errors
    /// An environment that is incomplete or contradicts itself, or workers that do not come together within the time-out.
    pub fn join() -> Result<Self, Error> {
        Self::join_as(Config::from_environment()?)
    }

    /// Joins the job that `config` describes.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_as(config: Config) -> Result<Self, Error> {
        let (rank, timeout) = (config.rank, config.timeout);
        let Some(tcp) = config.tcp() else {
            let alone = memory::networks(1).into_iter().next();
            let Some(alone) = alone else { unreachable!("a network of one worker has one end") };
            return Self::over(async { Ok(alone) }, timeout);
        };
        if tcp.is_plain && rank == Seat::FIRST.0 {
            report::say(
                "gleaner: links are not encrypted (GLEANER_PLAIN): gradients can be read and forged between hosts",
            );
        }
        Self::over(tcp::join(tcp), timeout).inspect_err(|error| {
            if let Error::Join(error) = error
                && let Some(culprit) = culprit(error, rank)
            {
                report::failed(&Failure { rank: culprit, step: None, reason: error.to_string() });
            }
        })
    }

    /// Joins over a network of your own, or one of ours. It is made on the session's I/O thread, within a tokio runtime.
    ///
    /// # Errors
    /// A network that does not come about, or a system that refuses threads.
    pub fn over<N: Network + 'static>(
        network: impl Future<Output = Result<N, JoinError>> + Send + 'static,
        timeout: Duration,
    ) -> Result<Self, Error> {
        keep_memory();
        note_panics();
        let (mailbox, commands, bell) = mailbox();
        let refused = |error| Error::System("the worker's threads did not start", error);
        let compute = Compute::new(mailbox.clone());
        let failure: Arc<OnceLock<Failure>> = Arc::default();
        let recorder: Arc<Recorder> = Arc::default();
        let (joined, joins) = mpsc::channel();
        let (shared, computes, failed) = (mailbox.clone(), compute.clone(), Arc::clone(&failure));
        let records = Arc::clone(&recorder);
        let io = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(joined.send(Err(refused(error)))),
            };
            runtime.block_on(async {
                let network = match network.await {
                    Ok(network) => network,
                    Err(error) => return drop(joined.send(Err(error.into()))),
                };
                let (seat, counters) = (Seat::of(&network), network.counters());
                let worker = Worker::new(seat.rank.0, seat.workers, seat.coordinator.0, timeout);
                let io =
                    Io::new(Box::new(network), seat, worker, (shared, Arc::clone(&bell)), computes, records);
                let engine = Engine::new(io, commands, bell, failed, timeout);
                let _ = joined.send(Ok((seat, counters)));
                // A task of its own: it is woken on this thread without a system call.
                let _ = tokio::spawn(engine.run()).await;
            });
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("gleaner-io".into()).spawn(io).map_err(refused)?;
        let ended = || Error::System("the worker's I/O thread ended", std::io::ErrorKind::BrokenPipe.into());
        let (seat, counters) = joins.recv().map_err(|_| ended())??;
        let Seat { rank, workers, coordinator, epoch } = seat;
        let inner = Inner {
            job: Job { rank, workers, coordinator, epoch, mailbox, failure },
            compute,
            counters,
            recorder,
            numbers: AtomicU32::new(0),
            probed: OnceLock::new(),
            run: OnceLock::new(),
            thread: Mutex::new(Some(thread)),
        };
        Ok(Self { inner: Arc::new(inner), channels: AtomicU64::new(0), reducers: AtomicU64::new(0) })
    }

    /// This worker's number, from 0 to world size − 1.
    pub fn rank(&self) -> usize {
        self.inner.rank.index()
    }

    /// The number of workers, P.
    pub fn world_size(&self) -> usize {
        self.inner.workers as usize
    }

    /// Bytes and messages that this worker sent and received, and links that it opened.
    pub fn traffic(&self) -> Traffic {
        self.inner.counters.read()
    }

    /// Agrees with all ranks on a layout and a method, and starts to synchronise gradients by them.
    ///
    /// # Errors
    /// Ranks whose layout or method differs, named with the first difference; a layout or method that cannot be.
    pub fn gradients(&self, layout: &Layout, method: Method) -> Result<Gradients, Error> {
        let channel = self.channels.fetch_add(1, Ordering::Relaxed);
        Gradients::new(self.inner.clone(), channel, layout, method)
    }

    /// Agrees with all ranks on an all-reduce of n entries by a method. Its steps are started without waiting for them, and
    /// several reducers may be under way at once. The name is for errors and for the update's one parameter.
    ///
    /// `Method::auto()` takes the method that is [expected](Self::probe) to be cheapest for n values of 32 bits, and stays
    /// with it. Measuring disturbs steps that are under way, and they what is measured: make such a reducer before them.
    ///
    /// # Errors
    /// Ranks whose name, n or method differs; a method that cannot be.
    pub fn reducer(&self, name: &str, n: usize, method: Method) -> Result<Reducer, Error> {
        self.reducer_of(name, n, method, Reduction::Sum)
    }

    /// [`reducer`](Self::reducer) for values of another type, or by another reduction than the sum. All ranks give the same.
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
        let stream = REDUCERS + self.reducers.fetch_add(1, Ordering::Relaxed);
        Reducer::new(self.inner.clone(), stream, name, n, method, reduction)
    }

    /// Measures the network and the workers' speed, for a gradient of about n entries: once in a session, all ranks
    /// together, in less than two seconds. What the method `auto` computes with.
    ///
    /// # Errors
    /// The job has failed.
    pub fn probe(&self, n: usize) -> Result<Probed, Error> {
        probe::probe(&self.inner, n)
    }

    /// Begins to record what each rank does when; all ranks call it together. The one before ends, if there is one.
    ///
    /// # Errors
    /// The job has failed.
    pub fn timeline(&self) -> Result<Timeline, Error> {
        Timeline::start(Arc::clone(&self.inner))
    }

    /// What this program did in a step, for the [timeline](Self::timeline); without one, nothing happens.
    pub fn record(&self, step: u64, what: impl Into<Cow<'static, str>>, during: Range<Instant>) {
        self.inner.recorder.program(step, what, during);
    }

    /// Ends the job on all ranks because this program cannot go on, and leaves. Every rank's calls and steps fail with this
    /// rank's name and the reason. A session that is dropped by a panic does the same with the panic's message.
    ///
    /// Returns why the job failed: if it had failed before, that counts.
    pub fn abort(self, reason: &dyn std::fmt::Display) -> Error {
        self.inner.fail(Failure {
            rank: self.inner.rank.0,
            step: None,
            reason: format!("its program failed: {reason}"),
        })
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// The job has failed.
    pub fn barrier(&self) -> Result<(), Error> {
        self.inner.agree(Purpose::Barrier, "")
    }

    /// Gives every rank the notes of all ranks, in the order of the ranks. For small control data: a note has
    /// less than 1 MiB.
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
    /// Numbers for so many groups, from this one on; all ranks ask in the same order.
    pub(crate) fn number(&self, count: u32) -> Option<u32> {
        let next = |first: u32| first.checked_add(count).filter(|next| *next <= GRADIENTS);
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
            let said = PANIC.with_borrow(Clone::clone);
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

thread_local! {
    /// What the last panic of this thread said.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Has panics noted, besides what is done with them otherwise, so that a session that is dropped by one can say why.
fn note_panics() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANIC.with_borrow_mut(|noted| *noted = Some(compute::said(info.payload()).to_owned()));
            hook(info);
        }));
    });
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

/// Lets the allocator keep what it is given back. Every step takes and frees some megabytes; glibc would return them to the
/// system each time and have the pages zeroed again, until the largest block that was ever freed tells it that blocks of
/// that size come and go. So one is freed here, which was never touched. Other allocators do not mind.
fn keep_memory() {
    const LARGEST: usize = 31 << 20;
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGEST)));
}
