//! What a worker does, step by step. What a step means is said here and by the readers of the machine; nothing else takes one
//! apart.

use super::{Note, Rule, Slots};
use crate::bag::Coding;
use crate::{Partition, Rank};

/// What a sender does with a slot that it has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It leaves this worker.
    Drop,
    /// This worker keeps a copy.
    Retain,
}

/// What a receiver does with a slot that it received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is added to what the worker holds there: held + received.
    Add,
    /// It takes an empty place.
    Place,
}

/// One send of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// The receiver.
    pub to: Rank,
    /// What is sent.
    pub slots: Slots,
    /// Whether the sender still has it afterwards.
    pub after: After,
}

/// One receive of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The sender.
    pub from: Rank,
    /// What is received: the slots that the sender names.
    pub slots: Slots,
    /// Where it goes.
    pub how: How,
}

/// One step of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Keeps the entries that the rule chooses, rounded to what the coding can say; the others, and what was rounded
    /// away, go to the residuals.
    Keep {
        /// The slots to choose from.
        slots: Slots,
        /// The choice.
        rule: Rule,
        /// How values are encoded on the wire from here on.
        coding: Coding,
    },
    /// One latency round: all sends leave, then all receives are taken in, in their order here.
    Exchange {
        /// What leaves.
        sends: Vec<Send>,
        /// What comes.
        receives: Vec<Receive>,
    },
    /// Adds up all lanes of a block, as a balanced tree in the order of the lanes, into lane 0. Lanes that hold nothing
    /// are passed over; all pieces of a bag that was split are that bag again.
    Sum {
        /// The blocks, each by itself; the lanes are not looked at.
        slots: Slots,
    },
    /// Cuts the bag of each block in lane 0 into as many pieces as there are lanes, of equal counts but for one entry, the
    /// longer ones first: the piece i goes to lane i.
    Split {
        /// The blocks; the lanes are not looked at.
        slots: Slots,
    },
    /// Chooses indices of this worker's own accumulator, which stays as it is, and lays them down as a proposal: indices
    /// without values. A proposal travels like a bag, and stays on a worker until the step ends.
    Propose {
        /// Where the proposals go: of each block into one empty lane. The choice is from these blocks together.
        slots: Slots,
        /// The choice. By `Every` and `Dense` all indices are proposed, those of zeros too.
        rule: Rule,
    },
    /// Keeps of this worker's own accumulator the value at every index that was proposed for the block, zeros too, rounded
    /// to what the coding can say. From here on the bag is *aligned*: all workers have the same indices in it, so it travels
    /// as values alone, and so do sums of such bags.
    Align {
        /// The worker's own slots.
        slots: Slots,
        /// How values are encoded on the wire from here on.
        coding: Coding,
    },
    /// Ties a note to a bag, which carries it from here on. It is added to another only where their notes are added too.
    Annotate {
        /// The bags.
        slots: Slots,
        /// What is noted.
        note: Note,
    },
}

impl Step {
    /// What is sent and received, if it is an exchange.
    pub fn exchange(&self) -> Option<(&[Send], &[Receive])> {
        let Step::Exchange { sends, receives } = self else { return None };
        Some((sends, receives))
    }

    /// From which slots it chooses entries on a worker whose own gradient lies in this lane, and by which rule.
    pub(crate) fn chooses(&self, own: u32) -> Option<(Slots, &Rule)> {
        match self {
            Step::Keep { slots, rule, .. } => Some((*slots, rule)),
            Step::Propose { slots, rule } => Some((slots.in_lane(own), rule)),
            Step::Exchange { .. }
            | Step::Sum { .. }
            | Step::Split { .. }
            | Step::Align { .. }
            | Step::Annotate { .. } => None,
        }
    }

    /// Whether it adds up what all workers have at the same indices.
    pub(crate) fn aligns(&self) -> bool {
        matches!(self, Step::Align { .. })
    }

    /// Whether it leaves nothing out and rounds nothing.
    pub(super) fn keeps_all(&self) -> bool {
        match self {
            Step::Keep { rule, coding, .. } => rule.keeps_all() && *coding == Coding::Exact,
            Step::Align { .. } => false,
            Step::Exchange { .. }
            | Step::Sum { .. }
            | Step::Split { .. }
            | Step::Propose { .. }
            | Step::Annotate { .. } => true,
        }
    }

    /// Whether it leaves no entry out, but for what it rounds, and names none that no worker brings.
    pub(super) fn keeps_entries(&self, partition: &Partition, lanes: u32) -> bool {
        match self {
            Step::Keep { slots, rule, .. } => {
                let places = slots.places(partition.blocks(), lanes);
                rule.keeps_entries(places.map(|place| (place.block, partition.block_len(place.block))))
            }
            Step::Propose { .. } | Step::Align { .. } => false,
            Step::Exchange { .. } | Step::Sum { .. } | Step::Split { .. } | Step::Annotate { .. } => true,
        }
    }

    /// The slots that it names, with the peer where there is one.
    pub(super) fn names(&self) -> impl Iterator<Item = (Option<Rank>, Slots)> {
        let (sends, receives) = self.exchange().unwrap_or_default();
        let sends = sends.iter().map(|send| (Some(send.to), send.slots));
        let receives = receives.iter().map(|receive| (Some(receive.from), receive.slots));
        sends.chain(receives).chain(self.slots().map(|slots| (None, slots)))
    }

    /// Those of what is no exchange.
    fn slots(&self) -> Option<Slots> {
        match self {
            Step::Keep { slots, .. }
            | Step::Sum { slots }
            | Step::Split { slots }
            | Step::Propose { slots, .. }
            | Step::Align { slots, .. }
            | Step::Annotate { slots, .. } => Some(*slots),
            Step::Exchange { .. } => None,
        }
    }

    /// The same with other peers and slots.
    pub(super) fn renamed(&self, rank: impl Fn(Rank) -> Rank, renamed: impl Fn(Slots) -> Slots) -> Self {
        let mut step = self.clone();
        match &mut step {
            Step::Exchange { sends, receives } => {
                sends.iter_mut().for_each(|s| (s.to, s.slots) = (rank(s.to), renamed(s.slots)));
                receives.iter_mut().for_each(|r| (r.from, r.slots) = (rank(r.from), renamed(r.slots)));
            }
            Step::Keep { slots, .. }
            | Step::Sum { slots }
            | Step::Split { slots }
            | Step::Propose { slots, .. }
            | Step::Align { slots, .. }
            | Step::Annotate { slots, .. } => *slots = renamed(*slots),
        }
        step
    }
}
