//! Gradient plus residual, which a step chooses from: in main memory, or in a device's.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::bag::Entries;
use crate::device::{DeviceError, DeviceValues, Largest};
use crate::residual::NonFinite;
use crate::{Block, Element, Partition, select};

/// See the module. A clone is the same accumulator.
#[derive(Clone, Debug)]
pub enum Accumulator<T: Element = f32> {
    /// In main memory.
    Host(Arc<Vec<T>>),
    /// In a device's memory.
    Device(Arc<OnDevice<T>>),
}

/// Values in a device's memory, and their copy in main memory once somebody has asked for it.
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

impl<T: Element> Accumulator<T> {
    /// How many values it has.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Device(there) => there.values.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its values in main memory. Of a device they are copied once, and the copy is kept as long as nothing is written.
    ///
    /// # Errors
    /// What has failed on the device.
    pub fn host(&self) -> Result<&Arc<Vec<T>>, DeviceError> {
        match self {
            Self::Host(values) => Ok(values),
            Self::Device(there) => there.copied(),
        }
    }

    /// How many hold it.
    pub fn holders(&self) -> usize {
        match self {
            Self::Host(values) => Arc::strong_count(values),
            Self::Device(there) => Arc::strong_count(there),
        }
    }

    /// Waits until all that was given is in it, and says which sums were not finite. In main memory it is known before.
    ///
    /// # Errors
    /// What has failed on the device.
    pub fn check(&self) -> Result<Option<NonFinite>, DeviceError> {
        match self {
            Self::Host(_) => Ok(None),
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
        }
    }

    /// The gradient is complete, see [`DeviceValues::begin`].
    pub(crate) fn begin(&mut self) -> Result<(), DeviceError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(there) => Self::alone(there)?.begin(),
        }
    }

    /// Tells a device by which blocks it collects, and how many entries will be asked for of each.
    pub(crate) fn recut(&mut self, partition: &Partition, quotas: &[Option<u32>]) -> Result<(), DeviceError> {
        let Self::Device(there) = self else { return Ok(()) };
        let ranges = (0..partition.blocks() as u32).map(|block| partition.range(Block(block)));
        Self::alone(there)?.cut(&ranges.collect::<Vec<_>>(), quotas)
    }

    /// The values on a device, to be accumulated into.
    pub(crate) fn there(&mut self) -> Result<&mut (dyn DeviceValues<T> + 'static), DeviceError> {
        match self {
            Self::Device(there) => Self::alone(there),
            Self::Host(_) => Err(DeviceError("the residual lies in main memory".into())),
        }
    }

    /// The values of one of its blocks.
    pub(crate) fn block(&self, partition: &Partition, block: Block) -> Own<'_, T> {
        let range = partition.range(block);
        match self {
            Self::Host(values) => Own::Host(&values[range]),
            Self::Device(there) => Own::Device { there, block: block.index(), range },
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
            None => Err(DeviceError("an accumulator on a device is held by somebody else".into())),
        }
    }
}

impl<T: Element> OnDevice<T> {
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
    Device { there: &'a OnDevice<T>, block: usize, range: Range<usize> },
}

impl<'a, T: Element> Own<'a, T> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Own::Host(values) => values.len(),
            Own::Device { range, .. } => range.len(),
        }
    }

    /// All of them, for what is done on the host alone.
    pub(crate) fn values(&self) -> Result<&'a [T], DeviceError> {
        match self {
            Own::Host(values) => Ok(values),
            Own::Device { there, range, .. } => Ok(&there.copied()?[range.clone()]),
        }
    }

    /// The values at some indices, in the order given.
    pub(crate) fn gather(&self, indices: &[u32]) -> Result<Vec<T>, DeviceError> {
        match self {
            Own::Host(values) => Ok(indices.iter().map(|&index| values[index as usize]).collect()),
            Own::Device { there, .. } if indices.is_empty() || there.copy.get().is_some() => {
                let values = if indices.is_empty() { &[][..] } else { self.values()? };
                Ok(indices.iter().map(|&index| values[index as usize]).collect())
            }
            Own::Device { there, block, .. } => there.values.gather(*block, indices),
        }
    }

    /// The k largest or more, see [`select::candidates`], and how many reach the magnitude that it gives, where that is known
    /// without looking at what was found.
    pub(crate) fn candidates(&self, k: usize) -> Result<(Entries<T>, T), DeviceError> {
        match self {
            Own::Host(values) => Ok(select::candidates(values, k)),
            Own::Device { there, block, range } => {
                let Largest { entries, smallest, .. } = there.values.largest(*block, k.min(range.len()))?;
                // Fewer than k are all that there are.
                let threshold = if entries.len() < k { T::ZERO } else { smallest };
                Ok((entries, threshold))
            }
        }
    }

    /// The k largest, if it is the device that chooses them.
    pub(crate) fn largest(&self, k: usize) -> Result<Option<Largest<T>>, DeviceError> {
        match self {
            Own::Host(_) => Ok(None),
            Own::Device { there, block, range } => there.values.largest(*block, k.min(range.len())).map(Some),
        }
    }

    /// All that reach a threshold.
    pub(crate) fn reaching(&self, threshold: T) -> Result<Entries<T>, DeviceError> {
        match self {
            Own::Host(values) => {
                let mut found = Entries::default();
                select::scan(values, threshold, 0, &mut found);
                Ok(found)
            }
            Own::Device { there, block, range } => {
                Ok(there.values.reaching(*block, threshold, range.len())?.unwrap_or_default())
            }
        }
    }

    /// The same, unless they are a crowd for the k largest.
    pub(crate) fn few(&self, threshold: T, k: usize) -> Result<Option<Entries<T>>, DeviceError> {
        match self {
            Own::Host(values) => Ok(select::scan_few(values, threshold, k)),
            Own::Device { there, block, range } => {
                there.values.reaching(*block, threshold, select::crowd(k, range.len()))
            }
        }
    }

    /// A threshold that k of them reach by all likelihood.
    pub(crate) fn estimate(&self, k: usize) -> Result<T, DeviceError> {
        let gather = |places: &[u32]| self.gather(places);
        match self {
            Own::Host(values) => Ok(select::estimate_threshold(values, k)),
            Own::Device { range, .. } => select::estimate_from(range.len(), k, gather),
        }
    }

    /// Whether a device holds them, and what was collected with them.
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self, Own::Device { .. })
    }
}

/// An accumulator that is written to.
pub(crate) enum Writable<'a, T: Element> {
    Host(&'a mut [T]),
    Device(&'a mut (dyn DeviceValues<T> + 'static)),
}

/// A block of it.
pub(crate) enum Written<'a, T: Element> {
    Host(&'a mut [T]),
    Device(&'a mut (dyn DeviceValues<T> + 'static), usize),
}

impl<T: Element> Writable<'_, T> {
    pub(crate) fn block(&mut self, partition: &Partition, block: Block) -> Written<'_, T> {
        match self {
            Writable::Host(values) => Written::Host(&mut values[partition.range(block)]),
            Writable::Device(values) => Written::Device(&mut **values, block.index()),
        }
    }

    /// Writes values from a position on.
    pub(crate) fn write(&mut self, offset: usize, values: &[T]) -> Result<(), DeviceError> {
        match self {
            Writable::Host(all) => {
                all[offset..offset + values.len()].copy_from_slice(values);
                Ok(())
            }
            Writable::Device(all) => all.write(offset, values),
        }
    }

    /// Adds another accumulator, of the same device where it lies on one.
    pub(crate) fn add_all(&mut self, other: &Accumulator<T>) -> Result<(), DeviceError> {
        match (self, other) {
            (Writable::Device(values), Accumulator::Device(other)) => values.add_all(&*other.values),
            (Writable::Host(values), other) => {
                values.iter_mut().zip(other.host()?.iter()).for_each(|(value, &other)| *value += other);
                Ok(())
            }
            (Writable::Device(_), Accumulator::Host(_)) => {
                Err(DeviceError("an accumulator in main memory is added to one on a device".into()))
            }
        }
    }
}

impl<T: Element> Written<'_, T> {
    pub(crate) fn clear(&mut self) -> Result<(), DeviceError> {
        match self {
            Written::Host(values) => {
                values.fill(T::ZERO);
                Ok(())
            }
            Written::Device(values, block) => values.clear(*block),
        }
    }

    pub(crate) fn clear_at(&mut self, indices: &[u32]) -> Result<(), DeviceError> {
        match self {
            Written::Host(values) => {
                indices.iter().for_each(|&index| values[index as usize] = T::ZERO);
                Ok(())
            }
            Written::Device(_, _) if indices.is_empty() => Ok(()),
            Written::Device(values, block) => values.clear_at(*block, indices),
        }
    }

    /// The same at entries that may be those that a device has chosen.
    pub(crate) fn clear_chosen(&mut self, indices: &[u32]) -> Result<(), DeviceError> {
        if let Written::Device(values, block) = self
            && values.clear_chosen(*block, indices.len())?
        {
            return Ok(());
        }
        self.clear_at(indices)
    }

    pub(crate) fn set(&mut self, entries: &Entries<T>) -> Result<(), DeviceError> {
        match self {
            Written::Host(values) => {
                entries.iter().for_each(|(index, value)| values[index as usize] = value);
                Ok(())
            }
            Written::Device(_, _) if entries.is_empty() => Ok(()),
            Written::Device(values, block) => values.set(*block, entries),
        }
    }

    pub(crate) fn add(&mut self, entries: &Entries<T>) -> Result<(), DeviceError> {
        match self {
            Written::Host(values) => {
                entries.iter().for_each(|(index, value)| values[index as usize] += value);
                Ok(())
            }
            Written::Device(_, _) if entries.is_empty() => Ok(()),
            Written::Device(values, block) => values.add(*block, entries),
        }
    }

    pub(crate) fn gather(&self, indices: &[u32]) -> Result<Cow<'_, [T]>, DeviceError> {
        match self {
            Written::Host(values) => Ok(indices.iter().map(|&index| values[index as usize]).collect()),
            Written::Device(_, _) if indices.is_empty() => Ok(Cow::Borrowed(&[])),
            Written::Device(values, block) => values.gather(*block, indices).map(Cow::Owned),
        }
    }
}
