//! Schedules that are rotations of one another, as a ring's are: what rank r does with ranks and blocks is what rank 0 does with
//! those r places before. One of them then says all about the others.

use super::{Lanes, Receive, Schedule, Send, Slots, Step};
use crate::{Block, Rank};

impl Slots {
    /// The same slots of a worker so many ranks further on. All blocks are the same wherever they begin.
    pub(super) fn rotated(self, by: u32, of: &Schedule) -> Self {
        let blocks = of.partition.blocks() as u32;
        let first = if self.count == blocks { self.first } else { Block((self.first.0 + by) % blocks) };
        let lanes = match self.lanes {
            Lanes { relative: true, first, count } => {
                Lanes { relative: true, first: (first + by) % of.lanes, count }
            }
            lanes => lanes,
        };
        Self { first, lanes, ..self }
    }

    /// The same with what they hold, in the order of their places.
    pub fn rotated_with<H>(self, held: &mut [H], by: u32, of: &Schedule) -> Self {
        let blocks = of.partition.blocks();
        if self.count as usize == blocks {
            held.chunks_mut(blocks).for_each(|lane| lane.rotate_right(by as usize % blocks));
        }
        self.rotated(by, of)
    }
}

impl Schedule {
    /// Whether another rank's schedule is this one of rank 0, rotated.
    pub fn is_rotated(&self, other: &Self) -> bool {
        let by = other.rank.0;
        let rank = |a: Rank, b: Rank| (a.0 + by) % self.workers == b.0;
        let slots = |a: Slots, b: Slots| a.rotated(by, self) == b;
        let step = |(a, b): (&Step, &Step)| match (a, b) {
            (Step::Exchange { sends: a, receives: c }, Step::Exchange { sends: b, receives: d }) => {
                let send = |(a, b): (&Send, &Send)| {
                    rank(a.to, b.to) && slots(a.slots, b.slots) && a.after == b.after
                };
                let receive = |(a, b): (&Receive, &Receive)| {
                    rank(a.from, b.from) && slots(a.slots, b.slots) && a.how == b.how
                };
                (a.len(), c.len()) == (b.len(), d.len())
                    && a.iter().zip(b).all(send)
                    && c.iter().zip(d).all(receive)
            }
            (Step::Exchange { .. }, _) | (_, Step::Exchange { .. }) => false,
            _ => self.step_rotated(a, by) == *b,
        };
        other.steps.len() == self.steps.len()
            && other.lane == self.lane
            && self.steps.iter().zip(&other.steps).all(step)
    }

    /// What a worker so many ranks further on does, if all do the same, rotated.
    pub fn rotated(&self, by: u32) -> Self {
        let rank = Rank((self.rank.0 + by) % self.workers);
        let steps = self.steps.iter().map(|step| self.step_rotated(step, by)).collect();
        Self { rank, steps, ..self.clone() }
    }

    fn step_rotated(&self, step: &Step, by: u32) -> Step {
        let rank = |rank: Rank| Rank((rank.0 + by) % self.workers);
        let mut step = step.clone();
        match &mut step {
            Step::Exchange { sends, receives } => {
                for send in sends {
                    (send.to, send.slots) = (rank(send.to), send.slots.rotated(by, self));
                }
                for receive in receives {
                    (receive.from, receive.slots) = (rank(receive.from), receive.slots.rotated(by, self));
                }
            }
            Step::Keep { slots, .. }
            | Step::Propose { slots, .. }
            | Step::Align { slots, .. }
            | Step::Sum { slots }
            | Step::Split { slots }
            | Step::Annotate { slots, .. } => *slots = slots.rotated(by, self),
        }
        step
    }

    /// The slots that a step names.
    fn slots_of(step: &Step) -> Vec<Slots> {
        match step {
            Step::Exchange { sends, receives } => sends
                .iter()
                .map(|send| send.slots)
                .chain(receives.iter().map(|receive| receive.slots))
                .collect(),
            Step::Keep { slots, .. }
            | Step::Propose { slots, .. }
            | Step::Align { slots, .. }
            | Step::Sum { slots }
            | Step::Split { slots }
            | Step::Annotate { slots, .. } => vec![*slots],
        }
    }

    /// Whether a rotation of this schedule can be one of another rank: there are as many blocks as ranks, or one. Relative lanes
    /// stay what they are only if the numbers of blocks and of lanes come round together.
    pub fn can_rotate(&self) -> bool {
        let blocks = self.partition.blocks() as u32;
        let come_round = blocks > 1 && blocks.is_multiple_of(self.lanes);
        let relative = |step: &Step| Self::slots_of(step).iter().any(|slots| slots.lanes.relative);
        self.rank == Rank(0)
            && self.workers > 1
            && (blocks == 1 || blocks == self.workers)
            && (come_round || !self.steps.iter().any(relative))
    }
}
