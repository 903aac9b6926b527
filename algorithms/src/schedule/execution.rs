//! One worker's run of one schedule, without any input or output of its own.
//!
//! Whoever drives it (the runtime over real links, [`lockstep`](super::lockstep()) over queues) sends what comes out
//! and feeds what comes in. The accumulator is only read; what is received lives in overlays and bags.

mod agreement;
mod receive;
mod selection;

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::keep::Candidates;
use super::{After, Memory, Note, Place, RankProof, Schedule, Slots, Step, Tally};
use crate::bag::wire::{self, Body, DecodeError, Decoder};
use crate::bag::{Bag, Dense, Entries, Rounded};
use crate::{Block, Element, Rank, Reduction};

/// A message to a peer: one of the payloads of a slot.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The receiver.
    pub to: Rank,
    /// At most [`wire::PIECE`] bytes, and notes before the first.
    pub payload: Bytes,
    /// The sender's exchange that it belongs to, from 1 on.
    pub exchange: u64,
}

/// Where an execution stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It needs the next message from this rank.
    Waiting(Rank),
    /// It is done.
    Finished,
}

/// Why a step cannot go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExecutionError {
    /// A peer sent bytes that are not what the schedule declares.
    #[error("{from} sent something else than its schedule says: {source}")]
    Decode {
        /// The peer.
        from: Rank,
        /// What is wrong with the bytes.
        source: DecodeError,
    },
    /// A message that nobody waits for.
    #[error("{from} sent a message that the schedule does not expect now")]
    Unexpected {
        /// The peer.
        from: Rank,
    },
    /// A sum left the range of the number type.
    #[error(
        "the sum with what {from} sent is not finite at entry {entry} of the gradient: lower the learning rate or clip the gradients"
    )]
    Overflow {
        /// The peer.
        from: Rank,
        /// Position in the flat gradient.
        entry: usize,
    },
    /// A reduction that selection would falsify.
    #[error(
        "a {reduction} has no residual, so nothing may be left out of it, and this method selects or rounds entries; choose a dense method such as ring, or the sum"
    )]
    NotASum {
        /// Its name.
        reduction: &'static str,
    },
    /// A sum over several workers left the range of the number type.
    #[error(
        "the sum over the workers is not finite at entry {entry} of the gradient: lower the learning rate or clip the gradients"
    )]
    Sum {
        /// Position in the flat gradient.
        entry: usize,
    },
}

/// What a worker holds in one slot.
#[derive(Debug)]
enum Held<T: Element> {
    /// Its own accumulator, and the sums of it with received entries where there are any.
    Own(Entries<T>),
    /// A bag.
    Bag(Carried<T>),
    /// Values at the indices that the workers agreed on.
    Aligned(Aligned<T>),
    /// Indices without values.
    Proposal(Arc<[u32]>),
}

/// Values at indices that are the same on all workers.
#[derive(Clone, Debug)]
struct Aligned<T: Element> {
    indices: Arc<[u32]>,
    /// A value for each index; some may be zero.
    values: Vec<T>,
    rounded: Rounded,
}

/// A bag, and what travels with it.
#[derive(Clone, Debug)]
struct Carried<T: Element> {
    bag: Bag<T>,
    /// Whether it is dense only because so many entries came together (SparCML's δ): it is told in whichever form is
    /// smallest.
    switched: bool,
    /// How its values were rounded.
    rounded: Rounded,
    note: Option<Arc<[u64]>>,
    /// How many entries the last selection here chose from.
    seen: usize,
}

impl<T: Element> From<Bag<T>> for Carried<T> {
    fn from(bag: Bag<T>) -> Self {
        Self { bag, switched: false, rounded: Rounded::EXACT, note: None, seen: 0 }
    }
}

impl<T: Element> Held<T> {
    fn bag(bag: Bag<T>) -> Self {
        Held::Bag(bag.into())
    }

    /// What came of sparse entries, whichever form it has now.
    fn of_sparse(bag: Bag<T>) -> Self {
        Held::Bag(Carried { switched: true, ..bag.into() })
    }
}

/// What became of a worker's own contribution to a block.
#[derive(Debug)]
pub(crate) enum Fate<T: Element = f32> {
    /// All of it went into the sum.
    Whole,
    /// Only these indices were selected.
    Selected {
        indices: Vec<u32>,
        /// What rounding took away at some of them.
        errors: Entries<T>,
        /// At the others that received something, this sum remains.
        settled: Entries<T>,
    },
}

/// What a worker chose from its own gradient, before anything was received.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnChoice {
    /// How many entries.
    pub entries: usize,
    /// The smallest magnitude among them, 0 if there are none.
    pub smallest: f64,
}

/// A finished run: the update, and what the residual needs to know.
#[derive(Debug)]
pub struct Finished<T: Element = f32> {
    /// The sum over all workers, block by block: the same bits on every worker.
    pub update: Vec<Bag<T>>,
    pub(crate) accumulator: Arc<Vec<T>>,
    pub(crate) fates: Vec<Fate<T>>,
    /// This worker's share of what was dropped later on, by block.
    pub(crate) drops: Vec<Entries<T>>,
    /// By block, from which magnitude on to collect candidates in the next step, and memory for them.
    pub(crate) candidates: Vec<Candidates<T>>,
    /// Whether nothing was selected from any worker's contribution, by block.
    pub(crate) whole: Vec<bool>,
    pub(crate) notes: Vec<Option<Arc<[u64]>>>,
    pub(crate) proposed: Vec<Option<Arc<[u32]>>>,
    pub(crate) own: OwnChoice,
    /// Entries that this worker received over all messages; a dense value counts as one.
    pub entries_received: u64,
}

/// What a method may learn from a finished run, whatever type its values have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The non-zero entries of the update, by block.
    pub counts: Vec<usize>,
    /// The smallest magnitude among them, 0 if there are none.
    pub smallest: f64,
    /// The notes that came with the update, by block.
    pub notes: Vec<Option<Arc<[u64]>>>,
    /// The indices that were proposed, by block: the entries of the update and those whose values came to zero.
    pub proposed: Vec<Option<Arc<[u32]>>>,
    /// What this worker chose from its own gradient. All else is the same on every worker.
    pub own: OwnChoice,
}

impl<T: Element> Finished<T> {
    /// What may be learnt from it.
    pub fn observed(&self) -> Observed {
        Observed {
            counts: self.update.iter().map(Bag::nonzeros).collect(),
            smallest: self
                .update
                .iter()
                .filter_map(Bag::smallest)
                .min()
                .map_or(0.0, |smallest| T::from_magnitude(smallest).to_f64()),
            notes: self.notes.clone(),
            proposed: self.proposed.clone(),
            own: self.own,
        }
    }

    /// The number of non-zero entries of the update.
    pub fn entries(&self) -> usize {
        self.update.iter().map(Bag::nonzeros).sum()
    }
}

/// A run of one schedule.
#[derive(Debug)]
pub struct Execution<T: Element = f32> {
    schedule: Arc<Schedule>,
    proof: Arc<RankProof>,
    accumulator: Arc<Vec<T>>,
    candidates: Vec<Candidates<T>>,
    reduction: Reduction<T>,
    memory: Arc<Memory>,
    seed: u64,
    /// By place.
    held: Vec<Option<Held<T>>>,
    /// Whether a block holds the worker's own contribution and nothing was selected from it or sent away yet.
    intact: Vec<bool>,
    fates: Vec<Fate<T>>,
    drops: Vec<Entries<T>>,
    /// The indices at which the workers agreed to keep their values, by block.
    agreed: Vec<Option<Arc<[u32]>>>,
    own: OwnChoice,
    step: usize,
    sent: bool,
    received: usize,
    decoder: Option<Decoder<T>>,
    /// The notes of the message that is being received, by slot.
    notes: Vec<Option<Arc<[u64]>>>,
    entries_received: u64,
    words_received: u64,
    exchanges: u64,
    tally: Tally,
    /// The dense block that is being received, if one is.
    arriving: Dense<T>,
    /// To whom the arriving block is passed on piece by piece, ahead of the next exchange.
    passing_on: Option<Rank>,
}

impl<T: Element> Execution<T> {
    /// Starts a run of a checked schedule on an accumulator of the partition's length, with candidates by block.
    pub fn new(
        schedule: Arc<Schedule>,
        proof: Arc<RankProof>,
        accumulator: Arc<Vec<T>>,
        candidates: Vec<Candidates<T>>,
    ) -> Self {
        let blocks = schedule.partition.blocks();
        let mut held: Vec<Option<Held<T>>> = (0..blocks * schedule.lanes as usize).map(|_| None).collect();
        for block in (0..blocks as u32).map(Block) {
            let place = Place { block, lane: schedule.lane };
            held[place.index(blocks)] = Some(Held::Own(Entries::default()));
        }
        Self {
            accumulator,
            candidates,
            reduction: Reduction::Sum,
            memory: Arc::default(),
            seed: 0,
            held,
            intact: vec![true; blocks],
            fates: (0..blocks).map(|_| Fate::Whole).collect(),
            drops: vec![Entries::default(); blocks],
            agreed: vec![None; blocks],
            own: OwnChoice::default(),
            step: 0,
            sent: false,
            received: 0,
            decoder: None,
            notes: Vec::new(),
            entries_received: 0,
            words_received: 0,
            exchanges: 0,
            tally: Tally::default(),
            arriving: Dense::default(),
            passing_on: None,
            schedule,
            proof,
        }
    }

    /// With what the method has learnt, for rules that read it, and a seed for stochastic rounding, which must be the same
    /// on all workers and another one in each step.
    #[must_use]
    pub fn with(self, memory: Arc<Memory>, seed: u64) -> Self {
        Self { memory, seed, ..self }
    }

    /// Reduces by something else than the sum.
    ///
    /// # Errors
    /// A reduction that has no residual, with a schedule that does not keep every entry exactly.
    pub fn reducing(self, reduction: Reduction<T>) -> Result<Self, ExecutionError> {
        if !self.proof.keeps_all && !reduction.has_residual() {
            return Err(ExecutionError::NotASum { reduction: reduction.name() });
        }
        Ok(Self { reduction, ..self })
    }

    /// How many exchanges have begun.
    pub(super) fn exchanges(&self) -> u64 {
        self.exchanges
    }

    /// Words that came so far: two for a sparse entry, one for a dense value.
    pub(super) fn words_received(&self) -> u64 {
        self.words_received
    }

    /// What was handled so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Goes on until a message is needed or all is done; appends what is to be sent.
    ///
    /// # Errors
    /// Sums that are not finite. The run is then of no use.
    pub fn advance(&mut self, outbox: &mut Vec<Outgoing>) -> Result<Progress, ExecutionError> {
        let schedule = self.schedule.clone();
        while let Some(step) = schedule.steps.get(self.step) {
            match step {
                Step::Keep { slots, rule, coding } => self.keep(*slots, rule, *coding),
                Step::Sum { slots } => slots.blocks(self.blocks()).try_for_each(|block| self.sum(block))?,
                Step::Split { slots } => slots.blocks(self.blocks()).for_each(|block| self.split(block)),
                Step::Annotate { slots, note } => self.annotate(*slots, *note),
                Step::Propose { slots, rule } => self.propose(*slots, rule),
                Step::Align { slots, coding } => self.align(*slots, *coding),
                Step::Exchange { sends, receives } => {
                    if !self.sent {
                        self.sent = true;
                        self.exchanges += 1;
                        let passed_on = self.passing_on.take().is_some();
                        for send in sends {
                            let (bodies, notes) = self.bodies(send);
                            if !passed_on {
                                let payloads = with_notes(wire::encode(&bodies).into_iter(), &notes);
                                let (to, exchange) = (send.to, self.exchanges);
                                outbox.extend(payloads.map(|payload| Outgoing { to, payload, exchange }));
                            }
                        }
                    }
                    if let Some(receive) = receives.get(self.received) {
                        let expected = || self.proof.expected[&self.step][self.received].clone();
                        let places = receive.slots.places(self.blocks(), schedule.lanes);
                        let sets = || places.map(|place| self.agreed[place.block.index()].clone()).collect();
                        let zeros = !self.reduction.has_residual();
                        let decoder = || match zeros {
                            true => Decoder::new(expected()).with_zeros(),
                            false => Decoder::new(expected()).with_sets(sets()),
                        };
                        if self.decoder.is_none() {
                            self.decoder = Some(decoder());
                        }
                        return Ok(Progress::Waiting(receive.from));
                    }
                    (self.sent, self.received) = (false, 0);
                }
            }
            self.step += 1;
        }
        Ok(Progress::Finished)
    }

    /// What committing this run will handle, once `advance` has said that it is finished.
    pub fn commitment(&self) -> Tally {
        let mut tally = Tally::default();
        for block in (0..self.blocks() as u32).map(Block) {
            let b = block.index();
            let sum = &self.held[Place { block, lane: 0 }.index(self.blocks())];
            match sum {
                Some(Held::Bag(Carried { bag: Bag::Sparse(entries), .. })) => {
                    tally.committed += entries.len() as f64;
                }
                Some(Held::Aligned(aligned)) => tally.committed += aligned.values.len() as f64,
                Some(Held::Bag(_) | Held::Own(_)) if !self.proof.whole.get(b).copied().unwrap_or(true) => {
                    tally.settled += self.block_len(block) as f64;
                }
                _ => {}
            }
            if let Fate::Selected { indices, .. } = &self.fates[b] {
                tally.cleared += indices.len() as f64;
            }
            tally.committed += self.drops[b].len() as f64;
        }
        tally
    }

    /// Ends a run whose `advance` said that it is finished.
    pub fn finish(mut self) -> Finished<T> {
        let (mut update, mut notes) = (Vec::new(), Vec::new());
        // Where nothing can wait for a later step, everything was delivered.
        let whole = match self.reduction.has_residual() {
            true => self.proof.whole.clone(),
            false => vec![true; self.blocks()],
        };
        for block in (0..self.blocks() as u32).map(Block) {
            let place = Place { block, lane: 0 };
            let (bag, note) = match self.slot(place).take() {
                Some(Held::Own(overlay)) => (self.materialise(block, &overlay), None),
                Some(Held::Bag(carried)) => (carried.bag, carried.note),
                Some(Held::Aligned(aligned)) => (aligned.into_bag(self.block_len(block)), None),
                Some(Held::Proposal(_)) | None => (Bag::empty(), None),
            };
            update.push(bag);
            notes.push(note);
        }
        Finished {
            update,
            accumulator: self.accumulator,
            fates: self.fates,
            drops: self.drops,
            candidates: self.candidates,
            whole,
            notes,
            proposed: self.agreed,
            own: self.own,
            entries_received: self.entries_received,
        }
    }

    fn blocks(&self) -> usize {
        self.schedule.partition.blocks()
    }

    fn slot(&mut self, place: Place) -> &mut Option<Held<T>> {
        let index = place.index(self.schedule.partition.blocks());
        &mut self.held[index]
    }

    fn place_at(&self, slots: Slots, position: usize) -> Place {
        let (blocks, count) = (self.blocks(), slots.count as usize);
        let lane = (slots.lanes.first as usize + position / count) % self.schedule.lanes as usize;
        let block = (slots.first.index() + position % count) % blocks;
        Place { block: Block(block as u32), lane: lane as u32 }
    }

    fn own(&self, block: Block) -> &[T] {
        &self.accumulator[self.schedule.partition.range(block)]
    }

    fn block_len(&self, block: Block) -> usize {
        self.schedule.partition.block_len(block)
    }

    fn materialise(&self, block: Block, overlay: &Entries<T>) -> Bag<T> {
        let mut values = self.own(block).to_vec();
        overlay.iter().for_each(|(i, v)| values[i as usize] = v);
        Bag::Dense(values.into())
    }

    /// What is sent of some slots, and the notes tied to them.
    fn bodies(&mut self, send: &super::Send) -> (Vec<Body<T>>, Vec<u64>) {
        let residual = self.reduction.has_residual();
        let mut notes = Vec::new();
        let mut bodies = Vec::new();
        for place in send.slots.places(self.blocks(), self.schedule.lanes) {
            let held = self.slot(place).take();
            if let Some(Held::Bag(Carried { note: Some(note), .. })) = &held {
                notes.extend_from_slice(note);
            }
            let (body, held) = match held {
                Some(Held::Own(overlay)) if overlay.is_empty() => {
                    let lent =
                        Dense::lent(self.accumulator.clone(), self.schedule.partition.range(place.block));
                    (Body::Dense { values: lent, rounded: Rounded::EXACT }, Held::Own(overlay))
                }
                Some(Held::Own(overlay)) => {
                    self.tally.dense += self.block_len(place.block) as f64;
                    let sums: Carried<T> = self.materialise(place.block, &overlay).into();
                    told(sums, self.block_len(place.block), residual)
                }
                Some(Held::Bag(carried)) => told(carried, self.block_len(place.block), residual),
                Some(Held::Aligned(aligned)) => {
                    let Aligned { indices, values, rounded } = aligned.clone();
                    let len = self.block_len(place.block);
                    (Body::Aligned { indices, values, len, rounded }, Held::Aligned(aligned))
                }
                Some(Held::Proposal(indices)) => {
                    let len = self.block_len(place.block);
                    (Body::Proposal { indices: indices.clone(), len }, Held::Proposal(indices))
                }
                None => told(Bag::empty().into(), self.block_len(place.block), residual),
            };
            match &body {
                Body::Sparse { entries, len, .. } => {
                    self.tally.encoded += entries.len() as f64;
                    if let Held::Bag(Carried { bag: Bag::Dense(_), .. }) = &held {
                        self.tally.dense += *len as f64;
                    }
                }
                Body::Proposal { indices, .. } | Body::Aligned { indices, .. } => {
                    self.tally.encoded += indices.len() as f64;
                }
                Body::Dense { .. } => {}
            }
            match send.after {
                After::Retain => *self.slot(place) = Some(held),
                After::Drop => self.intact[place.block.index()] &= place.lane != self.schedule.lane,
            }
            bodies.push(body);
        }
        (bodies, notes)
    }

    /// Adds up the lanes of a block.
    fn sum(&mut self, block: Block) -> Result<(), ExecutionError> {
        let len = self.block_len(block);
        let mut bags = Vec::new();
        let mut switched = true;
        for lane in 0..self.schedule.lanes {
            let slot = self.slot(Place { block, lane });
            match slot.take_if(|held| !matches!(held, Held::Proposal(_))) {
                Some(Held::Own(overlay)) => {
                    switched = false;
                    bags.push(self.materialise(block, &overlay));
                }
                Some(Held::Bag(carried)) => {
                    switched &= carried.switched || matches!(carried.bag, Bag::Sparse(_));
                    bags.push(carried.bag);
                }
                Some(Held::Aligned(aligned)) => bags.push(aligned.into_bag(len)),
                Some(Held::Proposal(_)) | None => {}
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
        let sum = Bag::reduce(bags, len, &self.reduction);
        if let Some(index) = sum.first_non_finite() {
            let entry = self.schedule.partition.range(block).start + index;
            return Err(ExecutionError::Sum { entry });
        }
        *self.slot(Place { block, lane: 0 }) = Some(Held::Bag(Carried { switched, ..sum.into() }));
        Ok(())
    }

    /// Cuts a bag into as many pieces as there are lanes.
    fn split(&mut self, block: Block) {
        let lanes = self.schedule.lanes as usize;
        let len = self.block_len(block);
        let entries = match self.slot(Place { block, lane: 0 }).take() {
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
            *self.slot(Place { block, lane: piece as u32 }) = Some(Held::of_sparse(Bag::smaller(cut, len)));
            from = to;
        }
    }

    fn annotate(&mut self, slots: Slots, note: Note) {
        let cuts = match note {
            Note::Cut(parts) => self.cuts(parts),
            Note::Seen => Vec::new(),
        };
        for place in slots.places(self.blocks(), self.schedule.lanes) {
            let mut carried = match self.slot(place).take() {
                Some(Held::Bag(carried)) => carried,
                Some(Held::Own(overlay)) => self.materialise(place.block, &overlay).into(),
                Some(Held::Aligned(_) | Held::Proposal(_)) | None => Bag::empty().into(),
            };
            carried.note = Some(match note {
                Note::Cut(_) => Arc::from([cuts.get(place.block.index()).copied().unwrap_or_default()]),
                Note::Seen => Arc::from([carried.seen as u64]),
            });
            *self.slot(place) = Some(Held::Bag(carried));
        }
    }

    /// Where each of so many parts of equal counts of this worker's own selection begins.
    fn cuts(&self, parts: u32) -> Vec<u64> {
        let chosen = |fate: &Fate<T>| match fate {
            Fate::Selected { indices, .. } => indices.len(),
            Fate::Whole => 0,
        };
        let total: usize = self.fates.iter().map(chosen).sum();
        let n = self.schedule.partition.entries();
        let mut blocks = self.fates.iter().enumerate();
        let (mut before, mut present) = (0, blocks.next());
        // In 128 bits: n times the number of workers may be more than 64 hold.
        let share = |of: usize, part: u64| (of as u128 * u128::from(part) / u128::from(parts)) as u64;
        (0..u64::from(parts))
            .map(|part| {
                if total == 0 {
                    return share(n, part);
                }
                let ordinal = share(total, part) as usize;
                while let Some((block, fate)) = present {
                    if let Fate::Selected { indices, .. } = fate
                        && let Some(&index) = indices.get(ordinal - before)
                    {
                        let start = self.schedule.partition.range(Block(block as u32)).start;
                        return start as u64 + u64::from(index);
                    }
                    before += chosen(fate);
                    present = blocks.next();
                }
                n as u64
            })
            .collect()
    }
}

/// The height of a balanced tree over so many bags, at least 1.
pub(crate) fn levels(bags: usize) -> f64 {
    f64::from(bags.next_power_of_two().trailing_zeros().max(1))
}

/// What is sent of a bag, and the bag to retain: one copy for both. With zeros as a `residual` has them, a bag that only
/// became dense is told as its entries where enough are absent for a bit each to pay.
fn told<T: Element>(carried: Carried<T>, len: usize, residual: bool) -> (Body<T>, Held<T>) {
    let rounded = carried.rounded;
    let body = match &carried.bag {
        Bag::Sparse(entries) => Body::Sparse { entries: entries.clone(), len, rounded },
        Bag::Dense(values) => {
            let few = (residual && carried.switched).then(|| some_of(values)).flatten();
            match few {
                Some(entries) => Body::Sparse { entries, len, rounded },
                None => Body::Dense { values: values.clone(), rounded },
            }
        }
    };
    (body, Held::Bag(carried))
}

/// The entries of a dense block of which at least one in 32 is absent. Only what comes back as it was: not where entries
/// are so few that whoever receives them keeps them sparse, and not with a negative zero among them.
fn some_of<T: Element>(values: &Dense<T>) -> Option<Entries<T>> {
    let len = values.len();
    let absent = values.iter().filter(|v| *v == T::ZERO).count();
    let negative = |v: T| v == T::ZERO && v.to_f64().is_sign_negative();
    if absent < len.div_ceil(32) || !Bag::<T>::is_dense_with(len - absent, len) || values.iter().any(negative)
    {
        return None;
    }
    Some((0u32..).zip(values.iter()).filter(|(_, v)| *v != T::ZERO).collect())
}

/// Payloads with notes before the first of them.
fn with_notes(mut payloads: impl Iterator<Item = Bytes>, notes: &[u64]) -> impl Iterator<Item = Bytes> {
    let first = payloads.next().map(|payload| {
        if notes.is_empty() {
            return payload;
        }
        let mut first = BytesMut::with_capacity(8 * notes.len() + payload.len());
        notes.iter().for_each(|&number| first.put_u64_le(number));
        first.extend_from_slice(&payload);
        first.freeze()
    });
    first.into_iter().chain(payloads)
}
