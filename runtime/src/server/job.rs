//! What a server does for the workers of one plan.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Instant;

use gleaner_algorithms::schedule::ExecutionError;
use gleaner_algorithms::synchrony::shards::Shards;
use gleaner_algorithms::synchrony::{self, Action, Event, Policy, Stage, Synchrony};
use gleaner_transport::Peer;

use super::actor::{Done, Message};
use super::control::{Answer, Head};
use super::plan::Plan;
use super::push_queue::PushQueue;
use super::shard::{self, Shard, Slice, Update};
use super::splitting::{Arrived, Splitting};
use super::store::{self, Description, State};
use super::{PUSH, Part, parts};
use crate::algorithm::INLINE;
use crate::io::Io;
use crate::mailbox::Command;
use crate::roles::RoleMap;
use crate::tag::{SERVED, StepId, Topic};

/// See the module.
pub(super) struct Job {
    /// Of which plan.
    number: u32,
    plan: Plan,
    /// Of which run its state is.
    run: String,
    parts: Vec<Part>,
    /// What one push of each part takes of a window.
    most: Vec<u64>,
    synchrony: Box<dyn Synchrony>,
    /// Once the workers have said with which step they begin.
    policy: Option<(Box<dyn Policy>, u64)>,
    began: Instant,
    /// Unless a compute thread has it.
    pub(super) shard: Option<Box<Shard>>,
    pub(super) push_queues: Vec<PushQueue>,
    /// What is to be done, and because of which worker.
    pub(super) queue: VecDeque<(Operation, u32)>,
    /// Under OSP.
    splitting: Option<Splitting>,
}

#[derive(Debug)]
pub(super) enum Operation {
    Act(Action),
    /// A worker gets all values.
    Fetch {
        worker: u32,
        step: u64,
    },
    /// All servers resume at this step, which this one has made already.
    GoBack {
        step: u64,
    },
    /// Workers are told how important units are for a step.
    Weigh {
        step: u64,
    },
}

/// The state that a server makes from a plan.
pub(crate) struct Opened {
    parts: Vec<Part>,
    most: Vec<u64>,
    shard: Shard,
    run: String,
    synchrony: Box<dyn Synchrony>,
    plan: Plan,
    role_map: RoleMap,
}

impl Opened {
    /// Made on a compute thread.
    pub(super) fn new(plan: Plan, values: &[f32], role_map: RoleMap) -> Result<Self, String> {
        let synchrony = synchrony::named(&plan.synchrony).map_err(|error| error.to_string())?;
        let shards =
            Shards::new(plan.lens().iter().sum(), plan.servers).map_err(|error| error.to_string())?;
        let parts =
            parts(&plan.lens(), &plan.pushing, &shards, plan.server).map_err(|error| error.to_string())?;
        let most = parts.iter().map(|part| Ok(part.maker.most(0)?[0]));
        let most = most.collect::<Result<_, crate::Error>>().map_err(|error| error.to_string())?;
        let entries: usize = parts.iter().map(|part| part.range.len()).sum();
        let (expected, found) =
            ((role_map.workers, role_map.roles.servers, entries), (plan.workers, plan.servers, plan.values));
        if expected != found {
            return Err(format!(
                "it expected {} workers, {} servers and {} values, and found {}, {} and {}: start all ranks with the same number of servers",
                expected.0, expected.1, expected.2, found.0, found.1, found.2
            ));
        }
        let state = first(&parts, values, role_map.workers as usize);
        let is = (plan.pushing.is_sparse(), synchrony.osp().is_some());
        let (shard, run) = match &plan.directory {
            None => (Shard::new(plan.sgd(), is, state), plan.run.clone()),
            Some(directory) => {
                let Plan { server, servers, workers, ref units, ref run, .. } = plan;
                let (run, units, generation, slices) = (run.clone(), units.clone(), 0, Vec::new());
                let description = Description { run, generation, server, servers, workers, units, slices };
                let fresh = (!plan.resume).then_some(state);
                let taken = store::take_up(directory, description, &ranges(&parts), fresh);
                let (state, store, run) = taken.map_err(|error| error.to_string())?;
                let mut shard = Shard::new(plan.sgd(), is, state);
                shard.keep_in(store);
                (shard, run)
            }
        };
        Ok(Self { parts, most, shard, run, synchrony, plan, role_map })
    }
}

/// Where parts lie among all parameters.
fn ranges(parts: &[Part]) -> Vec<Range<usize>> {
    parts.iter().map(|part| part.range.clone()).collect()
}

/// The state before the first step.
fn first(parts: &[Part], mut values: &[f32], workers: usize) -> State {
    let mut state = State::default();
    for (number, part) in parts.iter().enumerate() {
        let (here, rest) = values.split_at(part.range.len());
        values = rest;
        state.parts.push((here.to_vec(), vec![0.0; here.len()]));
        state.slices.push(Slice { part: number, range: 0..here.len(), applied: vec![0; workers] });
    }
    state
}

impl Job {
    pub(super) fn new(number: u32, opened: Opened, left: &BTreeSet<u32>) -> Self {
        let Opened { parts, most, shard, run, synchrony, plan, role_map } = opened;
        let push_queue = |worker| PushQueue::new(parts.len(), left.contains(&worker));
        let push_queues = (0..role_map.workers).map(push_queue).collect();
        let splitting =
            |osp: &synchrony::Osp| Splitting::new(*osp, role_map, plan.lens().iter().sum(), plan.epoch);
        let splitting = synchrony.osp().map(splitting);
        let (policy, began, queue) = (None, Instant::now(), VecDeque::new());
        let shard = Some(Box::new(shard));
        Self {
            number,
            plan,
            run,
            parts,
            most,
            synchrony,
            policy,
            began,
            shard,
            push_queues,
            queue,
            splitting,
        }
    }

    /// How many units there are.
    pub(super) fn units(&self) -> usize {
        self.plan.units.len()
    }

    /// Which part it has of a unit, if it has one.
    pub(super) fn part(&self, unit: usize) -> Option<usize> {
        self.parts.binary_search_by_key(&unit, |part| part.unit).ok()
    }

    /// How many bytes of each unit may wait here, for each worker: two pushes.
    pub(super) fn windows(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.parts.iter().zip(&self.most).map(|(part, most)| (part.unit, 2 * most))
    }

    /// What workers get in the beginning.
    pub(super) fn ready(&self) -> Answer {
        let step = self.shard.as_ref().map_or(0, |shard| shard.next());
        Answer::Ready { step, run: self.run.clone() }
    }

    /// Hands it to the policy, and remembers what follows.
    pub(super) fn happens(&mut self, because_of: u32, event: Event) -> Result<(), String> {
        let Some((policy, _)) = &mut self.policy else {
            return Err("it violated the protocol: it did not say with which step it begins".to_owned());
        };
        let actions = policy.handle(event, self.began.elapsed()).map_err(|error| error.to_string())?;
        let mut weighs = None;
        for action in actions {
            if let Action::Apply { stage, pushes, .. } = &action
                && let Some(&(worker, step)) = pushes.first()
            {
                // What comes last in a step.
                let is_all = self.push_queues[worker as usize].has_all((step, *stage));
                weighs = weighs.or((is_all || *stage == Stage::Background).then_some(step + 1));
            }
            self.queue.push_back((Operation::Act(action), because_of));
        }
        if let Some(step) = weighs.filter(|_| self.splitting.is_some()) {
            self.queue.push_back((Operation::Weigh { step }, because_of));
        }
        Ok(())
    }

    pub(super) fn begin(&mut self, worker: u32, step: u64) -> Result<(), String> {
        let workers = self.push_queues.len();
        if self.policy.is_none() && self.shard.as_ref().is_some_and(|shard| shard.next() > step) {
            self.queue.push_back((Operation::GoBack { step }, worker));
        }
        let (policy, first) =
            self.policy.get_or_insert_with(|| (self.synchrony.policy(&vec![step; workers]), step));
        if *first != step {
            return Err(format!(
                "it begins with step {step}, and others with step {first}: start all ranks from the same checkpoint"
            ));
        }
        // Workers that left before there was anything to begin.
        let gone = (0..)
            .zip(&mut self.push_queues)
            .filter(|(_, push_queue)| push_queue.is_gone && !push_queue.is_reported);
        for (worker, push_queue) in gone {
            push_queue.is_reported = true;
            policy.handle(Event::Left { worker }, self.began.elapsed()).map_err(|error| error.to_string())?;
        }
        self.fetch(worker, step)
    }

    pub(super) fn fetch(&mut self, worker: u32, step: u64) -> Result<(), String> {
        if self.policy.is_none() {
            return Err("it violated the protocol: it did not say with which step it begins".to_owned());
        }
        self.queue.push_back((Operation::Fetch { worker, step }, worker));
        Ok(())
    }

    /// A worker announces a push.
    pub(super) fn push(&mut self, worker: u32, head: Head, io: &mut Io) -> Result<(), String> {
        let push = (head.step, head.stage);
        let first = self.policy.as_ref().map_or(0, |(_, first)| *first);
        if head.step < first {
            return Err(format!(
                "it pushes step {}, and the servers have all steps before {first}: start all ranks from the same checkpoint",
                head.step
            ));
        }
        if let Some(splitting) = self.splitting.as_mut().filter(|_| head.stage == Stage::Routine) {
            splitting.heard(worker, &head);
        }
        self.push_queues[worker as usize].announce(head, &self.parts)?;
        self.take_in(worker, push, None, io)
    }

    /// Decodes the payloads of a push that have arrived, of one part or of all of them.
    pub(super) fn take_in(
        &mut self,
        worker: u32,
        push: (u64, Stage),
        part: Option<usize>,
        io: &mut Io,
    ) -> Result<(), String> {
        let push_queue = &mut self.push_queues[worker as usize];
        for part in part.map_or(0..self.parts.len(), |part| part..part + 1) {
            let number = PUSH + 1 + self.parts[part].unit as u32;
            let tag = Topic::Bags(StepId::new(io.epoch, number, push.0)).tag();
            while push_queue.waits(push, part)
                && let Some(payload) = io.inbox.take(Peer(worker), tag)
            {
                push_queue.feed(push, part, payload, (worker, self.number, io))?;
            }
        }
        if push_queue.is_complete(push) {
            let (step, stage) = push;
            return self.happens(worker, Event::Pushed { worker, step, stage });
        }
        Ok(())
    }

    /// Applies what workers have pushed in a stage.
    pub(super) fn apply(
        &mut self,
        stage: Stage,
        pushes: &[(u32, u64)],
        workers: u32,
        io: &mut Io,
    ) -> Option<Done> {
        let is_gone = |push_queue: &PushQueue| push_queue.is_gone && !push_queue.has_more();
        let gone = (0..)
            .zip(&self.push_queues)
            .filter(|(_, push_queue)| is_gone(push_queue))
            .map(|(worker, _)| worker)
            .collect();
        let mut update = Update { rate: 0.0, workers, pushes: Vec::new(), gone };
        let (mut taken, mut arrived, mut entries) = (Vec::new(), Vec::new(), 0);
        for &(worker, step) in pushes {
            let Some(came) = self.push_queues[worker as usize].take((step, stage)) else { continue };
            if update.pushes.is_empty() {
                update.rate = came.head.rate;
            }
            let (began, ended) = came.during;
            let bytes = came.bytes.iter().map(|(_, bytes)| bytes).sum();
            arrived.push(Arrived { worker, bytes, began, ended });
            entries += came.bags.iter().map(|(part, _)| self.parts[*part].range.len()).sum::<usize>();
            let costs = came.bytes.into_iter().map(|(part, bytes)| (worker, self.parts[part].unit, bytes));
            taken.extend(costs);
            update.pushes.push(shard::Push { worker, step, samples: came.head.samples, bags: came.bags });
        }
        if let Some(splitting) = &mut self.splitting {
            splitting.came(&arrived);
        }
        // A file is not waited for here.
        let entries = if self.plan.directory.is_some() { usize::MAX } else { entries };
        let apply = move |shard: &mut Shard| match shard.apply(update) {
            Ok(()) => Done::Applied(taken),
            Err(error) => Done::Failed(error.to_string()),
        };
        self.work(entries, apply, io)
    }

    /// Brings a worker the values of some units that it has pushed, or of all.
    pub(super) fn bring(
        &mut self,
        worker: u32,
        step: u64,
        units: Option<&[bool]>,
        io: &mut Io,
    ) -> Option<Done> {
        let (parts, push_queue) = (&self.parts, &mut self.push_queues[worker as usize]);
        let (mut wanted, mut entries) = (Vec::new(), 0);
        let now = self.shard.as_ref().map_or(0, |shard| shard.updates as u32);
        let is_sparse = self.plan.pushing.is_sparse();
        for (index, part) in parts.iter().enumerate() {
            if units.is_some_and(|units| !units[part.unit]) {
                continue;
            }
            let since = push_queue.since[index].replace(now).filter(|_| units.is_some());
            let program = match (since, part.maker.at(step)) {
                (_, Err(error)) => return Some(Done::Failed(error.to_string())),
                (Some(_), Ok(programs)) => programs.pull[1].clone(),
                (None, Ok(_)) => part.maker.whole()[1].clone(),
            };
            // All values go as they lie there.
            entries += if is_sparse && since.is_some() { part.range.len() } else { 0 };
            wanted.push((index, part.unit, program, since));
        }
        let encode = move |shard: &mut Shard| {
            let encoded = wanted
                .into_iter()
                .map(|(part, unit, program, since)| Ok((unit, shard.encode(part, &program, since)?)));
            match encoded.collect() {
                Ok(encoded) => Done::Encoded { worker, step, encoded },
                Err::<_, ExecutionError>(error) => Done::Failed(error.to_string()),
            }
        };
        self.work(entries, encode, io)
    }

    /// Rolls back to the step of the other servers.
    pub(super) fn go_back(&mut self, step: u64, io: &mut Io) -> Option<Done> {
        let ranges = ranges(&self.parts);
        let go_back = move |shard: &mut Shard| match shard.go_back(step, &ranges) {
            Ok(()) => Done::WentBack,
            Err(error) => Done::Failed(error.to_string()),
        };
        // A file is not waited for here.
        self.work(usize::MAX, go_back, io)
    }

    /// Weighs parts for a step.
    pub(super) fn weigh(&mut self, step: u64, io: &mut Io) -> Option<Done> {
        let entries = self.parts.iter().map(|part| part.range.len()).sum();
        let weigh = move |shard: &mut Shard| Done::Weighed { step, importance: shard.importance() };
        self.work(entries, weigh, io)
    }

    /// What workers are told of the next step.
    pub(super) fn split(&mut self, step: u64, weights: &[f64]) -> Answer {
        let mut importance = vec![0.0; self.units()];
        self.parts.iter().zip(weights).for_each(|(part, weight)| importance[part.unit] = *weight);
        let budget = self.splitting.as_mut().map_or([0; 2], |splitting| splitting.budget(step));
        Answer::Split { step, importance, budget }
    }

    /// A worker pushes nothing more.
    pub(super) fn leave(&mut self, worker: u32) -> Result<(), String> {
        let push_queue = &mut self.push_queues[worker as usize];
        if std::mem::replace(&mut push_queue.is_gone, true) || self.policy.is_none() {
            return Ok(());
        }
        push_queue.is_reported = true;
        push_queue.forget();
        self.happens(worker, Event::Left { worker })
    }

    /// Works on the shard: here, or where there are many entries on a compute thread.
    fn work(
        &mut self,
        entries: usize,
        work: impl FnOnce(&mut Shard) -> Done + Send + 'static,
        io: &mut Io,
    ) -> Option<Done> {
        let mut shard = self.shard.take()?;
        if entries <= INLINE {
            let done = work(&mut shard);
            self.shard = Some(shard);
            return Some(done);
        }
        let (mailbox, number) = (io.mailbox.clone(), self.number);
        io.compute(Box::new(move || {
            let done = work(&mut shard);
            mailbox.send(Command::To(SERVED, Box::new(Message::Back(number, shard, done))));
        }));
        None
    }
}
