//! Bulk synchronous parallel (Valiant, 1990; Gerbessiotis and Valiant, 1994; OSP, §2.1.2): a barrier after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Action, Event, Policy, Stage, Synchrony};

/// Every worker waits for the update of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bsp;

impl Synchrony for Bsp {
    fn name(&self) -> String {
        "bsp".into()
    }

    fn summary(&self) -> &'static str {
        "bulk synchronous: a barrier after every step"
    }

    fn guarantee(&self) -> &'static str {
        "In step t every worker sees all gradients of the steps before t, and no other. The parameters have the same bits on all workers."
    }

    fn policy(&self, workers: u32) -> Box<dyn Policy> {
        Box::new(Barrier::new(workers))
    }

    fn needs_servers(&self) -> bool {
        false
    }
}

/// Applies a step when all workers have pushed it, and answers them all.
#[derive(Debug)]
pub(super) struct Barrier {
    workers: BTreeSet<u32>,
    pushed: BTreeMap<(u64, Stage), BTreeSet<u32>>,
}

impl Barrier {
    pub(super) fn new(workers: u32) -> Self {
        Self { workers: (0..workers).collect(), pushed: BTreeMap::new() }
    }
}

impl Policy for Barrier {
    fn handle(&mut self, event: Event, _now: Duration) -> Vec<Action> {
        match event {
            Event::Asks { .. } => {}
            Event::Pushed { worker, step, stage } => {
                self.pushed.entry((step, stage)).or_default().insert(worker);
            }
            Event::Left { worker } => {
                self.workers.remove(&worker);
            }
        }
        let mut actions = Vec::new();
        while let Some(entry) =
            self.pushed.first_entry().filter(|entry| entry.get().is_superset(&self.workers))
        {
            let ((step, stage), pushed) = entry.remove_entry();
            actions
                .push(Action::Apply { stage, pushes: pushed.iter().map(|&worker| (worker, step)).collect() });
            let left = pushed.into_iter().filter(|worker| self.workers.contains(worker));
            actions.extend(left.map(|worker| Action::Reply { worker, step, stage }));
        }
        actions
    }
}
