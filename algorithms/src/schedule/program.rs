//! A checked program: one worker's schedule with all that the checker derived for it. Only this can be executed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{After, Goal, Receive, Schedule};
use crate::bag::wire::Expected;
use crate::{Block, Element, Rank};

/// See the module. It is made by a [`Proof`](super::Proof) alone.
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) schedule: Arc<Schedule>,
    /// By step.
    pub(super) facts: Vec<Facts>,
    pub(super) goal: Goal,
    pub(super) epoch: u16,
    /// For each block: whether nothing was ever selected from its sum, so that every entry is delivered, those that cancel to
    /// zero too.
    pub(super) whole: Vec<bool>,
    /// Whether no worker's schedule leaves anything out or rounds it, which reductions other than the sum need.
    pub(super) keeps_all: bool,
}

/// What the checker derived for one step of one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The latency rounds in which it begins and ends, from 1 on. An exchange with a worker that is late begins in one and ends
    /// in another; what is no exchange belongs to the round that comes next.
    pub began: u64,
    /// See `began`.
    pub ended: u64,
    /// For each slot of a `Keep` or `Align`: which other workers hold that very expression and drop the same entries.
    pub holders: Vec<Holders>,
    /// For each of these slots: how many selections lie behind the result, this one included. Equal contents have equal stages,
    /// so that a rounding may take its random numbers from there.
    pub stages: Vec<u32>,
    /// For each receive.
    pub receipts: Vec<Receipt>,
    /// Whether this exchange sends several times or a later one sends: what has travelled may then travel again as it is.
    pub sends_again: bool,
    /// Whether a later exchange sends anything.
    pub sends_later: bool,
    /// Where a dense block is passed on to piece by piece while it arrives, by the last receive of this step, and whether it is retained
    /// then: the next exchange sends this block alone.
    pub passes_on: Option<(Rank, After)>,
}

impl Facts {
    /// Whether the step selects entries.
    pub fn selects(&self) -> bool {
        !self.holders.is_empty()
    }
}

/// What may come for one receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Its sender.
    pub from: Rank,
    /// Of each slot.
    pub expected: Vec<Expected>,
    /// Of each slot, entries at most in a block of whatever length.
    pub most: Vec<u32>,
    /// How many numbers of a note come with each slot.
    pub notes: Vec<usize>,
    /// 32-bit words at most.
    pub words: u64,
    /// The latency round in which it is sent.
    pub round: u64,
}

/// How many workers drop the same entries, so that each keeps one part in so many for its residual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holders {
    /// This worker and all others.
    pub count: u32,
    /// Whether this one is the first of them by rank, which keeps what division leaves over.
    pub is_first: bool,
}

impl Holders {
    /// This worker's share v/d of what d holders drop, as it is rounded; of the first, v − (d − 1)·(v/d), so that the
    /// shares add up to v.
    pub fn share<T: Element>(self, value: T) -> T {
        let share = value.divide(self.count);
        if self.is_first && !self.count.is_power_of_two() {
            // One rounding in 64 bits; in fewer it is negligible.
            T::from_f64((1.0 - f64::from(self.count)).mul_add(share.to_f64(), value.to_f64()))
        } else {
            share
        }
    }
}

impl Program {
    /// What is done, in order.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// What was derived for each step.
    pub fn facts(&self) -> &[Facts] {
        &self.facts
    }

    /// What it receives, in order.
    pub fn receipts(&self) -> impl Iterator<Item = (&Receive, &Receipt)> {
        let receives = self.schedule.exchanges().flat_map(|(_, receives)| receives);
        receives.zip(self.facts.iter().flat_map(|facts| &facts.receipts))
    }

    /// Whether no worker's schedule leaves anything out or rounds it.
    pub fn keeps_all(&self) -> bool {
        self.keeps_all
    }

    /// The same for another membership of as many workers.
    #[must_use]
    pub fn of_epoch(self, epoch: u16) -> Self {
        Self { epoch, ..self }
    }

    /// The membership that it was made for.
    pub fn epoch(&self) -> u16 {
        self.epoch
    }

    /// Whether this worker brings something to a block, and whether it ends with the sum.
    pub(crate) fn part_in(&self, block: Block) -> (bool, bool) {
        let of = |ranks: &super::Ranks| ranks.has(self.schedule.rank, block);
        (of(&self.goal.brings), of(&self.goal.ends))
    }

    /// What each peer may send in one run at most.
    pub fn volumes<T: Element>(&self) -> BTreeMap<Rank, Volume> {
        self.volumes_of(|_, receipt| receipt.expected.iter().map(|expected| expected.most_bytes::<T>()).sum())
    }

    /// The same with its blocks cut anywhere else: any of them may have all entries of the gradient, but no lane has more.
    pub fn volumes_in_any_blocks<T: Element>(&self) -> BTreeMap<Rank, Volume> {
        let n = self.schedule.partition.entries() as u64;
        let len = u32::try_from(n).unwrap_or(u32::MAX);
        self.volumes_of(|receive, receipt| {
            let slots = receipt.expected.iter().zip(&receipt.most);
            let slots = slots.map(|(expected, &most)| Expected { len, bound: most.min(len), ..*expected });
            let lane: u64 =
                slots.clone().map(|slot| slot.content.most_bytes_each::<T>() * n).max().unwrap_or(0);
            let headers = slots.len() as u64 * Expected::MOST_BESIDE;
            let of_lanes = u64::from(receive.slots.lanes.count).saturating_mul(lane).saturating_add(headers);
            slots.map(Expected::most_bytes::<T>).fold(0, u64::saturating_add).min(of_lanes)
        })
    }

    fn volumes_of(&self, bytes: impl Fn(&Receive, &Receipt) -> u64) -> BTreeMap<Rank, Volume> {
        let mut volumes: BTreeMap<Rank, Volume> = BTreeMap::new();
        for (receive, receipt) in self.receipts() {
            let volume = volumes.entry(receipt.from).or_default();
            volume.blocks += receipt.expected.len() as u64;
            let notes = 8 * receipt.notes.iter().sum::<usize>() as u64;
            volume.bytes = volume.bytes.saturating_add(notes).saturating_add(bytes(receive, receipt));
        }
        volumes
    }
}

/// What comes from a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// In how many blocks.
    pub blocks: u64,
    /// How many bytes, headers and notes included.
    pub bytes: u64,
}

impl Volume {
    /// Enough for either.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { blocks: self.blocks.max(other.blocks), bytes: self.bytes.max(other.bytes) }
    }
}
