//! What stays of a block once its update is known.

use super::Collection;
use crate::accumulator::Written;
use crate::bag::{Entries, Marks};
use crate::device::DeviceError;
use crate::schedule::{Fate, Finished};
use crate::{Accumulator, Block, Element, Partition};

/// Writes what stays of an accumulator once the update of its blocks is known: at the indices of the update only. Gives what is lost, by block.
pub(crate) fn commit_update<T: Element>(
    accumulator: &mut Accumulator<T>,
    partition: &Partition,
    finished: &Finished<T>,
    collection: Collection,
) -> Result<Vec<Entries<T>>, DeviceError> {
    let mut values = accumulator.writable()?;
    let mut lost = Vec::with_capacity(finished.update.len());
    for (b, (fate, dropped)) in finished.fates.iter().zip(&finished.drops).enumerate() {
        let residual = &mut values.block(partition, Block(b as u32));
        let collection = finished.collection(b, collection);
        // Sums that are zero are delivered too: else they would be chosen again for ever.
        let delivered = finished.update[b].indices();
        lost.push(match fate {
            Fate::Whole if finished.whole[b] => {
                // Every entry is delivered, also those that cancel to zero.
                residual.clear()?;
                Entries::default()
            }
            Fate::Whole => commit_sent(residual, &delivered, dropped, collection)?,
            Fate::Selected { indices, errors, remaining } => {
                let by_device = finished.candidates.get(b).is_some_and(|candidates| candidates.by_device);
                let chosen = Selected { indices, errors, remaining, by_device };
                commit_selected(residual, &delivered, &chosen, dropped, collection)?
            }
        });
    }
    Ok(lost)
}

/// Momentum factor masking: the velocity is zero where what this worker had accumulated has left its residual.
pub(super) fn mask<T: Element>(
    velocity: &mut [T],
    delivered: &[u32],
    fate: &Fate<T>,
    whole: bool,
    collection: Collection,
) {
    let local = collection == Collection::Local;
    match fate {
        Fate::Whole if whole || local => velocity.fill(T::ZERO),
        Fate::Whole => delivered.iter().for_each(|&i| velocity[i as usize] = T::ZERO),
        Fate::Selected { indices, .. } if local => {
            indices.iter().for_each(|&i| velocity[i as usize] = T::ZERO);
        }
        // What was selected here and is not in the update waits here as if it had not been.
        Fate::Selected { indices, .. } => {
            Marks::of(delivered).among(indices).iter().for_each(|&i| velocity[i as usize] = T::ZERO);
        }
    }
}

/// The worker's whole contribution went into the sum, from which entries were selected.
fn commit_sent<T: Element>(
    residual: &mut Written<'_, T>,
    delivered: &[u32],
    dropped: &Entries<T>,
    collection: Collection,
) -> Result<Entries<T>, DeviceError> {
    if collection == Collection::Local {
        // Nothing was dropped before it was sent.
        residual.clear()?;
        return Ok(dropped.clone());
    }
    residual.clear_at(delivered)?;
    collect(residual, &Marks::of(delivered), dropped, collection)
}

/// What was selected of a worker's contribution, and what remains of the rest.
struct Selected<'a, T: Element> {
    indices: &'a [u32],
    /// What rounding took away at some of the indices.
    errors: &'a Entries<T>,
    /// Sums at entries that others contributed to and that were not selected.
    remaining: &'a Entries<T>,
    /// Whether a device has selected them: all of these, and perhaps some that rounding took away.
    by_device: bool,
}

impl<T: Element> Selected<'_, T> {
    /// Makes the residual zero where something selected has left it: everywhere, or at some of the indices.
    fn clear(&self, residual: &mut Written<'_, T>, left: &[u32]) -> Result<(), DeviceError> {
        match self.by_device && left.len() == self.indices.len() {
            true => residual.clear_chosen(left),
            false => residual.clear_at(left),
        }
    }
}

/// Only some of the worker's contribution was selected.
fn commit_selected<T: Element>(
    residual: &mut Written<'_, T>,
    delivered: &[u32],
    chosen: &Selected<'_, T>,
    dropped: &Entries<T>,
    collection: Collection,
) -> Result<Entries<T>, DeviceError> {
    let rest = |remaining: &Entries<T>, residual: &Written<'_, T>| -> Result<Entries<T>, DeviceError> {
        let own = residual.gather(&remaining.indices)?;
        Ok(remaining.iter().zip(own.iter()).map(|((i, sum), &own)| (i, sum - own)).collect())
    };
    if collection == Collection::Local {
        // What was sent is gone, wherever it was dropped; what others sent is not this worker's to keep.
        let lost = rest(chosen.remaining, residual)?;
        chosen.clear(residual, chosen.indices)?;
        residual.set(chosen.errors)?;
        return Ok(lost.merge(dropped));
    }
    let delivered = Marks::of(delivered);
    let remaining = delivered.pick::<T, true>(chosen.remaining);
    let lost = match collection {
        Collection::Global => {
            residual.set(&remaining)?;
            Entries::default()
        }
        _ => rest(&remaining, residual)?,
    };
    chosen.clear(residual, &delivered.among(chosen.indices))?;
    residual.set(&delivered.pick::<T, true>(chosen.errors))?;
    Ok(lost.merge(&collect(residual, &delivered, dropped, collection)?))
}

/// Adds this worker's share of later drops where something was delivered, or gives it back as lost.
fn collect<T: Element>(
    residual: &mut Written<'_, T>,
    delivered: &Marks,
    dropped: &Entries<T>,
    collection: Collection,
) -> Result<Entries<T>, DeviceError> {
    let late = delivered.pick::<T, true>(dropped);
    if collection != Collection::Global {
        return Ok(late);
    }
    residual.add(&late)?;
    Ok(Entries::default())
}
