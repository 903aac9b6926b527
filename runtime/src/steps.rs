//! Which steps are under way here, and how all ranks decide as one that a step is given up.
//!
//! Any rank may ask for it. It tells rank 0, and rank 0 tells all ranks to *freeze* the step: a frozen step goes on, but does
//! not finish before the verdict. Each rank answers whether it had finished already. Its update may then have been used, and
//! what one rank has, all must get: the request came *too late*, and the step goes on everywhere. If nobody had finished, the
//! step is *cancelled* everywhere, in the name of the rank that rank 0 heard first.
//!
//! A rank whose values are not finite asks for the same, and never sends any: so nobody can have finished. Its word counts
//! more than that of a rank which cancels at the same time, since the step leaves no trace in the residuals then.
//!
//! A step may be frozen and cancelled on a rank that has not begun it yet. Links keep the order of messages, and a rank
//! begins a step only when the one before is over there, so a rank hears the verdicts of one gradient in the order of its
//! steps.
//!
//! This is one rank's part of it, without any input or output: what is to be done is written down as [`Deed`]s.

use std::collections::{HashMap, HashSet};

use tokio::sync::watch;

use crate::tag::{REDUCERS, StepId};

/// Why a step is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The program wants it: what was accumulated stays.
    Wish,
    /// Values that are not finite: everything is as before the step.
    NonFinite,
}

/// What ranks tell each other about a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// To rank 0: give it up, please.
    Ask(Cause),
    /// From rank 0: do not finish it before the verdict.
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
        [Cause::Wish, Cause::NonFinite].into_iter().find(|cause| *cause as u8 == byte)
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
pub(crate) enum Deed {
    /// Tell this rank.
    Tell(u32, StepId, Word),
    /// Throw away what waits for this step, and what still comes for it.
    Discard(StepId),
    /// All that was sent for this cancelled step has come.
    Forget(StepId),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Steps {
    rank: u32,
    workers: u32,
    /// Steps that are not over here, if they were begun, frozen or cancelled.
    open: HashMap<StepId, Open>,
    /// The first step that is not over here, by gradient.
    next: HashMap<(u16, u8, u16), StepId>,
    /// Cancelled steps since the last that finished, by gradient: messages may still come for them.
    cancelled: HashMap<(u16, u8, u16), Vec<StepId>>,
    /// At rank 0: what it is asking about.
    inquiries: HashMap<StepId, Inquiry>,
    /// At rank 0: whether anybody has left, and so had finished all its steps.
    parting: bool,
    deeds: Vec<Deed>,
}

#[derive(Debug)]
struct Open {
    stand: watch::Sender<Stand>,
    begun: bool,
}

#[derive(Debug)]
struct Inquiry {
    by: u32,
    cause: Cause,
    unheard: HashSet<u32>,
}

impl Steps {
    pub(crate) fn new(rank: u32, workers: u32) -> Self {
        Self {
            rank,
            workers,
            open: HashMap::new(),
            next: HashMap::new(),
            cancelled: HashMap::new(),
            inquiries: HashMap::new(),
            parting: false,
            deeds: Vec::new(),
        }
    }

    /// What is to be done now, in order.
    pub(crate) fn deeds(&mut self) -> Vec<Deed> {
        std::mem::take(&mut self.deeds)
    }

    /// A step begins here; the one before it is over.
    pub(crate) fn begin(&mut self, id: StepId) -> watch::Receiver<Stand> {
        self.next.insert(id.gradient(), id);
        let open = self.open.entry(id).or_insert_with(|| Open::new(Stand::Free));
        open.begun = true;
        let stand = open.stand.subscribe();
        if matches!(*stand.borrow(), Stand::Cancelled { .. }) {
            self.end(id);
        }
        stand
    }

    /// All messages of a step have come. Says whether it has finished now; otherwise it waits for the verdict.
    pub(crate) fn finish(&mut self, id: StepId) -> bool {
        let free = self.open.get(&id).is_some_and(|open| *open.stand.borrow() == Stand::Free);
        if free {
            self.end(id);
            // Every peer that sends in a step of this gradient has sent in this one.
            let past = self.cancelled.remove(&id.gradient());
            self.deeds.extend(past.into_iter().flatten().map(Deed::Forget));
        }
        free
    }

    /// A step is over here, whatever its end.
    pub(crate) fn end(&mut self, id: StepId) {
        if self.open.remove(&id).is_some() {
            self.next.insert(id.gradient(), id.following());
        }
    }

    /// This rank wants a step given up. Nothing happens if it is over.
    pub(crate) fn ask(&mut self, id: StepId, cause: Cause) {
        match self.rank {
            0 => self.inquire(id, 0, cause),
            _ if self.is_over(id) => {}
            _ => self.deeds.push(Deed::Tell(0, id, Word::Ask(cause))),
        }
    }

    /// A rank said something. What breaks the rules is an error.
    pub(crate) fn heard(&mut self, from: u32, id: StepId, word: Word) -> Result<(), &'static str> {
        let cause = match word {
            Word::Ask(cause) | Word::Cancelled { cause, .. } => cause,
            _ => Cause::NonFinite,
        };
        if id.channel != REDUCERS && cause == Cause::Wish {
            return Err("it wants to cancel what cannot be cancelled");
        }
        match (self.rank, from, word) {
            (0, _, Word::Ask(cause)) => self.inquire(id, from, cause),
            (0, _, Word::Unfinished) => {
                if let Some(inquiry) = self.inquiries.get_mut(&id) {
                    inquiry.unheard.remove(&from);
                    let (by, cause) = (inquiry.by, inquiry.cause);
                    if inquiry.unheard.is_empty() {
                        self.conclude(id, Word::Cancelled { by, cause })?;
                    }
                }
            }
            (0, _, Word::Finished) => {
                if self.inquiries.contains_key(&id) {
                    self.conclude(id, Word::TooLate)?;
                }
            }
            (_, 0, Word::Freeze) => {
                let answer = if self.is_over(id) { Word::Finished } else { self.freeze(id) };
                self.deeds.push(Deed::Tell(0, id, answer));
            }
            (_, 0, Word::TooLate | Word::Cancelled { .. }) => self.settle(id, word)?,
            _ => return Err("it spoke about cancelling out of turn"),
        }
        Ok(())
    }

    /// A rank has left, and so had finished all its steps.
    pub(crate) fn left(&mut self, rank: u32) {
        if self.rank == 0 {
            self.parting = true;
            let asked: Vec<StepId> = self.inquiries.keys().copied().collect();
            for id in asked {
                // Rank 0 has frozen what it asks about, so this breaks no rules.
                let _ = self.conclude(id, Word::TooLate);
            }
        } else if rank == 0 {
            // There will be no verdict.
            let frozen = self.open.iter().filter(|(_, open)| *open.stand.borrow() == Stand::Frozen);
            for id in frozen.map(|(id, _)| *id).collect::<Vec<_>>() {
                let _ = self.settle(id, Word::TooLate);
            }
        }
    }

    fn is_over(&self, id: StepId) -> bool {
        self.next.get(&id.gradient()).is_some_and(|next| id.is_before(*next))
    }

    fn freeze(&mut self, id: StepId) -> Word {
        let open = self.open.entry(id).or_insert_with(|| Open::new(Stand::Free));
        open.stand.send_replace(Stand::Frozen);
        Word::Unfinished
    }

    /// At rank 0: asks everybody, unless the answer is known.
    fn inquire(&mut self, id: StepId, by: u32, cause: Cause) {
        let cancelled = |open: &Open| matches!(*open.stand.borrow(), Stand::Cancelled { .. });
        let decided = self.is_over(id) || self.open.get(&id).is_some_and(cancelled);
        if decided || self.parting {
            return;
        }
        if let Some(inquiry) = self.inquiries.get_mut(&id) {
            if inquiry.cause == Cause::Wish && cause == Cause::NonFinite {
                (inquiry.by, inquiry.cause) = (by, cause);
            }
            return;
        }
        self.freeze(id);
        self.inquiries.insert(id, Inquiry { by, cause, unheard: (1..self.workers).collect() });
        self.deeds.extend((1..self.workers).map(|rank| Deed::Tell(rank, id, Word::Freeze)));
        if self.workers == 1 {
            // Frozen just now, so this breaks no rules.
            let _ = self.conclude(id, Word::Cancelled { by, cause });
        }
    }

    /// At rank 0: tells everybody the verdict.
    fn conclude(&mut self, id: StepId, verdict: Word) -> Result<(), &'static str> {
        self.inquiries.remove(&id);
        self.deeds.extend((1..self.workers).map(|rank| Deed::Tell(rank, id, verdict)));
        self.settle(id, verdict)
    }

    /// Follows the verdict.
    fn settle(&mut self, id: StepId, verdict: Word) -> Result<(), &'static str> {
        let Some(open) = self.open.get(&id) else {
            let late = verdict == Word::TooLate && self.is_over(id);
            return if late { Ok(()) } else { Err("it gave a verdict on a step that nobody froze") };
        };
        let begun = open.begun;
        if let Word::Cancelled { by, cause } = verdict {
            open.stand.send_replace(Stand::Cancelled { by, cause });
            self.cancelled.entry(id.gradient()).or_default().push(id);
            self.deeds.push(Deed::Discard(id));
            if begun {
                self.end(id);
            }
        } else if begun {
            open.stand.send_replace(Stand::Free);
        } else {
            self.open.remove(&id);
        }
        Ok(())
    }
}

impl Open {
    fn new(stand: Stand) -> Self {
        Self { stand: watch::Sender::new(stand), begun: false }
    }
}

#[cfg(test)]
mod tests;
