//! What slots hold symbolically, and what is remembered of each step.

use super::super::expression::{Expressions, Term};
use super::super::{Note, Slots};
use crate::bag::wire::Content;

/// The symbolic content of one slot at one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    pub(super) term: Term,
    /// Non-zero entries at most, in a block of whatever length.
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

    /// Non-zero entries at most, in a block of this length.
    pub(super) fn bound(&self, len: u32) -> u32 {
        self.most.min(len).div_ceil(self.pieces)
    }

    /// The same of a worker so many ranks further on.
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

/// A message: what was sent of which slots, in which round.
pub(super) struct Flight {
    pub(super) slots: Slots,
    pub(super) values: Vec<Value>,
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
    /// The results of its selections, and whether they are of all blocks.
    pub(super) kept: Vec<Term>,
    pub(super) of_all: bool,
    pub(super) sent: u64,
    /// What it received, and in which round that was sent.
    pub(super) arrivals: Vec<(Slots, Vec<Value>, u64)>,
}
