//! Executions on whole gradients, and how long each piece of work takes on the machine that simulates.
//!
//! Every worker has a thread of its own in each step, and a residual for the whole job. As many of them work at once as there are cores for
//! them, and the others wait. So each piece of work takes as long as beside the work of others, and it need not be known what an
//! entry costs. It says what this machine takes, and only while nothing else runs on it.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::{panic, thread};

use bytes::Bytes;
use gleaner_algorithms::collectives::Routine;
use gleaner_algorithms::residual::{Lent, Residual};
use gleaner_algorithms::schedule::Outgoing;
use gleaner_algorithms::{Membership, Method, Rank};

use super::executed::Source;
use super::trace::{Op, Part, Trace, Work};
use super::{Steps, on_all_cores};
use crate::Error;

/// Entries of all workers' gradients together, at most: each takes about 16 bytes.
pub const MOST_ENTRIES: usize = 1 << 28;

/// Workers, at most: each is a thread, and each pair of them has a queue.
pub const MOST_WORKERS: u32 = 64;

/// What happens in each of the steps that count, with so many workers at work `at_once`.
pub(super) fn traces(
    method: &Method,
    (workers, n): (u32, usize),
    (steps, at_once): (Steps, u32),
    source: Source<'_>,
) -> Result<Vec<Trace>, Error> {
    let mut all: Vec<Worker> =
        (0..workers).map(|rank| Worker::new(method, rank, workers, n)).collect::<Result<_, _>>()?;
    let cores = &Cores::new(at_once);
    let mut gradients = vec![vec![0.0; n]; all.len()];
    let mut traces = Vec::new();
    for step in 0..u64::from(steps.warm_up) + u64::from(steps.counted) {
        let ranks = (0..).zip(&mut gradients);
        on_all_cores(ranks, |(rank, gradient): (u32, &mut Vec<f32>)| source(rank, step, gradient));
        let reports: Vec<Result<Option<Done>, Error>> = thread::scope(|scope| {
            let own = mailboxes(all.len()).into_iter().zip(&mut all).zip(&gradients);
            let threads: Vec<_> = own
                .map(|((mailbox, worker), gradient)| {
                    scope.spawn(move || worker.step(gradient, Record::new(cores), &mailbox))
                })
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|ended| ended.unwrap_or_else(|panicked| panic::resume_unwind(panicked))).collect()
        });
        // A worker that has ended early says why.
        let reports = reports.into_iter().collect::<Result<Vec<_>, _>>()?;
        let done: Vec<Done> = reports.into_iter().flatten().collect();
        assert_eq!(
            done.len(),
            all.len(),
            "a worker that misses a message misses it because of a worker that says why"
        );
        let (rounds, delivered) = done.first().map_or((0, 0), |done| (done.rounds, done.delivered));
        if step >= u64::from(steps.warm_up) {
            let workers = done.into_iter().map(|done| done.ops).collect();
            traces.push(Trace { rounds, delivered: delivered as f64, workers });
        }
    }
    Ok(traces)
}

/// Where a worker's messages go and come from, by the other's rank.
#[derive(Default)]
struct Mailbox {
    outbox: Vec<Sender<Bytes>>,
    inbox: Vec<Receiver<Bytes>>,
}

fn mailboxes(workers: usize) -> Vec<Mailbox> {
    let mut all: Vec<Mailbox> = (0..workers).map(|_| Mailbox::default()).collect();
    for (from, to) in (0..workers).flat_map(|from| (0..workers).map(move |to| (from, to))) {
        let (sender, receiver) = mpsc::channel();
        all[from].outbox.push(sender);
        all[to].inbox.push(receiver);
    }
    all
}

/// What a worker did in a step.
struct Done {
    ops: Vec<Op>,
    rounds: u64,
    /// Entries of the update.
    delivered: usize,
}

/// A worker between two steps.
struct Worker {
    routine: Routine,
    residual: Residual<f32>,
}

impl Worker {
    fn new(method: &Method, rank: u32, workers: u32, n: usize) -> Result<Self, Error> {
        let routine = Routine::new(method.clone(), Membership::first(Rank(rank), workers), n, 0)?;
        let schedule = routine.prepared().program.schedule();
        let residual = Residual::new(schedule.partition.clone(), schedule.quotas());
        Ok(Self { residual: residual.corrected(method.correction()), routine })
    }

    /// Nothing if another worker ended before its last message.
    fn step(
        &mut self,
        gradient: &[f32],
        mut record: Record<'_>,
        Mailbox { outbox, inbox }: &Mailbox,
    ) -> Result<Option<Done>, Error> {
        let rounds = self.routine.prepared().cost.rounds;
        self.residual.accumulate(0, gradient)?;
        let Lent { version, accumulator, candidates } = self.residual.begin()?;
        let mut execution = self.routine.begin(accumulator, candidates);
        let mut outgoing = Vec::new();
        loop {
            let waiting = execution.go_on(&mut outgoing)?;
            record.took(Part::Select);
            record.send(&mut outgoing, outbox);
            let Some(from) = waiting else { break };
            let Some(payload) = record.receive(from, &inbox[from.index()]) else { return Ok(None) };
            execution.receive(from, payload, &mut outgoing)?;
            record.took(Part::Merge);
            record.send(&mut outgoing, outbox);
        }
        let finished = execution.finish()?;
        record.took(Part::Merge);
        let delivered = finished.entries();
        record.since = Instant::now();
        let changed = self.routine.learn(&finished)?;
        let collection = self.routine.method().collection();
        drop(self.residual.commit(version, finished, collection)?);
        if changed {
            let schedule = self.routine.prepared().program.schedule();
            self.residual.recut(schedule.partition.clone(), schedule.quotas())?;
        }
        record.took(Part::Merge);
        Ok(Some(Done { ops: record.ops, rounds, delivered }))
    }
}

/// What a worker does, written down while it has a core.
struct Record<'a> {
    cores: &'a Cores,
    core: Option<Core<'a>>,
    ops: Vec<Op>,
    since: Instant,
}

impl<'a> Record<'a> {
    /// Waits for a core.
    fn new(cores: &'a Cores) -> Self {
        Self { cores, core: Some(cores.take()), ops: Vec::new(), since: Instant::now() }
    }

    /// Since the last time, the worker did this.
    fn took(&mut self, part: Part) {
        self.ops.push(Op::Work(part, Work::Took(self.since.elapsed().as_secs_f32())));
        self.since = Instant::now();
    }

    fn send(&mut self, outgoing: &mut Vec<Outgoing>, outbox: &[Sender<Bytes>]) {
        for Outgoing { to, payload, .. } in outgoing.drain(..) {
            self.ops.push(Op::Send { to: to.0, bytes: payload.len() as f32 });
            // A worker that has ended early says why.
            let _ = outbox[to.index()].send(payload);
        }
        self.since = Instant::now();
    }

    /// Leaves the core to others unless the message is there; nothing if it never comes.
    fn receive(&mut self, from: Rank, inbox: &Receiver<Bytes>) -> Option<Bytes> {
        self.ops.push(Op::Receive { from: from.0 });
        let payload = inbox.try_recv().ok().or_else(|| {
            drop(self.core.take());
            let payload = inbox.recv().ok();
            self.core = Some(self.cores.take());
            payload
        });
        self.since = Instant::now();
        payload
    }
}

/// Cores that workers wait for.
struct Cores {
    free: Mutex<u32>,
    freed: Condvar,
}

impl Cores {
    fn new(count: u32) -> Self {
        Self { free: Mutex::new(count.max(1)), freed: Condvar::new() }
    }

    fn free(&self) -> MutexGuard<'_, u32> {
        // A worker that panicked gave its core back.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for one.
    fn take(&self) -> Core<'_> {
        let free = self.freed.wait_while(self.free(), |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        Core(self)
    }
}

/// A core that a worker has until this is dropped.
struct Core<'a>(&'a Cores);

impl Drop for Core<'_> {
    fn drop(&mut self) {
        *self.0.free() += 1;
        self.0.freed.notify_one();
    }
}
