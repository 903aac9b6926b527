//! What slots hold symbolically, and what is remembered of each step.

use std::iter;

use super::super::expression::{Expressions, Term};
use super::super::{Note, Schedule, Slots};
use crate::bag::wire::Content;

/// The symbolic content of one slot at one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) term: Term,
    /// Entries at most, in a block of whatever length.
    pub(super) most: u32,
    /// Of how many pieces of that this is one.
    pub(super) pieces: u32,
    /// Whether everything in it was selected; what was not travels dense.
    pub(super) selected: bool,
    /// Whether this worker itself made the last selection.
    pub(super) kept_here: bool,
    /// The note tied to it, and what that says.
    pub(super) note: Option<(Note, Term)>,
    /// Whether it is the worker's own accumulator, which never left.
    pub(super) own: bool,
    pub(super) form: Carries,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    /// Indices and values.
    Bag,
    /// Indices alone.
    Proposal,
    /// Values at the indices of this union.
    Aligned(Term),
}

impl Carries {
    pub(super) fn content(self) -> Content {
        match self {
            Carries::Bag => Content::Bag,
            Carries::Proposal => Content::Proposal,
            Carries::Aligned(_) => Content::Aligned,
        }
    }
}

impl Value {
    /// A worker's own accumulator.
    pub(super) fn own(term: Term) -> Self {
        let most = u32::MAX;
        Self {
            term,
            most,
            pieces: 1,
            selected: false,
            kept_here: false,
            note: None,
            own: true,
            form: Carries::Bag,
        }
    }

    /// Entries at most, in a block of this length.
    pub(super) fn bound(&self, len: u32) -> u32 {
        self.most.min(len).div_ceil(self.pieces)
    }

    /// The same of a worker this many ranks further on.
    pub(super) fn rotated(self, expressions: &Expressions, by: u32) -> Self {
        let rotated = |term| expressions.rotated(term, by);
        let form = match self.form {
            Carries::Aligned(union) => Carries::Aligned(rotated(union)),
            form => form,
        };
        Self {
            term: rotated(self.term),
            note: self.note.map(|(note, says)| (note, rotated(says))),
            form,
            ..self
        }
    }
}

/// One of something for each of some places in their order, equal neighbours together.
pub(super) struct Runs<V>(Vec<(u32, V)>);

impl<V> Default for Runs<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V: Copy + PartialEq> FromIterator<V> for Runs<V> {
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> Self {
        let mut runs: Vec<(u32, V)> = Vec::new();
        for value in values {
            match runs.last_mut() {
                Some((count, last)) if *last == value => *count += 1,
                _ => runs.push((1, value)),
            }
        }
        runs.shrink_to_fit();
        Self(runs)
    }
}

impl<V: Copy> Runs<V> {
    /// One for each place.
    pub(super) fn each(&self) -> impl Iterator<Item = V> {
        self.0.iter().flat_map(|&(count, value)| iter::repeat_n(value, count as usize))
    }

    /// Those that are the same side by side, where so many places are in one lane: how far from the lane's first place they
    /// begin, and how many.
    pub(super) fn within(&self, lane: u32) -> impl Iterator<Item = (u32, u32, V)> {
        let (mut runs, mut run, mut at) = (self.0.iter(), None, 0);
        iter::from_fn(move || {
            let (left, value) = match run.take() {
                Some(run) => run,
                None => *runs.next()?,
            };
            let (begins, count) = (at, left.min(lane - at));
            run = (left > count).then_some((left - count, value));
            at = (at + count) % lane;
            Some((begins, count, value))
        })
    }

    /// The same of a worker this many ranks further on, and for which slots.
    pub(super) fn rotated(&self, slots: Slots, by: u32, of: &Schedule) -> (Slots, Vec<V>) {
        let mut values: Vec<V> = self.each().collect();
        (slots.rotated_with(&mut values, by, of), values)
    }
}

/// A function that is asked for the same again and again: the last answer is kept.
pub(super) struct Again<I, O>(Option<(I, O)>);

impl<I, O> Default for Again<I, O> {
    fn default() -> Self {
        Self(None)
    }
}

impl<I: PartialEq, O: Copy> Again<I, O> {
    pub(super) fn of(&mut self, input: I, answer: impl FnOnce(&I) -> O) -> O {
        match &self.0 {
            Some((last, output)) if *last == input => *output,
            _ => {
                let output = answer(&input);
                self.0 = Some((input, output));
                output
            }
        }
    }
}

/// A message: what was sent of which slots, in which round.
pub(super) struct Flight {
    pub(super) slots: Slots,
    pub(super) values: Runs<Value>,
    pub(super) round: u64,
}

/// What one worker did in one step of its schedule.
#[derive(Default)]
pub(super) struct Record {
    /// The latency rounds in which it began and ended.
    pub(super) began: u64,
    pub(super) ended: u64,
    /// Whether it was an exchange.
    pub(super) exchanged: bool,
    /// The results of its selections, and where they lie.
    pub(super) kept: Option<(Slots, Runs<Term>)>,
    pub(super) sent: u64,
    /// What it received, and in which round that was sent.
    pub(super) arrivals: Vec<Flight>,
}
