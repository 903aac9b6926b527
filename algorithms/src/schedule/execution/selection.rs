//! Keeping entries: by which rule, what becomes of the others, and rounding.

use std::sync::Arc;

use super::super::keep::{Candidates, Chosen, OwnTop, Source, above, jointly, own_top, without};
use super::super::{Holders, Place, Rule, Slots};
use super::{Carried, Execution, Fate, Held};
use crate::bag::{Bag, Coding, Entries, Rounded};
use crate::selectors::Selection;
use crate::{Block, Element, Reduction, select};

/// What a rule left of one slot.
pub(super) struct Kept<T: Element> {
    pub(super) kept: Entries<T>,
    /// What was not kept. Of a worker's own block only what others contributed to: the rest stays where it is.
    left: Entries<T>,
    /// How many entries it chose from.
    seen: usize,
    /// Whether this was the worker's own contribution, which nobody else holds.
    own: bool,
}

impl<T: Element> Execution<T> {
    /// Keeps what the rule chooses from each of the slots.
    pub(super) fn keep(&mut self, slots: Slots, rule: &Rule, coding: Coding) {
        let places: Vec<Place> = slots.places(self.blocks(), self.schedule.lanes).collect();
        let (holders, stages) = (self.proof.holders.get(&self.step), self.proof.stages.get(&self.step));
        let holders = holders.cloned().unwrap_or_else(|| vec![Holders::ALONE; places.len()]);
        let stages = stages.cloned().unwrap_or_else(|| vec![1; places.len()]);
        let mut work: Vec<_> = places.iter().copied().zip(holders).zip(stages).collect();
        match rule {
            // Rounding leaves what is aligned aligned.
            Rule::Every => {
                work.retain(|&((place, holders), stage)| !self.round_aligned(place, coding, stage, holders))
            }
            _ => places.iter().for_each(|&place| self.unalign(place)),
        }
        let ((places, holders), stages): ((Vec<Place>, Vec<Holders>), Vec<u32>) = work.into_iter().unzip();
        if matches!(rule, Rule::Every | Rule::Dense) && coding == Coding::Exact && self.are_bags(&places) {
            places.iter().for_each(|&place| self.keep_all(place, rule));
            return;
        }
        if places.is_empty() {
            return;
        }
        for (&place, &holders) in places.iter().zip(&holders) {
            self.prepare(place, holders.count);
        }
        let notes: Vec<_> = places.iter().map(|&place| self.note(place)).collect();
        let untouched = matches!(
            self.slot(places[0]), Some(Held::Own(overlay)) if overlay.is_empty()
        );
        let selections = self.select(&places, rule);
        if untouched {
            self.chose(&selections);
        }
        for (i, (place, selection)) in places.into_iter().zip(selections).enumerate() {
            self.settle(place, selection, rule, (coding, stages[i]), holders[i]);
            if let Some(Held::Bag(carried)) = self.slot(place) {
                carried.note.clone_from(&notes[i]);
            }
        }
    }

    /// Applies a rule to each slot, or to all together. What they held is gone from them.
    pub(super) fn select(&mut self, places: &[Place], rule: &Rule) -> Vec<Kept<T>> {
        match rule {
            Rule::Jointly(_) | Rule::Above { .. } => self.together(places, rule),
            Rule::By(selection) => self.by(places, selection),
            _ => places.iter().map(|&place| self.alone(place, rule)).collect(),
        }
    }

    /// Notes what was chosen from the worker's own gradient.
    pub(super) fn chose(&mut self, selections: &[Kept<T>]) {
        self.own.entries += selections.iter().map(|s| s.kept.len()).sum::<usize>();
        let smallest = selections.iter().flat_map(|s| &s.kept.values).map(|v| v.to_f64().abs());
        let smallest = smallest.fold(f64::INFINITY, f64::min);
        let before = if self.own.smallest > 0.0 { self.own.smallest } else { f64::INFINITY };
        let smallest = smallest.min(before);
        self.own.smallest = if smallest.is_finite() { smallest } else { 0.0 };
    }

    fn are_bags(&mut self, places: &[Place]) -> bool {
        places.iter().all(|&place| matches!(self.slot(place), Some(Held::Bag(_))))
    }

    /// Keeps a bag as it is, or makes it dense.
    fn keep_all(&mut self, place: Place, rule: &Rule) {
        let len = self.block_len(place.block);
        let neutral = self.reduction.neutral();
        if *rule == Rule::Dense {
            self.tally.dense += len as f64;
        }
        if let Some(Held::Bag(carried)) = self.slot(place) {
            carried.seen = carried.bag.nonzeros();
            if *rule == Rule::Dense {
                carried.switched = false;
                if let Bag::Sparse(entries) = &carried.bag {
                    carried.bag = Bag::Dense(entries.to_dense_with(len, neutral).into());
                }
            }
        }
    }

    /// The note tied to what a slot holds, which a selection leaves where it is.
    pub(super) fn note(&mut self, place: Place) -> Option<Arc<[u64]>> {
        match self.slot(place) {
            Some(Held::Bag(carried)) => carried.note.clone(),
            _ => None,
        }
    }

    /// What others hold too is a bag, whoever it came from.
    fn prepare(&mut self, place: Place, holders: u32) {
        let held = match self.slot(place).take() {
            Some(Held::Own(overlay)) if holders > 1 => {
                Some(Held::bag(self.materialise(place.block, &overlay)))
            }
            held => held,
        };
        *self.slot(place) = held;
    }

    /// Applies a rule that looks at one slot.
    fn alone(&mut self, place: Place, rule: &Rule) -> Kept<T> {
        let block = place.block;
        let b = block.index();
        let intact = place.lane == self.schedule.lane && self.intact[b];
        let held = self.slot(place).take();
        let k = match rule {
            Rule::Top(k) => Some(k[b] as usize),
            Rule::TopOf { register, most } => {
                Some((self.memory.read(*register).round().max(0.0) as usize).min(most[b] as usize))
            }
            _ => None,
        };
        match (held, k) {
            (Some(Held::Own(overlay)), Some(k)) => {
                let candidates = std::mem::take(&mut self.candidates[b]);
                // Without candidates the block is read again.
                if candidates.threshold.is_none() && k > 0 {
                    self.tally.dense += self.block_len(block) as f64;
                }
                let OwnTop { kept, settled, next } = own_top(self.own(block), &overlay, candidates, k as u32);
                self.candidates[b] = next;
                Kept { kept, left: settled, seen: self.block_len(block), own: true }
            }
            (Some(Held::Own(overlay)), None) => {
                let values = if overlay.is_empty() {
                    std::borrow::Cow::Borrowed(self.own(block))
                } else {
                    let mut values = self.own(block).to_vec();
                    overlay.iter().for_each(|(i, v)| values[i as usize] = v);
                    std::borrow::Cow::Owned(values)
                };
                let kept: Entries<T> = match rule {
                    Rule::Random(k) => {
                        let drawn = self.drawn(block, k[b] as usize);
                        drawn
                            .iter()
                            .map(|&i| (i, values[i as usize]))
                            .filter(|(_, v)| *v != T::ZERO)
                            .collect()
                    }
                    _ => {
                        let neutral = self.reduction.neutral();
                        let present = values.iter().enumerate().filter(|(_, v)| **v != neutral);
                        present.map(|(i, &v)| (i as u32, v)).collect()
                    }
                };
                let left = without(&overlay, &kept.indices);
                Kept { kept, left, seen: self.block_len(block), own: true }
            }
            // No rule is applied to these: they were turned into bags before.
            (Some(Held::Aligned(_) | Held::Proposal(_)), _) => {
                Kept { kept: Entries::default(), left: Entries::default(), seen: 0, own: false }
            }
            // Its own contribution with a dense one added: the same choice as from an overlay.
            (Some(Held::Bag(Carried { bag: Bag::Dense(sums), .. })), k) if intact => {
                let values = sums.to_vec();
                let kept = match (k, rule) {
                    (Some(k), _) => select::top_k_dense(&values, k),
                    (None, Rule::Random(k)) => {
                        only(&Entries::from_dense(&values), &self.drawn(block, k[b] as usize))
                    }
                    _ => Entries::from_dense(&values),
                };
                let left = without(&(0u32..).zip(sums.iter()).collect(), &kept.indices);
                Kept { kept, left, seen: values.len(), own: true }
            }
            (Some(Held::Bag(Carried { bag, .. })), k) => {
                let entries = bag.into_entries();
                let seen = entries.len();
                let (mut kept, mut left) = (Entries::default(), Entries::default());
                match (k, rule) {
                    (Some(k), _) => {
                        select::top_k(&entries.indices, &entries.values, k, &mut kept, Some(&mut left));
                    }
                    (None, Rule::Random(k)) => {
                        kept = only(&entries, &self.drawn(block, k[b] as usize));
                        left = without(&entries, &kept.indices);
                    }
                    _ => kept = entries,
                }
                Kept { kept, left, seen, own: false }
            }
            (None, _) => Kept { kept: Entries::default(), left: Entries::default(), seen: 0, own: false },
        }
    }

    /// Lets a selector choose from all of the worker's own accumulator, which nobody added to: the checker saw to that.
    fn by(&mut self, places: &[Place], selection: &Selection) -> Vec<Kept<T>> {
        let partition = &self.schedule.partition;
        let mut candidates = Candidates { threshold: Some(T::ZERO), entries: Entries::default() };
        for (b, collected) in self.candidates.iter_mut().enumerate() {
            // Complete from the highest of the thresholds on; not at all if one block has none.
            candidates.threshold = match (candidates.threshold, collected.threshold.take()) {
                (Some(all), Some(here)) => Some(if here > all { here } else { all }),
                _ => None,
            };
            let start = partition.range(Block(b as u32)).start as u32;
            let Entries { indices, values } = std::mem::take(&mut collected.entries);
            candidates.entries.indices.extend(indices.iter().map(|index| start + index));
            candidates.entries.values.extend(values);
        }
        let everything = Place { block: Block(self.schedule.rank.0), lane: self.schedule.lanes };
        let seed = self.seed_of(everything, 0, true);
        let chosen = selection.choose(&self.accumulator, &candidates, &self.memory.own, seed);
        let kept = chosen.entries.split(partition);
        self.candidates.iter_mut().for_each(|candidates| candidates.threshold = chosen.collect);
        let taken = places.iter().zip(kept).map(|(&place, kept)| {
            *self.slot(place) = None;
            let seen = self.block_len(place.block);
            Kept { kept, left: Entries::default(), seen, own: true }
        });
        taken.collect()
    }

    /// Applies a rule that looks at all slots together.
    fn together(&mut self, places: &[Place], rule: &Rule) -> Vec<Kept<T>> {
        enum Input<T: Element> {
            Own(Entries<T>),
            Bag(Entries<T>, bool),
        }
        let inputs: Vec<Input<T>> = places
            .iter()
            .map(|&place| {
                let intact = place.lane == self.schedule.lane && self.intact[place.block.index()];
                match self.slot(place).take() {
                    Some(Held::Own(overlay)) => Input::Own(overlay),
                    Some(Held::Bag(carried)) => Input::Bag(carried.bag.into_entries(), intact),
                    Some(Held::Aligned(_) | Held::Proposal(_)) | None => {
                        Input::Bag(Entries::default(), false)
                    }
                }
            })
            .collect();
        let sources: Vec<Source<'_, T>> = places
            .iter()
            .zip(&inputs)
            .map(|(place, input)| match input {
                Input::Own(overlay) => {
                    Source::Own(self.own(place.block), overlay, &self.candidates[place.block.index()])
                }
                Input::Bag(entries, _) => Source::Bag(entries),
            })
            .collect();
        // A block whose candidates do not reach down to the threshold is read again.
        let least = match rule {
            Rule::Above { register, .. } => T::from_f64(self.memory.read(*register)),
            _ => T::from_f64(f64::MAX),
        };
        let again = |source: &&Source<'_, T>| source.reads(least);
        let read = sources.iter().filter(again).map(Source::len).sum::<usize>();
        let (chosen, predicted) = match rule {
            Rule::Above { register, most } => {
                let threshold = T::from_f64(self.memory.read(*register));
                let predicted = T::from_f64(0.8) * threshold;
                (above(&sources, threshold, *most), (threshold > T::ZERO).then_some(predicted))
            }
            Rule::Jointly(k) => {
                let (chosen, threshold) = jointly(&sources, *k);
                let enough = *k > 0 && chosen.smallest > T::ZERO;
                let predict = || select::predict_threshold(threshold, chosen.reached, chosen.smallest, *k);
                let predicted = enough.then(predict);
                (chosen, predicted)
            }
            _ => (Chosen::default(), None),
        };
        drop(sources);
        self.tally.dense += read as f64;
        places
            .iter()
            .zip(inputs)
            .zip(chosen.kept)
            .map(|((place, input), kept)| match input {
                Input::Own(overlay) => {
                    self.candidates[place.block.index()].threshold = predicted;
                    let left = without(&overlay, &kept.indices);
                    Kept { kept, left, seen: self.block_len(place.block), own: true }
                }
                Input::Bag(entries, own) => {
                    let left = without(&entries, &kept.indices);
                    Kept { kept, left, seen: entries.len(), own }
                }
            })
            .collect()
    }

    /// Rounds what was kept, and remembers what was not for the residual.
    fn settle(
        &mut self,
        place: Place,
        selection: Kept<T>,
        rule: &Rule,
        (coding, stage): (Coding, u32),
        holders: Holders,
    ) {
        let Kept { kept, mut left, seen, own } = selection;
        let block = place.block;
        let (b, len) = (block.index(), self.block_len(block));
        self.tally.select(rule, own, if own { kept.len() } else { seen } as f64);
        if *rule == Rule::Dense {
            self.tally.dense += len as f64;
        }
        let (rounded, kept, errors) = match (coding, floats(&kept.values)) {
            (Coding::Exact, _) | (_, None) => (Rounded::EXACT, kept, Entries::default()),
            (_, Some(values)) if *rule == Rule::Dense => {
                let mut values = float_entries(&kept, values).to_dense(len);
                let mut errors = vec![0.0; len];
                let rounded = coding.round_dense(
                    &mut values,
                    &mut errors,
                    self.seed_of(place, stage, holders.count == 1),
                );
                let sparse = |values: &[f32]| element_entries(&Entries::from_dense(values));
                (rounded, sparse(&values), sparse(&errors))
            }
            (_, Some(values)) => {
                let values = float_entries(&kept, values);
                let (rounded, kept, errors) =
                    coding.round(&values, len, self.seed_of(place, stage, holders.count == 1));
                (rounded, element_entries(&kept), element_entries(&errors))
            }
        };
        if own && holders.count == 1 {
            // What was rounded to nothing was not selected; where others had contributed to it, it waits here.
            let vanished = without(&errors, &kept.indices);
            let errors = without(&errors, &vanished.indices);
            if !vanished.is_empty() {
                left = left.merge_keeping_zeros(&self.contributed(place, &vanished), &Reduction::Sum);
            }
            self.fates[b] = Fate::Selected { indices: kept.indices.clone(), errors, settled: left };
        } else {
            let mut shares = if errors.is_empty() { left } else { left.merge(&errors) };
            shares.values.iter_mut().for_each(|value| *value = holders.share(*value));
            self.drops[b] = match self.drops[b].is_empty() {
                true => shares,
                false => self.drops[b].merge(&shares),
            };
        }
        if place.lane == self.schedule.lane {
            self.intact[b] = false;
        }
        let bag = match rule {
            Rule::Dense => Bag::Dense(kept.to_dense_with(len, self.reduction.neutral()).into()),
            _ => Bag::smaller_with(kept, len, &self.reduction),
        };
        let switched = *rule != Rule::Dense;
        *self.slot(place) = Some(Held::Bag(Carried { bag, switched, rounded, note: None, seen }));
    }

    /// Where a rounding takes its random numbers from: the same for every copy of a content, another one in each step of
    /// the job, each slot and each stage, and on each worker that rounds what it holds `alone`: equal gradients shall not have
    /// equal errors, which would add up.
    pub(super) fn seed_of(&self, place: Place, stage: u32, alone: bool) -> u64 {
        let place = u64::from(place.block.0) << 32 | u64::from(place.lane);
        let alone = if alone { 1 + u64::from(self.schedule.rank.0) } else { 0 };
        let mut seed = self.seed;
        for part in [place, u64::from(stage), alone] {
            seed = (seed ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            seed ^= seed >> 29;
        }
        seed
    }

    /// Of entries of a worker's own block those whose values are not its own alone.
    fn contributed(&self, place: Place, entries: &Entries<T>) -> Entries<T> {
        let own = self.own(place.block);
        entries.iter().filter(|&(i, v)| own[i as usize] != v).collect()
    }
}

/// The entries whose indices are among these, which ascend.
fn only<T: Element>(entries: &Entries<T>, indices: &[u32]) -> Entries<T> {
    let mut indices = indices.iter().peekable();
    let among = |&(index, _): &(u32, T)| {
        while indices.next_if(|&&i| i < index).is_some() {}
        indices.peek() == Some(&&index)
    };
    entries.iter().filter(among).collect()
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
