//! All workers in one thread: how an algorithm is tested in ten lines, without a network.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

use super::{Execution, ExecutionError, Finished, Outgoing, Progress, Tally};
use crate::{Element, Rank};

/// What one worker's run came to.
#[derive(Debug)]
pub struct Run<T: Element = f32> {
    /// The update and what the residual needs.
    pub finished: Finished<T>,
    /// Bytes of all payloads that this worker received.
    pub bytes_received: u64,
    /// Words that this worker received: two for a sparse entry, one for a dense value.
    pub words_received: u64,
}

/// The runs of all workers, and what they came to together.
#[derive(Debug)]
pub struct Lockstep<T: Element = f32> {
    /// By rank.
    pub runs: Vec<Run<T>>,
    /// Words along the critical path: the sum over the rounds of the largest receive, of the bags as they were.
    pub words_critical: u64,
}

/// Payloads under way and the rounds that they were sent in, by sender and receiver.
type Queues = HashMap<(Rank, Rank), VecDeque<(Bytes, u64)>>;

/// Where a worker stands in time.
#[derive(Clone, Debug, Default)]
struct Clock {
    /// The rounds in which its exchanges began, by their ordinals.
    began: Vec<u64>,
    finished: u64,
    round: u64,
    /// Words received before the present exchange.
    before: u64,
}

impl Clock {
    /// Follows an execution into its present exchange. Those that it passed on the way received nothing.
    fn follow<T: Element>(&mut self, execution: &Execution<T>, rounds: &mut BTreeMap<u64, u64>) {
        while (self.began.len() as u64) < execution.exchanges() {
            self.close(execution, rounds);
            self.round = self.finished + 1;
            self.began.push(self.round);
        }
    }

    fn close<T: Element>(&mut self, execution: &Execution<T>, rounds: &mut BTreeMap<u64, u64>) {
        let words = execution.words_received() - self.before;
        let largest = rounds.entry(self.round).or_default();
        *largest = words.max(*largest);
        (self.finished, self.before) = (self.round, execution.words_received());
    }

    /// The round of a message: one that left ahead belongs to the exchange that comes next.
    fn sent(&self, message: &Outgoing) -> u64 {
        self.began.get(message.exchange as usize - 1).copied().unwrap_or(self.round + 1)
    }
}

/// Runs the executions of all workers, in the order of their ranks, over queues.
///
/// # Errors
/// What the first failing worker reports. Schedules that the checker accepted do not run into a deadlock.
pub fn lockstep<T: Element>(executions: Vec<Execution<T>>) -> Result<Lockstep<T>, ExecutionError> {
    watched(executions, |_, _| {})
}

/// Something that one worker did, with all that it handled until then and the messages that came of it.
#[derive(Clone, Copy, Debug)]
pub enum Happening<'a> {
    /// It went on until it needed a message, or to its end.
    Advanced(Tally, &'a [Outgoing]),
    /// It took a message of so many bytes in.
    Received(Rank, u64, Tally, &'a [Outgoing]),
    /// It has finished, and will handle this when it commits.
    Finished(Tally),
}

/// [`lockstep`], told of all that happens, in the order in which each worker does it.
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
    let mut clocks = vec![Clock::default(); executions.len()];
    let mut rounds = BTreeMap::new();
    let mut unfinished = true;
    while std::mem::take(&mut unfinished) {
        for (rank, execution) in executions.iter_mut().enumerate() {
            let (this, clock) = (Rank(rank as u32), &mut clocks[rank]);
            loop {
                let progress = execution.advance(&mut outbox)?;
                watch(this, Happening::Advanced(execution.tally(), &outbox));
                clock.follow(execution, &mut rounds);
                post(&mut queues, this, clock, &mut outbox);
                let Progress::Waiting(from) = progress else { break };
                let Some((payload, round)) = queues.get_mut(&(from, this)).and_then(VecDeque::pop_front)
                else {
                    unfinished = true;
                    break;
                };
                clock.round = clock.round.max(round);
                let len = payload.len() as u64;
                bytes[rank] += len;
                execution.receive(from, payload, &mut outbox)?;
                watch(this, Happening::Received(from, len, execution.tally(), &outbox));
                post(&mut queues, this, clock, &mut outbox);
            }
        }
    }
    for (rank, (execution, clock)) in executions.iter().zip(&mut clocks).enumerate() {
        watch(Rank(rank as u32), Happening::Finished(execution.commitment()));
        clock.close(execution, &mut rounds);
    }
    let runs = executions.into_iter().zip(bytes).map(|(execution, bytes_received)| Run {
        words_received: execution.words_received(),
        finished: execution.finish(),
        bytes_received,
    });
    Ok(Lockstep { runs: runs.collect(), words_critical: rounds.values().sum() })
}

fn post(queues: &mut Queues, from: Rank, clock: &Clock, outbox: &mut Vec<Outgoing>) {
    for message in outbox.drain(..) {
        let round = clock.sent(&message);
        queues.entry((from, message.to)).or_default().push_back((message.payload, round));
    }
}
