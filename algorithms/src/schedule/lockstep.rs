//! All workers in one thread: how an algorithm is tested in ten lines, without a network.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

use super::{Execution, ExecutionError, Finished, Outgoing, Tally};
use crate::{Element, Rank};

/// The result of one worker's run.
#[derive(Debug)]
pub struct Run<T: Element = f32> {
    /// The update and what the residual needs.
    pub finished: Finished<T>,
    /// Bytes of all payloads that this worker received.
    pub bytes_received: u64,
    /// Words that this worker received: two for a sparse entry and for a note's number, one for a
    /// dense value.
    pub words_received: u64,
}

/// The runs of all workers, and their result together.
#[derive(Debug)]
pub struct Lockstep<T: Element = f32> {
    /// By rank.
    pub runs: Vec<Run<T>>,
    /// Words along the critical path: the sum over the rounds of the largest receive, of the bags as they were.
    pub words_critical: u64,
}

/// Payloads under way and the rounds that they were sent in, by sender and receiver.
type Queues = HashMap<(Rank, Rank), VecDeque<(Bytes, u64)>>;

/// Runs the executions of all workers, in the order of their ranks, over queues.
///
/// # Errors
/// What the first failing worker reports. Schedules that the checker accepted do not run into a deadlock.
pub fn lockstep<T: Element>(executions: Vec<Execution<T>>) -> Result<Lockstep<T>, ExecutionError> {
    watched(executions, |_, _| {})
}

/// Something that one worker did, with all that it handled until then and the messages that it sent.
#[derive(Clone, Copy, Debug)]
pub enum Happening<'a> {
    /// It ran until it needed a message, or to its end.
    Advanced(Tally, &'a [Outgoing]),
    /// It took a message of this many bytes in.
    Received(Rank, u64, Tally, &'a [Outgoing]),
    /// It has finished, and will handle this when it commits.
    Finished(Tally),
}

/// [`lockstep`], with a callback for all that happens, in the order in which each worker does it.
///
/// # Errors
/// As [`lockstep`].
pub fn watched<T: Element>(
    mut executions: Vec<Execution<T>>,
    mut watch: impl FnMut(Rank, Happening<'_>),
) -> Result<Lockstep<T>, ExecutionError> {
    let mut queues = Queues::new();
    let mut outbox = Vec::new();
    let mut bytes = vec![0u64; executions.len()];
    let mut unfinished = true;
    while std::mem::take(&mut unfinished) {
        for (rank, execution) in executions.iter_mut().enumerate() {
            let this = Rank(rank as u32);
            loop {
                let waiting = execution.go_on(&mut outbox)?;
                watch(this, Happening::Advanced(execution.tally(), &outbox));
                post(&mut queues, this, &mut outbox);
                let Some(from) = waiting else { break };
                let queue = queues.get_mut(&(from, this));
                let Some((payload, round)) = queue.and_then(VecDeque::pop_front) else {
                    unfinished = true;
                    break;
                };
                let len = payload.len() as u64;
                bytes[rank] += len;
                execution.receive_in_round((from, round), payload, &mut outbox)?;
                watch(this, Happening::Received(from, len, execution.tally(), &outbox));
                post(&mut queues, this, &mut outbox);
            }
        }
    }
    // The largest receive of each round.
    let mut rounds: BTreeMap<u64, u64> = BTreeMap::new();
    for (rank, execution) in executions.iter().enumerate() {
        for &(round, words) in execution.words_by_round() {
            let largest = rounds.entry(round).or_default();
            *largest = words.max(*largest);
        }
        watch(Rank(rank as u32), Happening::Finished(execution.commitment()));
    }
    let runs = executions.into_iter().zip(bytes).map(|(execution, bytes_received)| {
        let words_received = execution.words_received();
        Ok(Run { words_received, finished: execution.finish()?, bytes_received })
    });
    let runs: Result<_, ExecutionError> = runs.collect();
    Ok(Lockstep { runs: runs?, words_critical: rounds.values().sum() })
}

fn post(queues: &mut Queues, from: Rank, outbox: &mut Vec<Outgoing>) {
    for message in outbox.drain(..) {
        queues.entry((from, message.to)).or_default().push_back((message.payload, message.round));
    }
}
