//! A worker's side of the parameter servers, on the trainer's thread: it brings gradients to them part by part, and takes in the values
//! that come back.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use gleaner_algorithms::residual::{AccumulateError, Correction, NonFinite, Waiting};
use gleaner_algorithms::synchrony::shards::Shards;
use gleaner_algorithms::synchrony::{Sgd, Stage, osp};
use gleaner_transport::Message as Packet;
use tokio::sync::oneshot;

use super::arrivals::Arrivals;
use super::client::{Client, Message};
use super::control::{Answer, Ask, Head};
use super::plan::Plan;
use super::programs::Pushing;
use super::pusher::Pusher;
use super::{CONTROL_BYTES, PUSH, REPLY, parts};
use crate::algorithm::INLINE;
use crate::checkpoint::{CheckpointError, State, lacks};
use crate::failure::{Error, Failure};
use crate::layout::Layout;
use crate::mailbox::Command;
use crate::notes::Purpose;
use crate::replica::carrier::{Carrier, Finished, Turn};
use crate::replica::{Options, Pass, ReplicaError};
use crate::session::Inner;
use crate::tag::{SERVED, StepId, Topic};

/// What a checkpoint calls residuals, their velocities, and the number of the next push.
const RESIDUALS: &str = "residuals of servers";
const VELOCITIES: &str = "velocities of servers";
const NEXT: &str = "next push";

/// See the module.
pub(crate) struct Served {
    session: Arc<Inner>,
    /// Where the units lie, and their names.
    units: Vec<(String, Range<usize>)>,
    arrivals: Arrivals,
    grants: bool,
    osp: Option<osp::Osp>,
    /// S(G^u) and U_max in entries.
    budget: Option<(u64, u64)>,
    open: Arc<AtomicUsize>,
    /// The first step that the servers have not all applied.
    first: u64,
    /// Whether servers have their state in a directory.
    is_kept: bool,
    /// Values that were not asked for yet.
    values: Option<Vec<f32>>,
}

impl Served {
    /// Gives the servers what they need, and takes the values that they begin with. All workers call it together. `kept` says where the
    /// servers' state survives them, and whether they resume from it.
    pub(crate) fn new(
        session: &Arc<Inner>,
        layout: &Layout,
        initial: &[f32],
        options: &Options,
        sgd: Sgd,
        kept: Option<(PathBuf, bool)>,
    ) -> Result<Self, Error> {
        let (role_map, method, synchrony) = (session.role_map, &options.method, &options.synchrony);
        let servers = role_map.roles.servers;
        let failed = |reason| session.fail(Failure { rank: session.coordinator.0, step: None, reason });
        let shards = Shards::new(initial.len(), servers).map_err(|error| failed(error.to_string()))?;
        let ranges = layout.ranges();
        let units: Vec<(String, Range<usize>)> =
            (0..).zip(ranges).map(|(unit, range)| (layout.names(unit).join(" + "), range)).collect();
        let lens: Vec<usize> = units.iter().map(|(_, range)| range.len()).collect();
        // Clipping is by the norm of the whole gradient, before any unit has its part.
        let method = method.clone().corrected(Correction { clip: None, ..*method.correction() });
        let pushing = Pushing::of(&method)?;
        let mut pushers = Vec::new();
        for server in 0..servers {
            for part in parts(&lens, &pushing, &shards, server)? {
                pushers.push(Arc::new(Pusher::new(part, server, &method)?));
            }
        }
        pushers.sort_by_key(|pusher| (pusher.part.unit, pusher.server));
        let (sends, came) = mpsc::channel();
        let open = Arc::default();
        let client = Client::new(role_map, units.len(), sends, Arc::clone(&open));
        session.mailbox.send(Command::Add(REPLY, Box::new(client)));
        let truth = pushing.is_sparse().then(|| initial.to_vec());
        let arrivals = Arrivals::new(session, units.len(), pushers, truth, came);
        let mut served = Self {
            session: Arc::clone(session),
            arrivals,
            grants: synchrony.grants(),
            osp: synchrony.osp().copied(),
            budget: None,
            open,
            first: 0,
            is_kept: kept.is_some(),
            values: None,
            units,
        };
        served.widen()?;
        // From here on servers may answer.
        let run = session.agree_and_draw(Purpose::Replica, "")?;
        if session.coordinates() {
            let (directory, resume) = kept.map_or((None, false), |(path, resume)| (Some(path), resume));
            let units = served.units.iter().map(|(name, range)| (name.clone(), range.len())).collect();
            let sgd = (sgd.momentum, sgd.weight_decay, sgd.nesterov);
            let (server, values, workers) = (0, 0, role_map.workers);
            let (synchrony, epoch) = (synchrony.name(), options.epoch);
            let plan = Plan {
                servers,
                server,
                workers,
                units,
                pushing,
                synchrony,
                epoch,
                sgd,
                directory,
                resume,
                run,
                values,
            };
            served.plan(&plan, initial);
        }
        served.begin(initial.len())?;
        Ok(served)
    }

    /// Lets servers send the values of two steps.
    fn widen(&self) -> Result<(), Error> {
        let role_map = self.session.role_map;
        let hosts = (0..role_map.roles.servers).map(|server| (role_map.host(server), REPLY, CONTROL_BYTES));
        let mut windows: Vec<_> = hosts.collect();
        for pusher in &self.arrivals.pushers {
            let [_, most] = pusher.part.maker.most(0)?;
            windows.push((role_map.host(pusher.server), REPLY + 1 + pusher.part.unit as u32, 2 * most));
        }
        self.session.mailbox.send(Command::Widen(windows));
        Ok(())
    }

    /// Sends each server its part.
    fn plan(&self, plan: &Plan, initial: &[f32]) {
        let tag = Topic::Bags(StepId::new(self.session.epoch, SERVED, 0)).tag();
        for server in 0..plan.servers {
            let here = self.arrivals.pushers.iter().filter(|pusher| pusher.server == server);
            let values: Vec<f32> =
                here.flat_map(|pusher| &initial[pusher.part.range.clone()]).copied().collect();
            let plan = Plan { server, values: values.len(), ..plan.clone() };
            let packets = plan.pieces(&values).into_iter().map(|payload| Packet { tag, payload }).collect();
            self.arrivals.tell(Message::Send { server, waits_for: None, packets });
        }
    }

    /// Receives the current step of the servers, and their values.
    fn begin(&mut self, entries: usize) -> Result<(), Error> {
        let mut unheard: BTreeSet<u32> = (0..self.session.role_map.roles.servers).collect();
        let (mut first, mut runs) = (u64::MAX, BTreeSet::new());
        while !unheard.is_empty() {
            let (server, answer) = self.arrivals.answer()?;
            let Answer::Ready { step, run } = answer else {
                return Err(self.arrivals.unexpected(server));
            };
            unheard.remove(&server);
            runs.insert(run);
            if runs.len() > 1 {
                let reason = "its state is of another run than that of the servers before it: give all servers one directory, \
                              or each the one that it had, or start without resuming";
                return Err(self.arrivals.blame(server, reason.into()));
            }
            first = first.min(step);
        }
        (self.first, self.arrivals.step) = (first, first);
        let mut values = vec![0.0; entries];
        self.arrivals.fetch(&Ask::Begin { step: first }, &mut values)?;
        self.values = Some(values);
        Ok(())
    }

    /// Begins to push the gradient of some units in a stage of a step.
    fn push(&mut self, stage: Stage, units: &[usize], gradient: &[f32], turn: &Turn) -> Result<(), Error> {
        let Turn { step, pass: Pass { rate, samples, loss }, computing } = *turn;
        if step < self.first {
            let reason = format!(
                "it is in step {step}, and the servers have all steps before {}: start all ranks from the same checkpoint",
                self.first
            );
            return Err(self.fail(step, reason));
        }
        let mut wanted = vec![false; self.units.len()];
        units.iter().for_each(|&unit| wanted[unit] = true);
        let pushers = self.arrivals.pushers.iter();
        let numbers: Vec<usize> =
            (0..).zip(pushers).filter(|(_, p)| wanted[p.part.unit]).map(|(number, _)| number).collect();
        self.arrivals.expect(stage, step, &numbers)?;
        let waits_for = self.grants.then_some(step);
        let head = Ask::Push(Head { step, stage, units: wanted, rate, samples, loss, computing });
        for server in 0..self.session.role_map.roles.servers {
            if self.grants {
                self.arrivals.say(server, &Ask::MayPush { step }, None);
            }
            self.arrivals.say(server, &head, waits_for);
        }
        numbers.into_iter().try_for_each(|number| self.bring(number, gradient, step))
    }

    /// Begins to push one part.
    fn bring(&self, number: usize, gradient: &[f32], step: u64) -> Result<(), Error> {
        let pusher = Arc::clone(&self.arrivals.pushers[number]);
        let Range { start, end } = pusher.part.range;
        let brought = pusher.bring(&gradient[start..end]).map_err(|error| {
            let reason = match error {
                AccumulateError::NonFinite(NonFinite { entry, count }) => format!(
                    "the gradient of '{}' has {count} entries that are not finite, the first at entry {} of all: lower the \
                     learning rate, clip the gradients, or look for what makes them so",
                    self.units[pusher.part.unit].0,
                    start + entry
                ),
                AccumulateError::Device(error) => error.to_string(),
            };
            self.fail(step, reason)
        })?;
        self.open.fetch_add(1, Ordering::Relaxed);
        let (mailbox, epoch, rank) = (self.session.mailbox.clone(), self.session.epoch, self.session.rank.0);
        let waits_for = self.grants.then_some(step);
        let work = move || {
            match pusher.push(step, brought) {
                Ok(payloads) => {
                    let number = PUSH + 1 + pusher.part.unit as u32;
                    let tag = Topic::Bags(StepId::new(epoch, number, step)).tag();
                    let packets = payloads.into_iter().map(|payload| Packet { tag, payload }).collect();
                    let message = Message::Send { server: pusher.server, waits_for, packets };
                    mailbox.send(Command::To(REPLY, Box::new(message)));
                }
                Err(error) => {
                    let failure = Failure { rank, step: Some(step), reason: error.to_string() };
                    mailbox.send(Command::Fail(failure, oneshot::channel().0));
                }
            }
            mailbox.send(Command::To(REPLY, Box::new(Message::Made)));
        };
        if end - start <= INLINE {
            work();
        } else {
            self.session.compute.submit(Box::new(work));
        }
        Ok(())
    }

    fn fail(&self, step: u64, reason: String) -> Error {
        self.session.fail(Failure { rank: self.session.rank.0, step: Some(step), reason })
    }
}

impl Carrier for Served {
    fn start(&mut self, stage: Stage, units: &[usize], gradient: &[f32], turn: &Turn) -> Result<(), Error> {
        // A background stage follows a routine stage, if need be one that pushes no units.
        if stage == Stage::Background && self.arrivals.routine != Some(turn.step) {
            self.push(Stage::Routine, &[], gradient, turn)?;
        }
        self.push(stage, units, gradient, turn)
    }

    fn finish(&mut self, stage: Stage, parameters: &mut [f32]) -> Result<Finished, Error> {
        let finished = self.arrivals.finish(stage, parameters)?;
        if self.grants {
            let ask = Ask::HasCome { step: self.arrivals.step };
            (0..self.session.role_map.roles.servers).for_each(|server| self.arrivals.say(server, &ask, None));
        }
        Ok(finished)
    }

    fn split(&mut self, turn: &Turn) -> Result<Vec<bool>, Error> {
        let Some(osp) = self.osp else { return Ok(vec![false; self.units.len()]) };
        let entries: Vec<usize> = self.units.iter().map(|(_, range)| range.len()).collect();
        let model = entries.iter().sum();
        let (importances, budget, most) = if turn.step == self.first {
            let begun = osp::Tuning::default();
            (vec![0.0; entries.len()], osp.entries(model, 0, &begun), osp.most(model, 0))
        } else {
            self.arrivals.split(turn.step)?
        };
        self.budget = Some((budget as u64, most as u64));
        Ok(osp::split(&importances, &entries, budget))
    }

    fn budget(&self) -> Option<(u64, u64)> {
        self.budget
    }

    fn flush(&mut self, parameters: &mut [f32]) -> Result<(), Error> {
        let mut new = parameters.to_vec();
        self.finish(Stage::Background, &mut new)?;
        self.finish(Stage::Routine, &mut new)?;
        // No worker pushes until all have the same.
        self.session.agree(Purpose::Replica, "flush()")?;
        let step = self.arrivals.step;
        self.arrivals.fetch(&Ask::Fetch { step }, &mut new)?;
        self.session.agree(Purpose::Replica, "flushed")?;
        parameters.copy_from_slice(&new);
        Ok(())
    }

    fn save(&mut self, state: &mut State) -> Result<(), Error> {
        if !self.is_kept {
            return Err(ReplicaError::NoState.into());
        }
        self.arrivals.complete(Stage::Background)?;
        let entries = self.units.last().map_or(0, |(_, range)| range.end);
        let (mut residuals, mut velocities) = (vec![0.0; entries], None);
        for pusher in &self.arrivals.pushers {
            let Some(Waiting { residual, velocity }) = pusher.waiting()? else { continue };
            residuals[pusher.part.range.clone()].copy_from_slice(&residual);
            if let Some(velocity) = velocity {
                velocities.get_or_insert_with(|| vec![0.0; entries])[pusher.part.range.clone()]
                    .copy_from_slice(&velocity);
            }
        }
        state.values.insert(RESIDUALS.into(), residuals);
        state.values.extend(velocities.map(|velocities| (VELOCITIES.into(), velocities)));
        state.numbers.insert(NEXT.into(), vec![self.arrivals.next as f64]);
        Ok(())
    }

    fn expects(&self, path: &Path, state: &State) -> Result<(), CheckpointError> {
        let entries = self.units.last().map_or(0, |(_, range)| range.end);
        state.values_of(RESIDUALS, entries)?;
        let next = state.numbers_of(NEXT)?.first().copied().unwrap_or(f64::MAX);
        if next <= self.first as f64 {
            return Ok(());
        }
        let (what, found, expected) =
            ("next push".to_owned(), next.to_string(), format!("at most {}", self.first));
        Err(CheckpointError::Other { path: path.to_owned(), what, found, expected })
    }

    fn load(&mut self, state: &State) -> Result<(), Error> {
        let entries = self.units.last().map_or(0, |(_, range)| range.end);
        let residuals = state.values_of(RESIDUALS, entries)?;
        let velocities = state.values.get(VELOCITIES).filter(|values| values.len() == entries);
        for pusher in &self.arrivals.pushers {
            let range = pusher.part.range.clone();
            let velocity = velocities.map(|values| values[range.clone()].to_vec());
            pusher.set_waiting(&Waiting { residual: residuals[range].to_vec(), velocity })?;
        }
        let mut values = vec![0.0; entries];
        self.flush(&mut values)?;
        self.values = Some(values);
        Ok(())
    }

    fn kept(&mut self) -> Result<Option<(u64, Vec<f32>)>, Error> {
        let first = self.first;
        let values = self.values.take().ok_or_else(|| lacks(NEXT))?;
        Ok(Some((first, values)))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.arrivals.tell(Message::Over);
        self.session.mailbox.send(Command::Retire(REPLY));
    }
}
