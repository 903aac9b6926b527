//! Round-robin synchronous parallel (Chen, Wang and Li, INFOCOM 2019): workers push one after the other, each while the one
//! before is answered.

use std::collections::BTreeMap;
use std::time::Duration;

use super::clocks::Clocks;
use super::{Action, Event, Policy, PolicyError, Stage, Synchrony};

/// Workers take turns, so that one push and one reply are under way at a time: both directions of the server's link are busy, and
/// neither is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2sp;

impl Synchrony for R2sp {
    fn name(&self) -> String {
        "r2sp".into()
    }

    fn summary(&self) -> &'static str {
        "round robin: workers push one after the other, each while the one before is answered (Chen et al., 2019)"
    }

    fn guarantee(&self) -> &'static str {
        "In step t a worker sees all gradients of the steps before t - 1, and those of step t - 1 of the ranks up to its own, and no other. \
         Each server's state is that of one optimiser that took the pushes one by one, rank by rank in every step, whatever the delays."
    }

    fn takes(&self) -> &'static str {
        "nothing behind r2sp"
    }

    fn policy(&self, first: &[u64]) -> Box<dyn Policy> {
        let clocks = Clocks::new(first, false);
        Box::new(Turns {
            turn: first_turn(&clocks),
            clocks,
            asked: BTreeMap::new(),
            granted: false,
            replying: None,
            reply: None,
        })
    }

    fn grants(&self) -> bool {
        true
    }
}

/// The worker that begins: the first of those that are furthest behind.
fn first_turn(clocks: &Clocks) -> u32 {
    let slowest = clocks.slowest();
    clocks.ranks().find(|&rank| clocks.next(rank) == slowest).unwrap_or(0)
}

#[derive(Debug)]
struct Turns {
    clocks: Clocks,
    /// Whose turn it is to push.
    turn: u32,
    /// Whether that one has been granted it.
    granted: bool,
    /// Workers that have asked and are not granted yet, with the step.
    asked: BTreeMap<u32, u64>,
    /// The worker that a reply is under way to.
    replying: Option<u32>,
    /// Whose push has been applied while another reply is under way.
    reply: Option<u32>,
}

impl Turns {
    /// It is the next one's turn: the next higher rank of those who are left, or the lowest.
    fn pass(&mut self) {
        let next = self.clocks.ranks().find(|&rank| rank > self.turn).or_else(|| self.clocks.ranks().next());
        (self.turn, self.granted) = (next.unwrap_or(self.turn), false);
    }

    /// Takes in one event; what is to be applied.
    fn take(&mut self, event: Event) -> Result<Option<Action>, PolicyError> {
        match event {
            Event::Asks { worker, step } => {
                if self.clocks.ask(worker, step)? {
                    if self.granted && worker == self.turn {
                        return Err(PolicyError::Early { worker, step, awaited: step });
                    }
                    self.asked.insert(worker, step);
                }
            }
            Event::Pushed { worker, step, stage } => {
                if self.clocks.has(worker)
                    && !(self.granted && worker == self.turn && stage == Stage::Routine)
                {
                    return Err(PolicyError::Ungranted { worker, step });
                }
                if self.clocks.push(worker, step, stage)? {
                    self.reply = Some(worker);
                    self.pass();
                    let workers = self.clocks.mean_of(1);
                    return Ok(Some(Action::Apply { stage, pushes: vec![(worker, step)], workers }));
                }
            }
            Event::Replied { worker } => {
                self.replying = self.replying.filter(|&replying| replying != worker);
            }
            Event::Left { worker } => {
                self.clocks.leave(worker)?;
                self.asked.remove(&worker);
                self.reply = self.reply.filter(|&reply| reply != worker);
                self.replying = self.replying.filter(|&replying| replying != worker);
                if self.turn == worker {
                    self.pass();
                }
            }
        }
        Ok(None)
    }
}

impl Policy for Turns {
    fn handle(&mut self, event: Event, _now: Duration) -> Result<Vec<Action>, PolicyError> {
        let mut actions: Vec<Action> = self.take(event)?.into_iter().collect();
        if self.replying.is_none()
            && let Some(worker) = self.reply.take()
            && let Some(step) = self.clocks.answer(worker, Stage::Routine)
        {
            self.replying = Some(worker);
            actions.push(Action::Reply { worker, step, stage: Stage::Routine });
        }
        // While a push waits to be answered no other may come, or its reply would see that one, too.
        if !self.granted
            && self.reply.is_none()
            && let Some(step) = self.asked.remove(&self.turn)
        {
            self.granted = true;
            actions.push(Action::Grant { worker: self.turn, step });
        }
        Ok(actions)
    }

    fn awaited(&self) -> Vec<u32> {
        let others_wait = self.asked.keys().any(|&rank| rank != self.turn);
        let holds = self.reply.is_none() && self.clocks.has(self.turn);
        if others_wait && holds { vec![self.turn] } else { Vec::new() }
    }
}
