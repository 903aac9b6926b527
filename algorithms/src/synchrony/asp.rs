//! Asynchronous parallel (Dean et al., NIPS 2012; Agarwal and Duchi, NIPS 2011; OSP, §2.1.2): no worker waits for another.

use std::time::Duration;

use super::clocks::Clocks;
use super::{Action, Event, Policy, PolicyError, Synchrony};

/// Every push is an update by itself, in the order in which pushes come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asp;

impl Synchrony for Asp {
    fn name(&self) -> String {
        "asp".into()
    }

    fn summary(&self) -> &'static str {
        "asynchronous: every push is applied by itself, at once, and no worker waits for another (Dean et al., 2012)"
    }

    fn guarantee(&self) -> &'static str {
        "A worker sees all of its own gradients, and of each other worker's whatever came before its own last push, which has no bound. \
         Each server's state is that of one optimiser that took the pushes one by one in the order in which they came."
    }

    fn takes(&self) -> &'static str {
        "nothing behind asp"
    }

    fn policy(&self, first: &[u64]) -> Box<dyn Policy> {
        Box::new(AtOnce { clocks: Clocks::new(first, false) })
    }
}

#[derive(Debug)]
struct AtOnce {
    clocks: Clocks,
}

impl Policy for AtOnce {
    fn handle(&mut self, event: Event, _now: Duration) -> Result<Vec<Action>, PolicyError> {
        match event {
            Event::Asks { .. } | Event::Replied { .. } => {}
            Event::Left { worker } => {
                self.clocks.leave(worker)?;
            }
            Event::Pushed { worker, step, stage } => {
                if self.clocks.push(worker, step, stage)? {
                    self.clocks.answer(worker, stage);
                    let apply = Action::Apply {
                        stage,
                        pushes: vec![(worker, step)],
                        workers: self.clocks.mean_of(1),
                    };
                    return Ok(vec![apply, Action::Reply { worker, step, stage }]);
                }
            }
        }
        Ok(Vec::new())
    }

    fn awaited(&self) -> Vec<u32> {
        Vec::new()
    }
}
