//! Steps over parameter servers: what servers decide is decided by the very policies that jobs run, and what travels shares the links evenly.

use std::time::Duration;

use gleaner_algorithms::synchrony::osp::{self, Budget, Cluster, Link};
use gleaner_algorithms::synchrony::{Action, Event, Policy, PolicyError, Stage, Synchrony};
use gleaner_statistics::random;

/// Bytes of an entry.
const ENTRY: f64 = 4.0;

/// A job without its numbers.
#[derive(Clone, Debug)]
pub struct Served {
    /// Entries of each layer.
    pub layers: Vec<usize>,
    /// What a pass takes on each worker, in seconds.
    pub passes: Vec<f64>,
    /// What a host's link carries in each direction, in bytes per second.
    pub rate: f64,
    /// How long a byte is on its way, in seconds.
    pub latency: f64,
    /// Servers, each on a host of its own with an even share of the model.
    pub servers: usize,
    /// Steps of each worker.
    pub steps: u64,
    /// Which layers are important, under OSP, where no gradients say it: sampled for each step from this seed.
    pub seed: u64,
}

/// The outcome: means over the second half of the steps and over workers, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Course {
    /// A step.
    pub step: f64,
    /// From the end of a pass until the next could begin: batch synchronisation time.
    pub synchronising: f64,
    /// Passes of all workers together in a second.
    pub rate: f64,
    /// The share of the model that travelled during the next pass.
    pub background: f64,
    /// U_max as a share of the model; none but under OSP.
    pub most: Option<f64>,
}

/// What a worker is at.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    /// In a pass until then.
    Pass(f64),
    /// Waiting for what is under way in a stage.
    Waits(Stage),
    Done,
}

struct Worker {
    at: At,
    step: u64,
    /// When its last pass ended, and how many servers have not answered yet in each stage.
    ended: f64,
    unanswered: [usize; 2],
    /// Which layers of the present step travel in the background.
    split: Vec<bool>,
    /// Each step's beginning, waiting, and what was in the background.
    history: Vec<[f64; 3]>,
}

/// Bytes under way between a worker and a server.
#[derive(Clone, Copy, Debug)]
struct Flow {
    worker: usize,
    server: usize,
    stage: Stage,
    /// The worker's when it was sent.
    step: u64,
    /// To the server, or back.
    push: bool,
    left: f64,
}

struct Simulation<'a> {
    job: &'a Served,
    synchrony: &'a dyn Synchrony,
    policies: Vec<Box<dyn Policy>>,
    workers: Vec<Worker>,
    flows: Vec<Flow>,
    now: f64,
    budget: usize,
}

/// Runs a job to its end. It fails where a policy refuses what workers do, which none does.
pub fn served(job: &Served, synchrony: &dyn Synchrony) -> Result<Course, PolicyError> {
    let model: usize = job.layers.iter().sum();
    let most = synchrony.osp().map(|osp| {
        let link = Link { bytes_per_second: job.rate, loss: 0.0 };
        let cluster = Cluster {
            workers: vec![link; job.passes.len()],
            servers: vec![link; job.servers],
            in_turn: true,
            latency: Duration::from_secs_f64(job.latency),
            ..Cluster::default()
        };
        // All workers wait for the slowest, so what travels may take as long as its pass.
        let pass = Duration::from_secs_f64(job.passes.iter().copied().fold(0.0, f64::max));
        let allowed = osp::most(model, pass, |entries| cluster.seconds(ENTRY * entries as f64));
        match osp.budget {
            Budget::Share(_) => osp.entries(model, allowed, &osp::Tuning::default()),
            Budget::Tuned | Budget::Bound => osp.most(model, allowed),
        }
    });
    let first = vec![0; job.passes.len()];
    // Workers do not begin at once, or they would never be but in step.
    let late = |rank: usize| 1.0 + rank as f64 / job.passes.len() as f64;
    let worker = |(rank, &pass): (usize, &f64)| Worker {
        at: At::Pass(pass * late(rank)),
        step: 0,
        ended: 0.0,
        unanswered: [0; 2],
        split: Vec::new(),
        history: vec![[0.0; 3]],
    };
    let mut simulation = Simulation {
        job,
        synchrony,
        policies: (0..job.servers).map(|_| synchrony.policy(&first)).collect(),
        workers: job.passes.iter().enumerate().map(worker).collect(),
        flows: Vec::new(),
        now: 0.0,
        budget: most.unwrap_or(0),
    };
    while simulation.advance()? {}
    Ok(simulation.course(model, most))
}

impl Simulation<'_> {
    /// Bytes per second of each flow: on every link all that pass in a direction have as much, and the narrower end decides.
    fn rates(&self) -> Vec<f64> {
        let beside = |is: &dyn Fn(&Flow) -> bool| self.flows.iter().filter(|other| is(other)).count() as f64;
        let of = |flow: &Flow| {
            let alike = |other: &Flow| other.push == flow.push;
            let at_worker = beside(&|other| alike(other) && other.worker == flow.worker);
            let at_server = beside(&|other| alike(other) && other.server == flow.server);
            self.job.rate / at_worker.max(at_server)
        };
        self.flows.iter().map(of).collect()
    }

    /// Goes on to what happens next; false if nothing does.
    fn advance(&mut self) -> Result<bool, PolicyError> {
        let rates = self.rates();
        // Of what is at one time, ends of passes come first.
        let ends = self.workers.iter().map(|worker| match worker.at {
            At::Pass(end) => end,
            _ => f64::INFINITY,
        });
        let arrivals = self.flows.iter().zip(&rates).map(|(flow, rate)| self.now + flow.left / rate);
        let all = ends.chain(arrivals).enumerate().filter(|(_, at)| at.is_finite());
        let Some((which, until)) = all.min_by(|a, b| a.1.total_cmp(&b.1)) else { return Ok(false) };
        let passed = until - self.now;
        self.flows.iter_mut().zip(rates).for_each(|(flow, rate)| flow.left -= rate * passed);
        self.now = until;
        if let Some(flow) = which.checked_sub(self.workers.len()) {
            let flow = self.flows.swap_remove(flow);
            self.arrive(flow)?;
        } else {
            self.workers[which].ended = until;
            self.go_on(which)?;
        }
        Ok(true)
    }

    /// A pass is over, and maybe what was in the background of the one before: this step's gradient is pushed.
    fn go_on(&mut self, worker: usize) -> Result<(), PolicyError> {
        let own = &mut self.workers[worker];
        if own.unanswered[Stage::Background as usize] > 0 {
            own.at = At::Waits(Stage::Background);
            return Ok(());
        }
        own.split =
            if self.synchrony.osp().is_some() { split(self.job, own.step, self.budget) } else { Vec::new() };
        own.at = At::Waits(Stage::Routine);
        let step = own.step;
        if !self.synchrony.grants() {
            return self.push(worker, Stage::Routine);
        }
        self.workers[worker].unanswered[Stage::Routine as usize] = self.job.servers;
        for server in 0..self.job.servers {
            self.handle(server, Event::Asks { worker: worker as u32, step })?;
        }
        Ok(())
    }

    /// Bytes of a stage to or from one server.
    fn bytes(&self, worker: usize, stage: Stage) -> f64 {
        let split = &self.workers[worker].split;
        let is_background = |layer: usize| split.get(layer).copied().unwrap_or(false);
        let of = |layer: &usize| is_background(*layer) == (stage == Stage::Background);
        let entries: usize = (0..self.job.layers.len()).filter(of).map(|layer| self.job.layers[layer]).sum();
        ENTRY * entries as f64 / self.job.servers as f64
    }

    fn push(&mut self, worker: usize, stage: Stage) -> Result<(), PolicyError> {
        self.workers[worker].unanswered[stage as usize] = self.job.servers;
        (0..self.job.servers).try_for_each(|server| self.send(worker, server, stage, true))
    }

    fn send(&mut self, worker: usize, server: usize, stage: Stage, push: bool) -> Result<(), PolicyError> {
        let step = self.workers[worker].step;
        // A latency is time in which the link could carry as much.
        let left = self.bytes(worker, stage) + self.job.latency * self.job.rate;
        let flow = Flow { worker, server, stage, step, push, left };
        if left > 0.0 {
            self.flows.push(flow);
            return Ok(());
        }
        self.arrive(flow)
    }

    fn arrive(&mut self, flow: Flow) -> Result<(), PolicyError> {
        let Flow { worker, server, stage, step, push, .. } = flow;
        if push {
            return self.handle(server, Event::Pushed { worker: worker as u32, step, stage });
        }
        if self.synchrony.grants() {
            self.handle(server, Event::Replied { worker: worker as u32 })?;
        }
        self.workers[worker].unanswered[stage as usize] -= 1;
        if self.workers[worker].unanswered[stage as usize] > 0 || self.workers[worker].at != At::Waits(stage)
        {
            return Ok(());
        }
        match stage {
            Stage::Background => self.go_on(worker),
            Stage::Routine => self.end_step(worker),
        }
    }

    /// What is important has come: the next pass begins, and the rest travels during it.
    fn end_step(&mut self, worker: usize) -> Result<(), PolicyError> {
        let background = self.bytes(worker, Stage::Background) * self.job.servers as f64 / ENTRY;
        let own = &mut self.workers[worker];
        if let Some(history) = own.history.last_mut() {
            (history[1], history[2]) = (self.now - own.ended, background);
        }
        own.history.push([self.now, 0.0, 0.0]);
        if background > 0.0 {
            self.push(worker, Stage::Background)?;
        }
        let own = &mut self.workers[worker];
        own.step += 1;
        own.at =
            if own.step < self.job.steps { At::Pass(self.now + self.job.passes[worker]) } else { At::Done };
        if own.at == At::Done {
            for server in 0..self.job.servers {
                self.handle(server, Event::Left { worker: worker as u32 })?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, server: usize, event: Event) -> Result<(), PolicyError> {
        let actions = self.policies[server].handle(event, Duration::from_secs_f64(self.now))?;
        for action in actions {
            match action {
                Action::Apply { .. } => {}
                Action::Grant { worker, .. } => self.send(worker as usize, server, Stage::Routine, true)?,
                Action::Reply { worker, stage, .. } => self.send(worker as usize, server, stage, false)?,
            }
        }
        Ok(())
    }

    fn course(&self, model: usize, most: Option<usize>) -> Course {
        let half = self.job.steps as usize / 2;
        let (mut step, mut synchronising, mut background, mut rate) = (0.0, 0.0, 0.0, 0.0);
        for history in self.workers.iter().map(|worker| &worker.history) {
            // The last is the step that was not begun.
            let (late, end) = (&history[half..history.len() - 1], history[history.len() - 1][0]);
            let mean = |field: usize| {
                late.iter().map(|history| history[field]).sum::<f64>() / late.len().max(1) as f64
            };
            let took = (end - history[half][0]) / late.len().max(1) as f64;
            step += took;
            rate += 1.0 / took;
            synchronising += mean(1);
            background += mean(2);
        }
        let (workers, model) = (self.workers.len() as f64, model.max(1) as f64);
        Course {
            step: step / workers,
            synchronising: synchronising / workers,
            rate,
            background: background / workers / model,
            most: most.map(|most| most as f64 / model),
        }
    }
}

/// Which layers are in the background of a step, the same on all workers.
fn split(job: &Served, step: u64, budget: usize) -> Vec<bool> {
    // Importances are not known, so any are as good.
    let importance = |layer: usize| {
        random::unit(random::at(0, job.seed.wrapping_add(step << 32).wrapping_add(layer as u64)))
    };
    let importances: Vec<f64> = (0..job.layers.len()).map(importance).collect();
    osp::split(&importances, &job.layers, budget)
}

#[cfg(test)]
mod tests;
