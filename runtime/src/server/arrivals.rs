//! What comes from servers, on the trainer's thread: control messages, and values part by part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use bytes::Bytes;
use gleaner_algorithms::Rank;
use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::schedule::{Execution, ExecutionError, Program};
use gleaner_algorithms::synchrony::Stage;
use gleaner_transport::{Message as Packet, Peer};

use super::client::{Came, Message};
use super::control::{Answer, Ask};
use super::pusher::Pusher;
use super::shard::value_of;
use super::{PUSH, REPLY};
use crate::failure::{Error, Failure};
use crate::link::cost;
use crate::mailbox::Command;
use crate::replica::carrier::Finished;
use crate::session::Inner;
use crate::tag::{StepId, Topic};
use crate::waits::Awaited;

/// Payloads that are taken in before servers may send more.
const TAKEN: usize = 64;

/// See the module.
pub(super) struct Arrivals {
    session: Arc<Inner>,
    units: usize,
    /// In the order of units, and of servers within each.
    pub(super) pushers: Vec<Arc<Pusher>>,
    came: mpsc::Receiver<Came>,
    /// What was taken in, that is not acknowledged to the other end yet.
    taken: Vec<(Peer, u32, u64)>,
    started: BTreeMap<Stage, Started>,
    fetch: Option<Started>,
    /// The values received from servers so far, where only changes are sent.
    truth: Option<Vec<f32>>,
    /// By server, for which step it has said how important units are.
    splits: BTreeMap<u32, (u64, Vec<f64>, [u64; 2])>,
    /// The last step that was pushed, the last whose routine stage was, and the one after all that were.
    pub(super) step: u64,
    pub(super) routine: Option<u64>,
    pub(super) next: u64,
}

/// Values that are awaited.
struct Started {
    step: u64,
    began: Instant,
    /// Servers whose answer has not arrived.
    unheard: BTreeSet<u32>,
    /// By number of the pusher, those that are not complete.
    awaited: BTreeMap<usize, Box<Execution>>,
    came: Vec<(usize, Bag)>,
    /// Whether only what has changed comes.
    is_change: bool,
    last: Option<u32>,
}

impl Started {
    fn is_over(&self) -> bool {
        self.unheard.is_empty() && self.awaited.is_empty()
    }

    fn receive(&mut self, number: usize, payload: Bytes) -> Result<(), ExecutionError> {
        let Some(execution) = self.awaited.get_mut(&number) else { return Ok(()) };
        execution.receive(Rank(1), payload, &mut Vec::new())?;
        if execution.go_on(&mut Vec::new())?.is_none()
            && let Some(execution) = self.awaited.remove(&number)
        {
            self.came.extend(execution.finish()?.update.into_iter().map(|bag| (number, bag)));
        }
        Ok(())
    }
}

impl Arrivals {
    pub(super) fn new(
        session: &Arc<Inner>,
        units: usize,
        pushers: Vec<Arc<Pusher>>,
        truth: Option<Vec<f32>>,
        came: mpsc::Receiver<Came>,
    ) -> Self {
        Self {
            session: Arc::clone(session),
            units,
            pushers,
            came,
            taken: Vec::new(),
            started: BTreeMap::new(),
            fetch: None,
            truth,
            splits: BTreeMap::new(),
            step: 0,
            routine: None,
            next: 0,
        }
    }

    /// The values of what is pushed in a stage of a step are to come.
    pub(super) fn expect(&mut self, stage: Stage, step: u64, numbers: &[usize]) -> Result<(), Error> {
        self.complete(stage)?;
        let is_change = self.truth.is_some();
        let program = |pusher: &Pusher| Ok(pusher.part.maker.at(step)?.pull[0].clone());
        let started = Started { is_change, ..self.started(step, numbers, program)? };
        self.started.insert(stage, started);
        (self.step, self.next) = (step, step + 1);
        if stage == Stage::Routine {
            self.routine = Some(step);
        }
        Ok(())
    }

    fn started(
        &self,
        step: u64,
        numbers: &[usize],
        program: impl Fn(&Pusher) -> Result<Arc<Program>, Error>,
    ) -> Result<Started, Error> {
        let mut awaited = BTreeMap::new();
        for &number in numbers {
            let nothing = Arc::new(Vec::new());
            let program = program(&self.pushers[number])?;
            let mut execution = Execution::new(program, nothing, vec![Default::default()]);
            // It runs to its only receive.
            execution.go_on(&mut Vec::new())?;
            awaited.insert(number, Box::new(execution));
        }
        let unheard = (0..self.session.role_map.roles.servers).collect();
        let (began, came) = (Instant::now(), Vec::new());
        Ok(Started { step, began, unheard, awaited, came, is_change: false, last: None })
    }

    /// Waits until the values of the last push in a stage are complete.
    pub(super) fn complete(&mut self, stage: Stage) -> Result<(), Error> {
        while self.started.get(&stage).is_some_and(|started| !started.is_over()) {
            self.take()?;
        }
        self.tell_taken();
        Ok(())
    }

    /// The same, and writes it. An error leaves the parameters as they were.
    pub(super) fn finish(&mut self, stage: Stage, parameters: &mut [f32]) -> Result<Finished, Error> {
        self.complete(stage)?;
        let Some(started) = self.started.remove(&stage) else { return Ok(Finished::default()) };
        let under_way = started.began.elapsed();
        let own = self.session.rank.0;
        let awaited = started.last.filter(|rank| *rank != own).map_or(Awaited::NoRank, Awaited::Rank);
        self.write(started, parameters);
        Ok(Finished { under_way, awaited, ..Finished::default() })
    }

    /// Asks for all values, and waits for them.
    pub(super) fn fetch(&mut self, ask: &Ask, parameters: &mut [f32]) -> Result<(), Error> {
        let numbers: Vec<usize> = (0..self.pushers.len()).collect();
        let program = |pusher: &Pusher| Ok(pusher.part.maker.whole()[0].clone());
        self.fetch = Some(self.started(self.step, &numbers, program)?);
        (0..self.session.role_map.roles.servers).for_each(|server| self.say(server, ask, None));
        while self.fetch.as_ref().is_some_and(|fetch| !fetch.is_over()) {
            self.take()?;
        }
        self.tell_taken();
        if let Some(fetch) = self.fetch.take() {
            self.write(fetch, parameters);
        }
        Ok(())
    }

    /// How important units are for a step, and how many entries may go to the background, combined from all servers; U_max too.
    pub(super) fn split(&mut self, step: u64) -> Result<(Vec<f64>, usize, usize), Error> {
        let servers = self.session.role_map.roles.servers;
        let is_there = |splits: &BTreeMap<u32, (u64, Vec<f64>, [u64; 2])>, server| {
            splits.get(&server).is_some_and(|(of, ..)| *of == step)
        };
        while !(0..servers).all(|server| is_there(&self.splits, server)) {
            self.take()?;
        }
        self.tell_taken();
        let (mut importances, mut least) = (vec![0.0; self.units], [u64::MAX; 2]);
        for (_, importance, budget) in self.splits.values() {
            importances.iter_mut().zip(importance).for_each(|(sum, part)| *sum += part);
            least.iter_mut().zip(budget).for_each(|(least, budget)| *least = (*least).min(*budget));
        }
        Ok((importances, least[0] as usize, least[1] as usize))
    }

    /// The next answer of a server, while no values are awaited.
    pub(super) fn answer(&mut self) -> Result<(u32, Answer), Error> {
        let (server, id, payload) = self.next()?;
        let answer = (id.gradient == REPLY).then(|| Answer::decode(&payload, self.units)).flatten();
        answer.map(|answer| (server, answer)).ok_or_else(|| self.unexpected(server))
    }

    /// Takes the next message from a server.
    fn take(&mut self) -> Result<(), Error> {
        let (server, id, payload) = self.next()?;
        if id.gradient > REPLY {
            return self.take_in(server, id, payload);
        }
        let rank = self.session.rank.0;
        match Answer::decode(&payload, self.units) {
            Some(Answer::Reply { step, stage, awaited }) => {
                let started = self.started.get_mut(&stage).filter(|started| started.step == step);
                let Some(started) = started else { return Err(self.unexpected(server)) };
                started.unheard.remove(&server);
                if awaited != rank || started.last.is_none() {
                    started.last = Some(awaited);
                }
            }
            Some(Answer::Fetched { step }) => match self.fetch.as_mut().filter(|fetch| fetch.step == step) {
                Some(fetch) => drop(fetch.unheard.remove(&server)),
                None => return Err(self.unexpected(server)),
            },
            Some(Answer::Split { step, importance, budget }) => {
                self.splits.insert(server, (step, importance, budget));
            }
            Some(Answer::Ready { .. } | Answer::Granted { .. }) | None => return Err(self.unexpected(server)),
        }
        Ok(())
    }

    /// Takes in a payload of the values of a part.
    fn take_in(&mut self, server: u32, id: StepId, payload: Bytes) -> Result<(), Error> {
        let unit = (id.gradient - REPLY - 1) as usize;
        let key = |pusher: &Arc<Pusher>| (pusher.part.unit, pusher.server);
        let number = self.pushers.binary_search_by_key(&(unit, server), key).ok();
        let epoch = self.session.epoch;
        let mut started = self.started.values_mut().chain(self.fetch.as_mut()).filter(|started| {
            StepId::new(epoch, id.gradient, started.step) == id
                && number.is_some_and(|number| started.awaited.contains_key(&number))
        });
        let Some((started, number)) = started.next().zip(number) else { return Err(self.unexpected(server)) };
        started.receive(number, payload).map_err(|error| {
            let reason = match error {
                ExecutionError::Decode { source, .. } => {
                    format!("it sent something else than its schedule says: {source}")
                }
                error => error.to_string(),
            };
            self.blame(server, reason)
        })
    }

    /// Waits for what servers send.
    fn next(&mut self) -> Result<(u32, StepId, Bytes), Error> {
        match self.came.recv() {
            Ok(Came::Payload(host, id, payload)) => {
                self.taken.push((host, id.gradient, cost(&payload)));
                if self.taken.len() >= TAKEN {
                    self.tell_taken();
                }
                let role_map = self.session.role_map;
                let server = (0..role_map.roles.servers).find(|&server| role_map.host(server) == host);
                Ok((server.unwrap_or_default(), id, payload))
            }
            Ok(Came::Failed(failure)) => Err(failure.into()),
            Err(_) => Err(self.session.ended(Some(self.step)).into()),
        }
    }

    fn tell_taken(&mut self) {
        if !self.taken.is_empty() {
            let taken = std::mem::take(&mut self.taken);
            self.tell(Message::Took(taken));
        }
    }

    fn write(&mut self, started: Started, parameters: &mut [f32]) {
        for (number, bag) in started.came {
            let range = self.pushers[number].part.range.clone();
            let values = match &mut self.truth {
                Some(truth) => &mut truth[range.clone()],
                None => &mut parameters[range.clone()],
            };
            if started.is_change {
                bag.iter().for_each(|(index, value)| values[index as usize] = value_of(value));
            } else if let Bag::Dense(dense) = bag {
                values.iter_mut().zip(dense.iter()).for_each(|(value, new)| *value = new);
            }
            if let Some(truth) = &self.truth {
                parameters[range.clone()].copy_from_slice(&truth[range]);
            }
        }
    }

    pub(super) fn say(&self, server: u32, ask: &Ask, waits_for: Option<u64>) {
        let tag = Topic::Bags(StepId::new(self.session.epoch, PUSH, 0)).tag();
        let packets = vec![Packet { tag, payload: ask.encode() }];
        self.tell(Message::Send { server, waits_for, packets });
    }

    pub(super) fn tell(&self, message: Message) {
        self.session.mailbox.send(Command::To(REPLY, Box::new(message)));
    }

    pub(super) fn unexpected(&self, server: u32) -> Error {
        self.blame(server, "it violated the protocol: it answered what was not asked".into())
    }

    pub(super) fn blame(&self, server: u32, reason: String) -> Error {
        let rank = self.session.role_map.host(server).0;
        self.session.fail(Failure { rank, step: Some(self.step), reason })
    }
}
