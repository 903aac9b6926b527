//! Stale synchronous parallel (Ho et al., NIPS 2013): a worker may be so many steps ahead of the slowest, and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gleaner_units as units;

use super::clocks::Clocks;
use super::{Action, Event, Policy, PolicyError, Stage, Synchrony};

/// No worker takes a step while another one has that step, less the bound, still before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ssp {
    /// How many steps a worker may be ahead of the slowest; 0 is a barrier.
    pub bound: u64,
}

impl Default for Ssp {
    fn default() -> Self {
        Self { bound: 3 }
    }
}

impl Synchrony for Ssp {
    fn name(&self) -> String {
        format!("ssp/{}", self.bound)
    }

    fn summary(&self) -> &'static str {
        "stale synchronous: a worker may be so many steps ahead of the slowest (Ho et al., 2013)"
    }

    fn guarantee(&self) -> &'static str {
        "With bound s, in step t a worker sees all gradients of the steps before t - s, all of its own, and maybe some of others up to \
         step t + s - 1. No worker is ever more than s steps ahead of another. Each server's state is that of one optimiser that took the pushes in \
         the order in which replies needed them, those of one step that were there together as one; with bound 0 it has the bits of bsp."
    }

    fn takes(&self) -> &'static str {
        "the number of steps that a worker may be ahead, at least 0, such as ssp/3"
    }

    fn with(&self, value: &str) -> Option<Box<dyn Synchrony>> {
        Some(Box::new(Self { bound: units::within(..)(value).ok()? }))
    }

    fn policy(&self, first: &[u64]) -> Box<dyn Policy> {
        Box::new(Bounded { clocks: Clocks::new(first, false), buffer: Buffer::default(), bound: self.bound })
    }
}

/// Pushes that no reply has needed yet: one of each worker at most.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    steps: BTreeMap<u64, BTreeSet<u32>>,
}

impl Buffer {
    pub(super) fn add(&mut self, worker: u32, step: u64) {
        self.steps.entry(step).or_default().insert(worker);
    }

    /// Answers these workers after everything in the buffer was applied: step by step, and within a step in the order of ranks,
    /// so that what all pushed of one step is added up as a barrier does. Nothing happens where no worker is answered and one
    /// is left.
    pub(super) fn answer(&mut self, ready: Vec<u32>, clocks: &mut Clocks) -> Vec<Action> {
        if ready.is_empty() && !clocks.is_empty() {
            return Vec::new();
        }
        let stage = Stage::Routine;
        let apply = |(step, pushed): (u64, BTreeSet<u32>)| Action::Apply {
            stage,
            workers: clocks.mean_of(pushed.len()),
            pushes: pushed.into_iter().map(|worker| (worker, step)).collect(),
        };
        let mut actions: Vec<Action> = std::mem::take(&mut self.steps).into_iter().map(apply).collect();
        for worker in ready {
            if let Some(step) = clocks.answer(worker, stage) {
                actions.push(Action::Reply { worker, step, stage });
            }
        }
        actions
    }
}

#[derive(Debug)]
struct Bounded {
    clocks: Clocks,
    buffer: Buffer,
    bound: u64,
}

impl Policy for Bounded {
    fn handle(&mut self, event: Event, _now: Duration) -> Result<Vec<Action>, PolicyError> {
        match event {
            Event::Asks { .. } | Event::Replied { .. } => {}
            Event::Pushed { worker, step, stage } => {
                if self.clocks.push(worker, step, stage)? {
                    self.buffer.add(worker, step);
                }
            }
            Event::Left { worker } => {
                self.clocks.leave(worker)?;
            }
        }
        let slowest = self.clocks.slowest().unwrap_or(0);
        let ready = self.clocks.waiting().filter(|&(_, next)| next - slowest <= self.bound);
        let ready = ready.map(|(worker, _)| worker).collect();
        Ok(self.buffer.answer(ready, &mut self.clocks))
    }

    fn awaited(&self) -> Vec<u32> {
        self.clocks.behind(self.bound)
    }
}
