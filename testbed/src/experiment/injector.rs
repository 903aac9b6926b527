//! Injects the faults of an experiment's file into a job that runs.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::case::Pattern;
use super::chaos::{Act, Event, When};
use super::place::Place;
use super::slow::{Slowed, slowed};
use super::worker;
use crate::Error;

/// With nothing to wait for, a job is looked at this often all the same.
const IDLE: Duration = Duration::from_secs(3600);

/// What was done to a job.
#[derive(Debug, Default)]
pub struct Applied {
    /// As it is recorded: when, after which step, and what.
    pub lines: Vec<String>,
    /// The acts that took effect.
    pub acts: Vec<Act>,
    /// What was planned and did not happen, and why.
    pub missed: Vec<String>,
}

/// A job into which faults are injected.
pub struct Injector<'a> {
    place: &'a mut Place,
    mark: &'a str,
    start: Instant,
    step: u64,
    /// What is still to be done, and whether the file asks for it; otherwise it is the end of something that was done.
    pending: Vec<(Event, bool)>,
    slowed: BTreeMap<u32, Slowed>,
    applied: Applied,
}

impl<'a> Injector<'a> {
    /// For the job with this mark, which starts when this is done: what is to happen to links from its start on has happened.
    pub fn new(events: &[&Event], place: &'a mut Place, mark: &'a str) -> Self {
        let pending = events.iter().map(|event| ((*event).clone(), true)).collect();
        let (slowed, applied) = (BTreeMap::new(), Applied::default());
        let mut injector = Self { place, mark, start: Instant::now(), step: 0, pending, slowed, applied };
        injector.apply_due(Act::is_of_network);
        injector
    }

    /// Goes on until the job is over, which is when the channel of steps is closed. What was done to the network is undone
    /// then.
    pub fn run(mut self, steps: &Receiver<u64>) -> Applied {
        loop {
            self.apply_due(|_| true);
            match steps.recv_timeout(self.patience()) {
                Ok(step) => self.step = step,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let over = format!("after {:.2} s, at step {}", self.start.elapsed().as_secs_f64(), self.step);
        let missed = self.pending.iter().filter(|(_, planned)| *planned);
        let missed =
            missed.map(|(Event { when, act, .. }, _)| format!("{act} {when}: the job ended before, {over}"));
        self.applied.missed.extend(missed);
        self.slowed.clear();
        if let Err(refusal) = self.place.restore() {
            self.applied.lines.push(format!("the network could not be restored: {refusal}"));
        }
        self.applied
    }

    /// How long until something is due by the clock.
    fn patience(&self) -> Duration {
        let elapsed = self.start.elapsed();
        let due = self.pending.iter().filter_map(|(event, _)| match event.when {
            When::At(at) => Some(at.saturating_sub(elapsed)),
            When::Step(_) => None,
        });
        due.min().unwrap_or(IDLE)
    }

    /// Does what is due of these acts.
    fn apply_due(&mut self, wanted: impl Fn(&Act) -> bool) {
        loop {
            let elapsed = self.start.elapsed();
            let is_due = |when: &When| match when {
                When::At(at) => *at <= elapsed,
                When::Step(step) => *step <= self.step,
            };
            let next = self.pending.iter().position(|(event, _)| is_due(&event.when) && wanted(&event.act));
            let Some(next) = next else { return };
            let (Event { act, lasts, .. }, _) = self.pending.remove(next);
            let done = self.apply(&act);
            let at = format!("{:.2} s, step {}: {act}", self.start.elapsed().as_secs_f64(), self.step);
            match done {
                Ok(()) => {
                    self.applied.lines.push(at);
                    if let Some((lasts, act)) = lasts.zip(act.undone()) {
                        let when = When::At(self.start.elapsed() + lasts);
                        let end = Event { when, act, lasts: None, cases: Pattern::default() };
                        self.pending.push((end, false));
                    }
                    self.applied.acts.push(act);
                }
                Err(refusal) => self.applied.missed.push(format!("{at} failed: {refusal}")),
            }
        }
    }

    fn apply(&mut self, act: &Act) -> Result<(), Error> {
        match act {
            Act::Kill(rank) => worker::signal(self.mark, *rank, Signal::KILL),
            Act::Stop(rank) => worker::signal(self.mark, *rank, Signal::STOP),
            Act::Continue(rank) => {
                self.slowed.remove(rank);
                worker::signal(self.mark, *rank, Signal::CONT)
            }
            Act::Slow(rank, share) => {
                self.slowed.remove(rank);
                let worker = worker::find(self.mark, *rank)?;
                self.slowed.insert(*rank, slowed(worker, *share));
                Ok(())
            }
            Act::Cut(host) => self.place.plug(*host, false),
            Act::Mend(host) => self.place.plug(*host, true),
            Act::Reshape(host, link) => self.place.reshape(*host, link),
        }
    }
}
