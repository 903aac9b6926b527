//! Which steps are under way here, and how all ranks decide as one that a step is given up.
//!
//! Any rank may ask for it. It asks rank 0, and rank 0 asks all ranks to *freeze* the step: a frozen step goes on, but does
//! not finish before the decision. Each rank answers whether it had finished already. Its update may then have been used, and
//! what one rank has, all must get: the request came *too late*, and the step goes on everywhere. If no rank had finished, the
//! step is *cancelled* everywhere, in the name of the rank whose request reached rank 0 first.
//!
//! A rank whose values are not finite asks for the same, and never sends any: so no rank can have finished. Its word counts
//! more than that of a rank which cancels at the same time, since the step leaves no trace in the residuals then. A rank that lacks the
//! memory to select sends nothing either; what was accumulated stays in its residuals, as where the program wishes it.
//!
//! A step may be frozen and cancelled on a rank that has not begun it yet. Links keep the order of messages, and a rank
//! begins a step only when the one before is over there, so a rank receives the decisions of one gradient in the order of its
//! steps.
//!
//! This is one rank's part of it, without any input or output: what is to be done is written down as [`Effect`]s.

use std::collections::{HashMap, HashSet};

use crate::tag::StepId;

/// How many steps of a gradient may be frozen or cancelled here before they are begun, so that what is remembered of them is
/// bounded. A rank that is late does not keep the others from cancelling.
const EARLY: u32 = 4096;

/// Why a step is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The program wants it: what was accumulated stays.
    Wish,
    /// Values that are not finite: everything is as before the step.
    NonFinite,
    /// A device had not enough memory to select: what was accumulated stays.
    Memory,
}

/// What ranks send each other about a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// To rank 0: give it up, please.
    Ask(Cause),
    /// From rank 0: do not finish it before the decision.
    Freeze,
    /// To rank 0: it is frozen here.
    Unfinished,
    /// To rank 0: it had finished here.
    Finished,
    /// From rank 0: go on.
    TooLate,
    /// From rank 0: it is cancelled, as this rank asked.
    Cancelled { by: u32, cause: Cause },
}

impl Cause {
    fn decode(byte: u8) -> Option<Self> {
        [Cause::Wish, Cause::NonFinite, Cause::Memory].into_iter().find(|cause| *cause as u8 == byte)
    }
}

impl Word {
    pub(crate) fn encode(self) -> Vec<u8> {
        match self {
            Word::Ask(cause) => vec![0, cause as u8],
            Word::Freeze => vec![1],
            Word::Unfinished => vec![2],
            Word::Finished => vec![3],
            Word::TooLate => vec![4],
            Word::Cancelled { by, cause } => [&[5, cause as u8], by.to_le_bytes().as_slice()].concat(),
        }
    }

    /// None for what no worker says.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [0, cause] => Cause::decode(cause).map(Word::Ask),
            [1] => Some(Word::Freeze),
            [2] => Some(Word::Unfinished),
            [3] => Some(Word::Finished),
            [4] => Some(Word::TooLate),
            [5, cause, a, b, c, d] => {
                let by = u32::from_le_bytes([a, b, c, d]);
                Cause::decode(cause).map(|cause| Word::Cancelled { by, cause })
            }
            _ => None,
        }
    }
}

/// Where a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    /// It may finish.
    Free,
    /// It may not finish yet.
    Frozen,
    /// It is given up, as this rank asked.
    Cancelled { by: u32, cause: Cause },
}

/// What follows from an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Send this rank a word.
    Tell(u32, StepId, Word),
    /// A step that was begun here stands so now.
    Stand(StepId, Stand),
    /// Throw away what waits for this step, and what still comes for it.
    Discard(StepId),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Steps {
    rank: u32,
    workers: u32,
    /// The rank that decides.
    coordinator: u32,
    /// Steps that are not over here, if they were begun, frozen or cancelled.
    open: HashMap<StepId, Open>,
    gradients: HashMap<u32, Known>,
    /// At the coordinator: what it is asking about.
    inquiries: HashMap<StepId, Inquiry>,
    /// At the coordinator: whether any rank has left, and so had finished all its steps.
    parting: bool,
    effects: Vec<Effect>,
}

/// What is known of a gradient.
#[derive(Debug)]
struct Known {
    /// Whether the program may cancel its steps.
    is_cancellable: bool,
    /// The first step that is not over here.
    next: StepId,
    /// How many steps that are not begun are remembered.
    early: u32,
}

#[derive(Debug)]
struct Open {
    stand: Stand,
    begun: bool,
}

#[derive(Debug)]
struct Inquiry {
    by: u32,
    cause: Cause,
    unheard: HashSet<u32>,
}

impl Steps {
    pub(crate) fn new(rank: u32, workers: u32, coordinator: u32) -> Self {
        Self {
            rank,
            workers,
            coordinator,
            open: HashMap::new(),
            gradients: HashMap::new(),
            inquiries: HashMap::new(),
            parting: false,
            effects: Vec::new(),
        }
    }

    /// What is to be done now, in order.
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// A gradient whose next step is this one. All ranks add it before any of them begins a step of it.
    pub(crate) fn add(&mut self, next: StepId, is_cancellable: bool) {
        self.gradients.insert(next.gradient, Known { is_cancellable, next, early: 0 });
    }

    /// By gradient, the first step that is not over here, and whether it has begun.
    pub(crate) fn positions(&self) -> Vec<(StepId, bool)> {
        let has_begun = |id| self.open.get(&id).is_some_and(|open| open.begun);
        let next = self.gradients.values().map(|known| (known.next, has_begun(known.next)));
        let mut next: Vec<_> = next.collect();
        next.sort_unstable_by_key(|(id, _)| id.gradient);
        next
    }

    /// Whether it was added and not removed.
    pub(crate) fn knows(&self, gradient: u32) -> bool {
        self.gradients.contains_key(&gradient)
    }

    /// No more steps of it will be.
    pub(crate) fn remove(&mut self, gradient: u32) {
        self.gradients.remove(&gradient);
        self.open.retain(|id, _| id.gradient != gradient);
    }

    /// A step begins here; the one before it is over. Says where it stands.
    pub(crate) fn begin(&mut self, id: StepId) -> Stand {
        self.next(id, id);
        let open = self.open.entry(id).or_insert(Open { stand: Stand::Free, begun: true });
        if let Some(known) = self.gradients.get_mut(&id.gradient) {
            known.early -= u32::from(!open.begun);
        }
        open.begun = true;
        let stand = open.stand;
        if matches!(stand, Stand::Cancelled { .. }) {
            self.end(id);
        }
        stand
    }

    /// All messages of a step have come. Says whether it has finished now; otherwise it waits for the decision.
    pub(crate) fn finish(&mut self, id: StepId) -> bool {
        let is_free = self.open.get(&id).is_some_and(|open| open.stand == Stand::Free);
        if is_free {
            self.end(id);
        }
        is_free
    }

    /// A step is over here, whatever its end.
    pub(crate) fn end(&mut self, id: StepId) {
        if self.open.remove(&id).is_some() {
            self.next(id, id.following());
        }
    }

    /// This rank wants a step given up. Nothing happens if it is over.
    pub(crate) fn ask(&mut self, id: StepId, cause: Cause) {
        if self.rank == self.coordinator {
            self.inquire(id, self.rank, cause);
        } else if !self.is_over(id) {
            self.effects.push(Effect::Tell(self.coordinator, id, Word::Ask(cause)));
        }
    }

    /// A rank said something. What breaks the rules is an error.
    pub(crate) fn heard(&mut self, from: u32, id: StepId, word: Word) -> Result<(), &'static str> {
        let Some(known) = self.gradients.get(&id.gradient) else {
            // What is said about the last step of a gradient may come when this rank is done with it.
            return Ok(());
        };
        let wishes = matches!(word, Word::Ask(Cause::Wish) | Word::Cancelled { cause: Cause::Wish, .. });
        if wishes && !known.is_cancellable {
            return Err("it wants to cancel what cannot be cancelled");
        }
        if known.early >= EARLY {
            return Err("it sent messages about cancelling thousands of steps that have not begun");
        }
        let (decides, from_coordinator) = (self.rank == self.coordinator, from == self.coordinator);
        match word {
            Word::Ask(cause) if decides => self.inquire(id, from, cause),
            Word::Unfinished if decides => {
                if let Some(inquiry) = self.inquiries.get_mut(&id) {
                    inquiry.unheard.remove(&from);
                    let (by, cause) = (inquiry.by, inquiry.cause);
                    if inquiry.unheard.is_empty() {
                        self.conclude(id, Word::Cancelled { by, cause })?;
                    }
                }
            }
            Word::Finished if decides => {
                if self.inquiries.contains_key(&id) {
                    self.conclude(id, Word::TooLate)?;
                }
            }
            Word::Freeze if from_coordinator => {
                let answer = if self.is_over(id) { Word::Finished } else { self.freeze(id) };
                self.effects.push(Effect::Tell(self.coordinator, id, answer));
            }
            Word::TooLate | Word::Cancelled { .. } if from_coordinator => self.follow(id, word)?,
            _ => return Err("it sent an unexpected message about cancelling a step"),
        }
        Ok(())
    }

    /// A rank has left, and so had finished all its steps.
    pub(crate) fn left(&mut self, rank: u32) {
        if self.rank == self.coordinator {
            self.parting = true;
            let asked: Vec<StepId> = self.inquiries.keys().copied().collect();
            for id in asked {
                // The coordinator has frozen what it asks about, so this breaks no rules.
                let _ = self.conclude(id, Word::TooLate);
            }
        } else if rank == self.coordinator {
            // There will be no decision.
            let frozen = self.open.iter().filter(|(_, open)| open.stand == Stand::Frozen);
            for id in frozen.map(|(id, _)| *id).collect::<Vec<_>>() {
                let _ = self.follow(id, Word::TooLate);
            }
        }
    }

    /// Whether bags of a step are of any use: it is neither over nor cancelled.
    pub(crate) fn expects(&self, id: StepId) -> bool {
        !self.is_over(id) && !matches!(self.stand(id), Some(Stand::Cancelled { .. }))
    }

    /// Where a step stands that is not over here.
    pub(crate) fn stand(&self, id: StepId) -> Option<Stand> {
        self.open.get(&id).map(|open| open.stand)
    }

    fn next(&mut self, id: StepId, next: StepId) {
        if let Some(known) = self.gradients.get_mut(&id.gradient) {
            known.next = next;
        }
    }

    fn is_over(&self, id: StepId) -> bool {
        self.gradients.get(&id.gradient).is_none_or(|known| id.ahead(known.next) > 0)
    }

    fn freeze(&mut self, id: StepId) -> Word {
        let known = self.gradients.get_mut(&id.gradient);
        let open = self.open.entry(id).or_insert_with(|| {
            known.into_iter().for_each(|known| known.early += 1);
            Open { stand: Stand::Free, begun: false }
        });
        open.stand = Stand::Frozen;
        Word::Unfinished
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let rank = self.rank;
        (0..self.workers).filter(move |&other| other != rank)
    }

    /// At the coordinator: asks all ranks, unless the answer is known.
    fn inquire(&mut self, id: StepId, by: u32, cause: Cause) {
        let decided = matches!(self.stand(id), Some(Stand::Cancelled { .. })) || self.is_over(id);
        if decided || self.parting {
            return;
        }
        if let Some(inquiry) = self.inquiries.get_mut(&id) {
            if inquiry.cause != Cause::NonFinite && cause == Cause::NonFinite {
                (inquiry.by, inquiry.cause) = (by, cause);
            }
            return;
        }
        self.freeze(id);
        self.inquiries.insert(id, Inquiry { by, cause, unheard: self.others().collect() });
        self.effects.extend(self.others().map(|rank| Effect::Tell(rank, id, Word::Freeze)));
        if self.workers == 1 {
            // Frozen just now, so this breaks no rules.
            let _ = self.conclude(id, Word::Cancelled { by, cause });
        }
    }

    /// At the coordinator: sends all ranks the decision.
    fn conclude(&mut self, id: StepId, decision: Word) -> Result<(), &'static str> {
        self.inquiries.remove(&id);
        self.effects.extend(self.others().map(|rank| Effect::Tell(rank, id, decision)));
        self.follow(id, decision)
    }

    /// Does what the decision says.
    fn follow(&mut self, id: StepId, decision: Word) -> Result<(), &'static str> {
        let Some(open) = self.open.get_mut(&id) else {
            let late = decision == Word::TooLate && self.is_over(id);
            return if late { Ok(()) } else { Err("it gave a decision on a step that was not frozen") };
        };
        let begun = open.begun;
        if let Word::Cancelled { by, cause } = decision {
            open.stand = Stand::Cancelled { by, cause };
            self.effects.push(Effect::Discard(id));
            if begun {
                self.effects.push(Effect::Stand(id, Stand::Cancelled { by, cause }));
                self.end(id);
            }
        } else if begun {
            open.stand = Stand::Free;
            self.effects.push(Effect::Stand(id, Stand::Free));
        } else {
            self.open.remove(&id);
            self.gradients.get_mut(&id.gradient).into_iter().for_each(|known| known.early -= 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
