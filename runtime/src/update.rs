//! The update of a step.

use std::collections::HashMap;
use std::sync::Arc;

use gleaner_algorithms::bag::{Bag, Entries};
use gleaner_algorithms::device::{Apply, Device, DeviceError, DeviceSlice};
use gleaner_algorithms::{Block, Element, Partition, Reduction, element};

use crate::failure::Error;
use crate::layout::{Layout, LayoutError, Parameter};

/// Why nothing was delivered in a step: a rank's values were not finite, and all ranks skipped the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The rank whose values were not finite; of several, one that all ranks name.
    pub rank: u32,
    /// What was wrong with this rank's own values, in a sentence that names the parameter, if it was this rank's fault.
    pub own: Option<String>,
}

/// The same sparse update on every worker: the mean over the workers of what was selected.
#[derive(Debug)]
pub struct Update<T: Element = f32> {
    pub(crate) layout: Arc<Layout>,
    pub(crate) by_name: Arc<HashMap<String, usize>>,
    pub(crate) groups: Vec<(Partition, Vec<Bag<T>>)>,
    pub(crate) workers: u32,
    pub(crate) step: u64,
    pub(crate) reduction: Reduction<T>,
    pub(crate) skipped: Option<Skipped>,
    /// Where the gradients lay, if not in main memory.
    pub(crate) device: Option<Arc<dyn Device<T>>>,
}

impl<T: Element> Update<T> {
    /// The step that it belongs to, counted from 0.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Whether the step was skipped because of values that were not finite, on all ranks alike: then there is no entry, and
    /// the residuals are what they were before. An optimiser skips such a step, too.
    pub fn skipped(&self) -> Option<&Skipped> {
        self.skipped.as_ref()
    }

    /// The number of non-zero entries over all parameters.
    pub fn entries(&self) -> usize {
        self.groups.iter().flat_map(|(_, bags)| bags).map(Bag::nonzeros).sum()
    }

    /// The mean of one parameter, entry by entry; of another reduction than the sum, its result.
    ///
    /// # Errors
    /// An unknown name.
    pub fn values(&self, parameter: &str) -> Result<Vec<T>, LayoutError> {
        let p = self.parameter(parameter)?;
        let mut values = vec![T::ZERO; p.len];
        self.put(p, &mut values);
        Ok(values)
    }

    /// [`values`](Self::values) into memory of the caller's.
    ///
    /// # Errors
    /// An unknown name, or a slice of another length than the parameter.
    pub fn copy_to(&self, parameter: &str, into: &mut [T]) -> Result<(), LayoutError> {
        let p = self.parameter(parameter)?;
        p.expect(into.len())?;
        self.put(p, into);
        Ok(())
    }

    fn put(&self, p: &Parameter, into: &mut [T]) {
        into.fill(self.absent());
        self.visit(p, |i, value| into[i] = self.mean(value));
    }

    /// What [`values`](Self::values) has where there is no entry.
    fn absent(&self) -> T {
        if self.reduction.has_residual() { T::ZERO } else { self.reduction.neutral() }
    }

    /// What [`values`](Self::values) has where there is one.
    fn mean(&self, sum: T) -> T {
        // Adding zero leaves one zero, also of the −0 that stands in a dense bag where there is no entry.
        if self.reduction.has_residual() { sum.divide(self.workers) + T::ZERO } else { sum }
    }

    /// [`values`](Self::values) as entries, in ascending order: those that are not zero; of another reduction than the sum,
    /// not its neutral element. It takes as long as there are entries, where a method has kept the update sparse.
    ///
    /// # Errors
    /// An unknown name.
    ///
    /// # Panics
    /// If such an entry of the parameter has no index of 32 bits.
    pub fn sparse(&self, parameter: &str) -> Result<Entries<T>, LayoutError> {
        let p = self.parameter(parameter)?;
        Ok(self.entries_of(p, self.absent(), |sum| self.mean(sum)))
    }

    /// [`sparse`](Self::sparse) with the sums over the workers in place of the means: where sums are exact, these are, for any number of
    /// workers.
    ///
    /// # Errors
    /// As [`sparse`](Self::sparse).
    ///
    /// # Panics
    /// As [`sparse`](Self::sparse).
    pub fn sparse_sums(&self, parameter: &str) -> Result<Entries<T>, LayoutError> {
        let p = self.parameter(parameter)?;
        Ok(self.entries_of(p, self.absent(), |sum| sum))
    }

    fn entries_of(&self, p: &Parameter, absent: T, value: impl Fn(T) -> T) -> Entries<T> {
        let mut entries = Entries::default();
        self.visit(p, |i, sum| {
            let value = value(sum);
            if value != absent {
                assert!(u32::try_from(i).is_ok(), "entry {i} of '{}' has no index of 32 bits", p.name);
                entries.push(i as u32, value);
            }
        });
        entries
    }

    /// `into += scale · mean`, for one parameter's entries; of another reduction than the sum, its result instead of the mean.
    ///
    /// # Errors
    /// An unknown name, or a slice of another length than the parameter.
    pub fn add_to(&self, parameter: &str, into: &mut [T], scale: T) -> Result<(), LayoutError> {
        let p = self.parameter(parameter)?;
        p.expect(into.len())?;
        let scale = if self.reduction.has_residual() { scale.divide(self.workers) } else { scale };
        self.visit(p, |i, value| into[i] += scale * value);
        Ok(())
    }

    /// [`copy_to`](Self::copy_to) into memory of the gradients' device, in the order of its stream. Only the entries cross over.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to); gradients without a device, memory or a stream of another one, and what has failed there.
    pub fn copy_to_device(&self, parameter: &str, into: &DeviceSlice) -> Result<(), Error> {
        self.apply(parameter, into, Apply::Write { divisor: self.workers })
    }

    /// [`add_to`](Self::add_to) in memory of the gradients' device, in the order of its stream. Only the entries cross over.
    ///
    /// # Errors
    /// As [`copy_to_device`](Self::copy_to_device).
    pub fn add_to_device(&self, parameter: &str, into: &DeviceSlice, scale: f32) -> Result<(), Error> {
        self.apply(parameter, into, Apply::Add { scale: scale / self.workers as f32 })
    }

    fn apply(&self, parameter: &str, into: &DeviceSlice, how: Apply) -> Result<(), Error> {
        let p = self.parameter(parameter)?;
        p.expect(into.len)?;
        let Some(device) = &self.device else {
            let sentence = "the update is of gradients in main memory: make them on the device whose memory it is to go to";
            return Err(DeviceError::Other(sentence.into()).into());
        };
        let (partition, bags) = &self.groups[p.group];
        let is_dense = |(b, bag): (usize, &Bag<T>)| {
            let block = partition.range(Block(b as u32));
            matches!(bag, Bag::Dense(_)) && block.start < p.offset + p.len && p.offset < block.end
        };
        if bags.iter().enumerate().any(is_dense) {
            let mut values = vec![T::ZERO; p.len];
            self.visit(p, |i, value| values[i] = value);
            device.apply_dense(into, &values, how)?;
        } else {
            let mut entries = Entries::default();
            self.visit(p, |i, value| entries.push(i as u32, value));
            device.apply(into, &entries, how)?;
        }
        Ok(())
    }

    fn parameter(&self, name: &str) -> Result<&Parameter, LayoutError> {
        let position = self.by_name.get(name).ok_or_else(|| LayoutError::Unknown(name.into()))?;
        Ok(&self.layout.parameters[*position])
    }

    /// Calls `visit` with the position in a parameter and the value of each of its non-zero entries.
    fn visit(&self, p: &Parameter, mut visit: impl FnMut(usize, T)) {
        let (partition, bags) = &self.groups[p.group];
        let (start, end) = (p.offset, p.offset + p.len);
        for (b, bag) in bags.iter().enumerate() {
            let block = partition.range(Block(b as u32));
            let (from, to) = (block.start.max(start), block.end.min(end));
            if from >= to {
                continue;
            }
            let (first, last) = ((from - block.start) as u32, (to - block.start) as u32);
            match bag {
                Bag::Dense(values) => {
                    let stretches = values.stretches(first as usize..last as usize);
                    let values = stretches.flat_map(element::values::<T>);
                    values.enumerate().for_each(|(i, value)| visit(from - start + i, value));
                }
                Bag::Sparse(entries) => {
                    let here = entries.indices.partition_point(|&i| i < first);
                    for (&i, &value) in entries.indices[here..].iter().zip(&entries.values[here..]) {
                        if i >= last {
                            break;
                        }
                        visit(block.start + i as usize - start, value);
                    }
                }
            }
        }
    }

    /// Feeds every delivered entry, as little-endian (group, position, bits of the sum), to a digest: equal on all
    /// workers if and only if their updates are.
    pub fn digest(&self, mut feed: impl FnMut(&[u8])) {
        for (group, (partition, bags)) in self.groups.iter().enumerate() {
            for (b, bag) in bags.iter().enumerate() {
                let start = partition.range(Block(b as u32)).start as u64;
                let mut bytes = Vec::with_capacity(4096);
                for (i, value) in bag.iter() {
                    bytes.extend((group as u32).to_le_bytes());
                    bytes.extend((start + u64::from(i)).to_le_bytes());
                    bytes.extend_from_slice(value.to_le().as_ref());
                    if bytes.len() >= 4080 {
                        feed(&bytes);
                        bytes.clear();
                    }
                }
                feed(&bytes);
            }
        }
    }
}
