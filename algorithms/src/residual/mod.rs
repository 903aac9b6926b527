//! Error feedback: what was selected out of a step waits here for the next.
//!
//! SparDL, Algorithm 1 and §3.2: after a step, at the indices of the final update the residual is what this worker
//! itself dropped on the way; at all others it is the worker's whole accumulated gradient. That is exactly
//! conservation: no entry is lost, whoever dropped it.

mod commit;
mod correction;
mod options;
mod waiting;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::bag::{Bag, Entries};
use crate::schedule::{Candidates, Fate, Finished};
use crate::select::{STRIDE, crowd};
use crate::{Block, Element, Partition, select};
use commit::{Chosen, commit_selected, commit_sent, mask};
use correction::Velocity;
pub use correction::{Correction, CorrectionError, norm};
pub use options::{Collection, OnNonFinite};
pub use waiting::Waiting;

/// A gradient that cannot be synchronised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sum of gradient and residual at entry {entry} is NaN or infinite, the first of {count}")]
pub struct NonFinite {
    /// Position of the first in the flat gradient.
    pub entry: usize,
    /// How many there are in the part of the gradient that was given.
    pub count: usize,
}

/// A step that cannot end now. The residual is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// Given back before.
    #[error("version {0} of the residual has ended already: a step is committed or given back once")]
    Ended(u64),
    /// Never begun.
    #[error("version {0} of the residual was never lent: a step begins before it ends")]
    NotLent(u64),
    /// Before an older one.
    #[error(
        "version {version} of the residual cannot end before version {oldest}: steps end in the order of their beginnings"
    )]
    Early {
        /// Which was to end.
        version: u64,
        /// Which is the next to end.
        oldest: u64,
    },
    /// Not alone.
    #[error(
        "a step that overlapped with another cannot be undone: what it was given has mingled with the other's"
    )]
    Overlapped,
}

/// Entries that go through memory once where more is done with them than the pass itself does.
const PIECE: usize = 4096;

/// The residual of one gradient on one worker, and within a step the accumulator.
///
/// Several steps may be open at once, as under bounded staleness. Each holds the accumulator that it was lent, and what is
/// given next is accumulated from zero. Steps end in the order in which they began, and what one leaves is added to what
/// has come since, so nothing is lost. With one step at a time, an accumulator moves out and back and nothing is copied.
#[derive(Debug)]
pub struct Residual<T: Element = f32> {
    partition: Partition,
    values: Arc<Vec<T>>,
    /// Whether a step has `values`, and nothing has come since.
    lent: bool,
    /// The version that the next step gets.
    next: u64,
    /// The blocks of the steps that were begun and have not ended, the oldest first.
    open: VecDeque<Partition>,
    /// Whether a part of the next step's gradient was given.
    given: bool,
    /// Whether that was while a step was open, or is so of an open step.
    overlapped: bool,
    /// Whether the residual is zero everywhere, whatever `values` holds.
    zero: bool,
    quotas: Vec<Option<u32>>,
    thresholds: Vec<Option<T>>,
    /// Candidates collected in this step, by block, each piece with its first index.
    pieces: Vec<Vec<(u32, Entries<T>)>>,
    /// Memory for the first piece of each block.
    spare: Vec<Entries<T>>,
    /// What is accumulated in place of the gradient, under momentum correction.
    velocity: Option<Velocity<T>>,
    /// What the residual was before this step, if the step may have to leave no trace.
    before: Option<Before<T>>,
}

/// A residual before a step, as far as the step's gradient has come.
#[derive(Debug, Default)]
struct Before<T: Element> {
    values: Vec<T>,
    velocity: Vec<T>,
    zero: bool,
}

/// A step that has begun, see [`Residual::begin`].
#[derive(Debug)]
pub struct Lent<T: Element = f32> {
    /// Which step of this residual it is, for [`commit`](Residual::commit) and [`give_back`](Residual::give_back).
    pub version: u64,
    /// Gradient plus residual.
    pub accumulator: Arc<Vec<T>>,
    /// Entries that may be selected, by block.
    pub candidates: Vec<Candidates<T>>,
}

/// A committed step.
#[derive(Debug)]
pub struct Committed<T: Element = f32> {
    /// The sum over all workers, block by block.
    pub update: Vec<Bag<T>>,
    /// What this worker dropped and did not collect, block by block. Empty bags under global collection.
    pub lost: Vec<Entries<T>>,
}

impl<T: Element> Residual<T> {
    /// A residual of zeros. `quotas` says how many entries the schedule selects from each block, if it does.
    pub fn new(partition: Partition, quotas: Vec<Option<u32>>) -> Self {
        let blocks = partition.blocks();
        Self {
            values: Arc::new(vec![T::ZERO; partition.entries()]),
            lent: false,
            next: 0,
            open: VecDeque::new(),
            given: false,
            overlapped: false,
            zero: true,
            quotas,
            thresholds: vec![None; blocks],
            pieces: vec![Vec::new(); blocks],
            spare: vec![Entries::default(); blocks],
            velocity: None,
            before: None,
            partition,
        }
    }

    /// Accumulates velocities instead of gradients, and masks them, if the correction says so. Its other two parts are for
    /// whoever holds the whole gradient, and for the schedules.
    #[must_use]
    pub fn corrected(self, correction: &Correction) -> Self {
        Self { velocity: Velocity::new(correction, self.partition.entries()), ..self }
    }

    /// Lets [`revert`](Self::revert) undo a step, at the price of a copy of the residual in each step.
    #[must_use]
    pub fn revertible(self) -> Self {
        Self { before: Some(Before::default()), ..self }
    }

    /// Adds a part of the gradient, from position `offset` on, in one pass over memory that also collects
    /// candidates for the selection. Every entry must be given once before [`begin`](Self::begin).
    ///
    /// # Errors
    /// Sums that are NaN or infinite. The first is named and they are counted; what is before the first was added, and the
    /// rest of the residual is as it was.
    pub fn accumulate(&mut self, offset: usize, gradient: &[T]) -> Result<(), NonFinite> {
        let mut from = offset;
        let end = offset + gradient.len();
        self.given = true;
        self.overlapped |= !self.open.is_empty();
        self.present();
        if let Some(before) = &mut self.before {
            before.zero = self.zero;
            before.values.resize(self.partition.entries(), T::ZERO);
            before
                .velocity
                .resize(self.velocity.as_ref().map_or(0, |velocity| velocity.values.len()), T::ZERO);
        }
        while from < end {
            let block = self.partition.block_of(from);
            let to = end.min(self.partition.range(block).end);
            self.accumulate_within(block, from, &gradient[from - offset..to - offset])
                .map_err(|entry| self.refuse(entry, &gradient[entry - offset..]))?;
            from = to;
        }
        Ok(())
    }

    /// Adds a part that lies in one block. The error is the position of the first sum that is not finite.
    fn accumulate_within(&mut self, block: Block, from: usize, part: &[T]) -> Result<(), usize> {
        let range = self.partition.range(block);
        let (b, start, len) = (block.index(), range.start, range.len());
        let kernel = if self.zero { select::replace } else { select::accumulate };
        let values = Arc::make_mut(&mut self.values);
        let mut found = match self.pieces[b].is_empty() {
            true => std::mem::take(&mut self.spare[b]),
            false => Entries::default(),
        };
        let collected: usize = self.pieces[b].iter().map(|(_, piece)| piece.len()).sum();
        let more = self.before.is_some() || self.velocity.is_some();
        let mut at = from;
        for part in part.chunks(if more { PIECE } else { STRIDE }) {
            let here = at..at + part.len();
            if let Some(before) = &mut self.before {
                before.remember(here.clone(), values, self.velocity.as_ref());
            }
            // With nothing to select or nothing predicted, no candidates are collected.
            let threshold = self.quotas[b].and(self.thresholds[b]).unwrap_or(T::from_magnitude(T::INFINITE));
            let mut pass = |part: &[T]| {
                kernel(&mut values[here.clone()], part, threshold, (at - start) as u32, &mut found)
                    .map_err(|error| error.index)
            };
            match &mut self.velocity {
                None => pass(part),
                Some(velocity) => velocity.advance(at, part, pass),
            }
            .map_err(|index| at + index)?;
            if self.quotas[b].is_some_and(|k| collected + found.len() > crowd(k as usize, len)) {
                // The prediction was far too low: the selection does without.
                self.thresholds[b] = None;
                self.pieces[b].clear();
                found.clear();
            }
            at = here.end;
        }
        self.pieces[b].push(((from - start) as u32, found));
        Ok(())
    }

    /// Counts what is not finite from the first such entry on, and remembers the residual there.
    #[cold]
    fn refuse(&mut self, entry: usize, rest: &[T]) -> NonFinite {
        if let Some(before) = &mut self.before {
            // The rest of this piece, which is as it was, and the pieces after it.
            before.remember(entry..entry + rest.len(), &self.values, self.velocity.as_ref());
        }
        let sum = |(i, &gradient): (usize, &T)| {
            let velocity = self.velocity.as_ref();
            let new = velocity.map_or(gradient, |v| v.momentum * v.values[entry + i] + gradient);
            if self.zero { new } else { self.values[entry + i] + new }
        };
        let count = rest.iter().enumerate().filter(|pair| !sum(*pair).is_finite()).count();
        NonFinite { entry, count }
    }

    /// What is accumulated into: zeros, if a step has taken all that there was.
    fn present(&mut self) -> &mut Arc<Vec<T>> {
        if std::mem::take(&mut self.lent) {
            self.values = Arc::new(vec![T::ZERO; self.partition.entries()]);
        }
        &mut self.values
    }

    /// Begins a step: lends the accumulator and its candidates to an execution. What older steps still hold is no part of it.
    pub fn begin(&mut self) -> Lent<T> {
        self.present();
        let candidates = self
            .pieces
            .iter_mut()
            .zip(&self.thresholds)
            .map(|(pieces, &threshold)| {
                pieces.sort_unstable_by_key(|&(start, _)| start);
                let mut pieces = pieces.drain(..).map(|(_, entries)| entries);
                let mut entries = pieces.next().unwrap_or_default();
                for piece in pieces {
                    entries.indices.extend(piece.indices);
                    entries.values.extend(piece.values);
                }
                Candidates { threshold, entries }
            })
            .collect();
        (self.zero, self.lent, self.given) = (false, true, false);
        self.open.push_back(self.partition.clone());
        self.next += 1;
        Lent { version: self.next - 1, accumulator: std::mem::take(&mut self.values), candidates }
    }

    /// Ends the oldest open step, if that is its version; gives the blocks that it had.
    fn end(&mut self, version: u64) -> Result<Partition, VersionError> {
        let oldest = self.next - self.open.len() as u64;
        match self.open.pop_front() {
            Some(partition) if version == oldest => Ok(partition),
            popped => {
                popped.into_iter().for_each(|partition| self.open.push_front(partition));
                Err(match version {
                    _ if version < oldest => VersionError::Ended(version),
                    _ if version >= self.next => VersionError::NotLent(version),
                    _ => VersionError::Early { version, oldest },
                })
            }
        }
    }

    /// What an ended step leaves becomes the residual for the next one, or is added to what has come since.
    fn keep(&mut self, left: Arc<Vec<T>>, zero: bool) {
        let last = self.open.is_empty();
        self.overlapped &= self.given || !last;
        if self.lent && last {
            (self.values, self.lent, self.zero) = (left, false, zero);
        } else if self.lent && !zero {
            (self.values, self.lent) = (left, false);
        } else if !zero {
            // While a step is open, zeros are written, so that this may add to them.
            let values = Arc::make_mut(&mut self.values);
            values.iter_mut().zip(left.iter()).for_each(|(value, &left)| *value += left);
            if self.given {
                // What was collected has changed: the next selection does without.
                self.pieces.iter_mut().for_each(Vec::clear);
                self.thresholds.fill(None);
            }
        }
    }

    /// Takes the accumulator of a step back and makes it the residual for the next one: writes at the indices of the
    /// final update only, or nothing at all where everything was delivered. Momentum masking is of the velocity as it is
    /// by now.
    ///
    /// # Errors
    /// A version that is not that of the oldest open step.
    pub fn commit(
        &mut self,
        version: u64,
        finished: Finished<T>,
        collection: Collection,
    ) -> Result<Committed<T>, VersionError> {
        let partition = self.end(version)?;
        let Finished { update, mut accumulator, fates, drops, candidates, whole, proposed, .. } = finished;
        // What all have agreed on is delivered, sums that are zero too: else they would be chosen again for ever.
        let delivered = |b: usize| proposed[b].as_deref().map_or_else(|| update[b].indices(), Cow::Borrowed);
        let zero = whole.iter().all(|&whole| whole);
        // Predictions of other blocks are of no use, and those that candidates were collected by must stay.
        if !self.given && partition == self.partition {
            for (b, Candidates { threshold, mut entries }) in candidates.into_iter().enumerate() {
                entries.clear();
                (self.thresholds[b], self.spare[b]) = (threshold, entries);
            }
        }
        let mut lost = vec![Entries::default(); update.len()];
        if let Some(velocity) = self.velocity.as_mut().filter(|velocity| velocity.mask) {
            for (b, fate) in fates.iter().enumerate() {
                let velocity = &mut velocity.values[partition.range(Block(b as u32))];
                mask(velocity, &delivered(b), fate, whole[b], collection);
            }
        }
        if !zero {
            let values = Arc::make_mut(&mut accumulator);
            for (b, (fate, dropped)) in fates.into_iter().zip(drops).enumerate() {
                let residual = &mut values[partition.range(Block(b as u32))];
                lost[b] = match fate {
                    Fate::Whole if whole[b] => {
                        // Every entry is delivered, also those that cancel to zero.
                        residual.fill(T::ZERO);
                        Entries::default()
                    }
                    Fate::Whole => commit_sent(residual, &delivered(b), dropped, collection),
                    Fate::Selected { indices, errors, settled } => {
                        let chosen = Chosen { indices: &indices, errors: &errors, settled: &settled };
                        commit_selected(residual, &delivered(b), &chosen, dropped, collection)
                    }
                };
            }
        }
        self.keep(accumulator, zero);
        Ok(Committed { update, lost })
    }

    /// Takes the accumulator back as it was lent: of a step that was given up, everything waits for the next.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Panics
    /// If it is of another length.
    pub fn give_back(&mut self, version: u64, accumulator: Arc<Vec<T>>) -> Result<(), VersionError> {
        assert_eq!(accumulator.len(), self.partition.entries(), "the gradient keeps its length");
        self.end(version)?;
        self.keep(accumulator, false);
        Ok(())
    }

    /// Undoes a step, whether or not it has begun: the residual is what it was before its gradient was given, of which every
    /// entry must have been given once, those that were refused too. What [`begin`](Self::begin) lent is of no more use.
    ///
    /// # Errors
    /// A step that was given gradients while another was open, or the other way round.
    ///
    /// # Panics
    /// If the residual is not [revertible](Self::revertible).
    pub fn revert(&mut self) -> Result<(), VersionError> {
        let Some(before) = &mut self.before else { panic!("this residual is not revertible") };
        if self.overlapped {
            return Err(VersionError::Overlapped);
        }
        assert_eq!(before.values.len(), self.partition.entries(), "the gradient was given");
        self.open.clear();
        (self.lent, self.given) = (false, false);
        self.values = Arc::new(std::mem::take(&mut before.values));
        self.zero = before.zero;
        if let Some(velocity) = &mut self.velocity {
            velocity.values = std::mem::take(&mut before.velocity);
        }
        self.pieces.iter_mut().for_each(Vec::clear);
        Ok(())
    }

    /// The residual at some positions, without what open steps hold.
    pub fn read(&self, range: Range<usize>) -> Vec<T> {
        if self.zero || self.lent { vec![T::ZERO; range.len()] } else { self.values[range].to_vec() }
    }

    /// Puts a residual back that was [read](Self::read) before, from position `offset` on.
    pub fn restore(&mut self, offset: usize, residual: &[T]) {
        let zero = std::mem::take(&mut self.zero);
        let values = Arc::make_mut(self.present());
        if zero {
            values.fill(T::ZERO);
        }
        values[offset..offset + residual.len()].copy_from_slice(residual);
    }

    /// The velocity at some positions; nothing without momentum correction.
    pub fn velocity(&self, range: Range<usize>) -> Option<&[T]> {
        self.velocity.as_ref().map(|velocity| &velocity.values[range])
    }

    /// From which magnitude on candidates are collected, by block: a prediction that makes selection fast
    /// and never changes what is selected.
    pub fn thresholds(&self) -> &[Option<T>] {
        &self.thresholds
    }

    /// Puts back what [`thresholds`](Self::thresholds) gave.
    pub fn restore_thresholds(&mut self, thresholds: Vec<Option<T>>) {
        self.thresholds = thresholds;
    }

    /// Cuts the residual into other blocks, between two steps, and takes other quotas. What was predicted for a block is
    /// kept where the number of blocks stays the same.
    ///
    /// # Panics
    /// If the partition is of another number of entries.
    pub fn recut(&mut self, partition: Partition, quotas: Vec<Option<u32>>) {
        assert_eq!(partition.entries(), self.partition.entries(), "the gradient keeps its length");
        if partition.blocks() != self.partition.blocks() {
            self.thresholds = vec![None; partition.blocks()];
            self.pieces = vec![Vec::new(); partition.blocks()];
            self.spare = vec![Entries::default(); partition.blocks()];
        }
        (self.partition, self.quotas) = (partition, quotas);
    }

    /// The blocks of this residual.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }
}

impl<T: Element> Before<T> {
    /// Remembers what is at some positions. A residual that is zero is known.
    fn remember(&mut self, here: Range<usize>, values: &[T], velocity: Option<&Velocity<T>>) {
        if !self.zero {
            self.values[here.clone()].copy_from_slice(&values[here.clone()]);
        }
        if let Some(velocity) = velocity {
            self.velocity[here.clone()].copy_from_slice(&velocity.values[here]);
        }
    }
}
