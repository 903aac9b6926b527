//! Taking messages in: decoding, adding to what is held, and passing on what need not wait.

use bytes::{Buf, Bytes, BytesMut};

use super::super::{How, Place, Receive, Slots, Step};
use super::{Carried, Execution, ExecutionError, Held, Outgoing};
use crate::bag::wire::{self, DecodeError, Part};
use crate::bag::{Bag, Dense, Entries, Marks, Rounded};
use crate::element::first_non_finite;
use crate::{Element, Rank};

impl<T: Element> Execution<T> {
    /// Takes the next message from a peer in; appends what can be sent right away.
    ///
    /// A dense block that the next exchange sends on as it is, as in a ring, leaves piece by piece while it comes.
    ///
    /// # Errors
    /// A message that is not what the schedule declares, or sums that are not finite. The run is then of no use.
    pub fn receive(
        &mut self,
        from: Rank,
        mut payload: Bytes,
        outbox: &mut Vec<Outgoing>,
    ) -> Result<(), ExecutionError> {
        let schedule = self.schedule.clone();
        let (receive, mut decoder) = match (schedule.steps.get(self.step), self.decoder.take()) {
            (Some(Step::Exchange { receives, .. }), Some(decoder))
                if receives[self.received].from == from =>
            {
                (&receives[self.received], decoder)
            }
            _ => return Err(ExecutionError::Unexpected { from }),
        };
        if self.notes.is_empty() {
            self.take_notes(&mut payload, receive)
                .map_err(|source| ExecutionError::Decode { from, source })?;
        }
        let mut overflow = None;
        decoder
            .feed(payload, |position, part| {
                let place = self.place_at(receive.slots, position);
                let (entries, words) = match &part {
                    // More than half of a block counts as all of its values, whichever form was smallest.
                    Part::Sparse { entries, .. } => {
                        let (count, len) = (entries.len() as u64, self.block_len(place.block) as u64);
                        (count, len.min(2 * count))
                    }
                    Part::Dense { values, .. } => {
                        let count = (values.len() / T::WIDTH) as u64;
                        (count, count)
                    }
                    Part::Proposal { indices } => (0, indices.len() as u64),
                    Part::Aligned { values, .. } => (values.len() as u64, values.len() as u64),
                };
                self.entries_received += entries;
                self.words_received += words;
                let taken = match part {
                    Part::Proposal { indices } => {
                        *self.slot(place) = Some(Held::Proposal(indices.into()));
                        Ok(())
                    }
                    Part::Aligned { values, rounded } => {
                        self.take_aligned(place, values, rounded, receive.how)
                    }
                    Part::Sparse { entries, rounded }
                        if Bag::<T>::is_dense_with(entries.len(), self.block_len(place.block)) =>
                    {
                        self.take_switched(place, &entries, rounded, receive.how)
                    }
                    Part::Sparse { entries, rounded } => {
                        self.take_sparse(place, entries, rounded, receive.how)
                    }
                    Part::Dense { first, values, rounded } => {
                        self.take_dense(place, first, values, rounded, receive.how).map(|sums| {
                            if rounded == Rounded::EXACT
                                && let Some(to) = self.passing_on(receive, place, first, outbox)
                            {
                                let exchange = self.exchanges + 1;
                                let payloads = wire::pieces(&sums);
                                outbox.extend(payloads.map(|payload| Outgoing { to, payload, exchange }));
                            }
                        })
                    }
                };
                if let Err(index) = taken {
                    overflow.get_or_insert(schedule.partition.range(place.block).start + index);
                }
            })
            .map_err(|source| ExecutionError::Decode { from, source })?;
        if let Some(entry) = overflow {
            return Err(ExecutionError::Overflow { from, entry });
        }
        if decoder.is_complete() {
            self.tie_notes(receive.slots);
            self.received += 1;
        } else {
            self.decoder = Some(decoder);
        }
        Ok(())
    }

    /// The notes before the first payload of a message whose bags carry some.
    fn take_notes(&mut self, payload: &mut Bytes, receive: &Receive) -> Result<(), DecodeError> {
        let Some(lengths) = self.proof.notes.get(&(self.step, self.received)) else { return Ok(()) };
        if payload.len() < 8 * lengths.iter().sum::<usize>() {
            return Err(DecodeError::Notes {
                expected: 8 * lengths.iter().sum::<usize>(),
                found: payload.len(),
            });
        }
        let note = |&len: &usize| {
            let numbers = (0..len).map(|_| payload.get_u64_le()).collect();
            Some(numbers).filter(|_| len > 0)
        };
        self.notes = lengths.iter().map(note).collect();
        if receive.how == How::Add {
            for position in 0..self.notes.len() {
                let place = self.place_at(receive.slots, position);
                let here = self.note(place);
                if let (Some(came), Some(here)) = (&mut self.notes[position], here) {
                    *came = here.iter().zip(came.iter()).map(|(a, b)| a.saturating_add(*b)).collect();
                }
            }
        }
        Ok(())
    }

    /// Ties the notes of a message that is complete to its bags.
    fn tie_notes(&mut self, slots: Slots) {
        for (position, note) in std::mem::take(&mut self.notes).into_iter().enumerate() {
            let place = self.place_at(slots, position);
            if let Some(Held::Bag(carried)) = self.slot(place) {
                carried.note = note;
            }
        }
    }

    /// Takes sparse entries in. The error is the index of a sum that is not finite.
    pub(super) fn take_sparse(
        &mut self,
        place: Place,
        mut entries: Entries<T>,
        rounded: Rounded,
        how: How,
    ) -> Result<(), usize> {
        self.unalign(place);
        let len = self.block_len(place.block) as f64;
        self.tally.merged += entries.len() as f64;
        match (how, &self.held[place.index(self.blocks())]) {
            (How::Add, Some(Held::Own(overlay))) => self.tally.merged += overlay.len() as f64,
            (How::Add, Some(Held::Bag(Carried { bag: Bag::Sparse(held), .. }))) => {
                self.tally.merged += held.len() as f64;
            }
            (How::Add, Some(Held::Bag(_))) => self.tally.dense += len,
            _ => {}
        }
        let held = match (how, self.slot(place).take()) {
            (How::Add, Some(Held::Own(overlay))) => {
                let (own, reduction) = (self.own(place.block), &self.reduction);
                // One access to memory for each, and nothing between them that would have to wait.
                let mut held: Vec<T> = entries.indices.iter().map(|&index| own[index as usize]).collect();
                reduction.combine_slices(&mut held, &entries.values);
                let sums = if overlay.is_empty() {
                    Entries { indices: entries.indices, values: held }
                } else {
                    let here = Marks::of(&overlay.indices);
                    for ((&index, value), sum) in entries.indices.iter().zip(&mut entries.values).zip(held) {
                        *value = if here.has(index) { *value } else { sum };
                    }
                    overlay.merge_keeping_zeros(&entries, reduction)
                };
                if let Some(at) = sums.values.iter().position(|sum| !sum.is_finite()) {
                    return Err(sums.indices[at] as usize);
                }
                Held::Own(sums)
            }
            (How::Add, Some(Held::Bag(carried))) => {
                let switched = carried.switched || matches!(carried.bag, Bag::Sparse(_));
                let bag =
                    carried.bag.combine(Bag::Sparse(entries), self.block_len(place.block), &self.reduction);
                if let Some(index) = bag.first_non_finite() {
                    return Err(index);
                }
                Held::Bag(Carried { switched, ..bag.into() })
            }
            _ => {
                let bag = Bag::smaller_with(entries, self.block_len(place.block), &self.reduction);
                Held::Bag(Carried { switched: true, rounded, ..bag.into() })
            }
        };
        *self.slot(place) = Some(held);
        Ok(())
    }

    /// Takes a bag in that its sender holds dense and told as entries, which were smaller: dense here, too. The error is
    /// the index of a sum that is not finite.
    fn take_switched(
        &mut self,
        place: Place,
        entries: &Entries<T>,
        rounded: Rounded,
        how: How,
    ) -> Result<(), usize> {
        let values = entries.to_dense_with(self.block_len(place.block), self.reduction.neutral());
        self.tally.merged += entries.len() as f64;
        self.tally.dense += values.len() as f64;
        let values = Dense::from(values).into_bytes().freeze();
        self.take_dense(place, 0, values, rounded, how)?;
        if let Some(Held::Bag(carried)) = self.slot(place) {
            carried.switched = true;
        }
        Ok(())
    }

    /// Takes consecutive values of a dense block in, adding what is held to them as they come, and gives the sums.
    fn take_dense(
        &mut self,
        place: Place,
        first: usize,
        values: Bytes,
        rounded: Rounded,
        how: How,
    ) -> Result<Bytes, usize> {
        let block = place.block;
        let range = first..first + values.len() / T::WIDTH;
        if first == 0 && how == How::Add {
            self.make_dense(place);
        }
        let index = place.index(self.blocks());
        if how == How::Add {
            self.tally.dense += range.len() as f64;
        }
        let sums = match (how, &self.held[index]) {
            (How::Add, Some(held)) => {
                // In the memory that the values came in, if nobody else has it.
                let mut sums = values.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
                match held {
                    Held::Bag(Carried { bag: Bag::Dense(dense), .. }) => {
                        let mut rest = &mut sums[..];
                        for stretch in dense.stretches(range) {
                            let (here, after) = rest.split_at_mut(stretch.len());
                            self.reduction.combine_bytes(here, stretch);
                            rest = after;
                        }
                    }
                    _ if cfg!(target_endian = "little") => {
                        self.reduction
                            .combine_bytes(&mut sums, bytemuck::cast_slice(&self.own(block)[range]));
                    }
                    _ => {
                        let own: Vec<u8> = self.own(block)[range].iter().flat_map(|v| v.to_le()).collect();
                        self.reduction.combine_bytes(&mut sums, &own);
                    }
                }
                if let Some(position) = first_non_finite::<T>(&sums) {
                    return Err(first + position);
                }
                sums.freeze()
            }
            _ => values,
        };
        self.arriving.push(sums.clone());
        if self.arriving.len() == self.block_len(block) {
            let bag = Bag::Dense(std::mem::take(&mut self.arriving));
            let rounded = if how == How::Place { rounded } else { Rounded::EXACT };
            self.held[index] = Some(Held::Bag(Carried { rounded, ..bag.into() }));
        }
        Ok(sums)
    }

    /// Turns what is held of a block into something that dense values can be added to piece by piece.
    fn make_dense(&mut self, place: Place) {
        self.unalign(place);
        let len = self.block_len(place.block) as f64;
        match self.slot(place) {
            Some(Held::Own(overlay)) if overlay.is_empty() => {}
            Some(Held::Own(_) | Held::Bag(Carried { bag: Bag::Sparse(_), .. })) => self.tally.dense += len,
            _ => {}
        }
        let held = match self.slot(place).take() {
            Some(Held::Own(overlay)) if !overlay.is_empty() => {
                Some(Held::bag(self.materialise(place.block, &overlay)))
            }
            Some(Held::Bag(Carried { bag: Bag::Sparse(entries), .. })) => {
                // −0 + x is x, also where x is −0: the sum has the sign that adding to x gives.
                let absent = if self.reduction.has_residual() { -T::ZERO } else { self.reduction.neutral() };
                let sum = entries.to_dense_with(self.block_len(place.block), absent);
                Some(Held::bag(Bag::Dense(sum.into())))
            }
            held => held,
        };
        *self.slot(place) = held;
    }

    /// To whom a piece of an arriving dense block goes on at once: the next exchange sends this block alone, and
    /// nothing is left to come in this one. Announces the block with its first piece.
    fn passing_on(
        &mut self,
        receive: &Receive,
        place: Place,
        first: usize,
        outbox: &mut Vec<Outgoing>,
    ) -> Option<Rank> {
        let last = matches!(
            &self.schedule.steps[self.step],
            Step::Exchange { receives, .. } if self.received + 1 == receives.len()
        );
        if first == 0
            && last
            && receive.slots == Slots::one(place.block)
            && self.notes.is_empty()
            && let Some(to) = self.schedule.passes_on(self.step)
            && let Some(payload) = wire::announce_dense::<T>(self.block_len(place.block))
        {
            self.passing_on = Some(to);
            outbox.push(Outgoing { to, payload, exchange: self.exchanges + 1 });
        }
        self.passing_on
    }
}
