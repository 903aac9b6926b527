//! What is sent, and what becomes of what comes.

use gleaner_algorithms::Rank;
use gleaner_algorithms::schedule::{After, How, Place, Receive, Send};

use super::HEADER;
use super::held::{Form, Held};
use super::walk::{Flight, Walk};
use crate::simulation::trace::{Op, Part, handled, pieces};

impl Walk<'_> {
    /// Bytes that a bag takes among the others of a message and in messages of its own; as what it is told.
    pub(super) fn told(&mut self, rank: usize, held: Held, len: f64) -> (f64, f64, Held) {
        let tally = &mut self.workers[rank].tally;
        let entries = held.entries();
        let density = entries / len.max(1.0);
        let encoded = if held.told { 0.0 } else { entries };
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
                tally.dense += if held.told { 0.0 } else { len };
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

    pub(super) fn send(&mut self, rank: usize, send: &Send, ahead: Option<usize>) {
        let (mut open, mut lent, mut bags) = (0.0, 0.0, Vec::with_capacity(send.slots.count as usize));
        for place in send.slots.places(self.blocks, self.lanes) {
            let (len, index) = (self.len(place), self.index(place));
            let held = match send.after {
                After::Drop => self.workers[rank].held[index].take(),
                After::Retain => self.workers[rank].held[index],
            };
            open += HEADER;
            if let Some(held) = held {
                let (among, alone, told) = self.told(rank, held, len);
                let told = Held { told: true, ..told };
                if let Some(held) = &mut self.workers[rank].held[index] {
                    held.told = true;
                }
                open += among + 8.0 * f64::from(held.note);
                lent += alone;
                bags.push(Some(told));
            } else {
                bags.push(None);
            }
        }
        let counts = (pieces(open, self.pieces), if lent > 0.0 { pieces(lent, self.pieces) } else { 0 });
        self.flush(rank, Part::Select);
        if ahead.is_none() {
            let ops = &mut self.trace.workers[rank];
            let to = send.to.0;
            let one = |bytes: f64, count: usize| Op::Send { to, bytes: (bytes / count.max(1) as f64) as f32 };
            ops.extend(std::iter::repeat_n(one(open, counts.0), counts.0));
            ops.extend(std::iter::repeat_n(one(lent, counts.1), counts.1));
        }
        let lent = ahead.unwrap_or(counts.1);
        let flight = Flight { held: bags, open: counts.0, lent, round: self.workers[rank].round };
        self.flights.entry((rank as u32, send.to.0)).or_default().push_back(flight);
    }

    pub(super) fn receive(&mut self, rank: usize, receive: &Receive, flight: Flight, onward: Option<Rank>) {
        let worker = &mut self.workers[rank];
        worker.round = worker.round.max(flight.round);
        let (from, count) = (receive.from.0, flight.open + flight.lent);
        let onward = onward.filter(|_| {
            matches!(&flight.held[..], [Some(held)] if held.form == Form::Dense { switched: false } && held.note == 0)
                && flight.lent > 0
        });
        for (place, came) in receive.slots.places(self.blocks, self.lanes).zip(&flight.held) {
            if let Some(came) = came {
                self.take(rank, place, *came, receive.how);
            }
        }
        let place = Place { block: receive.slots.first, lane: 0 };
        let bytes = (self.sizes.dense * self.len(place) / flight.lent.max(1) as f64) as f32;
        let tally = std::mem::take(&mut self.workers[rank].tally);
        let work = handled(tally, 1.0 / count as f64);
        for piece in 0..count {
            self.trace.workers[rank].push(Op::Receive { from });
            self.trace.work(rank, Part::Merge, work);
            if let Some(Rank(to)) = onward {
                let bytes = if piece < flight.open { HEADER as f32 } else { bytes };
                self.trace.workers[rank].push(Op::Send { to, bytes });
            }
        }
        if onward.is_some() {
            self.workers[rank].passed_on = Some(flight.lent);
        }
    }

    /// Adds a bag to what is held, or places it.
    pub(super) fn take(&mut self, rank: usize, place: Place, came: Held, how: How) {
        let (len, index) = (self.len(place), self.index(place));
        let held = self.workers[rank].held[index].filter(|_| how == How::Add);
        let sum = held.map(|held| self.together(held, came, len));
        let worker = &mut self.workers[rank];
        let tally = &mut worker.tally;
        let result = match (came.form, held) {
            (Form::Proposal, _) => came,
            (Form::Aligned, held) => {
                tally.merged += came.entries();
                let alone = held.is_none();
                Held { rounded: came.rounded && alone, told: alone, ..came }
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
                        self.workers[rank].held[index] = Some(Held::new(Form::Own, overlay.0, overlay.1));
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
        self.workers[rank].held[index] = Some(result);
    }
}
