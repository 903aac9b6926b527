//! A discrete-event simulation: gives time to what workers do.
//!
//! Each worker does its operations one after the other, and beside them writes its messages and reads those of others, one
//! at a time each. All of this needs the processor. Messages come first, as the kernel serves them; what they leave of a pool
//! of cores the operations share equally, and nothing gets more than one core (processor sharing). Messages that meet at a
//! link share it (see [`wire`](super::wire)).

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::machine::Machine;
use super::network::Network;
use super::trace::{Op, Part, Trace, Work};
use super::wire::{Flight, Wires};

/// A stretch of a worker's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Seconds from the beginning of the first worker.
    pub start: f64,
    /// As `start`.
    pub end: f64,
    /// With what; nothing while the worker waits for a message.
    pub busy: Option<Part>,
}

/// The step of one worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lived {
    /// From its own beginning to its end, in seconds.
    pub seconds: f64,
    /// Of them, accumulating, choosing and preparing messages.
    pub select: f64,
    /// Of them, waiting for messages.
    pub exchange: f64,
    /// Of them, taking entries in and committing.
    pub merge: f64,
    /// All of them in order.
    pub spans: Vec<Span>,
}

/// A simulated step, by rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// By rank.
    pub workers: Vec<Lived>,
}

impl Replayed {
    /// The worker whose step was the longest.
    pub fn slowest(&self) -> &Lived {
        static NONE: Lived =
            Lived { seconds: 0.0, select: 0.0, exchange: 0.0, merge: 0.0, spans: Vec::new() };
        self.workers.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap_or(&NONE)
    }

    /// How long the step takes: as long as on the slowest worker.
    pub fn seconds(&self) -> f64 {
        self.slowest().seconds
    }
}

/// Simulates a step. With `spans`, what each worker does when is kept.
pub fn replay(trace: &Trace, machine: &Machine, network: &Network, spans: bool) -> Replayed {
    let shared = |pool: usize| network.hosts.iter().filter(|host| host.pool == pool).nth(1).is_some();
    let mut replay = Replay {
        trace,
        machine,
        network,
        wires: Wires::new(network, machine.goodput),
        spans,
        now: 0.0,
        number: 0,
        events: BTreeMap::new(),
        pools: network.pools.iter().map(|&cores| Pool { cores, ..Pool::default() }).collect(),
        shared: (0..network.pools.len()).map(shared).collect(),
        workers: trace.workers.iter().map(|_| Worker::default()).collect(),
    };
    replay.begin();
    while let Some((due, event)) = replay.events.pop_first() {
        replay.now = due.at();
        replay.happen(event);
    }
    Replayed { workers: replay.workers.into_iter().map(|worker| worker.lived).collect() }
}

/// What needs the processor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Task {
    /// The present operation of a rank.
    Main(usize),
    /// A rank writes a message, or reads one.
    Message(usize, Side),
}

/// What a rank does with a message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Write,
    Read,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// The next task of a pool is done, unless something changed there since.
    Done { pool: usize, class: usize, change: u64 },
    /// The first byte of a piece is at a link.
    Arrives(Flight),
    /// All of a message is at its receiver.
    Delivered { from: usize, to: usize, bytes: f64 },
    /// The worker that waits for this message runs.
    Wakes { from: usize, to: usize },
    /// A worker begins its step.
    Begins { rank: usize },
}

/// When something comes, and of what comes at one time, in which order. Times are not negative, and the bits of such numbers have their
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due(u64, u64);

impl Due {
    fn new(at: f64, number: u64) -> Self {
        // Without the sign of a zero.
        Self((at + 0.0).to_bits(), number)
    }

    fn at(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// Tasks that share cores equally.
#[derive(Debug, Default)]
struct Class {
    /// Seconds of work that a task which was there from the start has had.
    had: f64,
    /// Each ends when every task of its pool has had so much work since the start.
    tasks: BTreeMap<Due, Task>,
}

impl Class {
    /// Seconds of work that a task gets in a second, if so many cores are left for them.
    fn speed(&self, cores: f64) -> f64 {
        (cores / self.tasks.len().max(1) as f64).clamp(0.0, 1.0)
    }
}

/// Cores with what needs them.
#[derive(Debug, Default)]
struct Pool {
    cores: f64,
    /// Messages, and operations, which have what those leave.
    classes: [Class; 2],
    at: f64,
    changes: u64,
}

impl Pool {
    fn speeds(&self) -> [f64; 2] {
        let [messages, operations] = &self.classes;
        [messages.speed(self.cores), operations.speed(self.cores - messages.tasks.len() as f64)]
    }

    fn advance(&mut self, now: f64) {
        for (class, speed) in self.speeds().into_iter().enumerate() {
            self.classes[class].had += (now - self.at) * speed;
        }
        self.at = now;
    }

    fn has_idle_core(&self) -> bool {
        let tasks: usize = self.classes.iter().map(|class| class.tasks.len()).sum();
        (tasks as f64) < self.cores
    }

    /// How long until the next task is done, and of which class it is.
    fn next(&self) -> Option<(f64, usize)> {
        let of = |(class, speed): (usize, f64)| {
            let (first, _) = self.classes[class].tasks.first_key_value()?;
            let left = first.at() - self.classes[class].had;
            (speed > 0.0).then(|| ((left / speed).max(0.0), class))
        };
        self.speeds().into_iter().enumerate().filter_map(of).min_by(|a, b| a.0.total_cmp(&b.0))
    }
}

#[derive(Debug, Default)]
struct Worker {
    /// The operation that comes next.
    next: usize,
    waiting: Option<u32>,
    /// When it began.
    start: f64,
    since: f64,
    /// Messages that have come and were not taken, by sender.
    mail: HashMap<u32, u32>,
    /// By [`Side`], messages that it is to write and to read, with their receivers or senders and bytes.
    messages: [VecDeque<(usize, f64)>; 2],
    lived: Lived,
}

struct Replay<'a> {
    trace: &'a Trace,
    machine: &'a Machine,
    network: &'a Network,
    wires: Wires<'a>,
    spans: bool,
    now: f64,
    number: u64,
    events: BTreeMap<Due, Event>,
    pools: Vec<Pool>,
    /// By pool, whether several workers use it.
    shared: Vec<bool>,
    workers: Vec<Worker>,
}

impl Replay<'_> {
    fn plan(&mut self, time: f64, event: Event) {
        self.number += 1;
        self.events.insert(Due::new(time, self.number), event);
    }

    /// A message is to be written or read behind the others.
    fn queue(&mut self, rank: usize, side: Side, message: (usize, f64)) {
        let messages = &mut self.workers[rank].messages[side as usize];
        messages.push_back(message);
        if messages.len() == 1 {
            self.serve(rank, side);
        }
    }

    /// The next message that a rank writes or reads needs the processor.
    fn serve(&mut self, rank: usize, side: Side) {
        if let Some(&(_, bytes)) = self.workers[rank].messages[side as usize].front() {
            let seconds = self.network.hosts[rank].slow * self.machine.side(bytes);
            self.want(rank, Task::Message(rank, side), seconds);
        }
    }

    /// A task needs so many seconds of a processor.
    fn want(&mut self, rank: usize, task: Task, seconds: f64) {
        let host = &self.network.hosts[rank];
        self.number += 1;
        let pool = &mut self.pools[host.pool];
        pool.advance(self.now);
        let class = &mut pool.classes[usize::from(matches!(task, Task::Main(_)))];
        class.tasks.insert(Due::new(class.had + seconds, self.number), task);
        self.plan_next(host.pool);
    }

    /// Plans the end of a pool's next task.
    fn plan_next(&mut self, number: usize) {
        let pool = &mut self.pools[number];
        pool.changes += 1;
        if let Some((seconds, class)) = pool.next() {
            let event = Event::Done { pool: number, class, change: pool.changes };
            self.plan(self.now + seconds, event);
        }
    }

    /// All workers begin. Of those that share cores, one after the other gets its slice, in a random order; what is over
    /// before that keeps the next one waiting no longer.
    fn begin(&mut self) {
        let mut starts = vec![0.0; self.pools.len()];
        for rank in self.wires.shuffled(self.workers.len()) {
            let pool = self.network.hosts[rank].pool;
            let worker = &mut self.workers[rank];
            (worker.start, worker.since) = (starts[pool], starts[pool]);
            self.plan(starts[pool], Event::Begins { rank });
            let first = self.trace.workers[rank].iter().find_map(|op| match op {
                Op::Work(_, work) => Some(self.seconds(rank, work)),
                _ => None,
            });
            let slice = self.machine.quantum * 1e-6;
            starts[pool] += slice.min(first.unwrap_or(0.0) / self.pools[pool].cores);
        }
    }

    /// Seconds of a processor that this work takes a worker.
    fn seconds(&self, rank: usize, work: &Work) -> f64 {
        let host = &self.network.hosts[rank];
        let contention = match work {
            Work::Took(_) if self.shared[host.pool] => self.machine.contention,
            _ => 1.0,
        };
        host.slow * contention * self.machine.work(work)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Begins { rank } => self.go_on(rank),
            Event::Done { pool, class, change } if self.pools[pool].changes == change => {
                self.done(pool, class);
            }
            Event::Done { .. } => {}
            Event::Arrives(flight) => self.fly(flight),
            Event::Delivered { from, to, bytes } => self.queue(to, Side::Read, (from, bytes)),
            Event::Wakes { from, to } => {
                let worker = &mut self.workers[to];
                if worker.waiting == Some(from as u32) {
                    worker.waiting = None;
                    self.lived(to, None);
                    self.go_on(to);
                } else {
                    *worker.mail.entry(from as u32).or_default() += 1;
                }
            }
        }
    }

    /// The first task of a class is done.
    fn done(&mut self, number: usize, class: usize) {
        let pool = &mut self.pools[number];
        pool.advance(self.now);
        let class = &mut pool.classes[class];
        let Some((due, done)) = class.tasks.pop_first() else { return };
        // What was lost to rounding is given back, so that equal tasks end at the same time.
        class.had = class.had.max(due.at());
        self.plan_next(number);
        match done {
            Task::Main(rank) => {
                if let Op::Work(part, _) = self.trace.workers[rank][self.workers[rank].next - 1] {
                    self.lived(rank, Some(part));
                }
                self.go_on(rank);
            }
            Task::Message(rank, side) => {
                let message = self.workers[rank].messages[side as usize].pop_front();
                match (side, message) {
                    (Side::Write, Some((to, bytes))) => {
                        if let Some((time, flight)) = self.wires.send(rank, to, bytes, self.now) {
                            self.plan(time, Event::Arrives(flight));
                        }
                    }
                    (Side::Read, Some((from, _))) => {
                        // A worker that finds an idle core waits for no other.
                        let pool = self.network.hosts[rank].pool;
                        let waits = self.shared[pool] && !self.pools[pool].has_idle_core();
                        let wakeup = if waits { self.machine.wakeup * 1e-6 } else { 0.0 };
                        self.plan(self.now + wakeup, Event::Wakes { from, to: rank });
                    }
                    (_, None) => {}
                }
                self.serve(rank, side);
            }
        }
    }

    /// A piece of a message takes its next link.
    fn fly(&mut self, flight: Flight) {
        let Flight { from, to, bytes, .. } = flight;
        let (next, there) = self.wires.pass(flight, self.now);
        for (time, flight) in next.into_iter().flatten() {
            self.plan(time, Event::Arrives(flight));
        }
        if let Some(time) = there {
            self.plan(time, Event::Delivered { from, to, bytes });
        }
    }

    /// A worker does what it can without waiting.
    fn go_on(&mut self, rank: usize) {
        let trace = self.trace;
        while let Some(op) = trace.workers[rank].get(self.workers[rank].next) {
            let worker = &mut self.workers[rank];
            worker.next += 1;
            match op {
                Op::Work(_, work) => {
                    self.want(rank, Task::Main(rank), self.seconds(rank, work));
                    return;
                }
                Op::Send { to, bytes } => {
                    self.queue(rank, Side::Write, (*to as usize, f64::from(*bytes)));
                }
                Op::Receive { from } => match worker.mail.get_mut(from) {
                    Some(count) if *count > 0 => *count -= 1,
                    _ => {
                        worker.waiting = Some(*from);
                        return;
                    }
                },
            }
        }
        self.workers[rank].lived.seconds = self.now - self.workers[rank].start;
    }

    /// Since the last time, a worker was busy with this.
    fn lived(&mut self, rank: usize, busy: Option<Part>) {
        let worker = &mut self.workers[rank];
        let (start, end) = (std::mem::replace(&mut worker.since, self.now), self.now);
        let part = match busy {
            Some(Part::Select) => &mut worker.lived.select,
            Some(Part::Merge) => &mut worker.lived.merge,
            None => &mut worker.lived.exchange,
        };
        *part += end - start;
        if !self.spans || end <= start {
            return;
        }
        match worker.lived.spans.last_mut() {
            Some(last) if last.busy == busy && last.end == start => last.end = end,
            _ => worker.lived.spans.push(Span { start, end, busy }),
        }
    }
}
