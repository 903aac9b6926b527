//! What stays of an accumulator once a step is over is written here.

use std::borrow::Cow;

use super::Accumulator;
use super::sparse::WrittenEntries;
use crate::bag::Entries;
use crate::device::{DeviceError, DeviceValues};
use crate::{Block, Element, Partition};

/// An accumulator that is written to.
pub(crate) enum Writable<'a, T: Element> {
    Host(&'a mut [T]),
    Device(&'a mut (dyn DeviceValues<T> + 'static)),
    Sparse(&'a mut Entries<T>),
}

/// A block of it.
pub(crate) enum Written<'a, T: Element> {
    Host(&'a mut [T]),
    Device(&'a mut (dyn DeviceValues<T> + 'static), usize),
    Sparse(WrittenEntries<'a, T>),
}

impl<T: Element> Writable<'_, T> {
    pub(crate) fn block(&mut self, partition: &Partition, block: Block) -> Written<'_, T> {
        match self {
            Writable::Host(values) => Written::Host(&mut values[partition.range(block)]),
            Writable::Device(values) => Written::Device(&mut **values, block.index()),
            Writable::Sparse(entries) => Written::Sparse(WrittenEntries::of(entries, partition.range(block))),
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
            Writable::Sparse(entries) => {
                let mut part = WrittenEntries::of(entries, offset..offset + values.len());
                part.clear();
                part.add(&Entries::from_dense(values));
                Ok(())
            }
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
            (Writable::Sparse(entries), Accumulator::Sparse(other)) => {
                **entries = entries.merge(other.entries());
                Ok(())
            }
            (Writable::Sparse(entries), other) => {
                **entries = entries.merge(&Entries::from_dense(other.host()?));
                Ok(())
            }
            (Writable::Device(_), Accumulator::Host(_) | Accumulator::Sparse(_)) => {
                Err(DeviceError::Other("an accumulator in main memory is added to one on a device".into()))
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
            Written::Sparse(entries) => {
                entries.clear();
                Ok(())
            }
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
            Written::Sparse(entries) => {
                entries.clear_at(indices);
                Ok(())
            }
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
            Written::Sparse(values) => {
                values.set(entries);
                Ok(())
            }
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
            Written::Sparse(values) => {
                values.add(entries);
                Ok(())
            }
        }
    }

    pub(crate) fn gather(&self, indices: &[u32]) -> Result<Cow<'_, [T]>, DeviceError> {
        match self {
            Written::Host(values) => Ok(indices.iter().map(|&index| values[index as usize]).collect()),
            Written::Device(_, _) if indices.is_empty() => Ok(Cow::Borrowed(&[])),
            Written::Device(values, block) => values.gather(*block, indices).map(Cow::Owned),
            Written::Sparse(entries) => Ok(Cow::Owned(entries.gather(indices))),
        }
    }
}
