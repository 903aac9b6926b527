//! Workers and servers in one process, event by event: workers compute gradients at the parameters that they see, messages take
//! a random time, and servers do what their policies say.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use gleaner_algorithms::Layers;
use gleaner_algorithms::synchrony::osp::Lgp;
use gleaner_algorithms::synchrony::shards::Shards;
use gleaner_algorithms::synchrony::{Action, Event, Sgd, Stage, Synchrony, named};

use super::job::{Death, Job};
use super::server::{Came, Server};

/// What is under way.
enum Message {
    /// A worker has computed its gradient.
    Computed(u32),
    /// To a server: an event, and the gradient that comes with a push.
    Event(usize, Event, Vec<f32>),
    /// To a worker: parameters, or a grant, of a server.
    Reply(u32, usize, Stage, Vec<f32>, BTreeSet<(u32, u64)>),
    Grant(u32, usize),
    Dies(u32),
}

pub struct Worker {
    /// The parameters of the next pass; what is known of the true ones; those after the last exchange.
    view: Vec<f32>,
    pub truth: Vec<f32>,
    gradient: Vec<f32>,
    velocities: Vec<f32>,
    lgp: Lgp,
    /// Which gradients the view has in it, by server.
    seen: Vec<BTreeSet<(u32, u64)>>,
    pub step: u64,
    /// How many pushes of whole steps it has sent.
    sent: u64,
    /// How many servers have not answered yet, by stage; and whether the pass is over while the background is not.
    unanswered: [usize; 2],
    over: bool,
    pub alive: bool,
}

/// What a worker saw at the beginning of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Saw {
    pub worker: u32,
    pub step: u64,
    pub view: Vec<f32>,
    pub gradients: Vec<BTreeSet<(u32, u64)>>,
    /// By how many steps it was ahead of the slowest that had not left.
    pub ahead: u64,
}

pub struct Simulation<'a> {
    job: &'a Job,
    synchrony: Box<dyn Synchrony>,
    units: Vec<Range<usize>>,
    queue: BTreeMap<(u64, u64), Message>,
    messages: u64,
    now: u64,
    pub servers: Vec<Server>,
    pub workers: Vec<Worker>,
    pub saw: Vec<Saw>,
}

/// Runs a job to its end, and checks on the way what holds under every synchrony.
pub fn run<'a>(job: &'a Job, synchrony: &str) -> Simulation<'a> {
    let synchrony = named(synchrony).unwrap();
    let (n, initial) = (job.entries(), job.initial());
    let shards = Shards::new(n, job.servers).unwrap();
    let server = |server| {
        Server::new(synchrony.policy(&vec![0; job.workers as usize]), shards.range(server), &initial)
    };
    let servers: Vec<Server> = (0..job.servers).map(server).collect();
    let lgp = synchrony.osp().map_or(gleaner_algorithms::synchrony::osp::StandIn::Off, |osp| osp.lgp);
    let worker = |_| Worker {
        view: initial.clone(),
        truth: initial.clone(),
        gradient: Vec::new(),
        velocities: vec![0.0; n],
        lgp: Lgp::new(lgp, job.sgd, n),
        seen: vec![BTreeSet::new(); servers.len()],
        step: 0,
        sent: 0,
        unanswered: [0; 2],
        over: false,
        alive: true,
    };
    let workers = (0..job.workers).map(worker).collect();
    let units = Layers::of(job.units.iter().copied()).ranges().collect();
    let mut simulation = Simulation {
        job,
        synchrony,
        units,
        queue: BTreeMap::new(),
        messages: 0,
        now: 0,
        servers,
        workers,
        saw: Vec::new(),
    };
    for &Death { worker, after } in &job.deaths {
        simulation.send(after, Message::Dies(worker));
    }
    (0..job.workers).for_each(|worker| simulation.begin(worker));
    while let Some(((now, _), message)) = simulation.queue.pop_first() {
        simulation.now = now;
        simulation.take(message);
    }
    simulation.check_end();
    simulation
}

impl Simulation<'_> {
    fn send(&mut self, after: u64, message: Message) {
        self.messages += 1;
        self.queue.insert((self.now + after, self.messages), message);
    }

    fn delay(&self) -> u64 {
        1 + self.job.random(&[1, self.messages]) % 30
    }

    /// Entries of units that are in the background of a step, or not.
    fn entries(&self, step: u64, stage: Stage) -> impl Fn(usize) -> bool + use<> {
        let split = self.synchrony.osp().map(|_| self.job.background(step)).unwrap_or_default();
        let units = self.units.clone();
        move |entry| {
            let unit = units.iter().position(|range| range.contains(&entry)).unwrap();
            (stage == Stage::Background) == split.get(unit).copied().unwrap_or(false)
        }
    }

    fn has_background(&self, step: u64) -> bool {
        self.synchrony.osp().is_some() && self.job.background(step).contains(&true)
    }

    fn begin(&mut self, rank: u32) {
        let step = self.workers[rank as usize].step;
        if step == self.job.steps {
            if self.workers[rank as usize].unanswered == [0; 2] {
                self.leave(rank);
            }
            return;
        }
        let others = self.workers.iter().filter(|worker| worker.alive).map(|worker| worker.sent);
        let worker = &self.workers[rank as usize];
        self.saw.push(Saw {
            worker: rank,
            step,
            view: worker.view.clone(),
            gradients: worker.seen.clone(),
            ahead: worker.sent - others.min().unwrap(),
        });
        let gradient = self.job.gradient(rank, step, &worker.view);
        self.workers[rank as usize].gradient = gradient;
        self.send(self.job.computing(rank, step), Message::Computed(rank));
    }

    /// It ends, or fails. Each server hears of it some time later.
    fn leave(&mut self, rank: u32) {
        self.workers[rank as usize].alive = false;
        for server in 0..self.servers.len() {
            self.send(self.delay(), Message::Event(server, Event::Left { worker: rank }, Vec::new()));
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Dies(rank) => {
                if self.workers[rank as usize].alive {
                    self.leave(rank);
                }
            }
            Message::Computed(rank) if self.workers[rank as usize].alive => self.computed(rank),
            Message::Grant(rank, server) if self.workers[rank as usize].alive => {
                let step = self.workers[rank as usize].step;
                assert!(self.servers[server].pushing.insert(rank));
                assert!(self.servers[server].pushing.len() <= 1, "two pushes at a time");
                self.push(rank, server, Stage::Routine, step);
            }
            Message::Reply(rank, server, stage, values, seen) => {
                if self.synchrony.grants() {
                    self.at_server(server, Event::Replied { worker: rank }, Vec::new());
                }
                if self.workers[rank as usize].alive {
                    self.answered(rank, server, stage, values, seen);
                }
            }
            Message::Event(server, event, gradient) => self.at_server(server, event, gradient),
            Message::Computed(_) | Message::Grant(..) => {}
        }
    }

    fn computed(&mut self, rank: u32) {
        let job = self.job;
        let worker = &mut self.workers[rank as usize];
        worker.over = worker.unanswered[1] > 0;
        if worker.over {
            return;
        }
        let mut number = worker.step;
        if let Some(local) = self.synchrony.local() {
            job.sgd.step(&mut worker.view, &mut worker.velocities, &worker.gradient, job.rate);
            if !local.exchanges(worker.step) {
                worker.step += 1;
                return self.begin(rank);
            }
            worker.gradient =
                worker.truth.iter().zip(&worker.view).map(|(before, after)| before - after).collect();
            number = local.exchanges_before(worker.step);
        }
        worker.sent += 1;
        worker.unanswered[0] = self.servers.len();
        for server in 0..self.servers.len() {
            if self.synchrony.grants() {
                let asks = Event::Asks { worker: rank, step: number };
                self.send(self.delay(), Message::Event(server, asks, Vec::new()));
            } else {
                self.push(rank, server, Stage::Routine, number);
            }
        }
    }

    fn push(&mut self, worker: u32, server: usize, stage: Stage, step: u64) {
        let gradient = self.workers[worker as usize].gradient[self.servers[server].range.clone()].to_vec();
        self.send(self.delay(), Message::Event(server, Event::Pushed { worker, step, stage }, gradient));
    }

    fn answered(
        &mut self,
        rank: u32,
        server: usize,
        stage: Stage,
        values: Vec<f32>,
        seen: BTreeSet<(u32, u64)>,
    ) {
        let step = self.workers[rank as usize].step - u64::from(stage == Stage::Background);
        let (range, in_stage) = (self.servers[server].range.clone(), self.entries(step, stage));
        let worker = &mut self.workers[rank as usize];
        for (entry, value) in range.zip(values).filter(|&(entry, _)| in_stage(entry)) {
            let before = std::mem::replace(&mut worker.truth[entry], value);
            worker.lgp.learn(entry, &[before], &[value], self.job.rate);
        }
        worker.seen[server] = seen;
        worker.unanswered[stage as usize] -= 1;
        if worker.unanswered[stage as usize] > 0 {
            return;
        }
        if stage == Stage::Background {
            if worker.step == self.job.steps {
                self.leave(rank);
            } else if worker.over {
                self.computed(rank);
            }
            return;
        }
        // Equation 7 is in this: true values take the place of predicted ones.
        worker.view.clone_from(&worker.truth);
        worker.step += 1;
        if self.has_background(step) {
            let in_background = self.entries(step, Stage::Background);
            let worker = &mut self.workers[rank as usize];
            for entry in (0..worker.view.len()).filter(|&entry| in_background(entry)) {
                let (view, gradient) = (&mut worker.view[entry..=entry], &worker.gradient[entry..=entry]);
                worker.lgp.predict(entry, view, gradient, self.job.rate);
            }
            worker.unanswered[1] = self.servers.len();
            (0..self.servers.len()).for_each(|server| self.push(rank, server, Stage::Background, step));
        }
        self.begin(rank);
    }

    fn at_server(&mut self, number: usize, event: Event, gradient: Vec<f32>) {
        let now = Duration::from_micros(self.now);
        if self.job.hostile {
            self.refuse(number, event, now);
        }
        let server = &mut self.servers[number];
        match event {
            Event::Pushed { worker, step, stage } if !server.left.contains(&worker) => {
                server.pushing.remove(&worker);
                server.log.push(Came::Push(worker, step));
                server.waiting.insert((worker, stage));
                assert!(server.pushes.insert((stage, worker, step), gradient).is_none());
            }
            Event::Left { worker } => {
                server.log.push(Came::Left(worker));
                server.left.insert(worker);
                server.pushing.remove(&worker);
                server.replying.remove(&worker);
                server.waiting.retain(|&(rank, _)| rank != worker);
            }
            Event::Replied { worker } => {
                server.replying.remove(&worker);
            }
            _ => {}
        }
        for action in server.policy.handle(event, now).unwrap() {
            self.act(number, action);
        }
        self.servers[number].hold(self.job.workers);
        let server = &self.servers[number];
        let awaited = server.policy.awaited();
        let waits = |rank: &u32| {
            server.waiting.iter().any(|(worker, _)| worker == rank) || server.left.contains(rank)
        };
        assert!(!awaited.iter().any(waits), "{awaited:?} of {server:?}");
        // A reply may also wait for the link.
        assert!(!awaited.is_empty() || server.waiting.is_empty() || self.synchrony.grants(), "{server:?}");
    }

    /// Nothing that a worker may not do is taken, or changes anything.
    fn refuse(&mut self, number: usize, event: Event, now: Duration) {
        let (workers, two_stages) = (self.job.workers, self.synchrony.osp().is_some());
        let server = &mut self.servers[number];
        let mut refused = |worker, step, stage| {
            let error =
                server.policy.handle(Event::Pushed { worker, step, stage }, now).unwrap_err().to_string();
            assert!(error.contains(&format!("worker {worker} ")) && error.contains("expect"), "{error}");
        };
        refused(workers, 0, Stage::Routine);
        if let Event::Asks { worker, step } = event
            && !server.left.contains(&worker)
        {
            let error = server.policy.handle(Event::Asks { worker, step: step + 1 }, now);
            assert_eq!(error.is_err(), self.synchrony.grants());
        }
        if let Event::Pushed { worker, step, stage } = event
            && !server.left.contains(&worker)
        {
            let mut refused = |worker, step, stage| {
                let error = server.policy.handle(Event::Pushed { worker, step, stage }, now).unwrap_err();
                assert!(error.to_string().contains("expect"), "{error}");
            };
            refused(worker, step + 2, Stage::Routine);
            refused(worker, u64::MAX, stage);
            refused(worker, step.wrapping_sub(1), stage);
            if !two_stages {
                refused(worker, step, Stage::Background);
            }
        }
    }

    fn act(&mut self, number: usize, action: Action) {
        match action {
            Action::Apply { stage, pushes, workers } => self.apply(number, stage, &pushes, workers),
            Action::Reply { worker, step: _, stage } => {
                let server = &mut self.servers[number];
                assert!(server.waiting.remove(&(worker, stage)), "a reply to one who does not wait for it");
                if self.synchrony.grants() {
                    assert!(
                        server.replying.insert(worker) && server.replying.len() == 1,
                        "two replies at a time"
                    );
                }
                let reply =
                    Message::Reply(worker, number, stage, server.values.clone(), server.applied.clone());
                self.send(self.delay(), reply);
            }
            Action::Grant { worker, step } => {
                assert!(!self.servers[number].left.contains(&worker), "a grant to one who has left");
                assert_eq!(self.workers[worker as usize].step, step);
                self.send(self.delay(), Message::Grant(worker, number));
            }
        }
    }

    fn apply(&mut self, number: usize, stage: Stage, pushes: &[(u32, u64)], workers: u32) {
        let optimizer =
            self.synchrony.local().map_or((self.job.sgd, self.job.rate), |local| (local.outer(), local.rate));
        let (sgd, rate): (Sgd, f32) = optimizer;
        let in_stage = self.entries(pushes[0].1, stage);
        self.servers[number].apply((stage, pushes, workers), (sgd, rate), in_stage);
    }

    /// No worker waits for ever, and no push that came is lost.
    fn check_end(&self) {
        for (rank, worker) in self.workers.iter().enumerate() {
            let died = self.job.deaths.iter().any(|death| death.worker as usize == rank);
            assert!(
                died || worker.step == self.job.steps,
                "worker {rank} stands at step {}: {:?}",
                worker.step,
                self.servers
            );
        }
        for server in &self.servers {
            assert!(server.pushes.is_empty() && server.policy.awaited().is_empty(), "{server:?}");
        }
    }

    /// The parameters that servers have in the end.
    pub fn parameters(&self) -> Vec<f32> {
        self.servers.iter().flat_map(|server| server.values.iter().copied()).collect()
    }
}
