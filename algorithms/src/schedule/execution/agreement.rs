//! Proposing indices, keeping what lies at them, and adding up values that travel without them.

use std::sync::Arc;

use super::super::{Holders, How, Place, Rule, Slots};
use super::selection::{floats, of_floats};
use super::{Aligned, Execution, Fate, Held};
use crate::bag::{Bag, Coding, Entries, Rounded};
use crate::selectors::random;
use crate::{Allotment, Block, Element, Reduction};

impl<T: Element> Aligned<T> {
    /// The same as a bag, without the zeros.
    pub(super) fn into_bag(self, len: usize) -> Bag<T> {
        Bag::smaller(self.into_entries(), len)
    }

    fn into_entries(self) -> Entries<T> {
        self.indices.iter().copied().zip(self.values).filter(|(_, v)| *v != T::ZERO).collect()
    }
}

impl<T: Element> Execution<T> {
    /// Chooses from the worker's own accumulator, and lays down the indices.
    pub(super) fn propose(&mut self, slots: Slots, rule: &Rule) {
        let places: Vec<Place> = slots.places(self.blocks(), self.schedule.lanes).collect();
        let indices: Vec<Arc<[u32]>> = match rule {
            Rule::Every | Rule::Dense => {
                places.iter().map(|place| (0..self.block_len(place.block) as u32).collect()).collect()
            }
            Rule::Random(k) => {
                let drawn = |block: Block| self.drawn(block, k);
                places.iter().map(|place| drawn(place.block).into()).collect()
            }
            _ => {
                let lane = self.schedule.lane;
                let own: Vec<Place> = places.iter().map(|&place| Place { lane, ..place }).collect();
                let selections = self.select(&own, rule);
                self.chose(&selections);
                // A proposal takes nothing out.
                own.iter().for_each(|&place| *self.slot(place) = Some(Held::Own(Entries::default())));
                selections.into_iter().map(|s| s.kept.indices.into()).collect()
            }
        };
        for (place, indices) in places.into_iter().zip(indices) {
            self.tally.select(rule, true, indices.len() as f64);
            *self.slot(place) = Some(Held::Proposal(indices, None));
        }
    }

    /// So many indices of a block, drawn at random: the same on all workers, ascending.
    pub(super) fn drawn(&self, block: Block, k: &Allotment) -> Vec<u32> {
        let count = k.at(self.memory.steps, block) as usize;
        random::drawn(self.block_len(block), count, self.seed_of(Place { block, lane: 0 }, 0, false))
    }

    /// Keeps the worker's own values at what was proposed.
    pub(super) fn align(&mut self, slots: Slots, coding: Coding) {
        let places: Vec<Place> = slots.places(self.blocks(), self.schedule.lanes).collect();
        let stages = self.program.facts[self.step].stages.clone();
        for (place, stage) in places.into_iter().zip(stages) {
            let (block, b) = (place.block, place.block.index());
            let indices = self.proposed(block);
            self.tally.sifted += indices.len() as f64;
            // Adding zero leaves one zero, whatever its sign was.
            let own = self.own(block);
            let values = indices.iter().map(|&i| own[i as usize] + T::ZERO).collect();
            let rounded = Rounded::EXACT;
            let aligned = Aligned { indices: indices.clone(), values, rounded, encoded: None };
            let (aligned, errors) = self.rounded(aligned, coding, place, (stage, true));
            self.fates[b] = Fate::Selected { indices: indices.to_vec(), errors, settled: Entries::default() };
            self.intact[b] = false;
            self.agreed[b] = Some(indices);
            *self.slot(place) = Some(Held::Aligned(aligned));
        }
    }

    /// All indices that were proposed for a block, in whatever lane, each once.
    fn proposed(&self, block: Block) -> Arc<[u32]> {
        let lanes = 0..self.schedule.lanes;
        let mut proposals =
            lanes.filter_map(|lane| match &self.held[Place { block, lane }.index(self.blocks())] {
                Some(Held::Proposal(indices, _)) => Some(indices),
                _ => None,
            });
        let first = proposals.next().cloned().unwrap_or_default();
        let others: Vec<u32> = proposals.flat_map(|indices| indices.iter().copied()).collect();
        if others.is_empty() {
            return first;
        }
        let mut all = [&first[..], &others].concat();
        all.sort_unstable();
        all.dedup();
        all.into()
    }

    /// Values rounded to a coding, and the errors where they are not zero.
    fn rounded(
        &self,
        aligned: Aligned<T>,
        coding: Coding,
        place: Place,
        (stage, alone): (u32, bool),
    ) -> (Aligned<T>, Entries<T>) {
        let (indices, len) = (aligned.indices.clone(), self.block_len(place.block));
        match floats(&aligned.values) {
            Some(values) if coding != Coding::Exact => {
                let mut values = values.to_vec();
                let mut errors = vec![0.0; values.len()];
                let seed = self.seed_of(place, stage, alone);
                let rounded = coding.round_at(&indices, &mut values, &mut errors, len, seed);
                let errors = indices.iter().copied().zip(of_floats::<T>(&errors));
                let errors = errors.filter(|(_, error)| *error != T::ZERO).collect();
                (Aligned { indices, values: of_floats(&values), rounded, encoded: None }, errors)
            }
            _ => (aligned, Entries::default()),
        }
    }

    /// Rounds what a slot holds if it is aligned, and says whether it is. This worker keeps its share of what was rounded
    /// away.
    pub(super) fn round_aligned(
        &mut self,
        place: Place,
        coding: Coding,
        stage: u32,
        holders: Holders,
    ) -> bool {
        let Some(Held::Aligned(aligned)) = self.slot(place).take_if(|held| matches!(held, Held::Aligned(_)))
        else {
            return false;
        };
        let (aligned, errors) = self.rounded(aligned, coding, place, (stage, holders.count == 1));
        *self.slot(place) = Some(Held::Aligned(aligned));
        let share: Entries<T> = errors.iter().map(|(i, v)| (i, holders.share(v))).collect();
        let b = place.block.index();
        self.drops[b] = self.drops[b].merge(&share);
        true
    }

    /// Turns what a slot holds into a bag, if it is aligned.
    pub(super) fn unalign(&mut self, place: Place) {
        let len = self.block_len(place.block);
        if let Some(Held::Aligned(aligned)) =
            self.slot(place).take_if(|held| matches!(held, Held::Aligned(_)))
        {
            *self.slot(place) = Some(Held::bag(aligned.into_bag(len)));
        }
    }

    /// Takes values at the indices that were agreed on. The error is the index of a sum that is not finite.
    pub(super) fn take_aligned(
        &mut self,
        place: Place,
        values: Vec<T>,
        rounded: Rounded,
        how: How,
    ) -> Result<(), usize> {
        let Some(indices) = self.agreed[place.block.index()].clone() else { return Ok(()) };
        self.tally.merged += values.len() as f64;
        if how == How::Add {
            let Some(Held::Aligned(held)) = self.slot(place) else {
                let received = Aligned { indices, values, rounded, encoded: None };
                return self.take_sparse(place, received.into_entries(), Rounded::EXACT, how);
            };
            Reduction::Sum.combine_slices(&mut held.values, &values);
            (held.rounded, held.encoded) = (Rounded::EXACT, None);
            return match held.values.iter().position(|v| !v.is_finite()) {
                Some(position) => Err(indices[position] as usize),
                None => Ok(()),
            };
        }
        *self.slot(place) = Some(Held::Aligned(Aligned { indices, values, rounded, encoded: None }));
        Ok(())
    }
}
