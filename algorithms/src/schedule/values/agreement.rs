//! Indices that were proposed, and values that travel without them.

use std::sync::Arc;

use super::super::{Holders, How, Place, Store};
use super::choose::{floats, of_floats};
use super::receive::Refusal;
use super::{Aligned, Context, Held, Values};
use crate::bag::{Bag, Coding, Entries, Rounded};
use crate::selectors::random;
use crate::{Allotment, Block, Element, Reduction};

impl<T: Element> Aligned<T> {
    /// The same as a bag.
    pub(super) fn into_bag(self, len: usize) -> Bag<T> {
        Bag::smaller(self.into_entries(), len)
    }

    fn into_entries(self) -> Entries<T> {
        // Adding zero leaves one zero, whatever sign rounding gave it.
        self.indices.iter().copied().zip(self.values).map(|(i, v)| (i, v + T::ZERO)).collect()
    }
}

impl<T: Element> Values<T> {
    /// Rounds what a slot holds if it is aligned, and says whether it is. This worker keeps its share of what was rounded
    /// away.
    pub(super) fn round_aligned(
        &mut self,
        store: &mut Store<Held<T>>,
        place: Place,
        coding: Coding,
        (stage, holders): (u32, Holders),
    ) -> bool {
        let held = store.at(place).take_if(|held| matches!(held, Held::Aligned(_)));
        let Some(Held::Aligned(aligned)) = held else { return false };
        let (aligned, errors) = self.run.rounded(aligned, coding, place, (stage, holders.count == 1));
        *store.at(place) = Some(Held::Aligned(aligned));
        let share: Entries<T> = errors.iter().map(|(i, v)| (i, holders.share(v))).collect();
        let b = place.block.index();
        self.drops[b] = self.drops[b].merge(&share);
        true
    }

    /// Turns what a slot holds into a bag, if it is aligned.
    pub(super) fn unalign(&self, store: &mut Store<Held<T>>, place: Place) {
        let len = self.run.block_len(place.block);
        if let Some(Held::Aligned(aligned)) = store.at(place).take_if(|held| matches!(held, Held::Aligned(_)))
        {
            *store.at(place) = Some(Held::bag(aligned.into_bag(len)));
        }
    }

    /// Takes values at these indices, which were agreed on.
    pub(super) fn take_aligned(
        &mut self,
        store: &mut Store<Held<T>>,
        place: Place,
        (indices, values): (Arc<[u32]>, Vec<T>),
        rounded: Rounded,
        how: How,
    ) -> Result<(), Refusal> {
        self.tally.merged += values.len() as f64;
        if how == How::Add {
            let Some(Held::Aligned(held)) = store.at(place) else {
                let received = Aligned { indices, values, rounded, encoded: None };
                return self.take_sparse(store, place, received.into_entries(), Rounded::EXACT, how);
            };
            Reduction::Sum.combine_slices(&mut held.values, &values);
            (held.rounded, held.encoded) = (Rounded::EXACT, None);
            return match held.values.iter().position(|v| !v.is_finite()) {
                Some(position) => Err(Refusal::NotFinite(indices[position] as usize)),
                None => Ok(()),
            };
        }
        *store.at(place) = Some(Held::Aligned(Aligned { indices, values, rounded, encoded: None }));
        Ok(())
    }
}

impl<T: Element> Context<T> {
    /// Values rounded to a coding, and the errors where they are not zero.
    pub(super) fn rounded(
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

    /// This many indices of a block, sampled at random: the same on all workers, ascending.
    pub(super) fn sampled(&self, block: Block, k: &Allotment) -> Vec<u32> {
        let count = k.at(self.memory.steps, block) as usize;
        random::sampled(self.block_len(block), count, self.seed_of(Place { block, lane: 0 }, 0, false))
    }
}

/// All indices that were proposed for a block, in whatever lane, each once.
pub(super) fn proposed<T: Element>(store: &Store<Held<T>>, block: Block) -> Arc<[u32]> {
    let mut proposals = store.lanes_of(block).filter_map(|place| match store.get(place) {
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
