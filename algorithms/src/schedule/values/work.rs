//! Choosing entries is handed out as work, which owns all that it needs.

use std::sync::Arc;

use super::super::keep::Candidates;
use super::super::{Holders, Place, Rule, Store, Tally};
use super::choose::Sparsified;
use super::{Context, ExecutionError, Fate, Held, OwnChoice, Values};
use crate::Element;
use crate::bag::{Bag, Coding, Entries};

/// Entries to be chosen from some slots, which it has taken with it.
#[derive(Debug)]
pub struct Work<T: Element = f32> {
    run: Arc<Context<T>>,
    slots: Vec<Input<T>>,
    rule: Rule,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// What is chosen is kept, rounded to a coding.
    Keep(Coding),
    /// The indices of what is chosen are proposed, in this lane.
    Propose(u32),
}

/// A slot to choose from.
#[derive(Debug)]
pub(super) struct Input<T: Element> {
    pub(super) place: Place,
    pub(super) held: Option<Held<T>>,
    pub(super) candidates: Candidates<T>,
    holders: Holders,
    stage: u32,
    /// Whether it is the worker's own contribution, of which nothing was taken or sent.
    pub(super) intact: bool,
}

/// Work that has been done.
#[derive(Debug)]
pub struct Done<T: Element = f32> {
    slots: Vec<Output<T>>,
    tally: Tally,
    /// What was chosen from the worker's own gradient, if that is what it was.
    own: Option<OwnChoice>,
}

/// The result of one slot.
#[derive(Debug)]
struct Output<T: Element> {
    place: Place,
    held: Held<T>,
    /// What is left of the worker's own contribution, or this worker's share of a drop; nothing of a proposal.
    left: Option<Left<T>>,
    candidates: Candidates<T>,
}

#[derive(Debug)]
pub(super) enum Left<T: Element> {
    Own(Fate<T>),
    Share(Entries<T>),
}

impl<T: Element> Values<T> {
    pub(super) fn input(
        &mut self,
        place: Place,
        held: Option<Held<T>>,
        holders: Holders,
        stage: u32,
    ) -> Input<T> {
        let own = matches!(held, Some(Held::Own(_)));
        let candidates = if own {
            std::mem::take(&mut self.candidates[place.block.index()])
        } else {
            Candidates::default()
        };
        let intact = place.lane == self.run.lane() && self.intact[place.block.index()];
        Input { place, held, candidates, holders, stage, intact }
    }

    /// One piece of work for slots that are looked at together, or one for each.
    pub(super) fn hand_out(&self, mut slots: Vec<Input<T>>, rule: &Rule, purpose: Purpose) -> Vec<Work<T>> {
        let work = |slots| Work { run: self.run.clone(), slots, rule: rule.clone(), purpose };
        if !rule.is_joint() {
            return slots.into_iter().map(|slot| work(vec![slot])).collect();
        }
        // Where a range of slots begins makes no difference.
        slots.sort_by_key(|slot| (slot.place.lane, slot.place.block));
        Vec::from_iter((!slots.is_empty()).then(|| work(slots)))
    }

    /// Keeps a bag as it is, or makes it dense.
    pub(super) fn keep_all(&mut self, store: &mut Store<Held<T>>, place: Place, rule: &Rule) {
        let len = self.run.block_len(place.block);
        let Some(Held::Bag(carried)) = store.at(place) else { return };
        carried.seen = match &carried.bag {
            Bag::Sparse(entries) => entries.len(),
            Bag::Dense(values) => values.entries().count(),
        };
        if rule.makes_dense() {
            self.tally.dense += len as f64;
            (carried.switched, carried.encoded) = (false, None);
            if let Bag::Sparse(entries) = &carried.bag {
                carried.bag = Bag::Dense(entries.to_dense_with(len, self.run.reduction.neutral()).into());
            }
        }
    }

    /// Puts back the results of work.
    pub(in super::super) fn complete(&mut self, store: &mut Store<Held<T>>, done: Done<T>) {
        self.tally = self.tally + done.tally;
        if let Some(own) = done.own {
            self.own.entries += own.entries;
            self.own.smallest = match (self.own.smallest, own.smallest) {
                (before, now) if before > 0.0 && now > 0.0 => before.min(now),
                (before, now) => before.max(now),
            };
        }
        for Output { place, held, left, candidates } in done.slots {
            let b = place.block.index();
            if candidates.threshold.is_some() || candidates.entries.indices.capacity() > 0 {
                self.candidates[b] = candidates;
            }
            *store.at(place) = Some(held);
            let Some(left) = left else { continue };
            match left {
                Left::Own(fate) => self.fates[b] = fate,
                Left::Share(share) if self.drops[b].is_empty() => self.drops[b] = share,
                Left::Share(share) => self.drops[b] = self.drops[b].merge(&share),
            }
            if place.lane == self.run.lane() {
                self.intact[b] = false;
            }
        }
    }
}

impl<T: Element> Work<T> {
    /// How many entries of the worker's own gradient it looks at, if they are at most so many: the candidates that were collected,
    /// where they suffice, and otherwise whole blocks.
    pub fn looks_at(&self, most: usize) -> Option<usize> {
        if self.run.is_on_device() {
            // It is waited for.
            return None;
        }
        let mut all = 0;
        for Input { place, held, candidates, .. } in &self.slots {
            let Some(Held::Own(overlay)) = held else { continue };
            let few = candidates.entries.len() + overlay.len();
            let quota = self.run.quota(&self.rule, place.block).filter(|_| few <= most);
            let suffice = quota.is_some_and(|k| candidates.suffice(overlay, k));
            all += if suffice { few } else { self.run.own(place.block).stored() };
        }
        Some(all).filter(|all| *all <= most)
    }

    /// Does it.
    ///
    /// # Errors
    /// A rule that can only be proposed by, which no checked program keeps by; what failed on a device.
    pub fn run(self) -> Result<Done<T>, ExecutionError> {
        let Self { run, mut slots, rule, purpose } = self;
        let mut tally = Tally::default();
        let untouched = matches!(slots.first(), Some(Input { held: Some(Held::Own(o)), .. }) if o.is_empty());
        let notes: Vec<_> = slots.iter().map(Input::note).collect();
        let chosen = run.choose(&mut slots, &rule, &mut tally)?;
        let own = untouched.then(|| OwnChoice {
            entries: chosen.iter().map(|chosen| chosen.kept.len()).sum(),
            smallest: smallest(&chosen),
        });
        let mut outputs = Vec::with_capacity(slots.len());
        for ((slot, chosen), note) in slots.into_iter().zip(chosen).zip(notes) {
            let Input { place, candidates, holders, stage, .. } = slot;
            let (place, held, left) = match purpose {
                Purpose::Keep(coding) => {
                    let rounding = (coding, stage, holders);
                    let (mut carried, left) = run.round(place, chosen, &rule, rounding, &mut tally)?;
                    carried.note = note;
                    (place, Held::Bag(carried), Some(left))
                }
                Purpose::Propose(lane) => {
                    tally.select(&rule, true, chosen.kept.len() as f64);
                    (Place { lane, ..place }, Held::Proposal(chosen.kept.indices.into(), None), None)
                }
            };
            outputs.push(Output { place, held, left, candidates });
        }
        Ok(Done { slots: outputs, tally, own })
    }
}

impl<T: Element> Input<T> {
    /// The note tied to what a slot holds, which a selection leaves where it is.
    fn note(&self) -> Option<Arc<[u64]>> {
        match &self.held {
            Some(Held::Bag(carried)) => carried.note.clone(),
            _ => None,
        }
    }
}

/// The smallest magnitude among all that was chosen, 0 if there is nothing.
fn smallest<T: Element>(chosen: &[Sparsified<T>]) -> f64 {
    let magnitudes = chosen.iter().flat_map(|chosen| &chosen.kept.values).map(|v| v.to_f64().abs());
    magnitudes.reduce(f64::min).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::super::{Execution, Fault, Program, Schedule, Slots, Step, check};
    use super::*;
    use crate::{Allotment, Partition, Rank};

    /// No checked program keeps what is sampled. One that does all the same keeps nothing else in its place.
    #[test]
    fn what_is_drawn_is_not_kept() {
        let rule = |sampled: bool| {
            let two: Allotment = vec![2].into();
            if sampled { Rule::Random(two) } else { Rule::Top(two) }
        };
        let schedule = |sampled| Schedule {
            rank: Rank(0),
            workers: 1,
            partition: Partition::even(9, 1),
            lanes: 1,
            lane: 0,
            steps: vec![Step::Keep { slots: Slots::range(0, 1), rule: rule(sampled), coding: Coding::Exact }],
        };
        assert!(check([schedule(true)]).is_err());
        let checked = check([schedule(false)]).unwrap().program(Rank(0));
        for (sampled, expected) in [(false, Ok(None)), (true, Err(Fault::Sampled { rank: Rank(0) }.into()))] {
            let program = Program { schedule: Arc::new(schedule(sampled)), ..checked.clone() };
            let accumulator = Arc::new((0..9).map(|i| i as f32).collect());
            let mut execution = Execution::new(Arc::new(program), accumulator, vec![Candidates::default()]);
            assert_eq!(execution.go_on(&mut Vec::new()), expected);
        }
    }
}
