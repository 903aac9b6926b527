//! The I/O thread: it owns the links and every actor that answers to messages, and is the supervisor of all of them.
//!
//! Whatever happens is handled to its end at once: a bag that comes in goes into the execution that waits for it, and what
//! comes out of that is written while the link is free. Actors on this thread call each other directly. Nothing here waits:
//! large work goes to compute threads, and what cannot be sent yet stays at its link.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use gleaner_transport::{Message, Peer};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep_until};

use crate::algorithm::Actor;
use crate::compute::sentence;
use crate::failure::Failure;
use crate::io::Io;
use crate::link::Link;
use crate::mailbox::{Bell, Command};
use crate::notes::Notes;
use crate::probe::Volleys;
use crate::report;
use crate::steps::Effect;
use crate::tag::{SERVED, Topic};
use crate::worker::{Action, Event};

mod clock;
mod incoming;

/// Messages of one link that are read before others have their turn.
const TURN: usize = 64;

/// How many gradients a peer may give credit for before they are added here: all ranks add them in the same order.
const EARLY: u32 = 1 << 16;

/// Panics after which nothing can be reported any more.
const PANICS: u32 = 8;

/// See the module.
pub(crate) struct Engine {
    io: Io,
    commands: mpsc::Receiver<Command>,
    bell: Arc<Bell>,
    /// By the number of the first group of each.
    actors: BTreeMap<u32, Box<dyn Actor>>,
    /// Those of them that end when their steps are over.
    retiring: Vec<u32>,
    notes: Notes,
    volleys: Volleys,
    /// Why the job failed, for all that ask.
    failure: Arc<OnceLock<Failure>>,
    /// Callers that wait until the job's failure is known to all.
    failing: Vec<oneshot::Sender<Failure>>,
    /// The caller that waits until this worker has left, and until when its steps may go on.
    leaving: Option<(oneshot::Sender<()>, Option<Instant>)>,
    has_left: bool,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
    /// How long this process was paused in all, and since when it runs again, by the clock without pauses: see [`Self::read_clock`].
    paused: Duration,
    resumed: Option<Instant>,
    /// Whether a pause has just ended, and no peer has been sent a heartbeat since.
    has_resumed: bool,
    /// Links that have something to do.
    ready: Vec<Peer>,
    /// Callers that were refused.
    refused: u64,
    warnings: clock::Warnings,
}

impl Engine {
    /// Made on the I/O thread.
    pub(crate) fn new(
        io: Io,
        commands: mpsc::Receiver<Command>,
        bell: Arc<Bell>,
        failure: Arc<OnceLock<Failure>>,
        timeout: Duration,
    ) -> Self {
        let notes = Notes::new(io.rank.0, io.role_map, io.coordinator.0);
        Self {
            io,
            commands,
            bell,
            actors: BTreeMap::new(),
            retiring: Vec::new(),
            notes,
            volleys: Volleys::default(),
            failure,
            failing: Vec::new(),
            leaving: None,
            has_left: false,
            timeout,
            timer: Box::pin(sleep_until(tokio::time::Instant::now())),
            paused: Duration::ZERO,
            resumed: None,
            has_resumed: false,
            ready: Vec::new(),
            refused: 0,
            warnings: clock::Warnings::new(),
        }
    }

    /// Runs until this worker has left. A panic ends the job on all ranks.
    pub(crate) async fn run(mut self) {
        self.meets().into_iter().for_each(|peer| {
            self.io.link(peer);
        });
        let mut panics = 0;
        std::future::poll_fn(|context| {
            let polled = catch_unwind(AssertUnwindSafe(|| self.poll(context)));
            polled.unwrap_or_else(|panic| {
                panics += 1;
                if panics == PANICS {
                    return Poll::Ready(());
                }
                let (rank, step) = (self.io.rank.0, self.io.worker.step);
                self.io.fail(Failure { rank, step, reason: sentence(&*panic) });
                context.waker().wake_by_ref();
                Poll::Pending
            })
        })
        .await;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.bell.listen(context.waker());
        loop {
            let mut moved = false;
            self.read_clock();
            // Before commands: a worker that leaves sends its leave message on all links that are up.
            while let Poll::Ready(Some(event)) = self.io.network.poll_event(context) {
                moved = true;
                self.network(event);
                self.carry_out();
            }
            while let Ok(command) = self.commands.try_recv() {
                moved = true;
                self.command(command);
                self.carry_out();
            }
            while let Some(Message { tag, payload }) = self.io.local.pop_front() {
                moved = true;
                self.local(tag, payload);
                self.carry_out();
            }
            self.bell.peers(&mut self.ready);
            for peer in std::mem::take(&mut self.ready) {
                moved = true;
                self.io.touch(peer);
                self.read(peer);
                self.carry_out();
            }
            if self.timer.as_mut().poll(context).is_ready() || self.has_resumed {
                moved = true;
                self.tick();
                self.carry_out();
                let next = self.io.now + self.paused + self.timeout / 24;
                self.timer.as_mut().reset(next.into());
            }
            let due =
                self.io.worker.deadline().into_iter().chain(self.leaving.as_ref().and_then(|(_, at)| *at));
            // What is due already is due now: a deadline of long ago would be taken for a pause.
            let due = due.min().map(|due| due.max(self.io.now) + self.paused);
            if let Some(due) = due.filter(|due| *due < self.timer.deadline().into_std()) {
                self.timer.as_mut().reset(due.into());
                moved = true;
            }
            if self.has_left {
                return Poll::Ready(());
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    /// Those with whom it is linked from the beginning.
    fn meets(&self) -> Vec<Peer> {
        let (role_map, rank) = (self.io.role_map, self.io.rank.0);
        (0..role_map.ranks).filter(|&peer| role_map.meet(rank, peer)).map(Peer).collect()
    }

    /// Whether it is, or was until they left.
    fn has_met(&self) -> bool {
        let is_up = |peer: &Peer| self.io.links.get(peer).is_some_and(Link::is_up);
        self.meets().iter().all(|peer| is_up(peer) || self.io.worker.has_left(*peer))
    }

    pub(crate) fn command(&mut self, command: Command) {
        let Self { io, actors, .. } = self;
        match command {
            Command::Add(first, actor) => {
                let (next, is_cancellable) = actor.next();
                if first < SERVED {
                    io.gradients = io.gradients.max(first + next.len() as u32);
                }
                next.into_iter().for_each(|id| io.steps.add(id, is_cancellable));
                actors.insert(first, actor);
            }
            Command::Retire(first) => self.retiring.push(first),
            Command::Widen(windows) => io.widen_all(windows),
            Command::To(first, message) => {
                if let Some(actor) = actors.get_mut(&first) {
                    actor.handle(message, io);
                }
            }
            Command::Ask(id, cause) => io.steps.ask(id, cause),
            // Dropped, it has no answer but the failure.
            Command::Call(_) | Command::Volley(_) if io.worker.failure().is_some() => {}
            Command::Call(call) => self.notes.call(call, io),
            Command::Volley(volley) => self.volleys.begin(volley, io),
            Command::Fail(failure, answer) => match io.worker.failure() {
                Some(first) => drop(answer.send(first.clone())),
                None => {
                    self.failing.push(answer);
                    io.fail(failure);
                }
            },
            Command::Panicked(reason) => {
                let (rank, step) = (io.rank.0, io.worker.step);
                io.fail(Failure { rank, step, reason });
            }
            Command::Leave(left) => self.leaving = Some((left, Some(io.now + self.timeout))),
        }
    }

    /// Goes on without a rank that has failed.
    fn go_on_without(&mut self, failure: &Failure) {
        let Self { io, actors, notes, volleys, .. } = self;
        let peer = Peer(failure.rank);
        if io.rank == io.coordinator {
            report::say(format_args!("gleaner: {failure}; the others go on without it"));
        }
        actors.values_mut().for_each(|actor| actor.left(peer, io));
        notes.dropped(peer, io);
        volleys.left(peer, io);
    }

    /// Does all that follows from what happened.
    fn carry_out(&mut self) {
        self.follow();
        self.io.flush();
        // Flushing may end links.
        self.follow();
        self.retire();
        let has_met = self.leaving.is_none() || self.has_met();
        if let Some((_, until)) = &mut self.leaving
            && let Some(at) = *until
        {
            let is_idle = has_met && self.actors.values().all(|actor| actor.is_idle());
            let is_needed = self.actors.values().any(|actor| actor.is_needed());
            let is_late = at <= self.io.now;
            if is_late && is_needed {
                *until = Some(self.io.now + self.timeout);
            }
            if is_idle || is_late && !is_needed || self.io.worker.failure().is_some() {
                *until = None;
                self.io.worker.handle(Event::Leave, self.io.now);
                self.follow();
                self.io.flush();
                self.follow();
            }
        }
    }

    /// Ends actors whose owners are gone and whose steps are over.
    fn retire(&mut self) {
        let Self { io, actors, retiring, .. } = self;
        retiring.retain(|first| {
            if actors.get(first).is_some_and(|actor| !actor.is_idle()) {
                return true;
            }
            let ids = actors.remove(first).into_iter().flat_map(|actor| actor.next().0);
            ids.for_each(|id| io.retire(id.gradient));
            false
        });
    }

    fn follow(&mut self) {
        loop {
            let (effects, actions) = (self.io.steps.effects(), self.io.worker.actions());
            if effects.is_empty() && actions.is_empty() {
                return;
            }
            effects.into_iter().for_each(|effect| self.effect(effect));
            actions.into_iter().for_each(|action| self.action(action));
        }
    }

    fn effect(&mut self, effect: Effect) {
        let Self { io, actors, .. } = self;
        match effect {
            Effect::Tell(rank, id, word) => io.tell(Peer(rank), Topic::Cancel(id), word.encode()),
            Effect::Discard(id) => io.discard(id),
            Effect::Stand(id, stand) => {
                if let Some((_, actor)) = actors.range_mut(..=id.gradient).next_back() {
                    actor.stand(id, stand, io);
                }
            }
        }
    }

    fn action(&mut self, action: Action) {
        let io = &mut self.io;
        match action {
            Action::Send(peer, topic, payload) => io.tell(peer, topic, payload),
            Action::GiveUp => io.links.values_mut().for_each(|link| link.give_up()),
            Action::Close(peer) => {
                io.link(peer).close();
                io.touch(peer);
            }
            Action::Part(peer) => {
                io.link(peer).part();
                io.touch(peer);
            }
            Action::Ignore(peer) => io.link(peer).ignore(),
            Action::Report(failure) => {
                // The reader of this worker's standard error may be slow: the others are notified first.
                io.flush();
                report::failed(&failure);
            }
            Action::Fail(failure) => {
                let _ = self.failure.set(failure.clone());
                self.actors.values_mut().for_each(|actor| actor.fail(&failure));
                self.notes.fail();
                self.volleys.fail();
                for answer in self.failing.drain(..) {
                    let _ = answer.send(failure.clone());
                }
            }
            Action::Drop(failure) => self.go_on_without(&failure),
            Action::Leave => {
                self.has_left = true;
                if let Some((left, _)) = self.leaving.take() {
                    let _ = left.send(());
                }
            }
        }
    }
}
