//! The checker: it runs the schedules of all workers on symbols.
//!
//! It proves that every send has its receive, that no slot is used after it left, that nothing deadlocks (SparDL,
//! Theorem 3.1 falls out), that every worker's contribution to every block is counted exactly once, and that
//! all workers end with the same expressions, hence the same bits. It derives what no algorithm states: the share
//! of a drop that each holder of a copy keeps, how many entries a receive may bring, and the cost.

mod agreement;
mod error;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::cost::Cost;
pub use error::CheckError;

use super::expression::{Choice, Expressions, Id, Kept, Node};
use super::{After, How, Note, Place, Rule, Schedule, Send, Slots, Step};
use crate::bag::Coding;
use crate::bag::wire::{Content, Expected};
use crate::{Block, Element, Rank};

/// What the checker derived for one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankProof {
    /// For each `Keep` (by its place in the schedule) and each of its slots: who else holds that very expression and
    /// drops the same entries.
    pub holders: BTreeMap<usize, Vec<Holders>>,
    /// For each `Keep` and each of its slots: how many selections lie behind the result, this one included. Equal
    /// contents have equal stages, so that a rounding may take its random numbers from there.
    pub stages: BTreeMap<usize, Vec<u32>>,
    /// For each exchange, each of its receives and each slot: what may come.
    pub expected: BTreeMap<usize, Vec<Vec<Expected>>>,
    /// For each exchange and each of its receives: how many words may come at most.
    pub words: BTreeMap<usize, Vec<u64>>,
    /// For each exchange and each of its receives whose bags carry notes: how many numbers come with each slot.
    pub notes: BTreeMap<(usize, usize), Vec<usize>>,
    /// For each block: whether nothing was ever selected from its sum, so that every entry is delivered, those that
    /// cancel to zero too.
    pub whole: Vec<bool>,
    /// Whether no worker's schedule leaves anything out or rounds it, which reductions other than the sum need.
    pub keeps_all: bool,
}

/// How many workers drop the same entries, so that each keeps one part in so many for its residual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holders {
    /// This worker and all others.
    pub count: u32,
    /// Whether this one is the first of them by rank, which keeps what division leaves over.
    pub is_first: bool,
}

impl Holders {
    /// Nobody else.
    pub const ALONE: Self = Self { count: 1, is_first: true };

    /// This worker's share v/d of what d holders drop, as it is rounded; of the first, v − (d − 1)·(v/d), so that the
    /// shares add up to v.
    pub fn share<T: Element>(self, value: T) -> T {
        let share = value.divide(self.count);
        if self.is_first && !self.count.is_power_of_two() {
            // One rounding in 64 bits; in fewer there is none to speak of.
            T::from_f64((1.0 - f64::from(self.count)).mul_add(share.to_f64(), value.to_f64()))
        } else {
            share
        }
    }
}

/// That a set of schedules is right, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// What it costs.
    pub cost: Cost,
    /// By rank.
    pub ranks: Vec<RankProof>,
}

/// Checks the schedules of all workers, in the order of their ranks.
///
/// # Errors
/// The first reason found why they do not add up to an all-reduce.
pub fn check(schedules: &[Schedule]) -> Result<Proof, CheckError> {
    for (position, schedule) in schedules.iter().enumerate() {
        let Schedule { rank, workers, partition, .. } = schedule;
        if rank.index() != position
            || *workers as usize != schedules.len()
            || *partition != schedules[0].partition
            || schedule.lanes != schedules[0].lanes
            || schedule.lane >= schedule.lanes
        {
            return Err(CheckError::Misplaced { position, rank: *rank, workers: *workers });
        }
    }
    let mut checker = Checker::new(schedules);
    while checker.round()? {}
    let keeps_all = schedules.iter().flat_map(|s| &s.steps).all(|step| match step {
        Step::Keep { rule: Rule::Every | Rule::Dense, coding: Coding::Exact, .. } => true,
        Step::Keep { .. } | Step::Align { .. } => false,
        _ => true,
    });
    checker.conclude(keeps_all)
}

/// The symbolic content of one slot at one worker.
#[derive(Clone, Copy, Debug)]
struct Value {
    expression: Id,
    /// Non-zero entries at most.
    bound: u32,
    /// Whether everything in it was selected; what was not travels dense.
    selected: bool,
    /// Whether this worker itself made the last selection.
    kept_here: bool,
    /// The note tied to it, and what that says.
    note: Option<(Note, Id)>,
    /// Whether it is the worker's own accumulator, which never left.
    own: bool,
    form: Form,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Indices and values.
    Bag,
    /// Indices alone.
    Proposal,
    /// Values at the indices of this union.
    Aligned(Id),
}

impl Form {
    fn content(self) -> Content {
        match self {
            Form::Bag => Content::Bag,
            Form::Proposal => Content::Proposal,
            Form::Aligned(_) => Content::Aligned,
        }
    }
}

struct Flight {
    slots: Slots,
    values: Vec<Value>,
    round: u64,
}

#[derive(Default)]
struct Worker {
    held: Vec<Option<Value>>,
    /// By block, the union of proposals at which this worker kept its own values.
    agreed: Vec<Option<Id>>,
    step: usize,
    /// Whether the present exchange's sends have left, and how many of its receives have come.
    sent: bool,
    received: usize,
    /// The last round that this worker finished, and the one that the present exchange has reached.
    finished_round: u64,
    round: u64,
    round_words: u64,
    messages_sent: u64,
    messages_received: u64,
    words_received: u64,
    proof: RankProof,
}

struct Checker<'a> {
    schedules: &'a [Schedule],
    blocks: usize,
    expressions: Expressions,
    workers: Vec<Worker>,
    lanes: u32,
    flights: HashMap<(Rank, Rank), VecDeque<Flight>>,
    /// Every selection that was made: who, at which step, of which block, and its result.
    kept: Vec<(Rank, usize, Block, Id)>,
    /// The largest receive of each round, in words.
    rounds: BTreeMap<u64, u64>,
}

impl<'a> Checker<'a> {
    fn new(schedules: &'a [Schedule]) -> Self {
        let blocks = schedules.first().map_or(0, |s| s.partition.blocks());
        let mut expressions = Expressions::default();
        let lanes = schedules.first().map_or(1, |s| s.lanes);
        let workers = schedules
            .iter()
            .map(|schedule| {
                let mut held = vec![None; blocks * lanes as usize];
                for block in (0..blocks as u32).map(Block) {
                    held[Place { block, lane: schedule.lane }.index(blocks)] = Some(Value {
                        expression: expressions.leaf(schedule.rank, block),
                        bound: schedule.partition.block_len(block) as u32,
                        selected: false,
                        kept_here: false,
                        note: None,
                        own: true,
                        form: Form::Bag,
                    });
                }
                Worker { held, agreed: vec![None; blocks], ..Worker::default() }
            })
            .collect();
        Self {
            schedules,
            blocks,
            lanes,
            expressions,
            workers,
            flights: HashMap::new(),
            kept: Vec::new(),
            rounds: BTreeMap::new(),
        }
    }

    /// Runs every worker until it waits. Says whether there is more to do.
    fn round(&mut self) -> Result<bool, CheckError> {
        let (mut progress, mut waiting) = (false, None);
        for rank in (0..self.schedules.len() as u32).map(Rank) {
            let before = self.place(rank);
            while self.workers[rank.index()].step < self.schedules[rank.index()].steps.len() {
                if let Some(from) = self.step(rank)? {
                    waiting.get_or_insert((rank, self.workers[rank.index()].step, from));
                    break;
                }
            }
            progress |= self.place(rank) != before;
        }
        match waiting {
            Some((rank, step, from)) if !progress => Err(CheckError::Deadlock { rank, step, from }),
            waiting => Ok(waiting.is_some()),
        }
    }

    /// How far a worker has come: to have sent is something, even if it waits in the same step.
    fn place(&self, rank: Rank) -> (usize, bool, usize) {
        let Worker { step, sent, received, .. } = self.workers[rank.index()];
        (step, sent, received)
    }

    /// Runs the present step of a worker; names the rank that it waits for if it cannot finish.
    fn step(&mut self, rank: Rank) -> Result<Option<Rank>, CheckError> {
        let schedules = self.schedules;
        let step = self.workers[rank.index()].step;
        match &schedules[rank.index()].steps[step] {
            Step::Keep { slots, rule, coding } => self.keep(rank, step, *slots, rule, *coding)?,
            Step::Sum { slots } => self.sum(rank, step, *slots)?,
            Step::Split { slots } => self.split(rank, step, *slots)?,
            Step::Annotate { slots, note } => self.annotate(rank, step, *slots, *note)?,
            Step::Propose { slots, rule } => self.propose(rank, step, *slots, rule)?,
            Step::Align { slots, coding } => self.align(rank, step, *slots, *coding)?,
            Step::Exchange { sends, receives } => {
                if !self.workers[rank.index()].sent {
                    let worker = &mut self.workers[rank.index()];
                    (worker.sent, worker.round, worker.round_words) = (true, worker.finished_round + 1, 0);
                    sends.iter().try_for_each(|send| self.send(rank, step, send))?;
                }
                while let Some(receive) = receives.get(self.workers[rank.index()].received) {
                    self.exists(rank, step, receive.from, receive.slots)?;
                    let queue = self.flights.entry((receive.from, rank)).or_default();
                    let Some(flight) = queue.pop_front() else { return Ok(Some(receive.from)) };
                    self.receive(rank, step, receive, flight)?;
                }
                let worker = &mut self.workers[rank.index()];
                (worker.sent, worker.received, worker.finished_round) = (false, 0, worker.round);
                let largest = self.rounds.entry(worker.round).or_default();
                *largest = worker.round_words.max(*largest);
            }
        }
        self.workers[rank.index()].step += 1;
        Ok(None)
    }

    fn exists(&self, rank: Rank, step: usize, peer: Rank, slots: Slots) -> Result<(), CheckError> {
        let peer_exists = peer.index() < self.schedules.len() && peer != rank;
        if peer_exists && self.has(slots) { Ok(()) } else { Err(CheckError::Nowhere { rank, step, slots }) }
    }

    fn has(&self, slots: Slots) -> bool {
        slots.first.index() < self.blocks
            && (1..=self.blocks).contains(&(slots.count as usize))
            && slots.lanes.first < self.lanes
            && (1..=self.lanes).contains(&slots.lanes.count)
    }

    fn places(&self, slots: Slots) -> impl Iterator<Item = Place> + use<> {
        slots.places(self.blocks, self.lanes)
    }

    fn slot(&mut self, rank: Rank, place: Place) -> &mut Option<Value> {
        &mut self.workers[rank.index()].held[place.index(self.blocks)]
    }

    fn held(&mut self, rank: Rank, step: usize, place: Place) -> Result<Value, CheckError> {
        let fault = "uses what it does not hold:";
        self.slot(rank, place).ok_or(CheckError::Slot { rank, step, block: place.block, fault })
    }

    /// What a worker holds, if it has values.
    fn held_bag(&mut self, rank: Rank, step: usize, place: Place) -> Result<Value, CheckError> {
        let value = self.held(rank, step, place)?;
        let fault = "uses a proposal as if it had values, in";
        match value.form {
            Form::Proposal => Err(CheckError::Slot { rank, step, block: place.block, fault }),
            Form::Bag | Form::Aligned(_) => Ok(value),
        }
    }

    /// Whether a rule has what it needs for every block.
    fn fits(&self, rule: &Rule) -> bool {
        match rule {
            Rule::Top(k) | Rule::TopOf { most: k, .. } | Rule::Random(k) => k.len() == self.blocks,
            Rule::By(selection) => {
                let n = self.schedules[0].partition.entries();
                selection.selector.check().is_ok() && selection.layers.entries() == n && n < u32::MAX as usize
            }
            _ => true,
        }
    }

    /// The most entries that a rule keeps of a block that has so many.
    fn most(&self, rule: &Rule, block: Block, bound: u32) -> u32 {
        let len = self.schedules[0].partition.block_len(block) as u32;
        let most = |k: usize| u32::try_from(k).unwrap_or(u32::MAX);
        match rule {
            Rule::Top(k) | Rule::TopOf { most: k, .. } | Rule::Random(k) => bound.min(k[block.index()]),
            Rule::Jointly(k) | Rule::Above { most: k, .. } => bound.min(most(*k)),
            Rule::By(selection) => bound.min(most(selection.most())),
            Rule::Every => bound,
            Rule::Dense => len,
        }
    }

    fn keep(
        &mut self,
        rank: Rank,
        step: usize,
        slots: Slots,
        rule: &Rule,
        coding: Coding,
    ) -> Result<(), CheckError> {
        if !self.has(slots) || !self.fits(rule) {
            return Err(CheckError::Nowhere { rank, step, slots });
        }
        let places: Vec<Place> = self.places(slots).collect();
        let mut values = Vec::with_capacity(places.len());
        for &place in &places {
            values.push(self.held_bag(rank, step, place)?);
        }
        if let Rule::By(_) = rule {
            self.chooses_from_its_own(rank, step, &places)?;
        }
        let all: Box<[Id]> = values.iter().map(|v| v.expression).collect();
        for (position, (&place, value)) in places.iter().zip(&values).enumerate() {
            let choice = Choice::of(rule, place.block, rank);
            let (inputs, position) = match choice.is_joint() {
                true => (all.clone(), position as u32),
                false => (Box::from([value.expression]), 0),
            };
            let kept = Kept { inputs, position, choice, rounded: rounded(coding, place) };
            let bound = self.most(rule, place.block, value.bound);
            // Rounding leaves every index where it is.
            let form = if *rule == Rule::Every { value.form } else { Form::Bag };
            self.note_kept(rank, step, place, kept, Value { bound, form, ..*value });
        }
        Ok(())
    }

    /// A selector looks at all of the worker's own accumulator, block by block from the first on, and nothing else.
    fn chooses_from_its_own(&mut self, rank: Rank, step: usize, places: &[Place]) -> Result<(), CheckError> {
        let lane = self.schedules[rank.index()].lane;
        for (b, &place) in places.iter().enumerate() {
            let own = self.slot(rank, place).is_some_and(|value| value.own && value.note.is_none());
            let fault = "lets a selector choose from something else than its own accumulator, in";
            if !own || place != (Place { block: Block(b as u32), lane }) {
                return Err(CheckError::Slot { rank, step, block: place.block, fault });
            }
        }
        let fault = "lets a selector choose from a part of its own accumulator only, without";
        match places.len() {
            all if all == self.blocks => Ok(()),
            some => Err(CheckError::Slot { rank, step, block: Block(some as u32), fault }),
        }
    }

    /// Puts what was kept into its slot.
    fn note_kept(&mut self, rank: Rank, step: usize, place: Place, kept: Kept, value: Value) {
        let expression = self.expressions.intern(Node::Kept(kept));
        self.kept.push((rank, step, place.block, expression));
        *self.slot(rank, place) =
            Some(Value { expression, selected: true, kept_here: true, own: false, ..value });
        let stage = self.expressions.depth(expression);
        self.workers[rank.index()].proof.stages.entry(step).or_default().push(stage);
    }

    /// The lanes of a block, added up as a balanced tree; or the pieces of one bag, put together.
    fn sum(&mut self, rank: Rank, step: usize, slots: Slots) -> Result<(), CheckError> {
        if !self.has(slots) {
            return Err(CheckError::Nowhere { rank, step, slots });
        }
        for block in slots.blocks(self.blocks) {
            let len = self.schedules[0].partition.block_len(block) as u32;
            let mut values = Vec::new();
            for lane in 0..self.lanes {
                let slot = self.slot(rank, Place { block, lane });
                values.extend(slot.take_if(|v| v.form != Form::Proposal));
            }
            let refused = |fault| Err(CheckError::Slot { rank, step, block, fault });
            if values.is_empty() {
                return refused("adds up lanes that hold nothing of");
            }
            if values.iter().any(|v| v.note.is_some()) {
                return refused("adds up what carries a note:");
            }
            if let Node::Piece { of, pieces, .. } = *self.expressions.node(values[0].expression) {
                let whole = values.len() == pieces as usize
                    && (0u32..).zip(&values).all(|(piece, v)| {
                        *self.expressions.node(v.expression) == Node::Piece { of, piece, pieces }
                    });
                if !whole {
                    return refused("puts some pieces together, but not all and no others, of");
                }
                let bound = values.iter().fold(0u32, |sum, v| sum.saturating_add(v.bound)).min(len);
                values = vec![Value { expression: of, bound, ..values[0] }];
            }
            while values.len() > 1 {
                values = values
                    .chunks(2)
                    .map(|pair| match *pair {
                        [a, b] => self.added(a, b, len),
                        _ => pair[0],
                    })
                    .collect();
            }
            let first = Place { block, lane: 0 };
            if self.slot(rank, first).is_some() {
                return refused("adds up where a proposal lies, in");
            }
            let sum = Value { kept_here: false, own: false, form: Form::Bag, ..values[0] };
            *self.slot(rank, first) = Some(sum);
        }
        Ok(())
    }

    fn added(&mut self, a: Value, b: Value, len: u32) -> Value {
        let (form, bound) = match (a.form, b.form) {
            (Form::Aligned(a_set), Form::Aligned(b_set)) if a_set == b_set => (a.form, a.bound),
            _ => (Form::Bag, a.bound.saturating_add(b.bound).min(len)),
        };
        Value {
            expression: self.expressions.add(a.expression, b.expression),
            bound,
            selected: a.selected && b.selected,
            kept_here: false,
            note: None,
            own: false,
            form,
        }
    }

    fn split(&mut self, rank: Rank, step: usize, slots: Slots) -> Result<(), CheckError> {
        if !self.has(slots) {
            return Err(CheckError::Nowhere { rank, step, slots });
        }
        for block in slots.blocks(self.blocks) {
            let value = self.held_bag(rank, step, Place { block, lane: 0 })?;
            let free = (1..self.lanes).all(|lane| self.slot(rank, Place { block, lane }).is_none());
            if !value.selected || value.note.is_some() || !free {
                let fault = "splits what was not selected or carries a note, or has no free lanes for";
                return Err(CheckError::Slot { rank, step, block, fault });
            }
            for piece in 0..self.lanes {
                let node = Node::Piece { of: value.expression, piece, pieces: self.lanes };
                let expression = self.expressions.intern(node);
                let bound = value.bound.div_ceil(self.lanes);
                *self.slot(rank, Place { block, lane: piece }) =
                    Some(Value { expression, bound, kept_here: false, own: false, form: Form::Bag, ..value });
            }
        }
        Ok(())
    }

    fn annotate(&mut self, rank: Rank, step: usize, slots: Slots, note: Note) -> Result<(), CheckError> {
        if !self.has(slots) {
            return Err(CheckError::Nowhere { rank, step, slots });
        }
        for place in self.places(slots) {
            let value = self.held_bag(rank, step, place)?;
            if value.form != Form::Bag {
                let fault = "ties a note to values that travel without indices, in";
                return Err(CheckError::Slot { rank, step, block: place.block, fault });
            }
            let says = match (note, self.expressions.node(value.expression)) {
                (Note::Seen, Node::Kept(kept)) if value.kept_here => {
                    Node::Seen(kept.inputs[kept.position as usize])
                }
                (Note::Seen, _) => {
                    let fault = "tells what a selection saw that it did not make, in";
                    return Err(CheckError::Slot { rank, step, block: place.block, fault });
                }
                (Note::Cut(_), _) => Node::Told(rank, note),
            };
            let says = self.expressions.intern(says);
            *self.slot(rank, place) = Some(Value { note: Some((note, says)), ..value });
        }
        Ok(())
    }

    fn send(&mut self, rank: Rank, step: usize, send: &Send) -> Result<(), CheckError> {
        self.exists(rank, step, send.to, send.slots)?;
        let mut values = Vec::with_capacity(send.slots.count as usize);
        for place in self.places(send.slots) {
            values.push(self.held(rank, step, place)?);
            if send.after == After::Drop {
                *self.slot(rank, place) = None;
            }
        }
        let worker = &mut self.workers[rank.index()];
        worker.messages_sent += 1;
        let flight = Flight { slots: send.slots, values, round: worker.round };
        self.flights.entry((rank, send.to)).or_default().push_back(flight);
        Ok(())
    }

    fn receive(
        &mut self,
        rank: Rank,
        step: usize,
        receive: &super::Receive,
        flight: Flight,
    ) -> Result<(), CheckError> {
        if flight.slots != receive.slots {
            let (expected, found) = (receive.slots, flight.slots);
            return Err(CheckError::Mismatch { rank, step, from: receive.from, expected, found });
        }
        let partition = &self.schedules[0].partition;
        let words = self.words(receive.slots, &flight.values);
        let mut expected = Vec::with_capacity(flight.values.len());
        let mut notes = Vec::new();
        for (place, came) in self.places(receive.slots).zip(flight.values) {
            let block = place.block;
            let len = partition.block_len(block) as u32;
            expected.push(Expected { len, bound: came.bound, content: came.form.content() });
            notes.push(usize::from(came.note.is_some()));
            let refused = |fault| Err(CheckError::Slot { rank, step, block, fault });
            let held = *self.slot(rank, place);
            let value = match (receive.how, held) {
                (_, _) if !self.knows(rank, block, came.form) => {
                    return refused("receives values at indices that it does not know, in");
                }
                (How::Place, None) => Value { kept_here: false, own: false, ..came },
                (How::Add, Some(value)) if [value.form, came.form].contains(&Form::Proposal) => {
                    return refused("adds to a proposal, or adds one, in");
                }
                (How::Add, Some(value)) => {
                    let note = match (value.note, came.note) {
                        (None, None) => None,
                        (Some((here, a)), Some((there, b))) if here == there && here != Note::Seen => {
                            Some((here, self.expressions.add(a, b)))
                        }
                        _ => return refused("adds to, or something, that carries a note:"),
                    };
                    Value { note, ..self.added(value, came, len) }
                }
                (How::Place, Some(_)) => return refused("places a bag where it already holds"),
                (How::Add, None) => return refused("adds to what it does not hold:"),
            };
            *self.slot(rank, place) = Some(value);
        }
        let worker = &mut self.workers[rank.index()];
        if notes.iter().any(|&len| len > 0) {
            worker.proof.notes.insert((step, worker.received), notes);
        }
        worker.round = worker.round.max(flight.round);
        worker.round_words += words;
        worker.words_received += words;
        worker.messages_received += 1;
        worker.received += 1;
        worker.proof.expected.entry(step).or_default().push(expected);
        worker.proof.words.entry(step).or_default().push(words);
        Ok(())
    }

    /// The most words that the values of one message can have: what was chosen together has one bound together.
    fn words(&self, slots: Slots, values: &[Value]) -> u64 {
        let partition = &self.schedules[0].partition;
        let mut together: HashMap<&[Id], (u64, u64)> = HashMap::new();
        let mut words = 0;
        for (place, value) in self.places(slots).zip(values) {
            let len = partition.block_len(place.block) as u64;
            // An index is a word, and so is a value.
            let each = if value.form == Form::Bag { 2 } else { 1 };
            let sparse = match value.form {
                Form::Bag if !value.selected => len,
                _ => (each * u64::from(value.bound)).min(len),
            };
            let joint = match self.expressions.node(self.chosen_by(value)) {
                Node::Kept(Kept { inputs, choice, .. }) | Node::Proposed(Kept { inputs, choice, .. }) => {
                    choice.most_together().map(|most| (inputs, most))
                }
                _ => None,
            };
            match joint {
                Some((inputs, most)) if values.len() > 1 => {
                    let (sum, limit) = together.entry(inputs).or_insert((0, each * most as u64));
                    *sum = (*sum + sparse).min(*limit);
                }
                _ => words += sparse,
            }
        }
        words + together.values().map(|(sum, _)| sum).sum::<u64>()
    }

    fn conclude(mut self, keeps_all: bool) -> Result<Proof, CheckError> {
        for (&(from, to), queue) in &self.flights {
            if let Some(flight) = queue.front() {
                return Err(CheckError::Unreceived { from, to, slots: flight.slots });
            }
        }
        let mut used = HashSet::new();
        let mut whole = Vec::with_capacity(self.blocks);
        for block in (0..self.blocks as u32).map(Block) {
            let first = Place { block, lane: 0 };
            let content = |v: Value| (v.expression, v.note);
            let sum = self.slot(Rank(0), first).map(content);
            for rank in (0..self.workers.len() as u32).map(Rank) {
                let held = self.slot(rank, first).map(content);
                let left_over = (1..self.lanes).any(|lane| {
                    self.slot(rank, Place { block, lane }).is_some_and(|v| v.form != Form::Proposal)
                });
                let agreed = |rank: Rank| self.workers[rank.index()].agreed[block.index()];
                if held.is_none() || held != sum || left_over || agreed(rank) != agreed(Rank(0)) {
                    return Err(CheckError::Differs { rank, block });
                }
            }
            let sum = sum.map(|(expression, _)| expression);
            let selections = used.len();
            if let Some(sum) = sum {
                self.count(sum, block, &mut used)?;
            }
            // Blocks share no expressions, so a selection from this one is a new one.
            whole.push(used.len() == selections);
        }
        let mut holders: HashMap<Id, (u32, Rank)> = HashMap::new();
        for &(rank, step, block, result) in &self.kept {
            if !used.contains(&result) {
                return Err(CheckError::KeptInVain { rank, step, block });
            }
            let (count, first) = holders.entry(result).or_insert((0, rank));
            (*count, *first) = (*count + 1, rank.min(*first));
        }
        for &(rank, step, _, result) in &self.kept {
            let (count, first) = holders[&result];
            let held = Holders { count, is_first: rank == first };
            self.workers[rank.index()].proof.holders.entry(step).or_default().push(held);
        }
        for worker in &mut self.workers {
            (worker.proof.whole, worker.proof.keeps_all) = (whole.clone(), keeps_all);
        }
        let largest = |count: fn(&Worker) -> u64| self.workers.iter().map(count).max().unwrap_or(0);
        let cost = Cost {
            rounds: largest(|w| w.finished_round),
            messages: largest(|w| w.messages_sent.max(w.messages_received)),
            words_received: largest(|w| w.words_received),
            words_critical: self.rounds.values().sum(),
        };
        Ok(Proof { cost, ranks: self.workers.into_iter().map(|w| w.proof).collect() })
    }

    /// Every worker's contribution must be in the sum of a block once; remembers which selections are in it.
    fn count(&self, sum: Id, block: Block, used: &mut HashSet<Id>) -> Result<(), CheckError> {
        let mut times = vec![0usize; self.workers.len()];
        let mut wrong = None;
        self.expressions.visit(sum, |id, node| {
            match node {
                Node::Leaf(rank, of) => {
                    times[rank.index()] += 1;
                    if *of != block || times[rank.index()] > 1 {
                        wrong = Some(*rank);
                    }
                }
                Node::Kept(_) => {
                    used.insert(id);
                }
                // A piece alone is not the whole sum, and a proposal has no values.
                Node::Piece { .. } | Node::Proposed(_) | Node::Drawn(..) | Node::Union(_) => {
                    wrong = Some(Rank(0));
                }
                Node::Add(..) | Node::Seen(_) | Node::Told(..) => {}
            }
            wrong.is_none()
        });
        let missing = times.iter().position(|&t| t == 0).map(|r| Rank(r as u32));
        match wrong.or(missing) {
            Some(rank) => Err(CheckError::Counted { rank, block, times: times[rank.index()] }),
            None => Ok(()),
        }
    }
}

/// Where a rounding takes its random numbers from. What is not left to chance does not depend on the place.
fn rounded(coding: Coding, place: Place) -> Option<(Coding, Place)> {
    let somewhere = Place { block: Block(0), lane: 0 };
    match coding {
        Coding::Exact => None,
        _ if coding.is_stochastic() => Some((coding, place)),
        _ => Some((coding, somewhere)),
    }
}
