//! Parameter servers: actors that have the parameters, between them, and make the steps of the optimiser.
//!
//! The flat vector of all parameters is cut into as many even pieces as there are servers, so a unit, which is a group of the layout, may
//! have *parts* on several. A worker [pushes](programs) its gradient part by part, and what is to happen then is what the synchrony's policy
//! says at each server by itself: [`Server`]. A worker's side is [`Served`].

mod actor;
mod arrivals;
mod client;
pub(crate) mod control;
mod job;
mod plan;
mod programs;
mod push_queue;
mod pusher;
mod served;
mod shard;
mod splitting;
mod store;

use std::ops::Range;

use gleaner_algorithms::Layers;
use gleaner_algorithms::synchrony::shards::Shards;

use crate::failure::Error;
use crate::tag::SERVED;
use programs::{Maker, Pushing};

pub(crate) use actor::{Message, Server};
pub(crate) use served::Served;

/// On this number workers send a server their requests; on the numbers after it they push their units.
const PUSH: u32 = SERVED + 1;

/// On this number servers answer; on the numbers after it they send the values of units.
const REPLY: u32 = SERVED + (1 << 19);

/// Units at most, as many as groups of a layout.
const UNITS: u32 = 1 << 16;

/// Credit for the control messages on the first numbers, in bytes.
const CONTROL_BYTES: u64 = 1 << 22;

/// Whether a number is one of these, and no gradient's.
pub(crate) fn is_unassigned(number: u32) -> bool {
    number > PUSH + UNITS && number < REPLY || number > REPLY + UNITS && number < crate::tag::PROBE
}

/// What one server has of a unit.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) unit: usize,
    /// Where it lies among all parameters.
    pub(crate) range: Range<usize>,
    pub(crate) maker: Maker,
}

/// What a server has of units of these lengths.
fn parts(units: &[usize], pushing: &Pushing, shards: &Shards, server: u32) -> Result<Vec<Part>, Error> {
    let parts = shards.parts(&Layers::of(units.iter().copied())).into_iter();
    let here = parts.filter(|part| part.server == server);
    let made = here.map(|part| {
        let maker = Maker::new(pushing, units[part.unit], part.range.len())?;
        Ok(Part { unit: part.unit, range: part.range, maker })
    });
    made.collect()
}
