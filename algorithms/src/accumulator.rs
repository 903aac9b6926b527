//! Gradient plus residual, which a step chooses from: in main memory, as all values or as entries alone, or in a device's.

mod sparse;
mod written;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::bag::wire::Encoded;
use crate::bag::{Entries, Rounded};
use crate::device::{DeviceError, DeviceValues, Largest};
use crate::residual::NonFinite;
use crate::{Block, Element, Partition, select};
use sparse::SparseBlock;
pub use sparse::SparseValues;
pub(crate) use written::{Writable, Written};

/// See the module. A clone is the same accumulator.
#[derive(Clone, Debug)]
pub enum Accumulator<T: Element = f32> {
    /// In main memory.
    Host(Arc<Vec<T>>),
    /// In a device's memory.
    Device(Arc<OnDevice<T>>),
    /// In main memory, of a gradient that is sparse already: its entries alone.
    Sparse(Arc<SparseValues<T>>),
}

/// Values in a device's memory, and their copy in main memory once it was asked for.
#[derive(Debug)]
pub struct OnDevice<T: Element = f32> {
    values: Box<dyn DeviceValues<T>>,
    copy: OnceLock<Arc<Vec<T>>>,
}

impl<T: Element> Default for Accumulator<T> {
    fn default() -> Self {
        Self::Host(Arc::default())
    }
}

impl<T: Element> From<Arc<Vec<T>>> for Accumulator<T> {
    fn from(values: Arc<Vec<T>>) -> Self {
        Self::Host(values)
    }
}

impl<T: Element> From<Box<dyn DeviceValues<T>>> for Accumulator<T> {
    fn from(values: Box<dyn DeviceValues<T>>) -> Self {
        Self::Device(Arc::new(OnDevice { values, copy: OnceLock::new() }))
    }
}

impl<T: Element> From<SparseValues<T>> for Accumulator<T> {
    fn from(values: SparseValues<T>) -> Self {
        Self::Sparse(Arc::new(values))
    }
}

impl<T: Element> Accumulator<T> {
    /// How many values it has.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Device(there) => there.values.len(),
            Self::Sparse(values) => values.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its values in main memory, all of them. Of a device, or of entries alone, they are copied once, and the copy is kept as long
    /// as nothing is written.
    ///
    /// # Errors
    /// What has failed on the device.
    pub fn host(&self) -> Result<&Arc<Vec<T>>, DeviceError> {
        match self {
            Self::Host(values) => Ok(values),
            Self::Device(there) => there.copied(),
            Self::Sparse(values) => Ok(values.copied()),
        }
    }

    /// Waits until all that was given is in it, and says which sums were not finite. In main memory it is known before.
    ///
    /// # Errors
    /// What has failed on the device.
    pub fn check(&self) -> Result<Option<NonFinite>, DeviceError> {
        match self {
            Self::Host(_) | Self::Sparse(_) => Ok(None),
            Self::Device(there) => there.values.check(),
        }
    }

    /// Copies some of its values to main memory.
    ///
    /// # Errors
    /// What has failed on the device.
    pub(crate) fn read(&self, range: Range<usize>) -> Result<Vec<T>, DeviceError> {
        match self {
            Self::Host(values) => Ok(values[range].to_vec()),
            Self::Device(there) => there.values.read(range),
            Self::Sparse(values) => Ok(SparseBlock::of(values.entries(), range.clone()).part(0..range.len())),
        }
    }

    /// The sum of entries and a bag that came, where a device does it, see [`DeviceValues::merge`].
    pub(crate) fn merge(
        &self,
        held: &Entries<T>,
        beneath: Option<usize>,
        came: &Encoded,
    ) -> Result<Option<Entries<T>>, DeviceError> {
        match self {
            Self::Device(there) => there.values.merge(held, beneath, came),
            Self::Host(_) | Self::Sparse(_) => Ok(None),
        }
    }

    /// The gradient is complete, see [`DeviceValues::begin`].
    pub(crate) fn begin(&mut self) -> Result<(), DeviceError> {
        match self {
            Self::Host(_) | Self::Sparse(_) => Ok(()),
            Self::Device(there) => Self::alone(there)?.begin(),
        }
    }

    /// Announces to a device by which blocks it collects, and how many entries will be asked for of each.
    pub(crate) fn recut(&mut self, partition: &Partition, quotas: &[Option<u32>]) -> Result<(), DeviceError> {
        let Self::Device(there) = self else { return Ok(()) };
        let ranges = (0..partition.blocks() as u32).map(|block| partition.range(Block(block)));
        Self::alone(there)?.cut(&ranges.collect::<Vec<_>>(), quotas)
    }

    /// The same between two steps of a job: a device that lacks memory collects nothing, until it is announced again.
    pub(crate) fn recut_between_steps(
        &mut self,
        partition: &Partition,
        quotas: &[Option<u32>],
    ) -> Result<(), DeviceError> {
        match self.recut(partition, quotas) {
            Err(DeviceError::Memory(_)) => Ok(()),
            cut => cut,
        }
    }

    /// A copy of the values where they lie, if that is on a device.
    pub(crate) fn copy_there(&self) -> Result<Option<Box<dyn DeviceValues<T>>>, DeviceError> {
        match self {
            Self::Device(there) => there.values.duplicate().map(Some),
            Self::Host(_) | Self::Sparse(_) => Ok(None),
        }
    }

    /// The values on a device, to be accumulated into.
    pub(crate) fn there(&mut self) -> Result<&mut (dyn DeviceValues<T> + 'static), DeviceError> {
        match self {
            Self::Device(there) => Self::alone(there),
            Self::Host(_) | Self::Sparse(_) => {
                Err(DeviceError::Other("the residual lies in main memory".into()))
            }
        }
    }

    /// The values of one of its blocks. If the step `is_under_way`, so that it cannot be undone, they are searched here where a device lacks
    /// memory.
    pub(crate) fn block(&self, partition: &Partition, block: Block, is_under_way: bool) -> Own<'_, T> {
        let range = partition.range(block);
        match self {
            Self::Host(values) => Own::Host(&values[range]),
            Self::Device(there) => Own::Device { there, block: block.index(), range, is_under_way },
            Self::Sparse(values) => Own::Sparse(SparseBlock::of(values.entries(), range)),
        }
    }

    /// The same, to be written to; a copy of the accumulator if others hold it.
    ///
    /// # Errors
    /// Not enough memory on the device for the copy.
    pub(crate) fn writable(&mut self) -> Result<Writable<'_, T>, DeviceError> {
        match self {
            Self::Host(values) => Ok(Writable::Host(Arc::make_mut(values).as_mut_slice())),
            Self::Device(there) => Self::alone(there).map(Writable::Device),
            Self::Sparse(values) => SparseValues::alone(values).map(Writable::Sparse).ok_or_else(held),
        }
    }

    fn alone(there: &mut Arc<OnDevice<T>>) -> Result<&mut (dyn DeviceValues<T> + 'static), DeviceError> {
        if Arc::get_mut(there).is_none() {
            let values = there.values.duplicate()?;
            *there = Arc::new(OnDevice { values, copy: OnceLock::new() });
        }
        match Arc::get_mut(there) {
            Some(there) => {
                there.copy.take();
                Ok(&mut *there.values)
            }
            None => Err(held()),
        }
    }
}

/// No copy of an accumulator was made for one that is held elsewhere.
fn held() -> DeviceError {
    DeviceError::Other("an accumulator that is written to is shared with another holder".into())
}

impl<T: Element> OnDevice<T> {
    /// What a device has found in a block, or what a search here finds if memory was missing there.
    fn or_here<R>(
        &self,
        found: Result<R, DeviceError>,
        block: &Range<usize>,
        search: impl FnOnce(&[T]) -> R,
    ) -> Result<R, DeviceError> {
        match found {
            Err(DeviceError::Memory(_)) => Ok(search(&self.values.read(block.clone())?)),
            found => found,
        }
    }

    fn copied(&self) -> Result<&Arc<Vec<T>>, DeviceError> {
        if let Some(copy) = self.copy.get() {
            return Ok(copy);
        }
        let values = self.values.read(0..self.values.len())?;
        Ok(self.copy.get_or_init(|| Arc::new(values)))
    }
}

/// A worker's own values of a block.
#[derive(Clone)]
pub(crate) enum Own<'a, T: Element> {
    Host(&'a [T]),
    Device { there: &'a OnDevice<T>, block: usize, range: Range<usize>, is_under_way: bool },
    Sparse(SparseBlock<'a, T>),
}

impl<'a, T: Element> Own<'a, T> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Own::Host(values) => values.len(),
            Own::Device { range, .. } => range.len(),
            Own::Sparse(block) => block.len(),
        }
    }

    /// How many values a pass over it looks at.
    pub(crate) fn stored(&self) -> usize {
        match self {
            Own::Sparse(block) => block.stored(),
            Own::Host(_) | Own::Device { .. } => self.len(),
        }
    }

    /// Those at some positions, zeros included, for what is done on the host alone.
    pub(crate) fn part(&self, range: Range<usize>) -> Result<Cow<'a, [T]>, DeviceError> {
        match self {
            Own::Host(values) => Ok(Cow::Borrowed(&values[range])),
            Own::Device { there, range: all, .. } => {
                Ok(Cow::Borrowed(&there.copied()?[all.start + range.start..all.start + range.end]))
            }
            Own::Sparse(block) => Ok(Cow::Owned(block.part(range))),
        }
    }

    /// All that are not `absent`.
    pub(crate) fn other_than(&self, absent: T) -> Result<Entries<T>, DeviceError> {
        if let Own::Sparse(block) = self {
            return Ok(block.other_than(absent).collect());
        }
        let values = self.part(0..self.len())?;
        Ok((0u32..).zip(values.iter().copied()).filter(|(_, value)| *value != absent).collect())
    }

    /// The values at some indices, in the order given.
    pub(crate) fn gather(&self, indices: &[u32]) -> Result<Vec<T>, DeviceError> {
        match self {
            Own::Host(values) => Ok(indices.iter().map(|&index| values[index as usize]).collect()),
            Own::Device { there, range, .. } if indices.is_empty() || there.copy.get().is_some() => {
                let values = if indices.is_empty() { &[][..] } else { &there.copied()?[range.clone()] };
                Ok(indices.iter().map(|&index| values[index as usize]).collect())
            }
            Own::Device { there, block, .. } => there.values.gather(*block, indices),
            Own::Sparse(block) => Ok(block.gather(indices)),
        }
    }

    /// The k largest or more, see [`select::candidates`], and how many reach the magnitude that it gives, where that is known
    /// without looking at what was found.
    pub(crate) fn candidates(&self, k: usize) -> Result<(Entries<T>, T), DeviceError> {
        match self {
            Own::Host(values) => Ok(select::candidates(values, k)),
            Own::Device { there, block, range, .. } => {
                let largest = there.values.largest(*block, k.min(range.len())).map(|largest| {
                    let Largest { entries, smallest, .. } = largest;
                    // Fewer than k are all that there are.
                    let threshold = if entries.len() < k { T::ZERO } else { smallest };
                    (entries, threshold)
                });
                there.or_here(largest, range, |values| select::candidates(values, k))
            }
            Own::Sparse(block) => Ok((block.other_than(T::ZERO).collect(), T::ZERO)),
        }
    }

    /// The k largest, if it is the device that chooses them, and has the memory.
    pub(crate) fn largest(&self, k: usize) -> Result<Option<Largest<T>>, DeviceError> {
        match self {
            Own::Host(_) | Own::Sparse(_) => Ok(None),
            Own::Device { there, block, range, is_under_way } => {
                match there.values.largest(*block, k.min(range.len())) {
                    Err(DeviceError::Memory(_)) if *is_under_way => Ok(None),
                    found => found.map(Some),
                }
            }
        }
    }

    /// Which block of a device they are.
    pub(crate) fn number_on_device(&self) -> Option<usize> {
        match self {
            Own::Device { block, .. } => Some(*block),
            Own::Host(_) | Own::Sparse(_) => None,
        }
    }

    /// How entries of the block travel, where a device encodes them: see [`DeviceValues::encode`].
    pub(crate) fn encode(
        &self,
        entries: &Entries<T>,
        rounded: Rounded,
        chosen: bool,
    ) -> Result<Option<Encoded>, DeviceError> {
        match self {
            Own::Host(_) | Own::Sparse(_) => Ok(None),
            Own::Device { there, block, .. } => there.values.encode(*block, entries, rounded, chosen),
        }
    }

    /// All that reach a threshold.
    pub(crate) fn reaching(&self, threshold: T) -> Result<Entries<T>, DeviceError> {
        let search = |values: &[T]| {
            let mut found = Entries::default();
            select::scan(values, threshold, 0, &mut found);
            found
        };
        match self {
            Own::Host(values) => Ok(search(values)),
            Own::Device { there, block, range, is_under_way } => {
                let found =
                    there.values.reaching(*block, threshold, range.len()).map(Option::unwrap_or_default);
                if *is_under_way { there.or_here(found, range, search) } else { found }
            }
            Own::Sparse(block) => {
                let reaches = |&(_, value): &(u32, T)| T::from_magnitude(value.magnitude()) >= threshold;
                Ok(block.other_than(T::ZERO).filter(reaches).collect())
            }
        }
    }

    /// The same, unless they are too many for the k largest.
    pub(crate) fn few(&self, threshold: T, k: usize) -> Result<Option<Entries<T>>, DeviceError> {
        let search = |values: &[T]| select::scan_few(values, threshold, k);
        match self {
            Own::Host(values) => Ok(search(values)),
            Own::Device { there, block, range, is_under_way } => {
                let found = there.values.reaching(*block, threshold, select::surplus(k, range.len()));
                if *is_under_way { there.or_here(found, range, search) } else { found }
            }
            Own::Sparse(_) => self.reaching(threshold).map(Some),
        }
    }

    /// A threshold that k of them reach by all likelihood.
    pub(crate) fn estimate(&self, k: usize) -> Result<T, DeviceError> {
        let gather = |places: &[u32]| self.gather(places);
        match self {
            Own::Host(values) => Ok(select::estimate_threshold(values, k)),
            Own::Device { range, .. } => select::estimate_from(range.len(), k, gather),
            // All of them are looked at.
            Own::Sparse(_) => Ok(T::ZERO),
        }
    }

    /// Whether a device holds them, and what was collected with them.
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self, Own::Device { .. })
    }
}
