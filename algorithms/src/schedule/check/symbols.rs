//! The reader that runs schedules on symbols: what slots hold, whose contributions it is, and how much it may be.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use super::super::expression::{Expressions, Kept, Node, Term};
use super::super::machine::{Arrival, Did, Fault, Reader, Slotted, Works};
use super::super::{After, How, Note, Place, Rule, Schedule, Scope, Send, Slots};
use super::CheckError;
use super::value::{Again, Carries, Flight, Record, Runs, Value};
use crate::bag::Coding;
use crate::{Block, Rank};

/// All that the readers of all workers know together, and the worker whose machine is running.
pub(super) struct Symbols {
    /// Of all ranks, or of rank 0 where the others are rotations.
    pub(super) schedules: Vec<Arc<Schedule>>,
    pub(super) expressions: Expressions,
    /// Every rule that is applied.
    pub(super) rules: Vec<Rule>,
    codings: Vec<Coding>,
    /// Which worker's machine is running.
    pub(super) rank: Rank,
    /// By sender and receiver; where the others are rotations of rank 0, by 0 and the distance.
    flights: HashMap<(Rank, Rank), VecDeque<Flight>>,
    /// By rank, and by block the union of proposals at which it kept its own values.
    pub(super) agreed: Vec<Vec<Option<Term>>>,
    /// By rank and step.
    pub(super) records: Vec<Vec<Record>>,
}

impl Symbols {
    pub(super) fn new(schedules: Vec<Arc<Schedule>>, expressions: Expressions) -> Self {
        let blocks = schedules[0].partition.blocks();
        let records = schedules.iter().map(|s| s.steps.iter().map(|_| Record::default()).collect()).collect();
        Self {
            agreed: vec![vec![None; blocks]; schedules.len()],
            schedules,
            expressions,
            rules: Vec::new(),
            codings: Vec::new(),
            rank: Rank(0),
            flights: HashMap::new(),
            records,
        }
    }

    fn schedule(&self) -> &Schedule {
        &self.schedules[self.rank.index()]
    }

    /// The next message from a peer to this worker, if it was sent.
    pub(super) fn next_from(&mut self, from: Rank) -> Option<Flight> {
        if self.schedules.len() > 1 {
            return self.flights.get_mut(&(from, self.rank))?.pop_front();
        }
        // All ranks do the same, rotated: what this one sends over a distance, the rank at that distance sends to this one.
        let workers = self.schedule().workers;
        let distance = Rank((workers - from.0) % workers);
        let Flight { slots, values, round } = self.flights.get_mut(&(self.rank, distance))?.pop_front()?;
        let (slots, values) = values.rotated(slots, from.0, self.schedule());
        let values = values.into_iter().map(|value| value.rotated(&self.expressions, from.0)).collect();
        Some(Flight { slots, values, round })
    }

    /// A message that no worker received.
    pub(super) fn left_over(&self) -> Option<CheckError> {
        let (&(from, to), queue) = self.flights.iter().find(|(_, queue)| !queue.is_empty())?;
        queue.front().map(|flight| CheckError::Unreceived { from, to, slots: flight.slots })
    }

    fn refused(&self, step: usize, block: Block, fault: &'static str) -> CheckError {
        CheckError::Slot { rank: self.rank, step, block, fault }
    }

    /// What this worker holds in a place.
    fn held(&self, held: &Slotted<Self>, step: usize, place: Place) -> Result<Value, CheckError> {
        let value = held.get(place).copied();
        value.ok_or_else(|| self.refused(step, place.block, "uses what it does not hold:"))
    }

    /// The same, if it has values.
    fn bag(&self, held: &Slotted<Self>, step: usize, place: Place) -> Result<Value, CheckError> {
        let value = self.held(held, step, place)?;
        match value.form {
            Carries::Proposal => {
                Err(self.refused(step, place.block, "uses a proposal as if it had values, in"))
            }
            Carries::Bag | Carries::Aligned(_) => Ok(value),
        }
    }

    /// The number of a rule.
    fn number(&mut self, rule: &Rule) -> u32 {
        let known = self.rules.iter().position(|known| known == rule);
        known.unwrap_or_else(|| {
            self.rules.push(rule.clone());
            self.rules.len() - 1
        }) as u32
    }

    /// Where a rounding takes its random numbers from. What is not random does not depend on the lane.
    fn rounding(&mut self, coding: Coding) -> impl Fn(Place) -> Option<(u32, u32)> + use<> {
        let known = self.codings.iter().position(|known| *known == coding);
        let number = known.unwrap_or_else(|| {
            self.codings.push(coding);
            self.codings.len() - 1
        });
        move |place| {
            let lane = if coding.is_stochastic() { place.lane } else { 0 };
            (coding != Coding::Exact).then_some((number as u32, lane))
        }
    }

    /// What a rule chooses of expressions of some blocks, without saying of which.
    fn choice(&mut self, rule: &Rule, slots: Slots, values: &[Value]) -> impl Fn(Term) -> Kept + use<> {
        let number = self.number(rule);
        let terms = values.iter().map(|value| value.term);
        let among = rule.is_joint().then(|| self.expressions.joint(slots.first, terms.collect()));
        let reads = rule.reads_own().then(|| self.expressions.intern(Node::Own(self.rank)));
        move |of| Kept { of, among, rule: Some(number), reads, rounded: None }
    }

    /// The value after something of it was kept.
    fn kept(&mut self, kept: Kept, value: Value) -> Value {
        let term = self.expressions.intern(Node::Kept(kept));
        Value { term, selected: true, kept_here: true, own: false, ..value }
    }

    /// A selector looks at all of the worker's own accumulator, block by block from the first on, and nothing else.
    fn chooses_from_its_own(
        &self,
        held: &Slotted<Self>,
        step: usize,
        places: &[Place],
    ) -> Result<(), CheckError> {
        let lane = self.schedule().lane;
        for (b, &place) in places.iter().enumerate() {
            let own = held.get(place).is_some_and(|value| value.own && value.note.is_none());
            if !own || place != (Place { block: Block(b as u32), lane }) {
                let fault = "lets a selector choose from something else than its own accumulator, in";
                return Err(self.refused(step, place.block, fault));
            }
        }
        let fault = "lets a selector choose from a part of its own accumulator only, without";
        match places.len() {
            all if all == held.blocks() => Ok(()),
            some => Err(self.refused(step, Block(some as u32), fault)),
        }
    }

    /// The worker's own accumulator in a block, from which nothing was taken and which carries no note.
    fn untouched(&self, held: &Slotted<Self>, step: usize, block: Block) -> Result<Value, CheckError> {
        match held.get(Place { block, lane: self.schedule().lane }) {
            Some(value) if value.own && value.note.is_none() => Ok(*value),
            _ => {
                let fault = "proposes from, or aligns, what is no longer its own accumulator in";
                Err(self.refused(step, block, fault))
            }
        }
    }

    fn added(&mut self, a: Value, b: Value) -> Value {
        let (form, most) = match (a.form, b.form) {
            (Carries::Aligned(a_set), Carries::Aligned(b_set)) if a_set == b_set => (a.form, a.most),
            _ => (Carries::Bag, a.most.div_ceil(a.pieces).saturating_add(b.most.div_ceil(b.pieces))),
        };
        Value {
            term: self.expressions.add(a.term, b.term),
            most,
            pieces: 1,
            selected: a.selected && b.selected,
            kept_here: false,
            note: None,
            own: false,
            form,
        }
    }
}

impl From<Fault> for CheckError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Nowhere { rank, step, slots } => CheckError::Nowhere { rank, step, slots },
            fault => CheckError::Fault(fault),
        }
    }
}

impl Reader for Symbols {
    type Held = Value;
    type Message = Flight;
    type Work = Infallible;
    type Error = CheckError;

    fn keep(
        &mut self,
        held: &mut Slotted<Self>,
        at: usize,
        slots: Slots,
        rule: &Rule,
        coding: Coding,
    ) -> Works<Self> {
        // What is sampled is proposed, so that all know it. What is looked at together is in the order of the blocks.
        let sampled = rule.scope() == Scope::Sampled;
        let lanes = rule.is_joint() && (slots.lanes.count != 1 || slots.lanes.relative);
        if !rule.fits(&self.schedule().partition) || sampled || lanes {
            return Err(CheckError::Nowhere { rank: self.rank, step: at, slots });
        }
        let places: Vec<Place> = held.places(slots).collect();
        let values =
            places.iter().map(|&place| self.bag(held, at, place)).collect::<Result<Vec<Value>, _>>()?;
        if rule.scope() == Scope::Selector {
            self.chooses_from_its_own(held, at, &places)?;
        }
        let (choice, rounding) = (self.choice(rule, slots, &values), self.rounding(coding));
        let mut again = Again::default();
        let mut terms = Vec::with_capacity(places.len());
        for (place, value) in places.into_iter().zip(values) {
            let value = again.of((value, rounding(place)), |&(value, rounded)| {
                let most = value.bound(u32::MAX).min(rule.most().unwrap_or(u32::MAX));
                // Rounding leaves every index where it is.
                let form = if rule.keeps_form() { value.form } else { Carries::Bag };
                let most = if rule.makes_dense() { u32::MAX } else { most };
                let kept = Kept { rounded, ..choice(value.term) };
                self.kept(kept, Value { most, pieces: 1, form, ..value })
            });
            terms.push(value.term);
            *held.at(place) = Some(value);
        }
        self.records[self.rank.index()][at].kept = Some((slots, terms.into_iter().collect()));
        Ok(Vec::new())
    }

    fn propose(&mut self, held: &mut Slotted<Self>, at: usize, slots: Slots, rule: &Rule) -> Works<Self> {
        // A selector chooses for its own worker, and not for all.
        let one_lane = slots.lanes.count == 1 && !slots.lanes.relative;
        if !one_lane || !rule.fits(&self.schedule().partition) || rule.scope() == Scope::Selector {
            return Err(CheckError::Nowhere { rank: self.rank, step: at, slots });
        }
        let places: Vec<Place> = held.places(slots).collect();
        let mut own = Vec::with_capacity(places.len());
        for &place in &places {
            own.push(self.untouched(held, at, place.block)?);
            if held.get(place).is_some() {
                return Err(self.refused(at, place.block, "lays a proposal where it already holds"));
            }
        }
        let choice = self.choice(rule, slots, &own);
        let sampled = rule.is_blind().then(|| Node::Sampled(self.number(rule)));
        let most = rule.most().unwrap_or(u32::MAX);
        let mut again = Again::default();
        for (place, own) in places.into_iter().zip(own) {
            *held.at(place) = Some(again.of(own, |own| {
                let node = sampled.clone().unwrap_or_else(|| Node::Proposed(choice(own.term)));
                let term = self.expressions.intern(node);
                Value { term, most, own: false, form: Carries::Proposal, ..*own }
            }));
        }
        Ok(Vec::new())
    }

    fn align(&mut self, held: &mut Slotted<Self>, at: usize, slots: Slots, coding: Coding) -> Did<Self> {
        if slots != slots.in_lane(self.schedule().lane) {
            return Err(CheckError::Nowhere { rank: self.rank, step: at, slots });
        }
        let rounding = self.rounding(coding);
        let mut again = Again::default();
        let mut terms = Vec::with_capacity(slots.count as usize);
        for place in held.places(slots) {
            let block = place.block;
            let own = self.untouched(held, at, block)?;
            let proposals: Vec<Value> = held
                .lanes_of(block)
                .filter_map(|place| held.get(place).copied())
                .filter(|value| value.form == Carries::Proposal)
                .collect();
            if proposals.is_empty() {
                return Err(self.refused(at, block, "keeps what was proposed, and holds no proposal for"));
            }
            let (union, value) = again.of((own, rounding(place), proposals), |(own, rounded, proposals)| {
                let union = self.expressions.set(proposals.iter().map(|value| value.term).collect());
                let most = proposals.iter().fold(0u32, |sum, value| sum.saturating_add(value.most));
                let kept =
                    Kept { of: own.term, among: Some(union), rule: None, reads: None, rounded: *rounded };
                (union, self.kept(kept, Value { most, form: Carries::Aligned(union), ..*own }))
            });
            self.agreed[self.rank.index()][block.index()] = Some(union);
            terms.push(value.term);
            *held.at(place) = Some(value);
        }
        self.records[self.rank.index()][at].kept = Some((slots, terms.into_iter().collect()));
        Ok(())
    }

    fn sum(&mut self, held: &mut Slotted<Self>, at: usize, block: Block) -> Did<Self> {
        let mut values = Vec::new();
        for place in held.lanes_of(block) {
            values.extend(held.at(place).take_if(|value| value.form != Carries::Proposal));
        }
        if values.is_empty() {
            return Err(self.refused(at, block, "adds up lanes that hold nothing of"));
        }
        if values.iter().any(|value| value.note.is_some()) {
            return Err(self.refused(at, block, "adds up what carries a note:"));
        }
        if let Node::Piece { of, pieces, .. } = self.expressions.node(values[0].term) {
            let is = |(piece, value): (u32, &Value)| {
                self.expressions.node(value.term) == Node::Piece { of, piece, pieces }
            };
            if values.len() != pieces as usize || !(0..).zip(&values).all(is) {
                let fault = "puts some pieces together, but not all and no others, of";
                return Err(self.refused(at, block, fault));
            }
            values = vec![Value { term: of, pieces: 1, ..values[0] }];
        }
        while values.len() > 1 {
            let pairs = values.chunks(2).map(|pair| match *pair {
                [a, b] => self.added(a, b),
                _ => pair[0],
            });
            values = pairs.collect();
        }
        let first = Place { block, lane: 0 };
        if held.get(first).is_some() {
            return Err(self.refused(at, block, "adds up where a proposal lies, in"));
        }
        *held.at(first) = Some(Value { kept_here: false, own: false, form: Carries::Bag, ..values[0] });
        Ok(())
    }

    fn split(&mut self, held: &mut Slotted<Self>, at: usize, block: Block) -> Did<Self> {
        let value = self.bag(held, at, Place { block, lane: 0 })?;
        let free = held.lanes_of(block).skip(1).all(|place| held.get(place).is_none());
        if !value.selected || value.note.is_some() || !free {
            let fault = "splits what was not selected or carries a note, or has no free lanes for";
            return Err(self.refused(at, block, fault));
        }
        let pieces = held.lanes();
        for (piece, place) in (0..).zip(held.lanes_of(block)) {
            let term = self.expressions.intern(Node::Piece { of: value.term, piece, pieces });
            let most = value.bound(u32::MAX);
            *held.at(place) =
                Some(Value { term, most, pieces, kept_here: false, own: false, form: Carries::Bag, ..value });
        }
        Ok(())
    }

    fn annotate(&mut self, held: &mut Slotted<Self>, at: usize, slots: Slots, note: Note) -> Did<Self> {
        for place in held.places(slots) {
            let value = self.bag(held, at, place)?;
            if value.form != Carries::Bag {
                let fault = "ties a note to values that travel without indices, in";
                return Err(self.refused(at, place.block, fault));
            }
            let says = match (note, self.expressions.node(value.term)) {
                (Note::Seen, Node::Kept(kept)) if value.kept_here => Node::Seen(kept.of),
                (Note::Seen, _) => {
                    let fault = "annotates what a selection saw that it did not make, in";
                    return Err(self.refused(at, place.block, fault));
                }
                (Note::Cut(parts), _) if parts as usize != held.blocks() => {
                    let fault = "cuts into another number of parts than there are blocks, in";
                    return Err(self.refused(at, place.block, fault));
                }
                (Note::Cut(_), _) => Node::Noted(self.rank, note),
            };
            let says = self.expressions.intern(says);
            *held.at(place) = Some(Value { note: Some((note, says)), ..value });
        }
        Ok(())
    }

    fn send(&mut self, held: &mut Slotted<Self>, at: usize, send: &Send, round: u64) -> Did<Self> {
        let places = held.places(send.slots);
        let leaves = |place| {
            let value = self.held(held, at, place)?;
            if send.after == After::Drop {
                *held.at(place) = None;
            }
            Ok(value)
        };
        let values = places.map(leaves).collect::<Result<Runs<Value>, CheckError>>()?;
        self.records[self.rank.index()][at].sent += 1;
        let flight = Flight { slots: send.slots, values, round };
        self.flights.entry((self.rank, send.to)).or_default().push_back(flight);
        Ok(())
    }

    fn receive(
        &mut self,
        held: &mut Slotted<Self>,
        at: Arrival<'_>,
        flight: Flight,
    ) -> Result<bool, CheckError> {
        let (step, receive, rank) = (at.step, at.receive, self.rank);
        if flight.slots != receive.slots {
            let (expected, found) = (receive.slots, flight.slots);
            return Err(CheckError::Mismatch { rank, step, from: receive.from, expected, found });
        }
        let mut again = Again::default();
        for (place, came) in held.places(receive.slots).zip(flight.values.each()) {
            let block = place.block;
            let knows = match came.form {
                Carries::Aligned(union) => self.agreed[rank.index()][block.index()] == Some(union),
                Carries::Bag | Carries::Proposal => true,
            };
            let value =
                again.of((*held.at(place), came, knows), |&(here, came, knows)| match (receive.how, here) {
                    _ if !knows => Err("receives values at indices that it does not know, in"),
                    (How::Place, None) => Ok(Value { kept_here: false, own: false, ..came }),
                    (How::Add, Some(value)) if [value.form, came.form].contains(&Carries::Proposal) => {
                        Err("adds to a proposal, or adds one, in")
                    }
                    (How::Add, Some(value)) => match (value.note, came.note) {
                        (None, None) => Ok(self.added(value, came)),
                        (Some((here, a)), Some((there, b))) if here == there && here != Note::Seen => {
                            let note = Some((here, self.expressions.add(a, b)));
                            Ok(Value { note, ..self.added(value, came) })
                        }
                        _ => Err("adds to, or something, that carries a note:"),
                    },
                    (How::Place, Some(_)) => Err("places a bag where it already holds"),
                    (How::Add, None) => Err("adds to what it does not hold:"),
                });
            *held.at(place) = Some(value.map_err(|fault| self.refused(step, block, fault))?);
        }
        self.records[rank.index()][step].arrivals.push(flight);
        Ok(true)
    }

    fn passed(&mut self, at: usize, began: u64, ended: u64) {
        let exchanged = self.schedule().exchange(at).is_some();
        let record = &mut self.records[self.rank.index()][at];
        (record.began, record.ended, record.exchanged) = (began, ended, exchanged);
    }
}
