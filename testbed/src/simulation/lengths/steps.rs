//! What the steps of a schedule make of the bags that a worker holds, what is sent, and how received bags are merged.

use std::convert::Infallible;

use gleaner_algorithms::Block;
use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::schedule::{
    After, Arrival, Did, Fault, How, Note, Place, Reader, Rule, Send, Slots, Slotted, Works,
};

use super::HEADER;
use super::held::{Form, Held};
use super::walk::{Flight, Walk};
use crate::simulation::trace::{Op, Part, dense_pieces, handled, pieces};

impl Walk<'_> {
    /// How many entries a rule keeps of each of these places, with how many of them common to all workers.
    fn kept(&self, rule: &Rule, places: &[Place], held: &[Held]) -> Vec<(f64, f64)> {
        let lens: Vec<f64> = places.iter().map(|&place| self.len(place)).collect();
        let there = |i: usize| match held[i].form {
            Form::Own => lens[i],
            _ => held[i].entries(),
        };
        let total: f64 = (0..held.len()).map(there).sum();
        let covered: f64 = lens.iter().sum();
        let one = |i: usize| {
            let there = there(i);
            let together = |k: f64| there * (k / total.max(1.0)).min(1.0);
            let common = |kept: f64| match held[i].form {
                Form::Own => self.overlap.shared * kept,
                // What all chose is large in the sum.
                _ => f64::from(held[i].common).min(kept),
            };
            let kept = match rule {
                Rule::Random(k) => {
                    let kept = f64::from(k.most(places[i].block)).min(there);
                    return (kept, kept);
                }
                Rule::Top(k) | Rule::TopOf { most: k, .. } => f64::from(k.most(places[i].block)).min(there),
                Rule::Jointly(k) => together(*k as f64),
                Rule::By(selection) => together(selection.k as f64),
                // What was learnt keeps the density.
                Rule::Above { most, .. } => together((self.k * covered / self.n).min(*most as f64)),
                Rule::Every | Rule::Dense => there,
            };
            (kept, common(kept))
        };
        (0..held.len()).map(one).collect()
    }

    /// How many entries two bags of a block have together, and how many of them all workers chose.
    fn together(&self, a: Held, b: Held, len: f64) -> (f64, f64) {
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

    /// Bytes that a bag takes among the others of a message and in messages of its own; as it is encoded.
    fn encoded(&mut self, held: Held, len: f64) -> (f64, f64, Held) {
        let tally = &mut self.workers[self.rank].tally;
        let entries = held.entries();
        let density = entries / len.max(1.0);
        let encoded = if held.is_encoded { 0.0 } else { entries };
        match held.form {
            Form::Own => {
                if held.entries > 0.0 {
                    tally.dense += len;
                }
                (0.0, self.sizes.dense * len, Held::new(Form::Dense { switched: false }, len, 0.0))
            }
            Form::Sparse => {
                tally.encoded += encoded;
                (entries * self.sizes.entry(density, held.rounded), 0.0, held)
            }
            Form::Dense { switched: true } if density < 31.0 / 32.0 => {
                tally.encoded += encoded;
                tally.dense += if held.is_encoded { 0.0 } else { len };
                let sparse = entries * self.sizes.entry(density, held.rounded);
                (sparse.min(self.sizes.dense * len), 0.0, held)
            }
            Form::Dense { .. } => {
                let value = self.sizes.value(0.5, held.rounded);
                let dense = Held { form: Form::Dense { switched: false }, ..held };
                if held.rounded { (value * len, 0.0, dense) } else { (0.0, value * len, dense) }
            }
            Form::Proposal => {
                tally.encoded += encoded;
                (entries * self.sizes.index(density), 0.0, held)
            }
            Form::Aligned => {
                tally.encoded += encoded;
                (entries * self.sizes.value(density, held.rounded), 0.0, held)
            }
        }
    }

    /// Adds a bag to what is held, or places it.
    fn take(&mut self, slot: &mut Option<Held>, len: f64, came: Held, how: How) {
        let held = slot.filter(|_| how == How::Add);
        let (entries, common) = held.map(|held| self.together(held, came, len)).unwrap_or_default();
        let tally = &mut self.workers[self.rank].tally;
        let dense = Form::Dense { switched: false };
        if came.form != Form::Proposal && came.form != dense {
            tally.merged += came.entries();
        }
        let result = match (came.form, held) {
            (Form::Proposal, _) | (Form::Sparse, None) => came,
            (Form::Aligned, held) => {
                let alone = held.is_none();
                Held { rounded: came.rounded && alone, is_encoded: alone, ..came }
            }
            (Form::Sparse, Some(held)) => match held.form {
                Form::Own => {
                    tally.merged += held.entries();
                    let (entries, common) = self.together(Held { form: Form::Sparse, ..held }, came, len);
                    Held::new(Form::Own, entries, common)
                }
                Form::Dense { switched } => {
                    tally.dense += len;
                    Held::new(Form::Dense { switched }, entries, common)
                }
                _ => {
                    tally.merged += held.entries();
                    Held::of_sparse(entries, common, len)
                }
            },
            (_, held) => {
                if came.form != dense {
                    tally.dense += len;
                }
                let Some(held) = held else {
                    *slot = Some(came);
                    return;
                };
                tally.dense += len;
                if held.form == Form::Sparse || (held.form == Form::Own && held.entries > 0.0) {
                    tally.dense += len;
                }
                Held::new(came.form, entries, common)
            }
        };
        *slot = Some(result);
    }
}

impl Reader for Walk<'_> {
    type Held = Held;
    type Message = Flight;
    type Work = Infallible;
    type Error = Fault;

    fn keep(
        &mut self,
        held: &mut Slotted<Self>,
        _: usize,
        slots: Slots,
        rule: &Rule,
        coding: Coding,
    ) -> Works<Self> {
        let (lane, rounds) = (self.schedules[self.rank].lane, coding != Coding::Exact);
        let (all, dense) = (rule.keeps_all(), rule.makes_dense());
        let (mut places, mut bags) = (Vec::new(), Vec::new());
        for place in held.places(slots) {
            match held.at(place) {
                Some(bag) if bag.form == Form::Aligned && rule.keeps_form() => {
                    bag.rounded |= rounds;
                    bag.is_encoded &= !rounds;
                }
                Some(bag) => {
                    places.push(place);
                    bags.push(*bag);
                }
                None => {}
            }
        }
        let untouched = all && !rounds && bags.iter().all(|bag| bag.form != Form::Own);
        let kept = self.kept(rule, &places, &bags);
        for ((place, bag), (kept, common)) in places.into_iter().zip(bags).zip(kept) {
            let len = self.len(place);
            let worker = self.worker();
            if dense {
                worker.tally.dense += len;
            }
            if untouched {
                let form = if dense { Form::Dense { switched: false } } else { bag.form };
                *held.at(place) = Some(Held { form, ..bag });
                continue;
            }
            worker.selects |= !all || rounds;
            if bag.form == Form::Own && place.lane == lane {
                worker.tally.select(rule, true, kept);
                worker.chosen += kept;
                worker.dropped += bag.entries() * (1.0 - kept / len.max(1.0)).max(0.0);
            } else {
                worker.tally.select(rule, false, bag.entries());
                worker.dropped += (bag.entries() - kept).max(0.0);
            }
            let of = match dense {
                true => Held::new(Form::Dense { switched: false }, kept, common),
                false => Held::of_sparse(kept, common, len),
            };
            *held.at(place) = Some(Held { rounded: rounds, note: bag.note, ..of });
        }
        Ok(Vec::new())
    }

    fn propose(&mut self, held: &mut Slotted<Self>, _: usize, slots: Slots, rule: &Rule) -> Works<Self> {
        let places: Vec<Place> = held.places(slots).collect();
        let own = vec![Held::new(Form::Own, 0.0, 0.0); places.len()];
        let kept = self.kept(rule, &places, &own);
        for (place, (kept, common)) in places.into_iter().zip(kept) {
            self.worker().tally.select(rule, true, kept);
            *held.at(place) = Some(Held::new(Form::Proposal, kept, common));
        }
        Ok(Vec::new())
    }

    fn align(&mut self, held: &mut Slotted<Self>, _: usize, slots: Slots, coding: Coding) -> Did<Self> {
        for place in held.places(slots) {
            let len = self.len(place);
            let proposals = held.lanes_of(place.block).filter_map(|place| held.get(place).copied());
            let all = proposals.filter(|bag| bag.form == Form::Proposal).reduce(|sum, proposal| {
                let (entries, common) = self.together(sum, proposal, len);
                Held::new(Form::Proposal, entries, common)
            });
            let entries = all.map_or(0.0, |held| held.entries());
            let worker = self.worker();
            worker.tally.sifted += entries;
            worker.chosen += entries;
            worker.selects = true;
            let rounded = coding != Coding::Exact;
            *held.at(place) = Some(Held { rounded, ..Held::new(Form::Aligned, entries, entries) });
        }
        Ok(())
    }

    fn sum(&mut self, held: &mut Slotted<Self>, _: usize, block: Block) -> Did<Self> {
        let first = Place { block, lane: 0 };
        let len = self.len(first);
        let mut bags = Vec::new();
        for place in held.lanes_of(block) {
            bags.extend(held.at(place).take_if(|held| held.form != Form::Proposal));
        }
        let levels = f64::from(bags.len().next_power_of_two().trailing_zeros().max(1));
        let tally = &mut self.worker().tally;
        for bag in &bags {
            match bag.form {
                Form::Sparse | Form::Aligned => tally.merged += bag.entries() * levels,
                _ => tally.dense += len,
            }
        }
        let switched =
            bags.iter().all(|bag| bag.form != Form::Own && bag.form != Form::Dense { switched: false });
        let all = bags.into_iter().reduce(|sum, bag| {
            let (entries, common) = self.together(sum, bag, len);
            Held { piece: sum.piece && bag.piece, ..Held::of_sparse(entries, common, len) }
        });
        *held.at(first) = all.map(|sum| match sum.form {
            Form::Own => Held::new(Form::Dense { switched }, len, 0.0),
            Form::Dense { .. } => {
                Held { form: Form::Dense { switched }, piece: false, is_encoded: false, ..sum }
            }
            _ => Held { piece: false, ..Held::of_sparse(sum.entries(), f64::from(sum.common), len) },
        });
        Ok(())
    }

    fn split(&mut self, held: &mut Slotted<Self>, _: usize, block: Block) -> Did<Self> {
        let Some(whole) = held.at(Place { block, lane: 0 }).take() else { return Ok(()) };
        self.worker().tally.sifted += whole.entries();
        let share = f64::from(held.lanes());
        for place in held.lanes_of(block) {
            let piece = Held::new(Form::Sparse, whole.entries() / share, f64::from(whole.common) / share);
            *held.at(place) = Some(Held { piece: true, ..piece });
        }
        Ok(())
    }

    fn annotate(&mut self, held: &mut Slotted<Self>, _: usize, slots: Slots, _: Note) -> Did<Self> {
        for place in held.places(slots) {
            if let Some(held) = held.at(place) {
                held.note = 1;
            }
        }
        Ok(())
    }

    fn send(&mut self, held: &mut Slotted<Self>, _: usize, send: &Send, round: u64) -> Did<Self> {
        let ahead = self.worker().passed_on.take();
        let (mut open, mut lent, mut cuts) = (0.0, 0.0, 0);
        let mut bags = Vec::with_capacity(send.slots.count as usize);
        for place in held.places(send.slots) {
            let slot = held.at(place);
            let bag = if send.after == After::Drop { slot.take() } else { *slot };
            open += HEADER;
            bags.push(bag.map(|bag| {
                let (among, alone, sent) = self.encoded(bag, self.len(place));
                open += among + 8.0 * f64::from(bag.note);
                lent += alone;
                cuts += if alone > 0.0 { dense_pieces(alone) } else { 0 };
                Held { is_encoded: true, ..sent }
            }));
            // What has been encoded travels again as it is.
            if let Some(held) = held.at(place) {
                held.is_encoded = true;
            }
        }
        let counts = (pieces(open, self.pieces), cuts.min(self.pieces));
        self.flush(Part::Select);
        let to = self.peer(send.to);
        if ahead.is_none() {
            let ops = &mut self.trace.workers[self.rank];
            let one = |bytes: f64, count: usize| Op::Send { to, bytes: (bytes / count.max(1) as f64) as f32 };
            ops.extend(std::iter::repeat_n(one(open, counts.0), counts.0));
            ops.extend(std::iter::repeat_n(one(lent, counts.1), counts.1));
        }
        let lent = ahead.unwrap_or(counts.1);
        let flight = Flight { slots: send.slots, held: bags, open: counts.0, lent, round };
        self.flights.entry((self.rank as u32, to)).or_default().push_back(flight);
        Ok(())
    }

    fn receive(&mut self, held: &mut Slotted<Self>, at: Arrival<'_>, flight: Flight) -> Result<bool, Fault> {
        let (receive, rank) = (at.receive, self.rank);
        let (from, count) = (self.peer(receive.from), flight.open + flight.lent);
        let onward = self.schedules[rank].passes_on(at.step).map(|(to, _)| to).filter(|_| {
            at.last
                && flight.lent > 0
                && matches!(&flight.held[..], [Some(held)] if held.form == Form::Dense { switched: false } && held.note == 0)
        });
        for (place, came) in held.places(receive.slots).zip(&flight.held) {
            if let Some(came) = came {
                self.take(held.at(place), self.len(place), *came, receive.how);
            }
        }
        let place = Place { block: receive.slots.first, lane: 0 };
        let bytes = (self.sizes.dense * self.len(place) / flight.lent.max(1) as f64) as f32;
        let work = handled(std::mem::take(&mut self.worker().tally), 1.0 / count as f64);
        for piece in 0..count {
            self.trace.workers[rank].push(Op::Receive { from });
            self.trace.work(rank, Part::Merge, work);
            if let Some(to) = onward {
                let bytes = if piece < flight.open { HEADER as f32 } else { bytes };
                let to = self.peer(to);
                self.trace.workers[rank].push(Op::Send { to, bytes });
            }
        }
        if onward.is_some() {
            self.worker().passed_on = Some(flight.lent);
        }
        Ok(true)
    }
}
