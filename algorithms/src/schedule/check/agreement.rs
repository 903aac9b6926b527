//! Proposals and what is kept at them: that every worker who reads values without indices knows the indices.

use super::super::expression::{Choice, Id, Kept, Node};
use super::super::{Place, Rule, Slots};
use super::{CheckError, Checker, Form, Value, rounded};
use crate::bag::Coding;
use crate::{Block, Rank};

impl Checker<'_> {
    /// Lays proposals down, one for each block.
    pub(super) fn propose(
        &mut self,
        rank: Rank,
        step: usize,
        slots: Slots,
        rule: &Rule,
    ) -> Result<(), CheckError> {
        // A selector chooses for its own worker, and not for all.
        if !self.has(slots) || slots.lanes.count != 1 || !self.fits(rule) || matches!(rule, Rule::By(_)) {
            return Err(CheckError::Nowhere { rank, step, slots });
        }
        let places: Vec<Place> = self.places(slots).collect();
        let mut own = Vec::with_capacity(places.len());
        for &place in &places {
            own.push(self.untouched(rank, step, place.block)?);
            if self.slot(rank, place).is_some() {
                let fault = "lays a proposal where it already holds";
                return Err(CheckError::Slot { rank, step, block: place.block, fault });
            }
        }
        let all: Box<[Id]> = own.iter().map(|v| v.expression).collect();
        for (position, (&place, own)) in places.iter().zip(&own).enumerate() {
            let choice = Choice::of(rule, place.block, rank);
            let (inputs, position) = match choice.is_joint() {
                true => (all.clone(), position as u32),
                false => (Box::from([own.expression]), 0),
            };
            let node = match choice.is_blind() {
                true => Node::Drawn(place.block, choice),
                false => Node::Proposed(Kept { inputs, position, choice, rounded: None }),
            };
            let expression = self.expressions.intern(node);
            let bound = self.most(rule, place.block, own.bound);
            let form = Form::Proposal;
            let proposal =
                Value { expression, bound, kept_here: false, note: None, own: false, form, ..*own };
            *self.slot(rank, place) = Some(proposal);
        }
        Ok(())
    }

    /// Keeps a worker's own values at everything that was proposed for the block, in whatever lane it lies.
    pub(super) fn align(
        &mut self,
        rank: Rank,
        step: usize,
        slots: Slots,
        coding: Coding,
    ) -> Result<(), CheckError> {
        let lane = self.schedules[rank.index()].lane;
        if !self.has(slots) || slots != slots.in_lane(lane) {
            return Err(CheckError::Nowhere { rank, step, slots });
        }
        for place in self.places(slots) {
            let block = place.block;
            let own = self.untouched(rank, step, block)?;
            let lanes = 0..self.lanes;
            let proposals: Vec<Value> = lanes
                .filter_map(|lane| *self.slot(rank, Place { block, lane }))
                .filter(|v| v.form == Form::Proposal)
                .collect();
            if proposals.is_empty() {
                let fault = "keeps what was proposed, and holds no proposal for";
                return Err(CheckError::Slot { rank, step, block, fault });
            }
            let mut members: Vec<Id> = proposals.iter().map(|v| v.expression).collect();
            members.sort_unstable();
            members.dedup();
            let union = self.expressions.intern(Node::Union(members.into()));
            self.workers[rank.index()].agreed[block.index()] = Some(union);
            let bound = proposals.iter().fold(0u32, |sum, v| sum.saturating_add(v.bound)).min(own.bound);
            let inputs = Box::from([own.expression]);
            let kept =
                Kept { inputs, position: 0, choice: Choice::At(union), rounded: rounded(coding, place) };
            self.note_kept(rank, step, place, kept, Value { bound, form: Form::Aligned(union), ..own });
        }
        Ok(())
    }

    /// The worker's own accumulator in a block, from which nothing was taken and which carries no note.
    fn untouched(&mut self, rank: Rank, step: usize, block: Block) -> Result<Value, CheckError> {
        let lane = self.schedules[rank.index()].lane;
        let fault = "proposes from, or aligns, what is no longer its own accumulator in";
        match *self.slot(rank, Place { block, lane }) {
            Some(value) if value.own && value.note.is_none() => Ok(value),
            _ => Err(CheckError::Slot { rank, step, block, fault }),
        }
    }

    /// Whether a worker can read what comes in this form.
    pub(super) fn knows(&self, rank: Rank, block: Block, form: Form) -> bool {
        match form {
            Form::Aligned(union) => self.workers[rank.index()].agreed[block.index()] == Some(union),
            Form::Bag | Form::Proposal => true,
        }
    }

    /// The expression whose choice limits how many entries a value has: of an aligned one, its only proposal.
    pub(super) fn chosen_by(&self, value: &Value) -> Id {
        match value.form {
            Form::Aligned(union) => match self.expressions.node(union) {
                Node::Union(members) if members.len() == 1 => members[0],
                _ => union,
            },
            Form::Bag | Form::Proposal => value.expression,
        }
    }
}
