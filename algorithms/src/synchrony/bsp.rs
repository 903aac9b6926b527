//! Bulk synchronous parallel (Valiant, 1990; Gerbessiotis and Valiant, 1994; OSP, §2.1.2): a barrier after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::clocks::Clocks;
use super::{Action, Event, Policy, PolicyError, Stage, Synchrony};

/// Every worker waits for the update of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bsp;

impl Synchrony for Bsp {
    fn name(&self) -> String {
        "bsp".into()
    }

    fn summary(&self) -> &'static str {
        "bulk synchronous: a barrier after every step (Valiant, 1990)"
    }

    fn guarantee(&self) -> &'static str {
        "In step t every worker sees all gradients of the steps before t, and no other. The parameters have the same bits on all workers."
    }

    fn takes(&self) -> &'static str {
        "nothing behind bsp"
    }

    fn policy(&self, first: &[u64]) -> Box<dyn Policy> {
        Box::new(Barrier::new(first, false))
    }

    fn needs_servers(&self) -> bool {
        false
    }
}

/// Applies a stage of a step when all workers have pushed it, and answers them all.
#[derive(Debug)]
pub(super) struct Barrier {
    clocks: Clocks,
    pushed: BTreeMap<(u64, Stage), BTreeSet<u32>>,
}

impl Barrier {
    pub(super) fn new(first: &[u64], two_stages: bool) -> Self {
        Self { clocks: Clocks::new(first, two_stages), pushed: BTreeMap::new() }
    }

    /// Whether every worker that is left has pushed it.
    fn complete(&self, pushed: &BTreeSet<u32>) -> bool {
        self.clocks.ranks().all(|rank| pushed.contains(&rank))
    }
}

impl Policy for Barrier {
    fn handle(&mut self, event: Event, _now: Duration) -> Result<Vec<Action>, PolicyError> {
        match event {
            Event::Asks { .. } | Event::Replied { .. } => {}
            Event::Pushed { worker, step, stage } => {
                if self.clocks.push(worker, step, stage)? {
                    self.pushed.entry((step, stage)).or_default().insert(worker);
                }
            }
            Event::Left { worker } => {
                self.clocks.leave(worker)?;
            }
        }
        let mut actions = Vec::new();
        while let Some((&(step, stage), pushed)) =
            self.pushed.first_key_value().filter(|(_, pushed)| self.complete(pushed))
        {
            let pushes: Vec<_> = pushed.iter().map(|&worker| (worker, step)).collect();
            self.pushed.remove(&(step, stage));
            let answered: Vec<u32> = pushes.iter().map(|&(worker, _)| worker).collect();
            actions.push(Action::Apply { stage, workers: self.clocks.mean_of(pushes.len()), pushes });
            for worker in answered {
                if self.clocks.answer(worker, stage).is_some() {
                    actions.push(Action::Reply { worker, step, stage });
                }
            }
        }
        Ok(actions)
    }

    fn awaited(&self) -> Vec<u32> {
        let Some((_, pushed)) = self.pushed.first_key_value() else { return Vec::new() };
        self.clocks.ranks().filter(|rank| !pushed.contains(rank)).collect()
    }
}
