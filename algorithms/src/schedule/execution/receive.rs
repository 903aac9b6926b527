//! Taking messages in: decoding, adding to what is held, and passing on what need not wait.

use bytes::{Bytes, BytesMut};

use super::super::{How, Receive, Slots, Step};
use super::{Execution, ExecutionError, Held, Outgoing};
use crate::bag::wire::{self, Part};
use crate::bag::{Bag, Entries, add_floats, first_non_finite, floats};
use crate::{Block, Rank};

impl Execution {
    /// Takes the next message from a peer in; appends what can be sent right away.
    ///
    /// A dense block that the next exchange sends on as it is, as in a ring, leaves piece by piece while it comes.
    ///
    /// # Errors
    /// A message that is not what the schedule declares, or sums that are not finite. The run is then of no use.
    pub fn receive(
        &mut self,
        from: Rank,
        payload: Bytes,
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
        let mut overflow = None;
        decoder
            .feed(payload, |position, part| {
                let block = self.block_at(receive.slots, position);
                self.entries_received += match &part {
                    Part::Sparse { entries, .. } => entries.len() as u64,
                    Part::Dense { values, .. } => values.len() as u64 / 4,
                };
                let taken = match part {
                    Part::Sparse { entries, .. } => self.take_sparse(block, entries, receive.how),
                    Part::Dense { first, values, .. } => {
                        self.take_dense(block, first, values, receive.how).map(|sums| {
                            if let Some(to) = self.passing_on(receive, block, first, outbox) {
                                outbox.extend(wire::pieces(&sums).map(|payload| Outgoing { to, payload }));
                            }
                        })
                    }
                };
                if let Err(index) = taken {
                    overflow.get_or_insert(schedule.partition.range(block).start + index);
                }
            })
            .map_err(|source| ExecutionError::Decode { from, source })?;
        if let Some(entry) = overflow {
            return Err(ExecutionError::Overflow { from, entry });
        }
        if decoder.is_complete() {
            self.received += 1;
        } else {
            self.decoder = Some(decoder);
        }
        Ok(())
    }

    /// Takes sparse entries in. The error is the index of a sum that is not finite.
    fn take_sparse(&mut self, block: Block, entries: Entries, how: How) -> Result<(), usize> {
        let b = block.index();
        let held = match (how, self.held[b].take()) {
            (How::Add, Some(Held::Own(overlay))) => {
                let own = self.own(block);
                let mut sums = Entries::with_capacity(overlay.len() + entries.len());
                let mut finite = Ok(());
                overlay.visit_union(&entries, |i, sum, received| {
                    let sum = sum.unwrap_or(own[i as usize]) + received.unwrap_or(0.0);
                    if !sum.is_finite() {
                        finite = Err(i as usize);
                    }
                    sums.push(i, sum);
                });
                finite?;
                Held::Own(sums)
            }
            (How::Add, Some(Held::Bag(bag))) => {
                let bag = bag.add(Bag::Sparse(entries), self.block_len(block));
                if let Some((i, _)) = bag.iter().find(|(_, v)| !v.is_finite()) {
                    return Err(i as usize);
                }
                Held::Bag(bag)
            }
            _ => Held::Bag(Bag::Sparse(entries)),
        };
        self.held[b] = Some(held);
        Ok(())
    }

    /// Takes consecutive values of a dense block in, adding what is held to them as they come, and gives the sums.
    fn take_dense(&mut self, block: Block, first: usize, values: Bytes, how: How) -> Result<Bytes, usize> {
        let b = block.index();
        let range = first..first + values.len() / 4;
        if first == 0 && how == How::Add {
            self.make_dense(block);
        }
        let sums = match (how, &self.held[b]) {
            (How::Add, Some(held)) => {
                // In the memory that the values came in, if nobody else has it.
                let mut sums = values.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
                match held {
                    Held::Bag(Bag::Dense(dense)) => {
                        let mut rest = &mut sums[..];
                        for stretch in dense.stretches(range) {
                            let (here, after) = rest.split_at_mut(stretch.len());
                            add_floats(here, floats(stretch));
                            rest = after;
                        }
                    }
                    _ => add_floats(&mut sums, self.own(block)[range].iter().copied()),
                }
                if let Some(position) = first_non_finite(&sums) {
                    return Err(first + position);
                }
                sums.freeze()
            }
            _ => values,
        };
        self.arriving.push(sums.clone());
        if self.arriving.len() == self.block_len(block) {
            self.held[b] = Some(Held::Bag(Bag::Dense(std::mem::take(&mut self.arriving))));
        }
        Ok(sums)
    }

    /// Turns what is held of a block into something that dense values can be added to piece by piece.
    fn make_dense(&mut self, block: Block) {
        let b = block.index();
        self.held[b] = match self.held[b].take() {
            Some(Held::Own(overlay)) if !overlay.is_empty() => {
                Some(Held::Bag(self.materialise(block, &overlay)))
            }
            Some(Held::Bag(Bag::Sparse(entries))) => {
                // −0 + x is x, also where x is −0: the sum has the sign that adding to x gives.
                let mut sum = vec![-0.0; self.block_len(block)];
                entries.iter().for_each(|(i, v)| sum[i as usize] = v);
                Some(Held::Bag(Bag::Dense(sum.into())))
            }
            held => held,
        };
    }

    /// To whom a piece of an arriving dense block goes on at once: the next exchange sends this block alone, and
    /// nothing is left to come in this one. Announces the block with its first piece.
    fn passing_on(
        &mut self,
        receive: &Receive,
        block: Block,
        first: usize,
        outbox: &mut Vec<Outgoing>,
    ) -> Option<Rank> {
        let steps = &self.schedule.steps;
        let last = matches!(&steps[self.step], Step::Exchange { receives, .. } if self.received + 1 == receives.len());
        if first == 0
            && last
            && receive.slots.count == 1
            && let Some(Step::Exchange { sends, .. }) = steps.get(self.step + 1)
            && let [send] = &sends[..]
            && send.slots == Slots::one(block)
            && let Some(payload) = wire::announce_dense(self.block_len(block))
        {
            self.passing_on = Some(send.to);
            outbox.push(Outgoing { to: send.to, payload });
        }
        self.passing_on
    }
}
