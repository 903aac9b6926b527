//! Runs schedules: an actor that starts a task for each group of each step. It knows no method.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_algorithms::schedule::{Execution, ExecutionError, Fault, Finished, Outgoing, Program, Progress};
use gleaner_algorithms::{Element, Rank};
use gleaner_transport::{Message, Peer};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{oneshot, watch};

use crate::failure::Failure;
use crate::inbox::Reading;
use crate::post::{Post, UnderWay};
use crate::steps::{Cause, Stand};
use crate::tag::{StepId, Topic};
use crate::worker::WorkerMessage;

/// Work on gradients of at least so many entries keeps a thread busy long enough to give it up for others.
const LONG: usize = 1 << 16;

/// See the module.
pub(crate) struct Algorithm;

pub(crate) struct AlgorithmArguments {
    pub(crate) post: Arc<Post>,
    pub(crate) worker: ActorRef<WorkerMessage>,
}

/// One group of one step, ready to be exchanged.
pub(crate) struct Run<T: Element = f32> {
    pub(crate) id: StepId,
    pub(crate) step: u64,
    pub(crate) program: Arc<Program>,
    pub(crate) execution: Execution<T>,
    pub(crate) done: oneshot::Sender<Result<(Finished<T>, RunTimes), Stopped>>,
}

/// Why a run did not finish.
#[derive(Clone, Debug)]
pub(crate) enum Stopped {
    /// The job has failed.
    Failed(Failure),
    /// A rank asked for it.
    Cancelled { by: u32, cause: Cause },
}

/// What comes of a run.
pub(crate) type Done<T = f32> = oneshot::Receiver<Result<(Finished<T>, RunTimes), Stopped>>;

/// Where the time of a run went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunTimes {
    /// Choosing entries and preparing messages.
    pub(crate) select: Duration,
    /// Taking received entries in and putting the result together.
    pub(crate) merge: Duration,
    /// From start to end.
    pub(crate) total: Duration,
}

/// A run of values of whatever type, ready to be driven.
pub(crate) type Job = Box<dyn FnOnce(Arc<Post>, ActorRef<WorkerMessage>) -> JobTask + Send>;

type JobTask = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<T: Element> Run<T> {
    /// What the actor is given.
    pub(crate) fn job(self, mut under_way: UnderWay) -> Job {
        Box::new(move |post, worker| {
            Box::pin(async move {
                let Run { id, step, program, execution, done } = self;
                let driven = drive(&post, id, &mut under_way.stand, &program, execution).await;
                let result = driven.map_err(|stopped| match stopped {
                    Stopped::Failed(failure) => {
                        let failure = Failure { step: failure.step.or(Some(step)), ..failure };
                        let _ = worker.cast(WorkerMessage::Fail(failure.clone()));
                        Stopped::Failed(failure)
                    }
                    cancelled @ Stopped::Cancelled { .. } => cancelled,
                });
                drop(under_way);
                // Nobody waits any more when the trainer gave up; the step is complete for the others all the same.
                let _ = done.send(result);
            })
        })
    }
}

impl Actor for Algorithm {
    type Msg = Job;
    type State = AlgorithmArguments;
    type Arguments = AlgorithmArguments;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        arguments: AlgorithmArguments,
    ) -> Result<AlgorithmArguments, ActorProcessingErr> {
        Ok(arguments)
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        job: Self::Msg,
        state: &mut AlgorithmArguments,
    ) -> Result<(), ActorProcessingErr> {
        tokio::spawn(job(state.post.clone(), state.worker.clone()));
        Ok(())
    }
}

/// What comes of a frozen step whose exchange ended early: whoever was told before this rank that it is cancelled may have
/// left already. None if it is not cancelled.
async fn verdict(post: &Post, stand: &mut watch::Receiver<Stand>) -> Option<Stopped> {
    let mut failed = post.failed();
    tokio::select! {
        heard = stand.wait_for(|stand| *stand != Stand::Frozen) => match *heard.ok()? {
            Stand::Cancelled { by, cause } => Some(Stopped::Cancelled { by, cause }),
            Stand::Free | Stand::Frozen => None,
        },
        failure = failed.wait_for(Option::is_some) => failure.ok()?.clone().map(Stopped::Failed),
    }
}

/// Exchanges, and finishes when that is allowed.
async fn drive<T: Element>(
    post: &Post,
    id: StepId,
    stand: &mut watch::Receiver<Stand>,
    program: &Program,
    execution: Execution<T>,
) -> Result<(Finished<T>, RunTimes), Stopped> {
    let exchanged = tokio::select! {
        biased;
        stopped = cancelled(stand) => return Err(stopped),
        exchanged = exchange(post, Topic::Bags(id), program, execution) => exchanged,
    };
    let exchanged = match exchanged {
        Ok(exchanged) => exchanged,
        Err(failure) => return Err(verdict(post, stand).await.unwrap_or(Stopped::Failed(failure))),
    };
    let mut failed = post.failed();
    while !post.about_steps(|steps| steps.finish(id)) {
        let mut thawed = stand.clone();
        tokio::select! {
            stopped = cancelled(stand) => return Err(stopped),
            _ = thawed.wait_for(|stand| *stand == Stand::Free) => {}
            failure = failed.wait_for(Option::is_some) => {
                if let Some(failure) = failure.ok().and_then(|failure| failure.clone()) {
                    return Err(Stopped::Failed(failure));
                }
            }
        }
    }
    Ok(exchanged)
}

/// Waits until the step is cancelled.
async fn cancelled(stand: &mut watch::Receiver<Stand>) -> Stopped {
    let mut stopped = None;
    let heard = stand.wait_for(|stand| {
        if let Stand::Cancelled { by, cause } = *stand {
            stopped = Some(Stopped::Cancelled { by, cause });
        }
        stopped.is_some()
    });
    drop(heard.await);
    match stopped {
        Some(stopped) => stopped,
        // The step is over otherwise.
        None => std::future::pending().await,
    }
}

/// A step for which this rank has no values to send: asks all ranks to leave it out, and waits until they do. Nobody can
/// finish it meanwhile, as nobody can without this rank.
pub(crate) async fn leave_out(post: &Post, mut under_way: UnderWay) -> Stopped {
    post.about_steps(|steps| steps.ask(under_way.id, Cause::NonFinite));
    let mut failed = post.failed();
    let failure = async {
        let failure = failed.wait_for(Option::is_some).await.ok()?.clone();
        failure.map(Stopped::Failed)
    };
    tokio::select! {
        stopped = cancelled(&mut under_way.stand) => stopped,
        // Without a failure the session has ended, and this task ends with it.
        Some(stopped) = failure => stopped,
    }
}

/// Drives one execution: sends what comes out, feeds what comes in.
async fn exchange<T: Element>(
    post: &Post,
    topic: Topic,
    program: &Program,
    mut execution: Execution<T>,
) -> Result<(Finished<T>, RunTimes), Failure> {
    let started = Instant::now();
    let mut times = RunTimes::default();
    let schedule = program.schedule();
    let tag = topic.tag();
    let mut readings: Vec<(Rank, Reading<'_>)> =
        schedule.peers().into_iter().map(|rank| (rank, post.inbox.open(Peer(rank.0), tag))).collect();
    let mut outbox = Vec::new();
    let outgoing = |outbox: &mut Vec<Outgoing>| {
        for Outgoing { to, payload, .. } in outbox.drain(..) {
            post.send(Peer(to.0), Message { tag, payload });
        }
    };
    loop {
        let clock = Instant::now();
        let progress = execution.advance(&mut outbox).map_err(|error| blame(post.rank, error))?;
        outgoing(&mut outbox);
        let waiting = match progress {
            Progress::Work(work) => {
                execution.complete(at_length(work.entries(), || work.run()));
                None
            }
            Progress::Waiting(from) => Some(from),
            Progress::Working => return Err(blame(post.rank, Fault::Elsewhere.into())),
            Progress::Finished => break,
        };
        times.select += clock.elapsed();
        let Some(from) = waiting else { continue };
        let Some((_, reading)) = readings.iter_mut().find(|(rank, _)| *rank == from) else {
            unreachable!("a schedule's peers include all that it receives from")
        };
        let payload = reading.next().await?;
        let clock = Instant::now();
        execution.receive(from, payload, &mut outbox).map_err(|error| blame(post.rank, error))?;
        outgoing(&mut outbox);
        times.merge += clock.elapsed();
    }
    let clock = Instant::now();
    let finished = execution.finish();
    times.merge += clock.elapsed();
    times.total = started.elapsed();
    Ok((finished, times))
}

/// Does work on so many entries within a task; gives the thread up to the other tasks where it takes long.
pub(crate) fn at_length<T>(entries: usize, work: impl FnOnce() -> T) -> T {
    if entries >= LONG { tokio::task::block_in_place(work) } else { work() }
}

fn blame(this: Rank, error: ExecutionError) -> Failure {
    let rank = match &error {
        ExecutionError::Decode { from, .. } | ExecutionError::Unexpected { from } => *from,
        ExecutionError::Overflow { .. }
        | ExecutionError::Sum { .. }
        | ExecutionError::NotASum { .. }
        | ExecutionError::Fault(_) => this,
    };
    Failure { rank: rank.0, step: None, reason: error.to_string() }
}
