//! Error feedback: what was selected out of a step waits here for the next.
//!
//! SparDL, Algorithm 1 and §3.2: after a step, at the indices of the final update the residual is what this worker
//! itself dropped on the way; at all others it is the worker's whole accumulated gradient. That is exactly
//! conservation: no entry is lost, no matter which worker dropped it.

mod before;
mod commit;
mod correction;
mod decay;
mod options;
mod sparse;
mod versions;
mod waiting;
mod whole;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::bag::Entries;
use crate::device::{Device, DeviceError, Given};
use crate::select::{STRIDE, surplus};
use crate::{Accumulator, Block, Element, Partition, select};
use before::Before;
pub(crate) use commit::commit_update;
use correction::Velocity;
pub use correction::{Correction, CorrectionError, norm};
use decay::Decay;
pub use options::{Collection, OnNonFinite};
pub use versions::{Committed, Lent, VersionError};
pub use waiting::Waiting;
pub use whole::WholeSteps;

/// A gradient that cannot be synchronised.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sum of gradient and residual at entry {entry} is NaN or infinite, the first of {count}")]
pub struct NonFinite {
    /// Position of the first in the flat gradient.
    pub entry: usize,
    /// How many there are in the part of the gradient that was given.
    pub count: usize,
}

crate::sentence::debug_as_sentence!(NonFinite);

/// A part of a gradient that was not added.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccumulateError {
    /// Sums that are not finite.
    #[error(transparent)]
    NonFinite(#[from] NonFinite),
    /// A device that holds the residual or the gradient has failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

crate::sentence::debug_as_sentence!(AccumulateError);

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
    values: Accumulator<T>,
    /// Where the residual lies, if it is not in main memory.
    device: Option<Arc<dyn Device<T>>>,
    /// Whether it holds entries alone, of gradients that are sparse already.
    sparse: bool,
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
    /// By how much what waits decays in each step, if it does.
    decay: Option<Decay<T>>,
    /// What the residual was before this step, if the step may have to leave no trace.
    before: Option<Before<T>>,
}

impl<T: Element> Residual<T> {
    /// A residual of zeros. `quotas` says how many entries the schedule selects from each block, if it does.
    pub fn new(partition: Partition, quotas: Vec<Option<u32>>) -> Self {
        let zeros = Arc::new(vec![T::ZERO; partition.entries()]);
        Self::of(zeros.into(), None, partition, quotas)
    }

    /// The same in a device's memory.
    ///
    /// # Errors
    /// Not enough memory there.
    pub fn on(
        device: Arc<dyn Device<T>>,
        partition: Partition,
        quotas: Vec<Option<u32>>,
    ) -> Result<Self, DeviceError> {
        let mut zeros = Accumulator::from(device.zeros(partition.entries())?);
        zeros.recut(&partition, &quotas)?;
        Ok(Self::of(zeros, Some(device), partition, quotas))
    }

    fn of(
        values: Accumulator<T>,
        device: Option<Arc<dyn Device<T>>>,
        partition: Partition,
        quotas: Vec<Option<u32>>,
    ) -> Self {
        let blocks = partition.blocks();
        Self {
            sparse: matches!(values, Accumulator::Sparse(_)),
            values,
            device,
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
            decay: None,
            before: None,
            partition,
        }
    }

    /// Accumulates velocities instead of gradients, and masks them, or lets what waits decay, if the correction says so. Its other parts
    /// are for those that hold the whole gradient, and for the schedules.
    #[must_use]
    pub fn corrected(self, correction: &Correction) -> Self {
        let velocity = Velocity::new(correction, self.partition.entries());
        Self { velocity, decay: Decay::new(correction), ..self }
    }

    /// Lets [`revert`](Self::revert) undo a step, at the price of a copy of the residual in each step.
    ///
    /// # Errors
    /// Not enough memory on a device for the copy.
    pub fn revertible(self) -> Result<Self, DeviceError> {
        let before = Before { there: self.values.copy_there()?, ..Before::default() };
        Ok(Self { before: Some(before), ..self })
    }

    /// Adds a part of the gradient, from position `offset` on, in one pass over memory that also collects
    /// candidates for the selection. Every entry must be given once before [`begin`](Self::begin).
    ///
    /// # Errors
    /// Sums that are NaN or infinite. The first is named and they are counted; what is before the first was added, and the
    /// rest of the residual is as it was. Of a residual on a device they are found [later](Accumulator::check), and a gradient on a
    /// device is for such a residual alone. Where a device lacks memory or refuses what it is given the residual is as it was, and the part may
    /// be given again.
    pub fn accumulate<'a>(
        &mut self,
        offset: usize,
        part: impl Into<Given<'a, T>>,
    ) -> Result<(), AccumulateError> {
        let part = part.into();
        self.present()?;
        let added = match (&self.device, part) {
            (None, Given::Host(gradient)) if self.sparse => {
                let entries = Entries::from_dense(gradient);
                self.accumulate_sparse(offset, &entries).map_err(AccumulateError::from)
            }
            (None, Given::Host(gradient)) => self.accumulate_here(offset, gradient).map_err(AccumulateError::from),
            (None, Given::Device(_)) => Err(DeviceError::Other(
                "the gradient lies on a device and its residual in main memory: make the gradients on that device".into(),
            )
            .into()),
            (Some(_), part) => self.accumulate_there(offset, part).map_err(AccumulateError::from),
        };
        if !matches!(added, Err(AccumulateError::Device(_))) {
            self.given_one();
        }
        added
    }

    /// A part of the next step's gradient has come.
    fn given_one(&mut self) {
        self.given = true;
        self.overlapped |= !self.open.is_empty();
    }

    fn accumulate_here(&mut self, offset: usize, gradient: &[T]) -> Result<(), NonFinite> {
        let mut from = offset;
        let end = offset + gradient.len();
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

    fn accumulate_there(&mut self, offset: usize, part: Given<'_, T>) -> Result<(), DeviceError> {
        let values = self.values.there()?;
        if let Some(before) = &mut self.before
            && !before.given
        {
            match &mut before.there {
                Some(there) => there.copy_from(values)?,
                None => before.there = Some(values.duplicate()?),
            }
            (before.zero, before.given) = (self.zero, true);
        }
        values.accumulate(offset, part, self.zero, &self.thresholds)
    }

    /// Adds a whole gradient, without a copy where nothing waits and nothing is selected: the vector then has other memory of
    /// the same length, and what stands in it means nothing.
    ///
    /// # Errors
    /// As [`accumulate`](Self::accumulate).
    ///
    /// # Panics
    /// If the gradient has another length.
    pub fn accumulate_whole(&mut self, gradient: &mut Vec<T>) -> Result<(), AccumulateError> {
        assert_eq!(gradient.len(), self.partition.entries(), "a whole gradient");
        let is_plain = self.velocity.is_none() && self.before.is_none();
        let selects = self.quotas.iter().any(Option::is_some);
        let elsewhere = self.device.is_some() || self.sparse;
        let in_the_way = selects || self.given || !self.open.is_empty() || elsewhere;
        if !self.zero || !is_plain || in_the_way {
            return self.accumulate(0, &gradient[..]);
        }
        let is_finite = |part: &[T]| part.iter().fold(true, |all, value| all & value.is_finite());
        if !gradient.chunks(PIECE).all(is_finite) {
            let entry = gradient.iter().position(|value| !value.is_finite()).unwrap_or_default();
            let count = gradient.iter().filter(|value| !value.is_finite()).count();
            return Err(NonFinite { entry, count }.into());
        }
        (self.given, self.lent) = (true, false);
        let spare = std::mem::replace(&mut self.values, Arc::new(std::mem::take(gradient)).into());
        if let Accumulator::Host(spare) = spare {
            *gradient = Arc::try_unwrap(spare).unwrap_or_default();
        }
        gradient.resize(self.partition.entries(), T::ZERO);
        Ok(())
    }

    /// Adds a part that lies in one block. The error is the position of the first sum that is not finite.
    fn accumulate_within(&mut self, block: Block, from: usize, part: &[T]) -> Result<(), usize> {
        let range = self.partition.range(block);
        let (b, start, len) = (block.index(), range.start, range.len());
        let kernel = if self.zero { select::replace } else { select::accumulate };
        let Accumulator::Host(values) = &mut self.values else { return Ok(()) };
        let values = Arc::make_mut(values);
        let mut found = match self.pieces[b].is_empty() {
            true => std::mem::take(&mut self.spare[b]),
            false => Entries::default(),
        };
        let collected: usize = self.pieces[b].iter().map(|(_, piece)| piece.len()).sum();
        let more = self.before.is_some() || self.velocity.is_some() || self.decay.is_some();
        let mut at = from;
        for part in part.chunks(if more { PIECE } else { STRIDE }) {
            let here = at..at + part.len();
            if let Some(before) = &mut self.before {
                before.remember(here.clone(), values, self.velocity.as_ref());
            }
            let mut decay = self.decay.as_mut().filter(|_| !self.zero);
            decay.iter_mut().for_each(|decay| decay.apply(&mut values[here.clone()]));
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
            .map_err(|index| {
                decay.iter().for_each(|decay| decay.undo(&mut values[here.clone()], index));
                at + index
            })?;
            if self.quotas[b].is_some_and(|k| collected + found.len() > surplus(k as usize, len)) {
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
        let values: &[T] = if let Accumulator::Host(values) = &self.values { values } else { &[] };
        if let Some(before) = &mut self.before {
            // The rest of this piece, which is as it was, and the pieces after it.
            before.remember(entry..entry + rest.len(), values, self.velocity.as_ref());
        }
        let sum = |(i, &gradient): (usize, &T)| {
            let velocity = self.velocity.as_ref();
            let new = velocity.map_or(gradient, |v| v.made(v.values[entry + i], gradient));
            let old = self.decay.as_ref().map_or(values[entry + i], |decay| decay.of(values[entry + i]));
            if self.zero { new } else { old + new }
        };
        let count = rest.iter().enumerate().filter(|pair| !sum(*pair).is_finite()).count();
        NonFinite { entry, count }
    }

    /// Lets zeros be accumulated into, if a step has taken all that there was.
    fn present(&mut self) -> Result<(), DeviceError> {
        if self.lent {
            self.values = match &self.device {
                None if self.sparse => self.no_entries(),
                None => Arc::new(vec![T::ZERO; self.partition.entries()]).into(),
                Some(device) => device.zeros(self.partition.entries())?.into(),
            };
            self.values.recut(&self.partition, &self.quotas)?;
            self.lent = false;
        }
        Ok(())
    }

    /// The residual at some positions, without what open steps hold.
    ///
    /// # Errors
    /// What has failed on a device.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<T>, DeviceError> {
        if self.zero || self.lent { Ok(vec![T::ZERO; range.len()]) } else { self.values.read(range) }
    }

    /// Puts a residual back that was [read](Self::read) before, from position `offset` on.
    ///
    /// # Errors
    /// What has failed on a device.
    pub fn restore(&mut self, offset: usize, residual: &[T]) -> Result<(), DeviceError> {
        let zero = std::mem::take(&mut self.zero);
        self.present()?;
        let blocks = self.partition.blocks() as u32;
        let mut values = self.values.writable()?;
        if zero {
            (0..blocks).try_for_each(|block| values.block(&self.partition, Block(block)).clear())?;
        }
        values.write(offset, residual)
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
    /// kept where the number of blocks stays the same. A device that lacks memory for as many candidates collects none.
    ///
    /// # Errors
    /// What has failed on a device.
    ///
    /// # Panics
    /// If the partition is of another number of entries.
    pub fn recut(&mut self, partition: Partition, quotas: Vec<Option<u32>>) -> Result<(), DeviceError> {
        assert_eq!(partition.entries(), self.partition.entries(), "the gradient keeps its length");
        if !self.lent {
            self.values.recut_between_steps(&partition, &quotas)?;
        }
        if partition.blocks() != self.partition.blocks() {
            self.thresholds = vec![None; partition.blocks()];
            self.pieces = vec![Vec::new(); partition.blocks()];
            self.spare = vec![Entries::default(); partition.blocks()];
        }
        (self.partition, self.quotas) = (partition, quotas);
        Ok(())
    }

    /// The blocks of this residual.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }
}
