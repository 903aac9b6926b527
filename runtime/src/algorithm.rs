//! The algorithm actor of one gradient exchange or one reducer: it owns the steps that are under way, their executions, and
//! how they end. It names no method.
//!
//! A step of a group begins with an execution that a compute thread has brought to its first message, or with the wish of
//! this rank to leave the step out. Bags go into the execution where they arrive, and what comes out is handed to the links
//! at once; only work on many entries goes to a compute thread, and the execution with it, while messages wait in their
//! lanes. When all groups of a step have ended, all are committed or none.

mod actor;
mod conclude;
mod message;

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, TryLockError};
use std::time::Instant;

use bytes::Bytes;
use gleaner_algorithms::schedule::{Execution, ExecutionError, Fault, Outgoing, Progress, Work};
use gleaner_algorithms::{Element, Rank};
use gleaner_transport::{Message as Packet, Peer};

use crate::failure::Failure;
use crate::io::Io;
use crate::link::cost;
use crate::mailbox::Command;
use crate::steps::{Cause, Stand};
use crate::tag::{StepId, Topic};
use crate::timeline::What;

pub(crate) use actor::{Actor, Waiting};
pub(crate) use message::{Begin, Message, Noted, Open, Outcome, Reply, Shared, Times, Worked, look, tell};

/// Work on at most this many entries is done where it is met.
pub(crate) const INLINE: usize = 1 << 13;

/// How far an execution came; nothing if its step is gone.
type Advanced<T> = Result<Option<Progress<Work<T>>>, ExecutionError>;

/// See the module.
pub(crate) struct Algorithm<T: Element> {
    first: u32,
    next: Vec<StepId>,
    is_cancellable: bool,
    /// By group.
    runs: Vec<Option<Run<T>>>,
    reply: Option<Reply<T>>,
    /// How many steps are under way, those included that a compute thread begins or commits.
    open: Arc<AtomicUsize>,
}

/// A group's step that is under way.
struct Run<T: Element> {
    shared: Shared<T>,
    /// Whether this rank has values for it.
    has_values: bool,
    state: State<T>,
    noted: Noted,
    began: Instant,
}

enum State<T: Element> {
    /// It needs a message from this rank, since then, by the machine's clock and by that of the I/O thread.
    Waits(Box<Execution<T>>, Rank, [Instant; 2]),
    /// A compute thread has it.
    Works,
    /// All is exchanged. It may be frozen.
    Exchanged(Box<Execution<T>>),
    /// This rank has asked all to leave it out.
    LeavesOut,
    /// It cannot go on, but is frozen: the decision may be that it need not.
    Broken(Failure),
    /// It has ended.
    Ended(End<T>),
}

enum End<T: Element> {
    Exchanged(Box<Execution<T>>),
    Cancelled { by: u32, cause: Cause },
}

impl<T: Element> Run<T> {
    /// How many entries are looked at when it is committed or given up.
    fn commits(&self) -> usize {
        let group = match self.shared.try_lock() {
            Ok(group) => group,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread has it, perhaps for a copy: this one does not wait.
            Err(TryLockError::WouldBlock) => return INLINE + 1,
        };
        match &self.state {
            State::Ended(End::Exchanged(execution)) => group.commits(execution),
            _ => group.entries(),
        }
    }
}

impl<T: Element> Algorithm<T> {
    /// One whose groups have numbers from `first` on and whose next steps are these.
    pub(crate) fn new(first: u32, next: Vec<StepId>, is_cancellable: bool, open: Arc<AtomicUsize>) -> Self {
        let runs = next.iter().map(|_| None).collect();
        Self { first, next, is_cancellable, runs, reply: None, open }
    }

    fn begin(&mut self, begin: Begin<T>, io: &mut Io) {
        let Begin { group, id, step, shared, worked, reply } = begin;
        if let Some(failure) = io.worker.failure() {
            if let Some(reply) = reply {
                let _ = reply.outcome.send(Err(failure.clone().into()));
            }
            return;
        }
        io.worker.step = Some(step);
        self.reply = reply.or(self.reply.take());
        let stand = io.steps.begin(id);
        // Those that are not finite are none. What there is no memory for waits in the residual.
        let has_values = !matches!(worked, Err(Cause::NonFinite));
        let began = worked.as_ref().map_or_else(|_| Instant::now(), |worked| worked.began);
        let noted = Noted::new(id, step, &io.recorder);
        self.runs[group] = Some(Run { shared, has_values, state: State::LeavesOut, noted, began });
        match worked {
            _ if matches!(stand, Stand::Cancelled { .. }) => self.stand(id, stand, io),
            Ok(worked) => self.worked(group, worked, io),
            // No rank can finish it meanwhile, as none can without this rank.
            Err(cause) => io.steps.ask(id, cause),
        }
    }

    /// Goes on with an execution that comes back from a compute thread.
    fn worked(&mut self, group: usize, worked: Worked<T>, io: &mut Io) {
        let Worked { mut execution, mut outbox, waits, noted, .. } = worked;
        let Some(run) = &mut self.runs[group] else { return };
        run.noted = noted;
        send(&mut run.noted, &mut outbox, io);
        match waits {
            Some(Err(error)) => self.broken(group, blame(io.rank, error), io),
            // It says again what it waits for.
            None | Some(Ok(_)) => {
                let waits = self.advance(group, &mut execution, io);
                self.go_on(group, execution, waits, io);
            }
        }
    }

    /// Takes in what has come meanwhile, as far as that goes.
    fn go_on(&mut self, group: usize, mut execution: Box<Execution<T>>, mut waits: Advanced<T>, io: &mut Io) {
        loop {
            let Some(run) = &mut self.runs[group] else { return };
            let (id, from) = match waits {
                Ok(Some(Progress::Waiting(from))) => (run.noted.id, Peer(from.0)),
                Ok(Some(Progress::Finished)) => return self.exchanged(group, execution, io),
                Ok(Some(Progress::Work(work))) => {
                    let work = move |execution: &mut Execution<T>, _: &mut _| {
                        execution.complete(work.run()?);
                        Ok(())
                    };
                    return self.hand_over(group, execution, What::Select, work, io);
                }
                Ok(Some(Progress::Working) | None) => {
                    return self.broken(group, blame(io.rank, Fault::Elsewhere.into()), io);
                }
                Err(error) => return self.broken(group, blame(io.rank, error), io),
            };
            let Some(payload) = io.inbox.take(from, Topic::Bags(id).tag()) else {
                run.state = State::Waits(execution, Rank(from.0), [Instant::now(), io.now]);
                if io.worker.has_left(from) {
                    self.broken(group, left(from.0), io);
                }
                return;
            };
            let now = Instant::now();
            let Some(rest) = self.take(group, execution, (from, now), payload, io) else { return };
            (execution, waits) = rest;
        }
    }

    /// Takes a bag into the execution that has waited for it since then, and goes on: here, unless it has many entries.
    fn take(
        &mut self,
        group: usize,
        mut execution: Box<Execution<T>>,
        (from, since): (Peer, Instant),
        payload: Bytes,
        io: &mut Io,
    ) -> Option<(Box<Execution<T>>, Advanced<T>)> {
        let run = self.runs[group].as_mut()?;
        io.consume(from, run.noted.id.gradient, cost(&payload));
        let round = execution.round().unwrap_or_default();
        run.noted.note(What::Receive { from: from.0, round, bytes: payload.len() }, since);
        if execution.entries_of(&payload) > INLINE {
            let receive = move |execution: &mut Execution<T>, outbox: &mut _| {
                execution.receive(Rank(from.0), payload, outbox)
            };
            self.hand_over(group, execution, What::Merge, receive, io);
            return None;
        }
        let waits = self.feed(group, &mut execution, from, payload, io);
        Some((execution, waits))
    }

    /// Brings an execution to the next message, or to work that is too large to be done here.
    fn advance(&mut self, group: usize, execution: &mut Execution<T>, io: &mut Io) -> Advanced<T> {
        let Some(run) = &mut self.runs[group] else { return Ok(None) };
        let mut outbox = io.outbox();
        let clock = Instant::now();
        let progress = advance(execution, &mut outbox)?;
        run.noted.note(What::Select, clock);
        send(&mut run.noted, &mut outbox, io);
        io.keep(outbox);
        Ok(Some(progress))
    }

    fn feed(
        &mut self,
        group: usize,
        execution: &mut Execution<T>,
        from: Peer,
        payload: Bytes,
        io: &mut Io,
    ) -> Advanced<T> {
        let Some(run) = &mut self.runs[group] else { return Ok(None) };
        let mut outbox = io.outbox();
        let clock = Instant::now();
        let received = execution.receive(Rank(from.0), payload, &mut outbox);
        run.noted.note(What::Merge, clock);
        send(&mut run.noted, &mut outbox, io);
        io.keep(outbox);
        received?;
        self.advance(group, execution, io)
    }

    /// Lets a compute thread do some work, and what follows from it.
    fn hand_over(
        &mut self,
        group: usize,
        mut execution: Box<Execution<T>>,
        what: What,
        work: impl FnOnce(&mut Execution<T>, &mut Vec<Outgoing>) -> Result<(), ExecutionError> + Send + 'static,
        io: &mut Io,
    ) {
        let Some(run) = &mut self.runs[group] else { return };
        run.state = State::Works;
        let (first, mut noted, began) = (self.first, run.noted.clone(), run.began);
        let mailbox = io.mailbox.clone();
        io.compute(Box::new(move || {
            let (clock, mut outbox) = (Instant::now(), Vec::new());
            let done = work(&mut execution, &mut outbox);
            noted.note(what, clock);
            let id = noted.id;
            let mut worked = Worked { execution, outbox, waits: None, noted, began };
            match done {
                Ok(()) => worked = worked.go_on(),
                Err(error) => worked.waits = Some(Err(error)),
            }
            tell(&mailbox, first, Message::Worked { group, id, worked });
        }));
    }

    /// All messages of a group's step have come.
    fn exchanged(&mut self, group: usize, execution: Box<Execution<T>>, io: &mut Io) {
        let Some(run) = &mut self.runs[group] else { return };
        if io.steps.finish(run.noted.id) {
            self.end(group, End::Exchanged(execution), io);
        } else {
            run.state = State::Exchanged(execution);
        }
    }

    /// A group's step cannot go on. Where it is frozen, a rank that knew earlier that it is cancelled may have left
    /// already, so the decision is waited for.
    fn broken(&mut self, group: usize, failure: Failure, io: &mut Io) {
        let Some(run) = &mut self.runs[group] else { return };
        let failure = Failure { step: failure.step.or(Some(run.noted.step)), ..failure };
        if io.steps.stand(run.noted.id) == Some(Stand::Frozen) {
            run.state = State::Broken(failure);
        } else {
            io.fail(failure);
        }
    }

    /// A group's step has ended; with the last group's the step is over.
    fn end(&mut self, group: usize, end: End<T>, io: &mut Io) {
        if let Some(run) = &mut self.runs[group] {
            run.noted.times.total = run.began.elapsed();
            run.state = State::Ended(end);
        }
        let has_ended = |run: &Option<Run<T>>| matches!(run, Some(Run { state: State::Ended(_), .. }));
        if !self.runs.iter().all(has_ended) {
            return;
        }
        let Some(reply) = self.reply.take() else { return };
        let runs: Vec<Run<T>> = self.runs.iter_mut().filter_map(Option::take).collect();
        let entries: usize = runs.iter().map(Run::commits).sum();
        if entries <= INLINE {
            // Not by the mailbox: where it is full, this thread alone empties it.
            let concluded = conclude::conclude(runs, |windows| io.widen_all(windows));
            return reply.give(concluded, || ());
        }
        let (first, mailbox) = (self.first, io.mailbox.clone());
        io.compute(Box::new(move || {
            let concluded = conclude::conclude(runs, |windows| mailbox.send(Command::Widen(windows)));
            reply.give(concluded, || tell(&mailbox, first, Message::<T>::Over));
        }));
    }
}

impl<T: Element> Actor for Algorithm<T> {
    fn next(&self) -> (Vec<StepId>, bool) {
        (self.next.clone(), self.is_cancellable)
    }

    fn handle(&mut self, message: Box<dyn Any + Send>, io: &mut Io) {
        let Ok(message) = message.downcast::<Message<T>>() else { return };
        match *message {
            Message::Begin(begin) => self.begin(begin, io),
            Message::Worked { group, id, worked } => {
                // Of a step that was cancelled meanwhile nothing is left to go on with.
                if self.runs[group]
                    .as_ref()
                    .is_some_and(|run| run.noted.id == id && matches!(run.state, State::Works))
                {
                    self.worked(group, worked, io);
                }
            }
            // The supervisor looks whether it is idle now.
            Message::Over => {}
        }
    }

    fn arrived(&mut self, id: StepId, from: Peer, payload: Bytes, io: &mut Io) {
        let group = (id.gradient - self.first) as usize;
        match self.runs.get(group) {
            // What waits has been fed before it waited.
            Some(Some(Run { noted, state: State::Waits(_, rank, _), .. }))
                if noted.id == id && rank.0 == from.0 =>
            {
                let Some(Some(run)) = self.runs.get_mut(group) else { return };
                let State::Waits(execution, _, [since, _]) = std::mem::replace(&mut run.state, State::Works)
                else {
                    return;
                };
                if let Some((execution, waits)) = self.take(group, execution, (from, since), payload, io) {
                    self.go_on(group, execution, waits, io);
                }
            }
            _ => io.inbox.put(from, Topic::Bags(id).tag(), payload),
        }
    }

    fn stand(&mut self, id: StepId, stand: Stand, io: &mut Io) {
        let group = (id.gradient - self.first) as usize;
        let Some(Some(run)) = self.runs.get_mut(group) else { return };
        if run.noted.id != id || matches!(run.state, State::Ended(_)) {
            return;
        }
        match (stand, std::mem::replace(&mut run.state, State::Works)) {
            (Stand::Cancelled { by, cause }, _) => self.end(group, End::Cancelled { by, cause }, io),
            (Stand::Free, State::Exchanged(execution)) => self.exchanged(group, execution, io),
            (Stand::Free, State::Broken(failure)) => io.fail(failure),
            (Stand::Free | Stand::Frozen, state) => run.state = state,
        }
    }

    fn left(&mut self, peer: Peer, io: &mut Io) {
        for group in 0..self.runs.len() {
            if let Some(Run { state: State::Waits(_, from, _), .. }) = &self.runs[group]
                && from.0 == peer.0
            {
                self.broken(group, left(peer.0), io);
            }
        }
    }

    fn fail(&mut self, failure: &Failure) {
        self.runs.iter_mut().for_each(|run| *run = None);
        if let Some(reply) = self.reply.take() {
            let _ = reply.outcome.send(Err(failure.clone().into()));
        }
    }

    fn waits(&self) -> Vec<Waiting> {
        let wait = |run: &Run<T>| match run.state {
            State::Waits(_, from, [_, since]) => {
                Some(Waiting { id: run.noted.id, step: run.noted.step, from: Peer(from.0), since })
            }
            _ => None,
        };
        self.runs.iter().flatten().filter_map(wait).collect()
    }

    fn is_idle(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }
}

/// Brings an execution to the next message, or to work that is too large to be done here.
fn advance<T: Element>(
    execution: &mut Execution<T>,
    outbox: &mut Vec<Outgoing>,
) -> Result<Progress<Work<T>>, ExecutionError> {
    let mut room = INLINE;
    loop {
        let work = match execution.advance(outbox)? {
            Progress::Work(work) => work,
            other => return Ok(other),
        };
        let Some(few) = work.looks_at(room) else { return Ok(Progress::Work(work)) };
        room -= few;
        execution.complete(work.run()?);
    }
}

fn send(noted: &mut Noted, outbox: &mut Vec<Outgoing>, io: &mut Io) {
    let tag = Topic::Bags(noted.id).tag();
    for Outgoing { to, payload, .. } in outbox.drain(..) {
        noted.note(What::Send { to: to.0, bytes: payload.len() }, Instant::now());
        io.send(Peer(to.0), Packet { tag, payload });
    }
}

/// What a rank did that left too early.
pub(crate) fn left(rank: u32) -> Failure {
    let reason = "it left the job while others still needed it: its program ended early, or takes fewer steps than theirs";
    Failure { rank, step: None, reason: reason.into() }
}

fn blame(this: Rank, error: ExecutionError) -> Failure {
    let rank = match &error {
        ExecutionError::Decode { from, .. } | ExecutionError::Unexpected { from } => *from,
        ExecutionError::Overflow { .. }
        | ExecutionError::Sum { .. }
        | ExecutionError::NotASum { .. }
        | ExecutionError::Fault(_)
        | ExecutionError::Own(_)
        | ExecutionError::Device(_) => this,
    };
    Failure { rank: rank.0, step: None, reason: error.to_string() }
}
