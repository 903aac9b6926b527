//! By which rule entries are chosen, what is left of the others, and rounding.

use std::sync::Arc;

use super::super::keep::{Candidates, OwnTop, Searched, above, jointly, overlaid, own_top, without};
use super::super::{Fault, Holders, Place, Rule, Tally};
use super::work::{Input, Left};
use super::{Carried, Context, ExecutionError, Fate, Held};
use crate::bag::{Bag, Coding, Entries, Rounded};
use crate::device::DeviceError;
use crate::selectors::{Selection, Source};
use crate::{Block, Element, select};

/// What a rule left of one slot.
pub(super) struct Sparsified<T: Element> {
    pub(super) kept: Entries<T>,
    /// What was not kept. Of a worker's own block only what others contributed to: the rest stays where it is.
    left: Entries<T>,
    /// How many entries it chose from.
    seen: usize,
    /// Whether this was the worker's own contribution, which no other worker holds.
    own: bool,
    /// Whether a device has chosen it.
    by_device: bool,
}

impl<T: Element> Context<T> {
    /// Applies a rule to each slot, or to all together. What they held is gone from them.
    pub(super) fn choose(
        &self,
        slots: &mut [Input<T>],
        rule: &Rule,
        tally: &mut Tally,
    ) -> Result<Vec<Sparsified<T>>, ExecutionError> {
        Ok(match rule {
            Rule::By(selection) => self.by(slots, selection)?,
            // A device may have begun to choose from one block.
            Rule::Jointly(k) if slots.len() == 1 => self.each(slots, tally, |_| Some(*k))?,
            Rule::Jointly(k) => self.together(slots, tally, T::from_f64(f64::MAX), |sources| {
                let (chosen, threshold) = jointly(sources, *k)?;
                let enough = *k > 0 && chosen.smallest > T::ZERO;
                let predict = || select::predict_threshold(threshold, chosen.reached, chosen.smallest, *k);
                let predicted = enough.then(predict);
                Ok((chosen.kept, predicted))
            })?,
            Rule::Above { register, most } => {
                let threshold = T::from_f64(self.memory.read(*register));
                self.together(slots, tally, threshold, |sources| {
                    let predicted = T::from_f64(0.8) * threshold;
                    let kept = above(sources, threshold, *most)?.kept;
                    Ok((kept, (threshold > T::ZERO).then_some(predicted)))
                })?
            }
            Rule::Top(_) | Rule::TopOf { .. } | Rule::Every | Rule::Dense => {
                self.each(slots, tally, |block| self.quota(rule, block))?
            }
            // What is sampled is only proposed, by `without_values`.
            Rule::Random(_) => return Err(Fault::Sampled { rank: self.program.schedule.rank }.into()),
        })
    }

    /// How many of a block by itself a rule keeps, if it counts them.
    pub(super) fn quota(&self, rule: &Rule, block: Block) -> Option<usize> {
        let turn = self.memory.steps;
        match rule {
            Rule::Top(k) => Some(k.at(turn, block) as usize),
            Rule::TopOf { register, most } => {
                let learnt = self.memory.read(*register).round().max(0.0) as usize;
                Some(learnt.min(most.at(turn, block) as usize))
            }
            _ => None,
        }
    }

    /// Keeps so many of the largest of each slot by itself, or all that there are.
    fn each(
        &self,
        slots: &mut [Input<T>],
        tally: &mut Tally,
        k: impl Fn(Block) -> Option<usize>,
    ) -> Result<Vec<Sparsified<T>>, DeviceError> {
        slots.iter_mut().map(|slot| self.alone(slot, k(slot.place.block), tally)).collect()
    }

    /// The indices that a rule proposes whatever the values are; None where it looks at them.
    pub(super) fn without_values(&self, block: Block, rule: &Rule) -> Option<Arc<[u32]>> {
        match rule {
            Rule::Every | Rule::Dense => Some((0..self.block_len(block) as u32).collect()),
            Rule::Random(k) => Some(self.sampled(block, k).into()),
            Rule::Top(_) | Rule::TopOf { .. } | Rule::Jointly(_) | Rule::Above { .. } | Rule::By(_) => None,
        }
    }

    /// Keeps the k largest of one slot, or all that there are.
    fn alone(
        &self,
        slot: &mut Input<T>,
        k: Option<usize>,
        tally: &mut Tally,
    ) -> Result<Sparsified<T>, DeviceError> {
        let block = slot.place.block;
        let len = self.block_len(block);
        Ok(match (slot.held.take(), k) {
            (Some(Held::Own(overlay)), Some(k)) => {
                let candidates = std::mem::take(&mut slot.candidates);
                // Without candidates the block is read again.
                if candidates.threshold.is_none() && k > 0 {
                    tally.dense += self.own(block).stored() as f64;
                }
                let OwnTop { kept, remaining, next } =
                    own_top(&self.own(block), &overlay, candidates, k as u32)?;
                let by_device = next.by_device;
                slot.candidates = next;
                Sparsified { kept, left: remaining, seen: len, own: true, by_device }
            }
            (Some(Held::Own(overlay)), None) => {
                let kept = overlaid(self.own(block).other_than(self.reduction.neutral())?, &overlay);
                Sparsified { kept, left: Entries::default(), seen: len, own: true, by_device: false }
            }
            (Some(Held::Bag(Carried { bag, .. })), k) => {
                // Its own contribution with a dense one added is chosen from as with an overlay.
                let own = slot.intact && matches!(bag, Bag::Dense(_));
                let entries = bag.into_entries();
                let seen = entries.len();
                let (mut kept, mut left) = (Entries::default(), Entries::default());
                match k {
                    Some(k) => {
                        select::top_k(&entries.indices, &entries.values, k, &mut kept, Some(&mut left));
                    }
                    None => kept = entries,
                }
                Sparsified { kept, left, seen, own, by_device: false }
            }
            // What is aligned was turned into a bag before.
            (Some(Held::Aligned(_) | Held::Proposal(..)) | None, _) => {
                let (kept, left) = Default::default();
                Sparsified { kept, left, seen: 0, own: false, by_device: false }
            }
        })
    }

    /// Lets a selector choose from all of the worker's own accumulator, which nothing was added to: the checker proves it.
    fn by(&self, slots: &mut [Input<T>], selection: &Selection) -> Result<Vec<Sparsified<T>>, DeviceError> {
        let schedule = &self.program.schedule;
        let partition = &schedule.partition;
        let mut candidates = Candidates { threshold: Some(T::ZERO), ..Candidates::default() };
        for slot in slots.iter_mut() {
            let collected = &mut slot.candidates;
            // Complete from the highest of the thresholds on; not at all if one block has none.
            candidates.threshold = match (candidates.threshold, collected.threshold.take()) {
                (Some(all), Some(here)) => Some(if here > all { here } else { all }),
                _ => None,
            };
            let start = partition.range(slot.place.block).start as u32;
            let Entries { indices, values } = std::mem::take(&mut collected.entries);
            candidates.entries.indices.extend(indices.iter().map(|index| start + index));
            candidates.entries.values.extend(values);
        }
        let everything = Place { block: Block(schedule.rank.0), lane: schedule.lanes };
        let seed = self.seed_of(everything, 0, true);
        let blocks = (0..self.blocks() as u32).map(Block);
        let blocks = blocks.map(|block| (partition.range(block).start as u32, self.own(block))).collect();
        let source = Source::new(&self.accumulator, blocks, &candidates);
        let chosen = selection.choose_from(&source, &self.memory.own, seed)?;
        let taken = slots.iter_mut().zip(chosen.entries.split(partition)).map(|(slot, kept)| {
            slot.candidates.threshold = chosen.collect;
            let seen = self.block_len(slot.place.block);
            Sparsified { kept, left: Entries::default(), seen, own: true, by_device: false }
        });
        Ok(taken.collect())
    }

    /// Applies a rule that looks at all slots together: it says what is kept of each, and what it predicts for the next step. A
    /// block whose candidates do not reach down to `least` is read again.
    fn together(
        &self,
        slots: &mut [Input<T>],
        tally: &mut Tally,
        least: T,
        rule: impl FnOnce(&[Searched<'_, T>]) -> Result<(Vec<Entries<T>>, Option<T>), DeviceError>,
    ) -> Result<Vec<Sparsified<T>>, DeviceError> {
        let mut inputs = Vec::with_capacity(slots.len());
        for slot in slots.iter_mut() {
            inputs.push(match slot.held.take() {
                Some(Held::Own(overlay)) => (overlay, true, true),
                Some(Held::Bag(Carried { bag, .. })) => {
                    // The worker's own block with a dense one added: what is not kept waits here.
                    let own = slot.intact && matches!(bag, Bag::Dense(_));
                    (bag.into_entries(), own, false)
                }
                Some(Held::Aligned(_) | Held::Proposal(..)) | None => (Entries::default(), false, false),
            });
        }
        let mut sources = Vec::with_capacity(slots.len());
        for (slot, (entries, _, laid_over)) in slots.iter().zip(&inputs) {
            sources.push(match laid_over {
                true => Searched::Own(self.own(slot.place.block), entries, &slot.candidates),
                false => Searched::Bag(entries),
            });
        }
        let read = sources.iter().filter(|source| source.reads(least)).map(Searched::len).sum::<usize>();
        tally.dense += read as f64;
        let (kept, predicted) = rule(&sources)?;
        drop(sources);
        let mut chosen = Vec::with_capacity(slots.len());
        for ((slot, (entries, own, laid_over)), kept) in slots.iter_mut().zip(inputs).zip(kept) {
            let left = without(&entries, &kept.indices);
            if laid_over {
                slot.candidates.threshold = predicted;
            }
            let seen = if laid_over { self.block_len(slot.place.block) } else { entries.len() };
            chosen.push(Sparsified { kept, left, seen, own, by_device: false });
        }
        Ok(chosen)
    }

    /// Rounds what was kept, and gives what was not, for the residual.
    pub(super) fn round(
        &self,
        place: Place,
        chosen: Sparsified<T>,
        rule: &Rule,
        (coding, stage, holders): (Coding, u32, Holders),
        tally: &mut Tally,
    ) -> Result<(Carried<T>, Left<T>), DeviceError> {
        let Sparsified { kept, mut left, seen, own, by_device } = chosen;
        let (len, alone) = (self.block_len(place.block), holders.count == 1);
        tally.select(rule, own, if own { kept.len() } else { seen } as f64);
        if rule.makes_dense() {
            tally.dense += len as f64;
        }
        let seed = || self.seed_of(place, stage, alone);
        let (rounded, kept, errors) = match (coding, floats(&kept.values)) {
            (Coding::Exact, _) | (_, None) => (Rounded::EXACT, kept, Entries::default()),
            (_, Some(values)) => {
                let kept = float_entries(&kept, values);
                let (rounded, kept, errors) = match rule.makes_dense() {
                    true => coding.round_among_all(&kept, len, seed()),
                    false => coding.round(&kept, len, seed()),
                };
                (rounded, element_entries(&kept), element_entries(&errors))
            }
        };
        let rest = if own && alone {
            // What was rounded to nothing was not selected; where others had contributed to it, it waits here.
            let vanished = without(&errors, &kept.indices);
            let errors = without(&errors, &vanished.indices);
            if !vanished.is_empty() {
                left = left.merge(&self.contributed(place, &vanished)?);
            }
            Left::Own(Fate::Selected { indices: kept.indices.clone(), errors, remaining: left })
        } else {
            let mut shares = if errors.is_empty() { left } else { left.merge(&errors) };
            shares.values.iter_mut().for_each(|value| *value = holders.share(*value));
            Left::Share(shares)
        };
        let bag = match rule.makes_dense() {
            true => Bag::Dense(kept.to_dense_with(len, self.reduction.neutral()).into()),
            false => Bag::smaller_with(kept, len, &self.reduction),
        };
        let switched = !rule.makes_dense();
        Ok((Carried { bag, switched, rounded, note: None, seen, by_device, encoded: None }, rest))
    }

    /// Of entries of a worker's own block those whose values are not its own alone.
    fn contributed(&self, place: Place, entries: &Entries<T>) -> Result<Entries<T>, DeviceError> {
        let own = self.own(place.block).gather(&entries.indices)?;
        Ok(entries.iter().zip(own).filter(|((_, value), own)| own != value).map(|(entry, _)| entry).collect())
    }

    /// Where a rounding takes its random numbers from: the same for every copy of a content, another one in each step of
    /// the job, each slot and each stage, and on each worker that rounds what it holds `alone`: equal gradients must not have
    /// equal errors, which would add up.
    pub(super) fn seed_of(&self, place: Place, stage: u32, alone: bool) -> u64 {
        let place = u64::from(place.block.0) << 32 | u64::from(place.lane);
        let alone = if alone { 1 + u64::from(self.program.schedule.rank.0) } else { 0 };
        let mut seed = self.seed;
        for part in [place, u64::from(stage), alone] {
            seed = (seed ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            seed ^= seed >> 29;
        }
        seed
    }
}

/// Values as floats of 32 bits, the only ones that are rounded to a coding.
pub(super) fn floats<T: Element>(values: &[T]) -> Option<&[f32]> {
    (T::NAME == f32::NAME).then(|| bytemuck::cast_slice(values))
}

/// The other way.
pub(super) fn of_floats<T: Element>(values: &[f32]) -> Vec<T> {
    bytemuck::cast_slice(values).to_vec()
}

fn float_entries<T: Element>(entries: &Entries<T>, values: &[f32]) -> Entries {
    Entries { indices: entries.indices.clone(), values: values.to_vec() }
}

fn element_entries<T: Element>(entries: &Entries) -> Entries<T> {
    Entries { indices: entries.indices.clone(), values: of_floats(&entries.values) }
}
