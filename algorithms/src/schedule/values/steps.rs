//! How each step changes the values that a worker holds.

use std::sync::Arc;

use bytes::Bytes;

use super::super::machine::{Arrival, Did, Reader, Slotted, Works};
use super::super::{After, Holders, Note, Place, Rule, Send, Slots};
use super::agreement::proposed;
use super::send::{keep_encoded, with_notes};
use super::work::{Purpose, Work};
use super::{Aligned, Carried, ExecutionError, Fate, Held, Outgoing, Values};
use crate::bag::wire::{self, Body, Decoder};
use crate::bag::{Bag, Coding, Entries, Rounded};
use crate::{Block, Element, device};

impl<T: Element> Reader for Values<T> {
    type Held = Held<T>;
    type Message = Bytes;
    type Work = Work<T>;
    type Error = ExecutionError;

    fn keep(
        &mut self,
        store: &mut Slotted<Self>,
        at: usize,
        slots: Slots,
        rule: &Rule,
        coding: Coding,
    ) -> Works<Self> {
        let run = self.run.clone();
        let facts = &run.program.facts[at];
        let mut places = Vec::new();
        for (place, (&holders, &stage)) in store.places(slots).zip(facts.holders.iter().zip(&facts.stages)) {
            // Rounding leaves what is aligned aligned.
            if !rule.keeps_form() {
                self.unalign(store, place);
            } else if self.round_aligned(store, place, coding, (stage, holders)) {
                continue;
            }
            places.push((place, holders, stage));
        }
        let is_bag = |place| matches!(store.get(place), Some(Held::Bag(_)));
        let keeps_all = rule.keeps_all() && coding == Coding::Exact;
        if keeps_all && places.iter().all(|&(place, ..)| is_bag(place)) {
            places.iter().for_each(|&(place, ..)| self.keep_all(store, place, rule));
            return Ok(Vec::new());
        }
        let mut inputs = Vec::with_capacity(places.len());
        for (place, holders, stage) in places {
            let held = match store.at(place).take() {
                // What others hold too is a bag, whichever worker it came from.
                Some(Held::Own(overlay)) if holders.count > 1 => {
                    Some(Held::bag(run.materialise(place.block, &overlay)?))
                }
                held => held,
            };
            inputs.push(self.input(place, held, holders, stage));
        }
        Ok(self.hand_out(inputs, rule, Purpose::Keep(coding)))
    }

    fn propose(&mut self, store: &mut Slotted<Self>, _: usize, slots: Slots, rule: &Rule) -> Works<Self> {
        let (run, lane) = (self.run.clone(), self.run.lane());
        let places: Vec<Place> = store.places(slots).collect();
        let mut inputs = Vec::new();
        for &place in &places {
            // What depends on no value is proposed at once.
            if let Some(indices) = run.without_values(place.block, rule) {
                self.tally.select(rule, true, indices.len() as f64);
                *store.at(place) = Some(Held::Proposal(indices, None));
                continue;
            }
            // A proposal takes nothing out.
            let held = store.get(Place { lane, ..place }).map(|_| Held::Own(Entries::default()));
            inputs.push(self.input(Place { lane, ..place }, held, Holders { count: 1, is_first: true }, 0));
        }
        let to = places.first().map_or(lane, |place| place.lane);
        Ok(self.hand_out(inputs, rule, Purpose::Propose(to)))
    }

    fn align(&mut self, store: &mut Slotted<Self>, at: usize, slots: Slots, coding: Coding) -> Did<Self> {
        let run = self.run.clone();
        for (place, &stage) in store.places(slots).zip(&run.program.facts[at].stages) {
            let (block, b) = (place.block, place.block.index());
            let indices = proposed(store, block);
            self.tally.sifted += indices.len() as f64;
            let values = self.run.own(block).gather(&indices)?;
            let rounded = Rounded::EXACT;
            let aligned = Aligned { indices: indices.clone(), values, rounded, encoded: None };
            let (aligned, errors) = run.rounded(aligned, coding, place, (stage, true));
            self.fates[b] =
                Fate::Selected { indices: indices.to_vec(), errors, remaining: Entries::default() };
            self.intact[b] = false;
            self.agreed[b] = Some(indices);
            *store.at(place) = Some(Held::Aligned(aligned));
        }
        Ok(())
    }

    fn sum(&mut self, store: &mut Slotted<Self>, _: usize, block: Block) -> Did<Self> {
        let len = self.run.block_len(block);
        let mut bags = Vec::new();
        let mut switched = true;
        for place in store.lanes_of(block) {
            match store.at(place).take_if(|held| !matches!(held, Held::Proposal(..))) {
                Some(Held::Own(overlay)) => {
                    switched = false;
                    bags.push(self.run.materialise(block, &overlay)?);
                }
                Some(Held::Bag(carried)) => {
                    switched &= carried.switched || matches!(carried.bag, Bag::Sparse(_));
                    bags.push(carried.bag);
                }
                Some(Held::Aligned(aligned)) => bags.push(aligned.into_bag(len)),
                Some(Held::Proposal(..)) | None => {}
            }
        }
        self.intact[block.index()] = false;
        for bag in &bags {
            match bag {
                // Each entry is merged once on every level of the tree.
                Bag::Sparse(entries) => self.tally.merged += entries.len() as f64 * levels(bags.len()),
                Bag::Dense(_) => self.tally.dense += len as f64,
            }
        }
        // As a balanced tree: what the checker proves about the order is about that one.
        let sum = Bag::reduce(bags, len, &self.run.reduction);
        if let Some(index) = sum.first_non_finite() {
            let entry = self.run.program.schedule.partition.range(block).start + index;
            return Err(ExecutionError::Sum { entry });
        }
        *store.at(Place { block, lane: 0 }) = Some(Held::Bag(Carried { switched, ..sum.into() }));
        Ok(())
    }

    fn split(&mut self, store: &mut Slotted<Self>, _: usize, block: Block) -> Did<Self> {
        let lanes = self.run.program.schedule.lanes as usize;
        let len = self.run.block_len(block);
        let entries = match store.at(Place { block, lane: 0 }).take() {
            Some(Held::Bag(carried)) => carried.bag.into_entries(),
            Some(Held::Aligned(aligned)) => aligned.into_bag(len).into_entries(),
            _ => Entries::default(),
        };
        self.tally.sifted += entries.len() as f64;
        let (each, longer) = (entries.len() / lanes, entries.len() % lanes);
        let mut from = 0;
        for piece in 0..lanes {
            let to = from + each + usize::from(piece < longer);
            let cut = Entries {
                indices: entries.indices[from..to].to_vec(),
                values: entries.values[from..to].to_vec(),
            };
            *store.at(Place { block, lane: piece as u32 }) = Some(Held::of_sparse(Bag::smaller(cut, len)));
            from = to;
        }
        Ok(())
    }

    fn annotate(&mut self, store: &mut Slotted<Self>, _: usize, slots: Slots, note: Note) -> Did<Self> {
        let cuts = match note {
            Note::Cut(parts) => self.cuts(parts),
            Note::Seen => Vec::new(),
        };
        for place in store.places(slots) {
            let mut carried = match store.at(place).take() {
                Some(Held::Bag(carried)) => carried,
                Some(Held::Own(overlay)) => self.run.materialise(place.block, &overlay)?.into(),
                Some(Held::Aligned(_) | Held::Proposal(..)) | None => Bag::empty().into(),
            };
            carried.note = Some(match note {
                Note::Cut(_) => Arc::from([cuts[place.block.index()]]),
                Note::Seen => Arc::from([carried.seen as u64]),
            });
            *store.at(place) = Some(Held::Bag(carried));
        }
        Ok(())
    }

    fn send(&mut self, store: &mut Slotted<Self>, at: usize, send: &Send, round: u64) -> Did<Self> {
        self.note_exchange();
        let (bodies, notes) = self.bodies(store, send)?;
        // They may have been passed on already, piece by piece.
        if self.passing_on.take().is_some() {
            return Ok(());
        }
        let (payloads, encoded) = wire::encode_keeping(&bodies);
        if send.after == After::Retain && self.run.program.facts[at].sends_again {
            let places = store.places(send.slots);
            let bodies = bodies.into_iter().map(|body| match body {
                Body::Encoded(encoded) => Some(encoded),
                _ => None,
            });
            let encoded = encoded.into_iter().zip(bodies).map(|(now, before)| now.or(before));
            places.zip(encoded).for_each(|(place, encoded)| keep_encoded(store, place, encoded));
        }
        let payloads = with_notes(payloads.into_iter(), &notes);
        self.outbox.extend(payloads.map(|payload| Outgoing { to: send.to, payload, round }));
        Ok(())
    }

    fn receive(
        &mut self,
        store: &mut Slotted<Self>,
        at: Arrival<'_>,
        mut payload: Bytes,
    ) -> Result<bool, ExecutionError> {
        self.note_exchange();
        let (receive, run) = (at.receive, self.run.clone());
        let (from, receipt) = (receive.from, &run.program.facts[at.step].receipts[at.index]);
        let wrong = |source| ExecutionError::Decode { from, source };
        if self.notes.is_empty() {
            self.take_notes(store, at, &mut payload).map_err(wrong)?;
        }
        let fresh = || {
            let decoder = Decoder::new(receipt.expected.clone());
            if !run.reduction.has_residual() {
                return decoder.with_negative_zeros();
            }
            let decoder = match run.is_on_device() {
                true => decoder.with_encoded_from(device::WORTHWHILE),
                false => decoder,
            };
            let places = store.places(receive.slots);
            decoder.with_sets(places.map(|place| self.agreed[place.block.index()].clone()).collect())
        };
        let mut decoder = self.decoder.take().unwrap_or_else(fresh);
        let places: Vec<Place> = store.places(receive.slots).collect();
        let mut taken = Ok(());
        let take = |position: usize, part| {
            if taken.is_ok() {
                taken = self.take_part(store, at, (position, places[position]), part);
            }
        };
        let fed = decoder.feed(payload, take);
        // A part that was malformed comes before what was found wrong behind it.
        taken?;
        fed.map_err(wrong)?;
        let complete = decoder.is_complete();
        if complete {
            self.tie_notes(store, &places);
        } else {
            self.decoder = Some(decoder);
        }
        Ok(complete)
    }

    fn passed(&mut self, at: usize, _: u64, ended: u64) {
        if !self.run.program.facts[at].receipts.is_empty() {
            let before: u64 = self.words_by_round.iter().map(|(_, words)| words).sum();
            self.words_by_round.push((ended, self.words_received - before));
        }
    }
}

/// The height of a balanced tree over this many bags, at least 1.
fn levels(bags: usize) -> f64 {
    f64::from(bags.next_power_of_two().trailing_zeros().max(1))
}
