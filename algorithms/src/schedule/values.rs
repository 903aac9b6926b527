//! The reader that runs schedules on values. The accumulator is only read; what is received lives in overlays and bags.

mod agreement;
mod choose;
mod notes;
mod receive;
mod send;
mod steps;
mod work;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::execution::{ExecutionError, Finished, Outgoing, OwnChoice};
use super::keep::{Candidates, overlaid};
use super::{After, Memory, Place, Program, Store, Tally};
use crate::accumulator::{Accumulator, Own};
use crate::bag::wire::{Decoder, Encoded};
use crate::bag::{Bag, Dense, Entries, Rounded};
use crate::device::DeviceError;
use crate::residual::NonFinite;
use crate::{Block, Element, Rank, Reduction};

pub use work::{Done, Work};

/// What a worker holds in one slot.
#[derive(Debug)]
pub(super) enum Held<T: Element> {
    /// Its own accumulator, and the sums of it with received entries where there are any.
    Own(Entries<T>),
    /// A bag.
    Bag(Carried<T>),
    /// Values at the indices that the workers agreed on.
    Aligned(Aligned<T>),
    /// Indices without values, and how they travel.
    Proposal(Arc<[u32]>, Option<Encoded>),
}

/// Values at indices that are the same on all workers.
#[derive(Clone, Debug)]
pub(super) struct Aligned<T: Element> {
    indices: Arc<[u32]>,
    /// A value for each index; some may be zero.
    values: Vec<T>,
    rounded: Rounded,
    /// How it travels, if it came or was sent as it is now.
    encoded: Option<Encoded>,
}

/// A bag, and what travels with it.
#[derive(Clone, Debug)]
pub(super) struct Carried<T: Element> {
    bag: Bag<T>,
    /// Whether it is dense only because so many entries came together (SparCML's δ): it is encoded in whichever form is
    /// smallest.
    switched: bool,
    /// How its values were rounded.
    rounded: Rounded,
    note: Option<Arc<[u64]>>,
    /// How many entries the last selection here chose from.
    seen: usize,
    /// Whether it is what a device has chosen of the worker's own values.
    by_device: bool,
    /// How it travels, if it came or was sent as it is now.
    encoded: Option<Encoded>,
}

impl<T: Element> From<Bag<T>> for Carried<T> {
    fn from(bag: Bag<T>) -> Self {
        let rounded = Rounded::EXACT;
        Self { bag, switched: false, rounded, note: None, seen: 0, by_device: false, encoded: None }
    }
}

impl<T: Element> Held<T> {
    fn bag(bag: Bag<T>) -> Self {
        Held::Bag(bag.into())
    }

    /// A sum of sparse entries, whichever form it has now.
    fn of_sparse(bag: Bag<T>) -> Self {
        Held::Bag(Carried { switched: true, ..bag.into() })
    }

    /// How it travels, where that is known; nothing of an accumulator is kept so.
    fn encoded(&mut self) -> Option<&mut Option<Encoded>> {
        match self {
            Held::Own(_) => None,
            Held::Bag(Carried { encoded, .. })
            | Held::Aligned(Aligned { encoded, .. })
            | Held::Proposal(_, encoded) => Some(encoded),
        }
    }
}

/// How much of a worker's own contribution to a block was selected.
#[derive(Debug)]
pub(crate) enum Fate<T: Element = f32> {
    /// All of it went into the sum.
    Whole,
    /// Only these indices were selected.
    Selected {
        indices: Vec<u32>,
        /// What rounding took away at some of them.
        errors: Entries<T>,
        /// At the others that received something, this sum remains.
        remaining: Entries<T>,
    },
}

/// What all parts of a run look at and none changes.
#[derive(Clone, Debug)]
pub(super) struct Context<T: Element> {
    pub(super) program: Arc<Program>,
    accumulator: Accumulator<T>,
    pub(super) reduction: Reduction<T>,
    pub(super) memory: Arc<Memory>,
    pub(super) seed: u64,
    /// Whether something was sent or received: the step cannot be undone by this worker alone any more.
    is_under_way: bool,
}

/// What one worker's values have become, beside those in its slots.
#[derive(Debug)]
pub(super) struct Values<T: Element> {
    pub(super) run: Arc<Context<T>>,
    candidates: Vec<Candidates<T>>,
    /// Whether a block holds the worker's own contribution and nothing was selected from it or sent away yet.
    intact: Vec<bool>,
    fates: Vec<Fate<T>>,
    drops: Vec<Entries<T>>,
    /// The indices at which the workers agreed to keep their values, by block.
    agreed: Vec<Option<Arc<[u32]>>>,
    own: OwnChoice,
    decoder: Option<Decoder<T>>,
    /// The notes of the message that is being received, by slot.
    notes: Vec<Option<Arc<[u64]>>>,
    entries_received: u64,
    pub(super) words_received: u64,
    /// Of them, those that came in each latency round.
    pub(super) words_by_round: Vec<(u64, u64)>,
    pub(super) tally: Tally,
    /// What is retained of the dense block that is being received, if one is, and how many of its values have arrived.
    arriving: Dense<T>,
    came: usize,
    /// Where the arriving block is passed on to piece by piece, ahead of the next exchange, and whether it is retained then.
    passing_on: Option<(Rank, After)>,
    /// What is to be sent.
    pub(super) outbox: Vec<Outgoing>,
}

impl<T: Element> Context<T> {
    fn blocks(&self) -> usize {
        self.program.schedule.partition.blocks()
    }

    fn own(&self, block: Block) -> Own<'_, T> {
        self.accumulator.block(&self.program.schedule.partition, block, self.is_under_way)
    }

    /// See [`Accumulator::check`].
    pub(super) fn check(&self) -> Result<Option<NonFinite>, DeviceError> {
        self.accumulator.check()
    }

    /// Whether a device holds the accumulator.
    pub(super) fn is_on_device(&self) -> bool {
        matches!(self.accumulator, Accumulator::Device(_))
    }

    /// Whether the accumulator holds entries alone.
    pub(super) fn is_sparse(&self) -> bool {
        matches!(self.accumulator, Accumulator::Sparse(_))
    }

    fn block_len(&self, block: Block) -> usize {
        self.program.schedule.partition.block_len(block)
    }

    fn lane(&self) -> u32 {
        self.program.schedule.lane
    }

    /// The worker's own values at some positions of a block. Where a step selects from what workers bring, their zeros are
    /// no entries.
    fn contribution(&self, block: Block, range: Range<usize>) -> Result<Cow<'_, [T]>, DeviceError> {
        let own = self.own(block).part(range)?;
        if self.program.whole[block.index()] || !self.reduction.has_residual() {
            return Ok(own);
        }
        Ok(own.iter().map(|&value| if value == T::ZERO { -T::ZERO } else { value }).collect())
    }

    /// What a block holds with the sums laid over it, as a bag: dense, unless its accumulator is sparse.
    fn materialise(&self, block: Block, overlay: &Entries<T>) -> Result<Bag<T>, DeviceError> {
        if self.is_sparse() {
            let (len, neutral) = (self.block_len(block), self.reduction.neutral());
            let entries = overlaid(self.own(block).other_than(neutral)?, overlay);
            return Ok(Bag::smaller_with(entries, len, &self.reduction));
        }
        let mut values = self.contribution(block, 0..self.block_len(block))?.into_owned();
        overlay.iter().for_each(|(i, v)| values[i as usize] = v);
        Ok(Bag::Dense(values.into()))
    }
}

impl<T: Element> Values<T> {
    pub(super) fn new(
        program: Arc<Program>,
        accumulator: Accumulator<T>,
        candidates: Vec<Candidates<T>>,
    ) -> (Self, Store<Held<T>>) {
        let schedule = &program.schedule;
        let blocks = schedule.partition.blocks();
        let mut held = Store::new(blocks, schedule.lanes);
        for block in (0..blocks as u32).map(Block).filter(|&block| program.part_in(block).0) {
            *held.at(Place { block, lane: schedule.lane }) = Some(Held::Own(Entries::default()));
        }
        let (reduction, memory) = (Reduction::Sum, Arc::default());
        let values = Self {
            run: Arc::new(Context { program, accumulator, reduction, memory, seed: 0, is_under_way: false }),
            candidates,
            intact: vec![true; blocks],
            fates: (0..blocks).map(|_| Fate::Whole).collect(),
            drops: vec![Entries::default(); blocks],
            agreed: vec![None; blocks],
            own: OwnChoice::default(),
            decoder: None,
            notes: Vec::new(),
            entries_received: 0,
            words_received: 0,
            words_by_round: Vec::new(),
            tally: Tally::default(),
            arriving: Dense::default(),
            came: 0,
            passing_on: None,
            outbox: Vec::new(),
        };
        (values, held)
    }

    /// Whether nothing has come yet of the message that is awaited.
    pub(super) fn is_between_messages(&self) -> bool {
        self.decoder.is_none()
    }

    /// Notes that something is sent or received.
    fn note_exchange(&mut self) {
        if !self.run.is_under_way {
            Arc::make_mut(&mut self.run).is_under_way = true;
        }
    }

    /// At how many entries its selections will look.
    pub(super) fn chooses_from(&self) -> usize {
        let of = |(block, candidates): (u32, &Candidates<T>)| match candidates.threshold {
            Some(_) if !self.run.is_on_device() => candidates.entries.len(),
            _ => self.run.own(Block(block)).stored(),
        };
        (0..).zip(&self.candidates).map(of).sum()
    }

    /// What committing this run will handle, once `advance` has said that it is finished.
    pub(super) fn commitment(&self, store: &Store<Held<T>>) -> Tally {
        let (run, mut tally) = (&self.run, Tally::default());
        for block in (0..run.blocks() as u32).map(Block) {
            let b = block.index();
            let sum = store.get(Place { block, lane: 0 });
            match sum {
                Some(Held::Bag(Carried { bag: Bag::Sparse(entries), .. })) => {
                    tally.committed += entries.len() as f64;
                }
                Some(Held::Aligned(aligned)) => tally.committed += aligned.values.len() as f64,
                Some(Held::Bag(_) | Held::Own(_)) if !run.program.whole[b] => {
                    tally.committed_dense += run.block_len(block) as f64;
                }
                _ => {}
            }
            if let Fate::Selected { indices, .. } = &self.fates[b] {
                tally.cleared += indices.len() as f64;
            }
            tally.committed += self.drops[b].len() as f64;
        }
        tally
    }

    /// At how many entries committing this run looks.
    pub(super) fn commits(&self, store: &Store<Held<T>>) -> usize {
        let of = |block: Block| {
            let (b, len) = (block.index(), self.run.block_len(block));
            let delivered = match store.get(Place { block, lane: 0 }) {
                Some(Held::Bag(Carried { bag: Bag::Sparse(entries), .. })) => entries.len(),
                Some(Held::Aligned(aligned)) => aligned.values.len(),
                Some(Held::Bag(_) | Held::Own(_)) => len,
                Some(Held::Proposal(..)) | None => 0,
            };
            let own = match &self.fates[b] {
                Fate::Selected { indices, remaining, .. } => indices.len() + remaining.len(),
                Fate::Whole => self.run.own(block).stored(),
            };
            delivered + own + self.drops[b].len()
        };
        (0..self.run.blocks() as u32).map(Block).map(of).sum()
    }

    /// # Errors
    /// What failed on a device.
    pub(super) fn finish(self, mut store: Store<Held<T>>) -> Result<Finished<T>, DeviceError> {
        let (run, mut update, mut notes) = (&self.run, Vec::new(), Vec::new());
        // Where nothing can wait for a later step, everything was delivered.
        let whole = match run.reduction.has_residual() {
            true => run.program.whole.clone(),
            false => vec![true; run.blocks()],
        };
        for block in (0..run.blocks() as u32).map(Block) {
            let place = Place { block, lane: 0 };
            let (bag, note) = match store.at(place).take() {
                Some(Held::Own(overlay)) => (run.materialise(block, &overlay)?, None),
                Some(Held::Bag(carried)) => (carried.bag, carried.note),
                Some(Held::Aligned(aligned)) => (aligned.into_bag(run.block_len(block)), None),
                Some(Held::Proposal(..)) | None => (Bag::empty(), None),
            };
            update.push(bag);
            notes.push(note);
        }
        Ok(Finished {
            update,
            accumulator: run.accumulator.clone(),
            fates: self.fates,
            drops: self.drops,
            candidates: self.candidates,
            whole,
            ends: (0..run.blocks() as u32).map(|b| run.program.part_in(Block(b)).1).collect(),
            notes,
            proposed: self.agreed,
            own: self.own,
            completion: None,
            entries_received: self.entries_received,
        })
    }
}
