//! What the steps of a schedule make of the bags that a worker holds.

use gleaner_algorithms::Block;
use gleaner_algorithms::schedule::{Place, Rule, Schedule, Slots};

use super::held::{Form, Held};
use super::walk::Walk;

impl Walk<'_> {
    /// How many entries a rule keeps of each of these places, with how many of them common to all workers.
    pub(super) fn kept(&self, rule: &Rule, places: &[Place], held: &[Held]) -> Vec<(f64, f64)> {
        let lens: Vec<f64> = places.iter().map(|&place| self.len(place)).collect();
        let there = |i: usize| match held[i].form {
            Form::Own => lens[i],
            _ => held[i].entries(),
        };
        let total: f64 = (0..held.len()).map(there).sum();
        let covered: f64 = lens.iter().sum();
        let together = match rule {
            Rule::Jointly(k) => Some(*k as f64),
            Rule::By(selection) => Some(selection.k as f64),
            // What was learnt keeps the density.
            Rule::Above { most, .. } => Some((self.k * covered / self.n).min(*most as f64)),
            _ => None,
        };
        let one = |i: usize| {
            let there = there(i);
            let kept = match rule {
                Rule::Top(k) | Rule::TopOf { most: k, .. } | Rule::Random(k) => {
                    f64::from(k.most(places[i].block)).min(there)
                }
                Rule::Every | Rule::Dense => there,
                _ => together.map_or(there, |k| there * (k / total.max(1.0)).min(1.0)),
            };
            let common = match (rule, held[i].form) {
                (Rule::Random(_), _) => kept,
                (_, Form::Own) => self.overlap.shared * kept,
                // What all chose is large in the sum.
                _ => f64::from(held[i].common).min(kept),
            };
            (kept, common)
        };
        (0..held.len()).map(one).collect()
    }

    pub(super) fn keep(&mut self, rank: usize, schedule: &Schedule, slots: Slots, rule: &Rule, rounds: bool) {
        let mut places: Vec<Place> = slots.places(self.blocks, self.lanes).collect();
        let every = matches!(rule, Rule::Every);
        places.retain(|&place| {
            let index = self.index(place);
            let held = &mut self.workers[rank].held[index];
            match held {
                Some(held) if held.form == Form::Aligned && every => {
                    held.rounded |= rounds;
                    held.told &= !rounds;
                    false
                }
                held => held.is_some(),
            }
        });
        let held: Vec<Held> =
            places.iter().filter_map(|&place| self.workers[rank].held[self.index(place)]).collect();
        let bags = held.iter().all(|held| held.form != Form::Own);
        let kept = self.kept(rule, &places, &held);
        for ((place, held), (kept, common)) in places.into_iter().zip(held).zip(kept) {
            let (len, index) = (self.len(place), self.index(place));
            let worker = &mut self.workers[rank];
            if matches!(rule, Rule::Dense) {
                worker.tally.dense += len;
            }
            if matches!(rule, Rule::Every | Rule::Dense) && !rounds && bags {
                if let Some(Held { form, .. }) = &mut worker.held[index]
                    && matches!(rule, Rule::Dense)
                {
                    *form = Form::Dense { switched: false };
                }
                continue;
            }
            worker.selects |= !matches!(rule, Rule::Every | Rule::Dense) || rounds;
            let own = held.form == Form::Own && place.lane == schedule.lane;
            if own {
                worker.tally.select(rule, true, kept);
                worker.chosen += kept;
                worker.dropped += held.entries() * (1.0 - kept / len.max(1.0)).max(0.0);
            } else {
                worker.tally.select(rule, false, held.entries());
                worker.dropped += (held.entries() - kept).max(0.0);
            }
            let bag = match rule {
                Rule::Dense => Held::new(Form::Dense { switched: false }, kept, common),
                _ => Held::of_sparse(kept, common, len),
            };
            worker.held[index] = Some(Held { rounded: rounds, note: held.note, ..bag });
        }
    }

    /// How many entries two bags of a block have together, and how many of them all workers chose.
    pub(super) fn together(&self, a: Held, b: Held, len: f64) -> (f64, f64) {
        if a.form == Form::Own || b.form == Form::Own {
            return (len, 0.0);
        }
        if a.piece && b.piece {
            return (a.entries() + b.entries(), f64::from(a.common) + f64::from(b.common));
        }
        let common = f64::from(a.common.max(b.common));
        let alone = |held: Held| (held.entries() - f64::from(held.common)).max(0.0);
        let (a, b) = (alone(a), alone(b));
        let support = (self.overlap.support * len).max(a).max(b).min(len).max(1.0);
        let sum = common + a + b - a * b / support;
        (sum.min(len), common)
    }

    pub(super) fn sum(&mut self, rank: usize, block: Block) {
        let len = self.partition.block_len(block) as f64;
        let mut bags = Vec::new();
        for lane in 0..self.lanes {
            let index = self.index(Place { block, lane });
            let slot = &mut self.workers[rank].held[index];
            bags.extend(slot.take_if(|held| held.form != Form::Proposal));
        }
        let levels = f64::from(bags.len().next_power_of_two().trailing_zeros().max(1));
        let mut all: Option<Held> = None;
        let tally = &mut self.workers[rank].tally;
        for bag in &bags {
            match bag.form {
                Form::Sparse | Form::Aligned => tally.merged += bag.entries() * levels,
                _ => tally.dense += len,
            }
        }
        let switched =
            bags.iter().all(|bag| bag.form != Form::Own && bag.form != Form::Dense { switched: false });
        for bag in bags {
            all = Some(match all {
                None => bag,
                Some(sum) => {
                    let (entries, common) = self.together(sum, bag, len);
                    let piece = sum.piece && bag.piece;
                    Held { piece, ..Held::of_sparse(entries, common, len) }
                }
            });
        }
        let index = self.index(Place { block, lane: 0 });
        self.workers[rank].held[index] = all.map(|sum| match sum.form {
            Form::Own => Held::new(Form::Dense { switched }, len, 0.0),
            Form::Dense { .. } => Held { form: Form::Dense { switched }, piece: false, told: false, ..sum },
            _ => Held { piece: false, ..Held::of_sparse(sum.entries(), f64::from(sum.common), len) },
        });
    }

    pub(super) fn split(&mut self, rank: usize, block: Block) {
        let first = self.index(Place { block, lane: 0 });
        let Some(whole) = self.workers[rank].held[first].take() else { return };
        self.workers[rank].tally.sifted += whole.entries();
        let share = f64::from(self.lanes);
        for lane in 0..self.lanes {
            let index = self.index(Place { block, lane });
            let piece = Held::new(Form::Sparse, whole.entries() / share, f64::from(whole.common) / share);
            self.workers[rank].held[index] = Some(Held { piece: true, ..piece });
        }
    }

    pub(super) fn propose(&mut self, rank: usize, slots: Slots, rule: &Rule) {
        let places: Vec<Place> = slots.places(self.blocks, self.lanes).collect();
        let own = vec![Held::new(Form::Own, 0.0, 0.0); places.len()];
        let kept = self.kept(rule, &places, &own);
        for (place, (kept, common)) in places.into_iter().zip(kept) {
            let index = self.index(place);
            self.workers[rank].tally.select(rule, true, kept);
            self.workers[rank].held[index] = Some(Held::new(Form::Proposal, kept, common));
        }
    }

    pub(super) fn align(&mut self, rank: usize, schedule: &Schedule, slots: Slots, rounded: bool) {
        for block in slots.blocks(self.blocks) {
            let len = self.partition.block_len(block) as f64;
            let mut all: Option<Held> = None;
            for lane in 0..self.lanes {
                let index = self.index(Place { block, lane });
                if let Some(proposal) = self.workers[rank].held[index].filter(|h| h.form == Form::Proposal) {
                    all = Some(match all {
                        None => proposal,
                        Some(sum) => {
                            let (entries, common) = self.together(sum, proposal, len);
                            Held::new(Form::Proposal, entries, common)
                        }
                    });
                }
            }
            let entries = all.map_or(0.0, |held| held.entries());
            let index = self.index(Place { block, lane: schedule.lane });
            let worker = &mut self.workers[rank];
            worker.tally.sifted += entries;
            worker.chosen += entries;
            worker.selects = true;
            worker.held[index] = Some(Held { rounded, ..Held::new(Form::Aligned, entries, entries) });
        }
    }
}
