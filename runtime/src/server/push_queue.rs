//! The pushes of one worker at a server: those that come in, and those that wait for the policy to apply them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use gleaner_algorithms::Rank;
use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::schedule::{Execution, ExecutionError};
use gleaner_algorithms::synchrony::Stage;

use super::Part;
use super::actor::{Message, TakenIn};
use super::control::Head;
use crate::algorithm::INLINE;
use crate::io::Io;
use crate::link::cost;
use crate::mailbox::Command;
use crate::tag::{SERVED, StepId};

/// Pushes of one worker that may be open: two stages of a step, and one of the next.
const OPEN: usize = 3;

/// See the module.
pub(super) struct PushQueue {
    /// Whether the worker sends nothing more, and whether the policy knows.
    pub(super) is_gone: bool,
    pub(super) is_reported: bool,
    pushes: BTreeMap<(u64, Stage), Push>,
    /// The last step whose routine stage was announced.
    last: Option<u64>,
    /// By part, the last update that it has all of.
    pub(super) since: Vec<Option<u32>>,
}

/// A push that is announced.
struct Push {
    head: Head,
    /// By part, what comes in and how many bytes it took.
    intakes: BTreeMap<usize, (Intake, u64)>,
    /// How many parts have not arrived.
    missing: usize,
    is_complete: bool,
    /// When it was announced, and when the last of it came.
    during: (Instant, Instant),
}

/// Progress of the push of one part.
pub(crate) enum Intake {
    Waits(Box<Execution>),
    /// A compute thread has it.
    Works,
    Came(Bag),
}

/// What was received of a push: with each part its bag, and how many bytes it took.
pub(super) struct Came {
    pub(super) head: Head,
    pub(super) bags: Vec<(usize, Bag)>,
    pub(super) bytes: Vec<(usize, u64)>,
    pub(super) during: (Instant, Instant),
}

impl PushQueue {
    pub(super) fn new(parts: usize, is_gone: bool) -> Self {
        Self { is_gone, is_reported: false, pushes: BTreeMap::new(), last: None, since: vec![None; parts] }
    }

    /// A push is announced.
    pub(super) fn announce(&mut self, head: Head, parts: &[Part]) -> Result<(), String> {
        let push = (head.step, head.stage);
        if self.pushes.contains_key(&push) || self.pushes.len() == OPEN {
            return Err(format!(
                "it violated the protocol: it pushes step {} and was not answered",
                head.step
            ));
        }
        let is_past = match head.stage {
            Stage::Routine => self.last.is_some_and(|last| head.step <= last),
            Stage::Background => self.last != Some(head.step),
        };
        if is_past {
            let last = self.last.map_or("no step".to_owned(), |last| format!("step {last}"));
            return Err(format!(
                "it pushes step {}, and has pushed {last} last: a worker takes its steps one by one; start all ranks from the same checkpoint",
                head.step
            ));
        }
        if head.stage == Stage::Routine {
            self.last = Some(head.step);
        }
        let mut intakes = BTreeMap::new();
        for (index, part) in parts.iter().enumerate().filter(|(_, part)| head.units[part.unit]) {
            let programs = part.maker.at(head.step).map_err(|error| error.to_string())?;
            let nothing = Arc::new(Vec::new());
            let mut execution = Execution::new(programs.push[1].clone(), nothing, vec![Default::default()]);
            // It runs to its only receive.
            execution.go_on(&mut Vec::new()).map_err(|error| reason(&error))?;
            intakes.insert(index, (Intake::Waits(Box::new(execution)), 0));
        }
        let missing = intakes.len();
        let (is_complete, now) = (false, Instant::now());
        self.pushes.insert(push, Push { head, intakes, missing, is_complete, during: (now, now) });
        Ok(())
    }

    /// Which push a bag of a part belongs to.
    pub(super) fn push_of(&self, id: StepId, part: usize, epoch: u16) -> Option<(u64, Stage)> {
        let mut pushes = self.pushes.iter().filter(|(_, push)| push.intakes.contains_key(&part));
        pushes.find(|((step, _), _)| StepId::new(epoch, id.gradient, *step) == id).map(|(push, _)| *push)
    }

    pub(super) fn waits(&self, push: (u64, Stage), part: usize) -> bool {
        let intake = self.pushes.get(&push).and_then(|push| push.intakes.get(&part));
        matches!(intake, Some((Intake::Waits(_), _)))
    }

    /// Takes in the next payload of a part that waits for it: here, unless it has many entries.
    pub(super) fn feed(
        &mut self,
        push: (u64, Stage),
        part: usize,
        payload: Bytes,
        (worker, plans, io): (u32, u32, &mut Io),
    ) -> Result<(), String> {
        let intake = self.pushes.get_mut(&push).and_then(|push| push.intakes.get_mut(&part));
        let Some((intake, bytes)) = intake else { return Ok(()) };
        let Intake::Waits(execution) = std::mem::replace(intake, Intake::Works) else { return Ok(()) };
        *bytes += cost(&payload);
        if execution.entries_of(&payload) <= INLINE {
            return self.give_back(push, part, receive(execution, payload));
        }
        let mailbox = io.mailbox.clone();
        io.compute(Box::new(move || {
            let taken_in = TakenIn { worker, push, part, intake: receive(execution, payload) };
            mailbox.send(Command::To(SERVED, Box::new(Message::TakenIn(plans, taken_in))));
        }));
        Ok(())
    }

    /// A payload was taken in.
    pub(super) fn give_back(
        &mut self,
        push: (u64, Stage),
        part: usize,
        taken: Result<Intake, String>,
    ) -> Result<(), String> {
        let taken = taken?;
        if let Some(push) = self.pushes.get_mut(&push)
            && let Some((intake, _)) = push.intakes.get_mut(&part)
        {
            push.missing -= usize::from(matches!(taken, Intake::Came(_)));
            push.during.1 = Instant::now();
            *intake = taken;
        }
        Ok(())
    }

    /// Whether a push is complete; once.
    pub(super) fn is_complete(&mut self, push: (u64, Stage)) -> bool {
        let push = self.pushes.get_mut(&push).filter(|push| push.missing == 0);
        push.is_some_and(|push| !std::mem::replace(&mut push.is_complete, true))
    }

    /// Whether a push has all units.
    pub(super) fn has_all(&self, push: (u64, Stage)) -> bool {
        self.pushes.get(&push).is_some_and(|push| push.head.units.iter().all(|has| *has))
    }

    /// What was received of a push, to be applied. It is still to be answered.
    pub(super) fn take(&mut self, push: (u64, Stage)) -> Option<Came> {
        let push = self.pushes.get_mut(&push)?;
        let (mut bags, mut bytes) = (Vec::new(), Vec::new());
        for (part, (intake, cost)) in std::mem::take(&mut push.intakes) {
            bytes.push((part, cost));
            if let Intake::Came(bag) = intake {
                bags.push((part, bag));
            }
        }
        Some(Came { head: push.head.clone(), bags, bytes, during: push.during })
    }

    /// Which units a push has, now that it is answered.
    pub(super) fn answered(&mut self, push: (u64, Stage)) -> Option<Vec<bool>> {
        self.pushes.remove(&push).map(|push| push.head.units)
    }

    /// Whether there is a push that is still to be applied.
    pub(super) fn has_more(&self) -> bool {
        self.pushes.values().any(|push| push.is_complete && !push.intakes.is_empty())
    }

    /// Drops incomplete pushes of a worker that has left.
    pub(super) fn forget(&mut self) {
        self.pushes.retain(|_, push| push.is_complete);
    }
}

fn receive(mut execution: Box<Execution>, payload: Bytes) -> Result<Intake, String> {
    let received = execution.receive(Rank(0), payload, &mut Vec::new());
    match received.and_then(|()| execution.go_on(&mut Vec::new())) {
        Ok(Some(_)) => Ok(Intake::Waits(execution)),
        Ok(None) => {
            let finished = execution.finish().map_err(|error| error.to_string())?;
            Ok(Intake::Came(finished.update.into_iter().next().unwrap_or_else(Bag::empty)))
        }
        Err(error) => Err(reason(&error)),
    }
}

/// Why a push cannot be taken in. In its program the worker has another rank.
fn reason(error: &ExecutionError) -> String {
    match error {
        ExecutionError::Decode { source, .. } => {
            format!("it sent something else than its schedule says: {source}")
        }
        error => error.to_string(),
    }
}
