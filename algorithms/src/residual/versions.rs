//! Steps of a residual: lent, and taken back in order.

use super::commit::{commit_update, mask};
use super::{Collection, Residual};
use crate::bag::{Bag, Entries};
use crate::device::DeviceError;
use crate::schedule::{Candidates, Finished};
use crate::{Accumulator, Block, Element, Partition};

/// A step that cannot end now. The residual is as it was, unless a device that holds it has failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
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
    #[error("a step that overlapped with another cannot be undone: its gradient is mixed with the other's")]
    Overlapped,
    /// A device that holds the residual has failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

crate::sentence::debug_as_sentence!(VersionError);

/// A step that has begun, see [`Residual::begin`].
#[derive(Debug)]
pub struct Lent<T: Element = f32> {
    /// Which step of this residual it is, for [`commit`](Residual::commit) and [`give_back`](Residual::give_back).
    pub version: u64,
    /// Gradient plus residual.
    pub accumulator: Accumulator<T>,
    /// Entries that may be selected, by block; those of a device are with the accumulator.
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
    /// Begins a step: lends the accumulator and its candidates to an execution. What older steps still hold is no part of it.
    ///
    /// # Errors
    /// What has failed on a device.
    pub fn begin(&mut self) -> Result<Lent<T>, DeviceError> {
        self.present()?;
        if self.device.is_some() {
            self.values.begin()?;
        }
        // Of entries alone nothing is collected: all of them are looked at.
        let collects = !self.sparse;
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
                Candidates { threshold: threshold.filter(|_| collects), entries, by_device: false }
            })
            .collect();
        (self.zero, self.lent, self.given) = (false, true, false);
        if let Some(before) = &mut self.before {
            before.given = false;
        }
        self.open.push_back(self.partition.clone());
        self.next += 1;
        Ok(Lent { version: self.next - 1, accumulator: std::mem::take(&mut self.values), candidates })
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
    fn keep(&mut self, left: Accumulator<T>, zero: bool) -> Result<(), DeviceError> {
        let last = self.open.is_empty();
        self.overlapped &= self.given || !last;
        if self.lent && last {
            (self.values, self.lent, self.zero) = (left, false, zero);
        } else if self.lent && !zero {
            (self.values, self.lent) = (left, false);
        } else if !zero {
            // While a step is open, zeros are written, so that this may add to them.
            self.values.writable()?.add_all(&left)?;
            if self.given {
                // What was collected has changed: the next selection does without.
                self.pieces.iter_mut().for_each(Vec::clear);
                self.thresholds.fill(None);
                self.values.recut_between_steps(&self.partition, &self.quotas)?;
            }
        }
        Ok(())
    }

    /// Takes the accumulator of a step back and makes it the residual for the next one: writes at the indices of the
    /// final update only, or nothing at all where everything was delivered. Momentum masking is of the velocity as it is
    /// by now.
    ///
    /// # Errors
    /// A version that is not that of the oldest open step, and what has failed on a device.
    pub fn commit(
        &mut self,
        version: u64,
        mut finished: Finished<T>,
        collection: Collection,
    ) -> Result<Committed<T>, VersionError> {
        let partition = self.end(version)?;
        let zero = finished.whole.iter().all(|&whole| whole);
        if let Some(velocity) = self.velocity.as_mut().filter(|velocity| velocity.mask) {
            for (b, fate) in finished.fates.iter().enumerate() {
                let velocity = &mut velocity.values[partition.range(Block(b as u32))];
                let delivered = finished.update[b].indices();
                // Of completed sums nothing stays here, whatever was selected.
                match &finished.completion {
                    Some(_) => delivered.iter().for_each(|&i| velocity[i as usize] = T::ZERO),
                    None => {
                        let collection = finished.collection(b, collection);
                        mask(velocity, &delivered, fate, finished.whole[b], collection);
                    }
                }
            }
        }
        let mut accumulator = std::mem::take(&mut finished.accumulator);
        let mut lost = match zero {
            true => vec![Entries::default(); finished.update.len()],
            false => commit_update(&mut accumulator, &partition, &finished, collection)?,
        };
        let Finished { mut update, candidates, completion, .. } = finished;
        if let Some(completion) = completion {
            completion.commit(&mut accumulator.writable()?, &partition, &mut update, &mut lost)?;
        }
        // Predictions of other blocks are of no use, and those that candidates were collected by must stay.
        if !self.given && partition == self.partition {
            for (b, Candidates { threshold, mut entries, .. }) in candidates.into_iter().enumerate() {
                entries.clear();
                (self.thresholds[b], self.spare[b]) = (threshold, entries);
            }
        }
        self.keep(accumulator, zero)?;
        Ok(Committed { update, lost })
    }

    /// Takes the accumulator back as it was lent: of a step that was given up, everything waits for the next.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Panics
    /// If it is of another length.
    pub fn give_back(
        &mut self,
        version: u64,
        accumulator: impl Into<Accumulator<T>>,
    ) -> Result<(), VersionError> {
        let accumulator = accumulator.into();
        assert_eq!(accumulator.len(), self.partition.entries(), "the gradient keeps its length");
        self.end(version)?;
        self.keep(accumulator, false)?;
        Ok(())
    }

    /// Undoes a step, whether or not it has begun: the residual is what it was before its gradient was given, of which every
    /// entry must have been given once, those that were refused too. What [`begin`](Self::begin) lent is of no more use.
    ///
    /// # Errors
    /// No step since the last one ended; a step that was given gradients while another was open, or the other way round.
    ///
    /// # Panics
    /// If the residual is not [revertible](Self::revertible).
    pub fn revert(&mut self) -> Result<(), VersionError> {
        let Some(before) = &mut self.before else { panic!("this residual is not revertible") };
        if self.overlapped {
            return Err(VersionError::Overlapped);
        }
        if self.open.is_empty() && !self.given {
            return Err(VersionError::NotLent(self.next));
        }
        assert_eq!(before.len(), self.partition.entries(), "the gradient was given");
        self.open.clear();
        (self.lent, self.given) = (false, false);
        self.values = before.take();
        self.zero = before.zero;
        if let Some(velocity) = &mut self.velocity {
            velocity.values = std::mem::take(&mut before.velocity);
        }
        self.pieces.iter_mut().for_each(Vec::clear);
        self.values.recut_between_steps(&self.partition, &self.quotas)?;
        Ok(())
    }
}
