//! All workers in one thread: how an algorithm is tested in ten lines, without a network.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::{Execution, ExecutionError, Finished, Progress};
use crate::Rank;

/// What one worker's run came to.
#[derive(Debug)]
pub struct Run {
    /// The update and what the residual needs.
    pub finished: Finished,
    /// Bytes of all payloads that this worker received.
    pub bytes_received: u64,
}

/// Runs the executions of all workers, in the order of their ranks, over queues.
///
/// # Errors
/// What the first failing worker reports. Schedules that the checker accepted do not run into a deadlock.
pub fn lockstep(mut executions: Vec<Execution>) -> Result<Vec<Run>, ExecutionError> {
    let mut queues: HashMap<(Rank, Rank), VecDeque<Bytes>> = HashMap::new();
    let mut outbox = Vec::new();
    let mut bytes = vec![0u64; executions.len()];
    let mut unfinished = true;
    while std::mem::take(&mut unfinished) {
        for (rank, execution) in executions.iter_mut().enumerate() {
            let this = Rank(rank as u32);
            loop {
                let progress = execution.advance(&mut outbox);
                for message in outbox.drain(..) {
                    queues.entry((this, message.to)).or_default().push_back(message.payload);
                }
                let Progress::Waiting(from) = progress else { break };
                let Some(payload) = queues.get_mut(&(from, this)).and_then(VecDeque::pop_front) else {
                    unfinished = true;
                    break;
                };
                bytes[rank] += payload.len() as u64;
                execution.receive(from, payload, &mut outbox)?;
                for message in outbox.drain(..) {
                    queues.entry((this, message.to)).or_default().push_back(message.payload);
                }
            }
        }
    }
    Ok(executions
        .into_iter()
        .zip(bytes)
        .map(|(execution, bytes_received)| Run { finished: execution.finish(), bytes_received })
        .collect())
}
