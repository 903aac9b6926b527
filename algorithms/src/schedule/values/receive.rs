//! What has come and was decoded: adding it to what is held, and passing on what need not wait.

use bytes::{Bytes, BytesMut};

use super::super::{After, Arrival, Fault, How, Place, Slots, Store};
use super::send::keep_encoded;
use super::{Carried, ExecutionError, Held, Outgoing, Values};
use crate::bag::wire::{self, DecodeError, Encoded, Part};
use crate::bag::{Bag, Dense, Entries, Rounded};
use crate::device::DeviceError;
use crate::element::first_non_finite;
use crate::{Element, Rank};

/// Why something was not taken in.
pub(super) enum Refusal {
    /// A sum that is not finite, at this index of the block.
    NotFinite(usize),
    /// A bag that is malformed.
    Malformed(DecodeError),
    /// A device has failed.
    Device(DeviceError),
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl<T: Element> Values<T> {
    /// Takes in a part of what came for a place, which has a position in its slot.
    pub(super) fn take_part(
        &mut self,
        store: &mut Store<Held<T>>,
        at: Arrival<'_>,
        (position, place): (usize, Place),
        part: Part<T>,
    ) -> Result<(), ExecutionError> {
        let (from, how) = (at.receive.from, at.receive.how);
        let (len, facts) = (self.run.block_len(place.block), &self.run.program.facts[at.step]);
        // What is added, or not sent again, need not be kept as it came.
        let encoded = part.encoded().filter(|_| how == How::Place && facts.sends_later).cloned();
        let (entries, words) = counts(&part, len as u64);
        self.entries_received += entries;
        self.words_received += words;
        let taken = match part {
            Part::Proposal { indices, .. } => {
                *store.at(place) = Some(Held::Proposal(indices.into(), None));
                Ok(())
            }
            Part::Aligned { values, rounded, .. } => {
                let Some(set) = self.agreed[place.block.index()].clone() else {
                    return Err(Fault::Unexpected { rank: self.run.program.schedule.rank, from }.into());
                };
                self.take_aligned(store, place, (set, values), rounded, how)
            }
            Part::Sparse { entries, rounded, .. } if Bag::<T>::is_dense_with(entries.len(), len) => {
                self.take_switched(store, place, &entries, rounded, how)
            }
            Part::Sparse { entries, rounded, .. } => self.take_sparse(store, place, entries, rounded, how),
            Part::Encoded { count, rounded, encoded } => {
                self.take_encoded(store, (position, place), (count, encoded), rounded, how)
            }
            Part::Dense { first, values, rounded, .. } => {
                self.take_dense(store, place, first, values, how).map(|sums| {
                    let onward =
                        if rounded == Rounded::EXACT { self.passing_on(at, place, first) } else { None };
                    if let Some((to, _)) = onward {
                        let round = at.round + 1;
                        let payloads = wire::pieces(&sums);
                        self.outbox.extend(payloads.map(|payload| Outgoing { to, payload, round }));
                    }
                    // A piece that is passed on and not retained gives its memory to the next one, while that is in the processor's caches.
                    let stays = onward.is_none_or(|(_, after)| after == After::Retain);
                    self.arrived(store, place, sums, stays, rounding(rounded, how));
                })
            }
        };
        if encoded.is_some() {
            keep_encoded(store, place, encoded);
        }
        let start = self.run.program.schedule.partition.range(place.block).start;
        taken.map_err(|refusal| match refusal {
            Refusal::NotFinite(index) => ExecutionError::Overflow { from, entry: start + index },
            Refusal::Malformed(source) => ExecutionError::Decode { from, source },
            Refusal::Device(error) => error.into(),
        })
    }

    /// Takes a bag in as it came, which does not turn dense. A device adds it to what is held in one go, or decodes it, where that is faster.
    fn take_encoded(
        &mut self,
        store: &mut Store<Held<T>>,
        (position, place): (usize, Place),
        (count, came): (usize, Encoded),
        rounded: Rounded,
        how: How,
    ) -> Result<(), Refusal> {
        self.unalign(store, place);
        let (run, none) = (self.run.clone(), Entries::default());
        let merge = |held: &Entries<T>, beneath| run.accumulator.merge(held, beneath, &came);
        let (sums, held) = match store.get(place) {
            Some(Held::Own(overlay)) if how == How::Add => {
                let sums = match run.own(place.block).number_on_device() {
                    Some(block) => merge(overlay, Some(block))?.map(finite).transpose()?,
                    None => None,
                };
                (sums.map(Held::Own), overlay.len())
            }
            Some(Held::Bag(Carried { bag: Bag::Sparse(held), .. })) if how == How::Add => {
                let sums = merge(held, None)?.map(finite).transpose()?;
                let bag = |sums| Held::of_sparse(Bag::smaller(sums, run.block_len(place.block)));
                (sums.map(bag), held.len())
            }
            _ => {
                if let Some(entries) = merge(&none, None)? {
                    return self.take_sparse(store, place, entries, rounded, how);
                }
                (None, 0)
            }
        };
        if sums.is_some() {
            self.tally.merged += (count + held) as f64;
            *store.at(place) = sums;
            return Ok(());
        }
        let entries = came.entries(position, false).map_err(Refusal::Malformed)?;
        self.take_sparse(store, place, entries, rounded, how)
    }

    /// Takes sparse entries in.
    pub(super) fn take_sparse(
        &mut self,
        store: &mut Store<Held<T>>,
        place: Place,
        entries: Entries<T>,
        rounded: Rounded,
        how: How,
    ) -> Result<(), Refusal> {
        self.unalign(store, place);
        let len = self.run.block_len(place.block) as f64;
        self.tally.merged += entries.len() as f64;
        match (how, store.get(place)) {
            (How::Add, Some(Held::Own(overlay))) => self.tally.merged += overlay.len() as f64,
            (How::Add, Some(Held::Bag(Carried { bag: Bag::Sparse(held), .. }))) => {
                self.tally.merged += held.len() as f64;
            }
            (How::Add, Some(Held::Bag(_))) => self.tally.dense += len,
            _ => {}
        }
        let held = match (how, store.at(place).take()) {
            (How::Add, Some(Held::Own(overlay))) => {
                // One access to memory for each, and nothing between them that would have to wait.
                let own = self.run.own(place.block).gather(&entries.indices)?;
                Held::Own(finite(overlay.merge_over(own, entries, &self.run.reduction))?)
            }
            (How::Add, Some(Held::Bag(carried))) => {
                let switched = carried.switched || matches!(carried.bag, Bag::Sparse(_));
                let bag = carried.bag.combine(
                    Bag::Sparse(entries),
                    self.run.block_len(place.block),
                    &self.run.reduction,
                );
                if let Some(index) = bag.first_non_finite() {
                    return Err(Refusal::NotFinite(index));
                }
                Held::Bag(Carried { switched, ..bag.into() })
            }
            _ => {
                let bag = Bag::smaller_with(entries, self.run.block_len(place.block), &self.run.reduction);
                Held::Bag(Carried { switched: true, rounded, ..bag.into() })
            }
        };
        *store.at(place) = Some(held);
        Ok(())
    }

    /// Takes a bag in that its sender holds dense and encoded as entries, which were smaller: dense here, too.
    fn take_switched(
        &mut self,
        store: &mut Store<Held<T>>,
        place: Place,
        entries: &Entries<T>,
        rounded: Rounded,
        how: How,
    ) -> Result<(), Refusal> {
        let values = entries.to_dense_with(self.run.block_len(place.block), self.run.reduction.neutral());
        self.tally.merged += entries.len() as f64;
        self.tally.dense += values.len() as f64;
        let values = Dense::from(values).into_bytes().freeze();
        let sums = self.take_dense(store, place, 0, values, how)?;
        self.arrived(store, place, sums, true, rounding(rounded, how));
        if let Some(Held::Bag(carried)) = store.at(place) {
            carried.switched = true;
        }
        Ok(())
    }

    /// Takes consecutive values of a dense block in, adding what is held to them as they come, and gives the sums.
    fn take_dense(
        &mut self,
        store: &mut Store<Held<T>>,
        place: Place,
        first: usize,
        values: Bytes,
        how: How,
    ) -> Result<Bytes, Refusal> {
        let block = place.block;
        let range = first..first + values.len() / T::WIDTH;
        if first == 0 && how == How::Add {
            self.make_dense(store, place)?;
        }
        if how == How::Add {
            self.tally.dense += range.len() as f64;
        }
        let sums = match (how, store.get(place)) {
            (How::Add, Some(held)) => {
                // In the memory that the values came in, if it has no other holder.
                let mut sums = values.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
                match held {
                    Held::Bag(Carried { bag: Bag::Dense(dense), .. }) => {
                        let mut rest = &mut sums[..];
                        for stretch in dense.stretches(range) {
                            let (here, after) = rest.split_at_mut(stretch.len());
                            self.run.reduction.combine_bytes(here, stretch);
                            rest = after;
                        }
                    }
                    _ if cfg!(target_endian = "little") => {
                        let own = self.run.contribution(block, range)?;
                        self.run.reduction.combine_bytes(&mut sums, bytemuck::cast_slice(&own));
                    }
                    _ => {
                        let own = self.run.contribution(block, range)?;
                        let own: Vec<u8> = own.iter().flat_map(|v| v.to_le()).collect();
                        self.run.reduction.combine_bytes(&mut sums, &own);
                    }
                }
                if let Some(position) = first_non_finite::<T>(&sums) {
                    return Err(Refusal::NotFinite(first + position));
                }
                sums.freeze()
            }
            _ => values,
        };
        Ok(sums)
    }

    /// Keeps values of a dense block that have come, if they are to stay. With the last of them the place holds the block.
    fn arrived(
        &mut self,
        store: &mut Store<Held<T>>,
        place: Place,
        values: Bytes,
        stays: bool,
        rounded: Rounded,
    ) {
        self.came += values.len() / T::WIDTH;
        if stays {
            self.arriving.push(values);
        }
        if self.came == self.run.block_len(place.block) {
            self.came = 0;
            let bag = Bag::Dense(std::mem::take(&mut self.arriving));
            *store.at(place) = stays.then(|| Held::Bag(Carried { rounded, ..bag.into() }));
        }
    }

    /// Turns what is held of a block into something that dense values can be added to piece by piece.
    fn make_dense(&mut self, store: &mut Store<Held<T>>, place: Place) -> Result<(), DeviceError> {
        self.unalign(store, place);
        let len = self.run.block_len(place.block) as f64;
        match store.at(place) {
            Some(Held::Own(overlay)) if overlay.is_empty() => {}
            Some(Held::Own(_) | Held::Bag(Carried { bag: Bag::Sparse(_), .. })) => self.tally.dense += len,
            _ => {}
        }
        let dense = |bag: Bag<T>| match bag {
            Bag::Sparse(entries) => {
                let len = self.run.block_len(place.block);
                Held::bag(Bag::Dense(entries.to_dense_with(len, self.run.reduction.neutral()).into()))
            }
            dense @ Bag::Dense(_) => Held::bag(dense),
        };
        let held = match store.at(place).take() {
            Some(Held::Own(overlay)) if !overlay.is_empty() => {
                Some(dense(self.run.materialise(place.block, &overlay)?))
            }
            Some(Held::Bag(Carried { bag: bag @ Bag::Sparse(_), .. })) => Some(dense(bag)),
            held => held,
        };
        *store.at(place) = held;
        Ok(())
    }

    /// Where a piece of an arriving dense block is passed on to at once, and whether it is retained: the next exchange sends this block
    /// alone, and nothing is left to come in this one. Announces the block with its first piece.
    fn passing_on(&mut self, at: Arrival<'_>, place: Place, first: usize) -> Option<(Rank, After)> {
        let facts = &self.run.program.facts[at.step];
        if first == 0
            && at.index + 1 == facts.receipts.len()
            && at.receive.slots == Slots::one(place.block)
            && self.notes.is_empty()
            && let Some((to, after)) = facts.passes_on
            && let Some(payload) = wire::announce_dense::<T>(self.run.block_len(place.block))
        {
            self.passing_on = Some((to, after));
            self.outbox.push(Outgoing { to, payload, round: at.round + 1 });
        }
        self.passing_on
    }
}

/// Sums, if all are finite.
fn finite<T: Element>(sums: Entries<T>) -> Result<Entries<T>, Refusal> {
    match sums.values.iter().position(|sum| !sum.is_finite()) {
        Some(at) => Err(Refusal::NotFinite(sums.indices[at] as usize)),
        None => Ok(sums),
    }
}

/// What values are rounded to once they are taken in: sums are not.
fn rounding(rounded: Rounded, how: How) -> Rounded {
    if how == How::Place { rounded } else { Rounded::EXACT }
}

/// How many entries a part of a block of this length has, and how many words. More than half of a block counts as all of its
/// values, whichever form was smallest.
fn counts<T: Element>(part: &Part<T>, len: u64) -> (u64, u64) {
    match part {
        Part::Sparse { entries, .. } => (entries.len() as u64, len.min(2 * entries.len() as u64)),
        Part::Encoded { count, .. } => (*count as u64, len.min(2 * *count as u64)),
        Part::Dense { values, .. } => ((values.len() / T::WIDTH) as u64, (values.len() / T::WIDTH) as u64),
        Part::Proposal { indices, .. } => (0, indices.len() as u64),
        Part::Aligned { values, .. } => (values.len() as u64, values.len() as u64),
    }
}
