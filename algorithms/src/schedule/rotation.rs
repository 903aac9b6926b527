//! Schedules that are rotations of one another, as a ring's are: what rank r does with ranks and blocks is what rank 0 does with
//! those r places before. One of them then says all about the others.

use super::{Lanes, Receive, Schedule, Send, Slots, Step};
use crate::{Block, Rank};

impl Slots {
    /// The same slots of a worker this many ranks further on. All blocks are the same wherever they begin.
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
        let send = |(a, b): (&Send, &Send)| rank(a.to, b.to) && slots(a.slots, b.slots) && a.after == b.after;
        let receive =
            |(a, b): (&Receive, &Receive)| rank(a.from, b.from) && slots(a.slots, b.slots) && a.how == b.how;
        // There may be millions of exchanges: none is copied.
        let step = |(a, b): (&Step, &Step)| match (a.exchange(), b.exchange()) {
            (Some((a, c)), Some((b, d))) => {
                (a.len(), c.len()) == (b.len(), d.len())
                    && a.iter().zip(b).all(send)
                    && c.iter().zip(d).all(receive)
            }
            (None, None) => self.step_rotated(a, by) == *b,
            _ => false,
        };
        other.steps.len() == self.steps.len()
            && other.lane == self.lane
            && self.steps.iter().zip(&other.steps).all(step)
    }

    /// What a worker this many ranks further on does, if all do the same, rotated.
    pub fn rotated(&self, by: u32) -> Self {
        let rank = Rank((self.rank.0 + by) % self.workers);
        let steps = self.steps.iter().map(|step| self.step_rotated(step, by)).collect();
        Self { rank, steps, ..self.clone() }
    }

    fn step_rotated(&self, step: &Step, by: u32) -> Step {
        step.renamed(|rank| Rank((rank.0 + by) % self.workers), |slots| slots.rotated(by, self))
    }

    /// Whether a rotation of this schedule can be one of another rank: there are as many blocks as ranks, or one.
    pub fn can_rotate(&self) -> bool {
        let blocks = self.partition.blocks() as u32;
        self.rank == Rank(0)
            && self.workers > 1
            && (blocks == 1 || blocks == self.workers)
            && self.lanes_come_round()
    }

    /// Whether relative lanes stay what they are where blocks are rotated: the numbers of blocks and of lanes come round
    /// together, or there are no such lanes.
    pub fn lanes_come_round(&self) -> bool {
        let blocks = self.partition.blocks() as u32;
        let come_round = blocks > 1 && blocks.is_multiple_of(self.lanes);
        come_round || !self.steps.iter().flat_map(Step::names).any(|(_, slots)| slots.lanes.relative)
    }
}
