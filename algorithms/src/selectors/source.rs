//! A gradient to choose from by thresholds, and what a pass over it has collected already.

use crate::bag::Entries;
use crate::schedule::Candidates;
use crate::{Element, select};

/// The values, and candidates among them.
pub(super) struct Source<'a, T: Element> {
    pub(super) values: &'a [T],
    candidates: &'a Candidates<T>,
}

/// The entries that reach some threshold.
pub(super) struct Found<T: Element> {
    pub(super) entries: Entries<T>,
    /// Which they all reach, and no others.
    pub(super) threshold: T,
}

impl<'a, T: Element> Source<'a, T> {
    pub(super) fn new(values: &'a [T], candidates: &'a Candidates<T>) -> Self {
        Self { values, candidates }
    }

    /// All entries that reach a threshold: read off the candidates where they suffice, otherwise one pass.
    pub(super) fn reaching(&self, threshold: T) -> Found<T> {
        match self.candidates.threshold {
            Some(collected) if collected <= threshold => above(&self.candidates.entries, threshold),
            _ => {
                let mut entries = Entries::default();
                select::scan(self.values, threshold, 0, &mut entries);
                Found { entries, threshold }
            }
        }
    }

    /// What was found; or the largest entries, where nothing was and there is something.
    pub(super) fn at_least_the_largest(&self, found: Found<T>) -> Found<T> {
        let largest = self.values.iter().map(|value| value.magnitude()).max().unwrap_or_default();
        match found.entries.is_empty() && largest > T::Magnitude::default() {
            true => self.reaching(T::from_magnitude(largest)),
            false => found,
        }
    }

    /// The same, where it may do to look at what was found before.
    pub(super) fn again(&self, before: &Found<T>, threshold: T) -> Found<T> {
        if before.threshold <= threshold {
            above(&before.entries, threshold)
        } else {
            self.reaching(threshold)
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
