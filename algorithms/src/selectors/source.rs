//! A gradient to choose from by thresholds, and what a pass over it has collected already.

use crate::accumulator::Own;
use crate::bag::Entries;
use crate::device::DeviceError;
use crate::schedule::Candidates;
use crate::{Accumulator, Element, select};

/// The values, and candidates among them.
pub(crate) struct Source<'a, T: Element> {
    /// By block: where it begins, and its values. One block in main memory.
    blocks: Vec<(u32, Own<'a, T>)>,
    whole: Whole<'a, T>,
    candidates: &'a Candidates<T>,
}

enum Whole<'a, T: Element> {
    Slice(&'a [T]),
    Elsewhere(&'a Accumulator<T>),
}

/// The entries that reach some threshold.
pub(super) struct Found<T: Element> {
    pub(super) entries: Entries<T>,
    /// Which they all reach, and no others.
    pub(super) threshold: T,
}

impl<'a, T: Element> Source<'a, T> {
    pub(crate) fn of(values: &'a [T], candidates: &'a Candidates<T>) -> Self {
        Self { blocks: vec![(0, Own::Host(values))], whole: Whole::Slice(values), candidates }
    }

    pub(crate) fn new(
        accumulator: &'a Accumulator<T>,
        blocks: Vec<(u32, Own<'a, T>)>,
        candidates: &'a Candidates<T>,
    ) -> Self {
        match accumulator {
            Accumulator::Host(values) => Self::of(values, candidates),
            _ => Self { blocks, whole: Whole::Elsewhere(accumulator), candidates },
        }
    }

    pub(super) fn len(&self) -> usize {
        match self.whole {
            Whole::Slice(values) => values.len(),
            Whole::Elsewhere(accumulator) => accumulator.len(),
        }
    }

    /// All values, in main memory.
    pub(super) fn values(&self) -> Result<&'a [T], DeviceError> {
        match self.whole {
            Whole::Slice(values) => Ok(values),
            Whole::Elsewhere(accumulator) => Ok(accumulator.host()?),
        }
    }

    /// Magnitudes of values spread evenly, see [`select::places`].
    pub(super) fn sample(&self) -> Result<Vec<T::Magnitude>, DeviceError> {
        if let Whole::Slice(values) = self.whole {
            return Ok(select::sample(values));
        }
        let places: Vec<u32> = select::places(self.len()).collect();
        let (mut sample, mut rest) = (Vec::with_capacity(places.len()), &places[..]);
        for (start, own) in &self.blocks {
            let end = u64::from(*start) + own.len() as u64;
            let (here, after) = rest.split_at(rest.partition_point(|&place| u64::from(place) < end));
            let indices: Vec<u32> = here.iter().map(|place| place - start).collect();
            sample.extend(own.gather(&indices)?.iter().map(|value| value.magnitude()));
            rest = after;
        }
        Ok(sample)
    }

    /// All entries that reach a threshold: read off the candidates where they suffice, otherwise one pass.
    pub(super) fn reaching(&self, threshold: T) -> Result<Found<T>, DeviceError> {
        let elsewhere = matches!(self.whole, Whole::Elsewhere(_));
        if self.candidates.threshold.is_some_and(|collected| collected <= threshold) && !elsewhere {
            return Ok(above(&self.candidates.entries, threshold));
        }
        let mut entries = Entries::default();
        for (start, own) in &self.blocks {
            let found = own.reaching(threshold)?;
            entries.indices.extend(found.indices.iter().map(|index| start + index));
            entries.values.extend(found.values);
        }
        Ok(Found { entries, threshold })
    }

    /// What was found; or the largest entries, where nothing was and there is something.
    pub(super) fn at_least_the_largest(&self, found: Found<T>) -> Result<Found<T>, DeviceError> {
        if !found.entries.is_empty() {
            return Ok(found);
        }
        let largest = self.values()?.iter().map(|value| value.magnitude()).max().unwrap_or_default();
        if largest == T::Magnitude::default() {
            return Ok(found);
        }
        self.reaching(T::from_magnitude(largest))
    }

    /// The same, where it may do to look at what was found before.
    pub(super) fn again(&self, before: &Found<T>, threshold: T) -> Result<Found<T>, DeviceError> {
        match before.threshold <= threshold {
            true => Ok(above(&before.entries, threshold)),
            false => self.reaching(threshold),
        }
    }
}

/// Those of some entries that reach a threshold.
fn above<T: Element>(entries: &Entries<T>, threshold: T) -> Found<T> {
    let mut found = Entries::default();
    for (index, value) in entries.iter() {
        if value != T::ZERO && T::from_magnitude(value.magnitude()) >= threshold {
            found.push(index, value);
        }
    }
    Found { entries: found, threshold }
}
