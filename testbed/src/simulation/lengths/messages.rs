//! What is sent, and how received bags are merged.

use gleaner_algorithms::schedule::{After, Arrival, How, Place, Send, Store};

use super::HEADER;
use super::held::{Form, Held};
use super::walk::{Flight, Walk};
use crate::simulation::trace::{Op, Part, dense_pieces, handled, pieces};

impl Walk<'_> {
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

    /// Sends a message of some slots in a round.
    pub(super) fn post(&mut self, held: &mut Store<Held>, send: &Send, round: u64) {
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
    }

    /// Takes a message in.
    pub(super) fn take_in(&mut self, held: &mut Store<Held>, at: Arrival<'_>, flight: &Flight) {
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
    }

    /// Adds a bag to what is held, or places it.
    fn take(&mut self, slot: &mut Option<Held>, len: f64, came: Held, how: How) {
        let held = slot.filter(|_| how == How::Add);
        let sum = held.map(|held| self.together(held, came, len));
        let tally = &mut self.workers[self.rank].tally;
        let result = match (came.form, held) {
            (Form::Proposal, _) => came,
            (Form::Aligned, held) => {
                tally.merged += came.entries();
                let alone = held.is_none();
                Held { rounded: came.rounded && alone, is_encoded: alone, ..came }
            }
            (Form::Sparse, None) => {
                tally.merged += came.entries();
                came
            }
            (Form::Sparse, Some(held)) => {
                tally.merged += came.entries();
                let (entries, common) = sum.unwrap_or_default();
                match held.form {
                    Form::Own => {
                        tally.merged += held.entries();
                        let overlay = self.together(Held { form: Form::Sparse, ..held }, came, len);
                        *slot = Some(Held::new(Form::Own, overlay.0, overlay.1));
                        return;
                    }
                    Form::Dense { switched } => {
                        tally.dense += len;
                        Held::new(Form::Dense { switched }, entries, common)
                    }
                    _ => {
                        tally.merged += held.entries();
                        Held::of_sparse(entries, common, len)
                    }
                }
            }
            (_, held) => {
                let dense = Form::Dense { switched: false };
                if came.form != dense {
                    tally.merged += came.entries();
                    tally.dense += len;
                }
                match held {
                    None => came,
                    Some(held) => {
                        tally.dense += len;
                        if held.form == Form::Sparse || (held.form == Form::Own && held.entries > 0.0) {
                            tally.dense += len;
                        }
                        let (entries, common) = sum.unwrap_or_default();
                        Held::new(came.form, entries, common)
                    }
                }
            }
        };
        *slot = Some(result);
    }
}
