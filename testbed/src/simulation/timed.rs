//! Real bags of whole gradients, and how long each piece of work takes on the machine that simulates.
//!
//! Every worker has a thread, with memory of its own as a process has it, and they take turns: one works, the others wait. So
//! each piece of work takes as long as on a machine that is the worker's alone, and nobody has to know what an entry costs. It
//! says what this machine takes, and only while nothing else runs on it.

use std::num::NonZero;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use gleaner_algorithms::collectives::Routine;
use gleaner_algorithms::residual::Residual;
use gleaner_algorithms::schedule::{Outgoing, Progress};
use gleaner_algorithms::{Method, Rank};

use super::carried::{CarriedError, Source, WARM_UP};
use super::trace::{Op, Part, Trace, Work};

/// Entries of all workers' gradients together, at most: each takes about 16 bytes.
pub const MOST_ENTRIES: usize = 1 << 28;

/// Workers, at most: each is a thread, and each pair of them has a queue.
pub const MOST_WORKERS: u32 = 64;

/// What happens in each of so many steps after the warm-up.
///
/// # Errors
/// As [`carried::traces`](super::carried::traces).
pub(super) fn traces(
    method: Method,
    (workers, n): (u32, usize),
    steps: u32,
    source: Source<'_>,
) -> Result<Vec<Trace>, CarriedError> {
    let mut gradients = vec![vec![0.0; n]; workers as usize];
    let mut all: Vec<Worker> =
        (0..workers).map(|rank| Worker::new(method, rank, workers, n)).collect::<Result<_, _>>()?;
    let mut traces = Vec::new();
    for step in 0..WARM_UP + u64::from(steps) {
        fill(&mut gradients, step, source);
        let rounds = all.first().map_or(0, |worker| worker.routine.prepared().cost.rounds);
        let done = together(&mut all, &gradients)?;
        if step >= WARM_UP {
            let delivered = done.first().map_or(0, |done| done.delivered) as f64;
            traces.push(Trace {
                workers: done.into_iter().map(|done| done.ops).collect(),
                rounds,
                delivered,
            });
        }
    }
    Ok(traces)
}

/// Makes all gradients of a step, on all cores.
fn fill(gradients: &mut [Vec<f32>], step: u64, source: Source<'_>) {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let each = gradients.len().div_ceil(cores).max(1);
    thread::scope(|scope| {
        for (first, gradients) in (0u32..).step_by(each).zip(gradients.chunks_mut(each)) {
            scope.spawn(move || {
                (first..).zip(gradients).for_each(|(rank, gradient)| source(rank, step, gradient));
            });
        }
    });
}

/// One step of all workers.
fn together(workers: &mut [Worker], gradients: &[Vec<f32>]) -> Result<Vec<Done>, CarriedError> {
    let turn = Mutex::new(());
    let count = workers.len();
    // By receiver, from every sender.
    let mut inboxes: Vec<Vec<Receiver<Bytes>>> = (0..count).map(|_| Vec::new()).collect();
    let mut outboxes: Vec<Vec<Sender<Bytes>>> = Vec::new();
    for _ in 0..count {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel()).unzip();
        outboxes.push(senders);
        inboxes.iter_mut().zip(receivers).for_each(|(inbox, receiver)| inbox.push(receiver));
    }
    let turn = &turn;
    let results: Vec<Result<Option<Done>, CarriedError>> = thread::scope(|scope| {
        let each = workers.iter_mut().zip(gradients).zip(outboxes.into_iter().zip(inboxes));
        let threads: Vec<_> = each
            .map(|((worker, gradient), (outbox, inbox))| {
                scope.spawn(move || worker.step(gradient, Record::new(turn), &outbox, &inbox))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(None))).collect()
    });
    let mut done = Vec::with_capacity(count);
    for result in results {
        done.extend(result?);
    }
    assert_eq!(done.len(), count, "whoever misses a message misses it because of a worker that says why");
    Ok(done)
}

/// A worker between two steps.
struct Worker {
    routine: Routine,
    residual: Residual<f32>,
}

/// What a worker did in a step.
struct Done {
    ops: Vec<Op>,
    /// Entries of the update.
    delivered: usize,
}

impl Worker {
    fn new(method: Method, rank: u32, workers: u32, n: usize) -> Result<Self, CarriedError> {
        let routine = Routine::new(method, Rank(rank), workers, n, 0)?;
        let schedule = &routine.prepared().schedule;
        let residual = Residual::new(schedule.partition.clone(), schedule.quotas());
        Ok(Self { residual: residual.corrected(method.correction()), routine })
    }

    /// Nothing if another worker ended before its last message.
    fn step(
        &mut self,
        gradient: &[f32],
        mut record: Record<'_>,
        outbox: &[Sender<Bytes>],
        inbox: &[Receiver<Bytes>],
    ) -> Result<Option<Done>, CarriedError> {
        self.residual.accumulate(0, gradient)?;
        let (accumulator, candidates) = self.residual.begin();
        let mut execution = self.routine.begin(accumulator, candidates);
        let mut outgoing = Vec::new();
        loop {
            let progress = execution.advance(&mut outgoing)?;
            record.took(Part::Select);
            record.send(&mut outgoing, outbox);
            let Progress::Waiting(from) = progress else { break };
            let Some(payload) = record.receive(from, &inbox[from.index()]) else { return Ok(None) };
            execution.receive(from, payload, &mut outgoing)?;
            record.took(Part::Merge);
            record.send(&mut outgoing, outbox);
        }
        let finished = execution.finish();
        record.took(Part::Merge);
        let delivered = finished.entries();
        record.since = Instant::now();
        let changed = self.routine.learn(&finished)?;
        drop(self.residual.commit(finished, self.routine.method().collection()));
        if changed {
            let schedule = &self.routine.prepared().schedule;
            self.residual.recut(schedule.partition.clone(), schedule.quotas());
        }
        record.took(Part::Merge);
        Ok(Some(Done { ops: record.ops, delivered }))
    }
}

/// What a worker does, written down while it has its turn.
struct Record<'a> {
    turns: &'a Mutex<()>,
    turn: Option<MutexGuard<'a, ()>>,
    ops: Vec<Op>,
    since: Instant,
}

impl<'a> Record<'a> {
    /// Waits for the turn.
    fn new(turns: &'a Mutex<()>) -> Self {
        // A worker that panicked has nothing that others need.
        let turn = Some(turns.lock().unwrap_or_else(PoisonError::into_inner));
        Self { turns, turn, ops: Vec::new(), since: Instant::now() }
    }

    /// Since the last time, the worker did this.
    fn took(&mut self, part: Part) {
        self.ops.push(Op::Work(part, Work::Took(self.since.elapsed().as_secs_f32())));
        self.since = Instant::now();
    }

    fn send(&mut self, outgoing: &mut Vec<Outgoing>, outbox: &[Sender<Bytes>]) {
        for Outgoing { to, payload, .. } in outgoing.drain(..) {
            self.ops.push(Op::Send { to: to.0, bytes: payload.len() as f32 });
            // Whoever has ended early says why.
            let _ = outbox[to.index()].send(payload);
        }
        self.since = Instant::now();
    }

    /// Gives the turn to others unless the message is there; nothing if it never comes.
    fn receive(&mut self, from: Rank, inbox: &Receiver<Bytes>) -> Option<Bytes> {
        self.ops.push(Op::Receive { from: from.0 });
        let payload = inbox.try_recv().ok().or_else(|| {
            drop(self.turn.take());
            let payload = inbox.recv().ok();
            self.turn = Some(self.turns.lock().unwrap_or_else(PoisonError::into_inner));
            payload
        });
        self.since = Instant::now();
        payload
    }
}
