//! The actor of one parameter server: it takes in what workers push, asks the policy what follows, and does that.
//!
//! What follows is done in order. Work on many entries is done by compute threads, which have the shard meanwhile; messages of
//! workers are still received.

use std::any::Any;
use std::collections::BTreeSet;

use bytes::Bytes;
use gleaner_algorithms::synchrony::{Action, Event, Stage};
use gleaner_transport::{Message as Packet, Peer};
use tokio::sync::oneshot;

use super::control::{Answer, Ask};
use super::job::{Job, Opened, Operation};
use super::plan::Arriving;
use super::push_queue::Intake;
use super::shard::Shard;
use super::{CONTROL_BYTES, PUSH, REPLY, UNITS};
use crate::algorithm::{Actor, Waiting};
use crate::failure::Failure;
use crate::io::Io;
use crate::link::cost;
use crate::mailbox::Command;
use crate::roles::RoleMap;
use crate::seat::Seat;
use crate::steps::Stand;
use crate::tag::{SERVED, StepId, Topic};

/// See the module.
pub(crate) struct Server {
    rank: u32,
    role_map: RoleMap,
    arriving: Arriving,
    /// How many plans have been received: results for an older one are discarded.
    plans: u32,
    job: Option<Job>,
    /// The task that waits until all workers have left.
    serving: Option<oneshot::Sender<()>>,
    left: BTreeSet<u32>,
}

/// What it gets from its own rank.
pub(crate) enum Message {
    /// The program waits until all workers have left.
    Serve(oneshot::Sender<()>),
    /// A compute thread has made what a plan says, or why not.
    Opened(u32, Box<Result<Opened, String>>),
    /// A compute thread has taken in what a worker pushed.
    TakenIn(u32, TakenIn),
    /// A compute thread gives the shard back.
    Back(u32, Box<Shard>, Done),
}

/// An execution with a payload in it.
pub(crate) struct TakenIn {
    pub(super) worker: u32,
    pub(super) push: (u64, Stage),
    pub(super) part: usize,
    pub(super) intake: Result<Intake, String>,
}

/// What was done with the shard.
pub(crate) enum Done {
    /// Pushes were applied: this many bytes of a worker's unit are taken in.
    Applied(Vec<(u32, usize, u64)>),
    /// Values are ready to be sent, by unit.
    Encoded {
        worker: u32,
        step: u64,
        encoded: Vec<(usize, Vec<Bytes>)>,
    },
    /// How important parts are for a step.
    Weighed {
        step: u64,
        importance: Vec<f64>,
    },
    /// It has rolled back to the step of the other servers.
    WentBack,
    Failed(String),
}

impl Server {
    pub(crate) fn new(rank: u32, role_map: RoleMap) -> Self {
        let arriving = Arriving::default();
        Self { rank, role_map, arriving, plans: 0, job: None, serving: None, left: BTreeSet::new() }
    }

    /// What lets rank 0 send it a plan.
    pub(crate) fn window() -> Command {
        Command::Widen(vec![(Peer(Seat::FIRST.0), SERVED, CONTROL_BYTES)])
    }

    /// A piece of a plan.
    fn arrives(&mut self, from: Peer, payload: &Bytes, io: &mut Io) {
        io.consume(from, SERVED, cost(payload));
        if from.0 != io.coordinator.0 {
            return blame(io, from.0, "it violated the protocol: it gave a server a plan, which rank 0 does");
        }
        match self.arriving.take(payload) {
            Ok(None) => {}
            Ok(Some((plan, values))) => {
                self.plans += 1;
                self.job = None;
                let (mailbox, plans, role_map) = (io.mailbox.clone(), self.plans, self.role_map);
                io.compute(Box::new(move || {
                    let opened = Box::new(Opened::new(plan, &values, role_map));
                    mailbox.send(Command::To(SERVED, Box::new(Message::Opened(plans, opened))));
                }));
            }
            Err(reason) => blame(io, from.0, reason),
        }
    }

    /// It is ready: workers may push, and are notified.
    fn opened(&mut self, opened: Result<Opened, String>, io: &mut Io) {
        let job = match opened {
            Ok(opened) => Job::new(self.plans, opened, &self.left),
            Err(reason) => return blame(io, self.rank, reason),
        };
        for worker in 0..self.role_map.workers {
            io.widen(Peer(worker), PUSH, CONTROL_BYTES);
            for (unit, window) in job.windows() {
                io.widen(Peer(worker), PUSH + 1 + unit as u32, window);
            }
        }
        let ready = job.ready();
        self.job = Some(job);
        (0..self.role_map.workers).for_each(|worker| tell(worker, &ready, io));
    }

    /// A control message of a worker.
    fn hear(&mut self, from: Peer, payload: &Bytes, io: &mut Io) {
        io.consume(from, PUSH, cost(payload));
        let worker = from.0;
        let Some(job) = &mut self.job else {
            let reason = "it violated the protocol: it sent a message to a server that was not ready";
            return blame(io, worker, reason);
        };
        let Some(ask) = Ask::decode(payload, job.units()) else {
            return blame(io, worker, "it violated the protocol: what it says to a server makes no sense");
        };
        if job.push_queues[worker as usize].is_gone {
            return;
        }
        let said = match ask {
            Ask::Begin { step } => job.begin(worker, step),
            Ask::Fetch { step } => job.fetch(worker, step),
            Ask::MayPush { step } => job.happens(worker, Event::Asks { worker, step }),
            Ask::HasCome { .. } => job.happens(worker, Event::Replied { worker }),
            Ask::Push(head) => job.push(worker, head, io),
            Ask::Done => job.leave(worker),
        };
        match said {
            Ok(()) => self.go_on(io),
            Err(reason) => blame(io, worker, reason),
        }
    }

    /// Decodes the payloads of a worker's push that have arrived, until one has to be waited for.
    fn taken_in(&mut self, TakenIn { worker, push, part, intake }: TakenIn, io: &mut Io) {
        let Some(job) = &mut self.job else { return };
        let gives = job.push_queues[worker as usize].give_back(push, part, intake);
        match gives.and_then(|()| job.take_in(worker, push, Some(part), io)) {
            Ok(()) => self.go_on(io),
            Err(reason) => blame(io, worker, reason),
        }
    }

    /// Does what is to be done.
    fn go_on(&mut self, io: &mut Io) {
        loop {
            let Some(job) = &mut self.job else { return };
            if job.shard.is_none() {
                return;
            }
            let Some((operation, because_of)) = job.queue.pop_front() else { return };
            let done = match operation {
                Operation::Act(Action::Grant { worker, step }) => {
                    tell(worker, &Answer::Granted { step }, io);
                    continue;
                }
                Operation::Act(Action::Apply { stage, pushes, workers }) => {
                    job.apply(stage, &pushes, workers, io)
                }
                Operation::Act(Action::Reply { worker, step, stage }) => {
                    let Some(units) = job.push_queues[worker as usize].answered((step, stage)) else {
                        continue;
                    };
                    tell(worker, &Answer::Reply { step, stage, awaited: because_of }, io);
                    job.bring(worker, step, Some(&units), io)
                }
                Operation::Fetch { worker, step } => {
                    tell(worker, &Answer::Fetched { step }, io);
                    job.bring(worker, step, None, io)
                }
                Operation::GoBack { step } => job.go_back(step, io),
                Operation::Weigh { step } => job.weigh(step, io),
            };
            match done {
                Some(done) => self.done(done, io),
                None => return,
            }
        }
    }

    fn done(&mut self, done: Done, io: &mut Io) {
        match done {
            Done::Applied(taken) => {
                for (worker, unit, bytes) in taken {
                    io.consume(Peer(worker), PUSH + 1 + unit as u32, bytes);
                }
            }
            Done::Encoded { worker, step, encoded } => {
                for (unit, payloads) in encoded {
                    let tag = Topic::Bags(StepId::new(io.epoch, REPLY + 1 + unit as u32, step)).tag();
                    let packets = payloads.into_iter().map(|payload| Packet { tag, payload });
                    packets.for_each(|packet| io.send(Peer(worker), packet));
                }
            }
            Done::Weighed { step, importance } => {
                let Some(job) = &mut self.job else { return };
                let split = job.split(step, &importance);
                let present = (0..).zip(&job.push_queues).filter(|(_, push_queue)| !push_queue.is_gone);
                present.for_each(|(worker, _)| tell(worker, &split, io));
            }
            Done::WentBack => {}
            Done::Failed(reason) => blame(io, self.rank, reason),
        }
    }

    /// A worker sends nothing more.
    fn leave(&mut self, worker: u32, io: &mut Io) {
        self.left.insert(worker);
        match self.job.as_mut().map(|job| job.leave(worker)) {
            Some(Err(reason)) => blame(io, self.rank, reason),
            _ => self.go_on(io),
        }
        self.look_for_end();
    }

    fn look_for_end(&mut self) {
        if self.left.len() == self.role_map.workers as usize
            && let Some(serving) = self.serving.take()
        {
            let _ = serving.send(());
        }
    }
}

fn tell(worker: u32, answer: &Answer, io: &mut Io) {
    let tag = Topic::Bags(StepId::new(io.epoch, REPLY, 0)).tag();
    io.send(Peer(worker), Packet { tag, payload: answer.encode() });
}

/// Fails the job, and names this rank as the cause.
fn blame(io: &mut Io, rank: u32, reason: impl Into<String>) {
    io.fail(Failure { rank, step: None, reason: reason.into() });
}

impl Actor for Server {
    fn next(&self) -> (Vec<StepId>, bool) {
        (Vec::new(), false)
    }

    fn expects(&self, id: StepId, _: &Io) -> bool {
        id.gradient <= PUSH + UNITS
    }

    fn handle(&mut self, message: Box<dyn Any + Send>, io: &mut Io) {
        let Ok(message) = message.downcast::<Message>() else { return };
        if io.worker.failure().is_some() {
            return;
        }
        match *message {
            Message::Serve(serving) => {
                self.serving = Some(serving);
                self.look_for_end();
            }
            Message::Opened(plans, opened) if plans == self.plans => self.opened(*opened, io),
            Message::TakenIn(plans, taken_in) if plans == self.plans => self.taken_in(taken_in, io),
            Message::Back(plans, shard, done) if plans == self.plans => {
                if let Some(job) = &mut self.job {
                    job.shard = Some(shard);
                }
                self.done(done, io);
                self.go_on(io);
            }
            Message::Opened(..) | Message::TakenIn(..) | Message::Back(..) => {}
        }
    }

    fn arrived(&mut self, id: StepId, from: Peer, payload: Bytes, io: &mut Io) {
        let worker = from.0;
        if worker >= self.role_map.workers {
            return blame(
                io,
                worker,
                "it violated the protocol: it sent a worker's message to a server, but is no worker",
            );
        }
        match id.gradient {
            SERVED => return self.arrives(from, &payload, io),
            PUSH => return self.hear(from, &payload, io),
            _ => {}
        }
        let Some(job) = &mut self.job else {
            return blame(io, worker, "it violated the protocol: it pushed to a server that was not ready");
        };
        if job.push_queues[worker as usize].is_gone {
            return io.consume(from, id.gradient, cost(&payload));
        }
        io.inbox.put(from, Topic::Bags(id).tag(), payload);
        let part = job.part((id.gradient - PUSH - 1) as usize);
        let push = part.and_then(|part| job.push_queues[worker as usize].push_of(id, part, io.epoch));
        let Some((push, part)) = push.zip(part) else { return };
        match job.take_in(worker, push, Some(part), io) {
            Ok(()) => self.go_on(io),
            Err(reason) => blame(io, worker, reason),
        }
    }

    fn stand(&mut self, _: StepId, _: Stand, _: &mut Io) {}

    fn left(&mut self, peer: Peer, io: &mut Io) {
        if peer.0 < self.role_map.workers {
            self.leave(peer.0, io);
        }
    }

    fn fail(&mut self, _: &Failure) {
        (self.job, self.serving) = (None, None);
    }

    fn waits(&self) -> Vec<Waiting> {
        Vec::new()
    }

    fn is_idle(&self) -> bool {
        !self.is_needed()
    }

    fn is_needed(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.push_queues.iter().any(|push_queue| !push_queue.is_gone))
    }
}
