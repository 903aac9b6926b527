//! A worker's membership in a job.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gleaner_algorithms::{Element, Method, Reduction};
use gleaner_transport::tcp::JoinError;
use gleaner_transport::{LinkEvent, Network, Traffic, memory, tcp};
use ractor::{Actor, ActorRef};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{oneshot, watch};

use crate::algorithm::{self, Algorithm, AlgorithmArguments, Done, Job, Run};
use crate::environment::Config;
use crate::failure::{Error, Failure};
use crate::gradients::Gradients;
use crate::layout::{Layout, LayoutError};
use crate::notes::{self, Purpose};
use crate::post::{Post, UnderWay};
use crate::probe::{self, Probed};
use crate::reducer::Reducer;
use crate::report;
use crate::tag::{REDUCERS, StepId};
use crate::worker::{Worker, WorkerArguments, WorkerMessage};

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
    channels: AtomicU32,
    reducers: AtomicU32,
}

pub(crate) struct Inner {
    /// Taken when the session ends.
    runtime: Option<Runtime>,
    pub(crate) post: Arc<Post>,
    worker: ActorRef<WorkerMessage>,
    algorithm: ActorRef<Job>,
    calls: AtomicU32,
    /// What the network and the workers are like, once it was measured.
    pub(crate) probed: OnceLock<Probed>,
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
        let runtime = runtime()?;
        let timeout = config.timeout;
        let (network, events): (Arc<dyn Network>, _) = match config.tcp() {
            None => {
                let Some((network, events)) = memory::networks(1).pop() else {
                    unreachable!("a network of one worker has one end")
                };
                (Arc::new(network), events)
            }
            Some(tcp) => {
                let (network, events) = runtime.block_on(tcp::join(tcp)).inspect_err(|error| {
                    if let Some(culprit) = culprit(error, config.rank) {
                        report::failed(culprit, None, &error.to_string());
                    }
                })?;
                (Arc::new(network), events)
            }
        };
        Self::start(runtime, network, events, timeout)
    }

    /// Joins over a network that exists already: one of ours in memory, or one of your own.
    ///
    /// # Errors
    /// A system that refuses threads.
    pub fn over(
        network: Arc<dyn Network>,
        events: UnboundedReceiver<LinkEvent>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::start(runtime()?, network, events, timeout)
    }

    fn start(
        runtime: Runtime,
        network: Arc<dyn Network>,
        mut events: UnboundedReceiver<LinkEvent>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        keep_memory();
        let (failed, failure) = watch::channel(None);
        let post = Arc::new(Post::new(network, timeout, failure));
        let (worker, algorithm) = runtime
            .block_on(async {
                let arguments = WorkerArguments { post: post.clone(), failure: failed };
                let (worker, _) = Worker::spawn(None, Worker, arguments).await?;
                let arguments = AlgorithmArguments { post: post.clone(), worker: worker.clone() };
                let (algorithm, _) =
                    Algorithm::spawn_linked(None, Algorithm, arguments, worker.get_cell()).await?;
                let to_worker = worker.clone();
                tokio::spawn(async move {
                    while let Some(event) = events.recv().await {
                        let _ = to_worker.cast(WorkerMessage::Network(event));
                    }
                });
                Ok::<_, ractor::SpawnErr>((worker, algorithm))
            })
            .map_err(|e| Error::System("the worker's actors did not start", std::io::Error::other(e)))?;
        let (calls, probed) = (AtomicU32::new(0), OnceLock::new());
        let inner = Inner { runtime: Some(runtime), post, worker, algorithm, calls, probed };
        Ok(Self { inner: Arc::new(inner), channels: AtomicU32::new(0), reducers: AtomicU32::new(0) })
    }

    /// This worker's number, from 0 to world size − 1.
    pub fn rank(&self) -> usize {
        self.inner.post.rank.index()
    }

    /// The number of workers, P.
    pub fn world_size(&self) -> usize {
        self.inner.post.workers as usize
    }

    /// Bytes and messages that this worker sent and received, and links that it opened.
    pub fn traffic(&self) -> Traffic {
        self.inner.post.traffic()
    }

    /// Agrees with all ranks on a layout and a method, and starts to synchronise gradients by them.
    ///
    /// # Errors
    /// Ranks whose layout or method differs, named with the first difference; a layout or method that cannot be.
    pub fn gradients(&self, layout: &Layout, method: Method) -> Result<Gradients, Error> {
        let channel = u8::try_from(self.channels.fetch_add(1, Ordering::Relaxed)).ok();
        let channel = channel.filter(|&channel| channel != REDUCERS).ok_or(LayoutError::TooManyGradients)?;
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
        let number = u16::try_from(self.reducers.fetch_add(1, Ordering::Relaxed));
        let number = number.map_err(|_| LayoutError::TooManyReducers)?;
        Reducer::new(self.inner.clone(), number, name, n, method, reduction)
    }

    /// Measures the network and the workers' speed, for a gradient of about n entries: once in a session, all ranks
    /// together, in less than two seconds. What the method `auto` reckons with.
    ///
    /// # Errors
    /// The job has failed.
    pub fn probe(&self, n: usize) -> Result<Probed, Error> {
        probe::probe(&self.inner, n)
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// The job has failed.
    pub fn barrier(&self) -> Result<(), Error> {
        self.inner.gather(Purpose::Barrier, &[]).map(drop)
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

impl Inner {
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let Some(runtime) = &self.runtime else {
            unreachable!("the runtime is taken only when the session ends")
        };
        runtime.block_on(future)
    }

    pub(crate) fn gather(&self, purpose: Purpose, note: &[u8]) -> Result<Vec<bytes::Bytes>, Error> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.block_on(notes::all_gather(&self.post, call, purpose, note))
            .map_err(|failure| self.fail(failure))
    }

    /// Fails unless all ranks wrote the same lines.
    pub(crate) fn agree(&self, purpose: Purpose, lines: &str) -> Result<(), Error> {
        let notes = self.gather(purpose, lines.as_bytes())?;
        notes::agree(&notes).map_err(|failure| self.fail(failure))
    }

    /// Ends the job for all ranks, and says why once they know: the first failure counts.
    pub(crate) fn fail(&self, failure: Failure) -> Error {
        let _ = self.worker.cast(WorkerMessage::Fail(failure.clone()));
        Error::Failed(self.block_on(self.post.first_failure(failure)))
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }

    pub(crate) fn run<T: Element>(&self, run: Run<T>) {
        let under_way = UnderWay::new(self.post.clone(), run.id);
        let _ = self.worker.cast(WorkerMessage::Step(run.step));
        let _ = self.algorithm.cast(run.job(under_way));
    }

    /// Begins a step in which this rank takes no part, so that all leave it out.
    pub(crate) fn leave_out<T: Element>(&self, id: StepId, step: u64) -> Done<T> {
        let under_way = UnderWay::new(self.post.clone(), id);
        let _ = self.worker.cast(WorkerMessage::Step(step));
        let (done, running) = oneshot::channel();
        let post = self.post.clone();
        self.spawn(async move {
            let stopped = algorithm::leave_out(&post, under_way).await;
            // Nobody waits any more when the trainer gave up.
            let _ = done.send(Err(stopped));
        });
        running
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if !std::thread::panicking() {
            // Whoever dropped a handle and leaves has still promised its part of the step to the others.
            runtime.block_on(self.post.settled());
        }
        let (done, left) = oneshot::channel();
        if self.worker.cast(WorkerMessage::Leave(done)).is_ok() {
            let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(3), left).await });
        }
        runtime.shutdown_timeout(Duration::from_millis(200));
    }
}

/// Lets the allocator keep what it is given back. Every step takes and frees some megabytes; glibc would return them to the
/// system each time and have the pages zeroed again, until the largest block that was ever freed tells it that blocks of
/// that size come and go. So one is freed here, which was never touched. Other allocators do not mind.
fn keep_memory() {
    const LARGEST: usize = 31 << 20;
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGEST)));
}

/// Who is to blame that the workers did not come together, as far as this one knows.
fn culprit(error: &JoinError, this: u32) -> Option<u32> {
    match error {
        JoinError::Missing { missing, .. } => missing.first().map(|peer| peer.0),
        JoinError::Left { peer, .. } => Some(peer.0),
        JoinError::Lost { .. } | JoinError::NoOutcome { .. } => Some(0),
        // Rank 0 knows who.
        JoinError::Failed { .. } => None,
        _ => Some(this),
    }
}

fn runtime() -> Result<Runtime, Error> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("gleaner")
        .enable_all()
        .build()
        .map_err(|e| Error::System("the worker's threads did not start", e))
}
