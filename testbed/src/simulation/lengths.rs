//! Large cases carry lengths: the schedules of all workers are walked through with the expected length of every bag.
//!
//! It follows the same schedules as an execution does, step by step. A selection keeps as many entries as its rule says; a
//! threshold that was learnt keeps the job's density. How many entries remain of a sum says [`Overlap`], and what they take
//! on the wire says [`bytes_per_entry`](gleaner_algorithms::forecast::bytes_per_entry).

mod held;
mod steps;
mod walk;

use gleaner_algorithms::collectives::{MethodError, Shape, Structure};
use gleaner_algorithms::schedule::{Observed, OwnChoice, Schedule};
use gleaner_algorithms::{Block, Method, Rank};

use super::overlap::Overlap;
use super::trace::Trace;
use crate::Error;
use walk::Walk;

/// Messages of all workers together, at most.
pub const MOST_MESSAGES: u64 = 1 << 22;

/// Places for bags of all workers together, at most.
pub const MOST_SLOTS: u64 = 1 << 26;

/// The most messages that one payload is cut into: longer pieces than those of the wire change little. Fewer where there
/// are many payloads.
const MOST_PIECES: u64 = 32;

/// Pieces of all payloads together, as long as each has one.
const MOST_IN_PIECES: u64 = 1 << 20;

/// Bytes before each bag.
const HEADER: f64 = 8.0;

/// One typical step of a method, after the first.
///
/// # Errors
/// A method that cannot run among so many workers, and what is too large.
pub fn trace(method: &Method, workers: u32, n: usize, overlap: Overlap) -> Result<Trace, Error> {
    if let Some(too_large) = too_large(method, workers, n)? {
        return Err(too_large.into());
    }
    let shape = method.shape(workers, n)?;
    let schedules: Vec<Schedule> = method.schedules_of(&shape, &typical(method, &shape)?).collect();
    Walk::new(method, &schedules, overlap, &shape)?.run()
}

/// The refusal of what has too many messages, or places for bags, for all workers to be followed.
pub(super) fn too_large(method: &Method, workers: u32, n: usize) -> Result<Option<String>, Error> {
    let first = method.schedule(Rank(0), workers, n)?;
    // What rank 0 sends, times the number of workers, and places of all of them.
    let messages = first.messages() * u64::from(workers);
    let slots = first.partition.blocks() as u64 * u64::from(first.lanes) * u64::from(workers);
    let method = method.collective().name();
    let is_too_large = messages > MOST_MESSAGES || slots > MOST_SLOTS;
    Ok(is_too_large.then(|| {
        format!(
            "{method} among {workers} workers sends about {messages} messages and has {slots} places for bags; a simulation has at most \
             {MOST_MESSAGES} and {MOST_SLOTS}: choose fewer workers, or equal hosts and links that lose nothing"
        )
    }))
}

/// The same of rank 0, which is its own peer (symmetry reduction), where the schedules of the others are rotations of its own: nothing where they
/// are not.
///
/// # Errors
/// A method that cannot run among so many workers.
pub fn by_symmetry(
    method: &Method,
    workers: u32,
    n: usize,
    overlap: Overlap,
) -> Result<Option<Trace>, Error> {
    let shape = method.shape(workers, n)?;
    let structure = typical(method, &shape)?;
    let mut schedules = method.schedules_of(&shape, &structure);
    // Where they are rotations, cut the gradient evenly, and the hosts are equal as well, all workers do the same at the same time,
    // and each receives what it sends.
    let fits = |one: &Schedule| one.can_rotate() && is_even(one) && receives_as_it_sends(one);
    let Some(one) = schedules.next().filter(fits) else { return Ok(None) };
    if !schedules.all(|other| one.is_rotated(&other)) {
        return Ok(None);
    }
    let trace = Walk::new(method, &[one], overlap, &shape)?.run()?;
    // Its blocks may be an entry longer than those of others.
    Ok(Some(Trace { delivered: trace.delivered.min(n as f64), ..trace }))
}

/// Whether each block is as long as any other, but for one entry.
fn is_even(schedule: &Schedule) -> bool {
    let lens = || (0..schedule.partition.blocks() as u32).map(|b| schedule.partition.block_len(Block(b)));
    let (shortest, longest) = (lens().min().unwrap_or(0), lens().max().unwrap_or(0));
    longest - shortest <= 1
}

/// Whether the distances from sender to receiver are the same, in the same order, for what is sent and what is received: only
/// then is the next message from oneself the one that is needed next.
fn receives_as_it_sends(schedule: &Schedule) -> bool {
    let (p, w) = (schedule.workers, schedule.rank.0);
    let sent = schedule.exchanges().flat_map(|(sends, _)| sends).map(|send| (send.to.0 + p - w) % p);
    let received = schedule.exchanges().flat_map(|(_, receives)| receives);
    sent.eq(received.map(|receive| (w + p - receive.from.0) % p))
}

/// The structure of the second step, after a first one in which all went as it should: first steps are not typical.
fn typical(method: &Method, shape: &Shape) -> Result<Structure, MethodError> {
    /// Indices that a method is shown of each block: enough to see that they are spread evenly.
    const SHOWN: usize = 64;
    let mut memory = method.memory(shape);
    let structure = method.structure(shape, &memory)?;
    let blocks = structure.partition.blocks();
    let first = |block: u32| structure.allotment.at(0, Block(block)) as usize;
    let shown = |block: u32| {
        let len = structure.partition.block_len(Block(block));
        let count = SHOWN.min(first(block));
        Some((0..count).map(|i| (len * i / count) as u32).collect())
    };
    let observed = Observed {
        counts: (0..blocks as u32).map(first).collect(),
        smallest: 1.0,
        notes: vec![None; blocks],
        proposed: (0..blocks as u32).map(shown).collect(),
        own: OwnChoice { entries: shape.k, smallest: 1.0 },
    };
    memory.steps += 1;
    method.learn(shape, &structure, &mut memory, &observed);
    method.structure(shape, &memory)
}
