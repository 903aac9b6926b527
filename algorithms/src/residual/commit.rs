//! What stays of a block once its update is known.

use super::Collection;
use crate::Element;
use crate::bag::{Bag, Entries};
use crate::schedule::Fate;

/// Momentum factor masking: the velocity is zero where what this worker had accumulated has left its residual.
pub(super) fn mask<T: Element>(
    velocity: &mut [T],
    bag: &Bag<T>,
    fate: &Fate<T>,
    whole: bool,
    collection: Collection,
) {
    let local = collection == Collection::Local;
    match fate {
        Fate::Whole if whole || local => velocity.fill(T::ZERO),
        Fate::Whole => bag.iter().for_each(|(i, _)| velocity[i as usize] = T::ZERO),
        Fate::Selected { indices, .. } if local => {
            indices.iter().for_each(|&i| velocity[i as usize] = T::ZERO);
        }
        // What was selected here and is not in the update waits here as if it had not been.
        Fate::Selected { indices, .. } => {
            let mut selected = indices.iter().peekable();
            for (i, _) in bag.iter() {
                while selected.next_if(|&&s| s < i).is_some() {}
                if selected.peek() == Some(&&i) {
                    velocity[i as usize] = T::ZERO;
                }
            }
        }
    }
}

/// The worker's whole contribution went into the sum, from which somebody selected.
pub(super) fn commit_sent<T: Element>(
    residual: &mut [T],
    bag: &Bag<T>,
    dropped: Entries<T>,
    collection: Collection,
) -> Entries<T> {
    if collection == Collection::Local {
        // Nothing was dropped before it was sent.
        residual.fill(T::ZERO);
        return dropped;
    }
    bag.iter().for_each(|(i, _)| residual[i as usize] = T::ZERO);
    collect(residual, bag, dropped, collection)
}

/// What was selected of a worker's contribution, and what remains of the rest.
pub(super) struct Chosen<'a, T: Element> {
    pub(super) indices: &'a [u32],
    /// What rounding took away at some of the indices.
    pub(super) errors: &'a Entries<T>,
    /// Sums at entries that others contributed to and that were not selected.
    pub(super) settled: &'a Entries<T>,
}

/// Only some of the worker's contribution was selected.
pub(super) fn commit_selected<T: Element>(
    residual: &mut [T],
    bag: &Bag<T>,
    chosen: &Chosen<'_, T>,
    dropped: Entries<T>,
    collection: Collection,
) -> Entries<T> {
    let mut errors = chosen.errors.iter().peekable();
    let mut error = |i: u32| {
        while errors.next_if(|&(e, _)| e < i).is_some() {}
        errors.next_if(|&(e, _)| e == i).map_or(T::ZERO, |(_, error)| error)
    };
    if collection == Collection::Local {
        // What was sent is gone, wherever it was dropped; what others sent is not this worker's to keep.
        let lost: Entries<T> =
            chosen.settled.iter().map(|(i, sum)| (i, sum - residual[i as usize])).collect();
        chosen.indices.iter().for_each(|&i| residual[i as usize] = error(i));
        return lost.merge(&dropped);
    }
    let mut lost = Entries::default();
    let (mut selected, mut settled) = (chosen.indices.iter().peekable(), chosen.settled.iter().peekable());
    for (i, _) in bag.iter() {
        while selected.next_if(|&&s| s < i).is_some() {}
        while settled.next_if(|&(s, _)| s < i).is_some() {}
        let residual = &mut residual[i as usize];
        if selected.peek() == Some(&&i) {
            *residual = error(i);
        } else if let Some((_, sum)) = settled.next_if(|&(s, _)| s == i) {
            match collection {
                Collection::Global => *residual = sum,
                _ => lost.push(i, sum - *residual),
            }
        }
    }
    lost.merge(&collect(residual, bag, dropped, collection))
}

/// Adds this worker's share of later drops at the indices of the final update, or reports it as lost.
fn collect<T: Element>(
    residual: &mut [T],
    bag: &Bag<T>,
    dropped: Entries<T>,
    collection: Collection,
) -> Entries<T> {
    let mut lost = Entries::default();
    let mut dropped = dropped.iter().peekable();
    for (i, _) in bag.iter() {
        while dropped.next_if(|&(d, _)| d < i).is_some() {}
        if let Some((_, value)) = dropped.next_if(|&(d, _)| d == i) {
            match collection {
                Collection::Global => residual[i as usize] += value,
                _ => lost.push(i, value),
            }
        }
    }
    lost
}
