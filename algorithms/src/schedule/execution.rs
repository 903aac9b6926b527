//! One worker's run of one program, without any input or output of its own.
//!
//! Its driver (the runtime over real links, [`lockstep`](super::lockstep()) over queues) sends what comes out and feeds what comes
//! in, and does the work that is handed out, here or on other threads.

mod completion;

use std::sync::Arc;

use bytes::Bytes;

use super::keep::Candidates;
use super::machine::{Fault, Machine};
use super::values::{Done, Fate, Values, Work};
use super::{Memory, Program, Progress, Tally};
use crate::bag::wire::{DecodeError, PIECE};
use crate::bag::{Bag, Entries};
use crate::device::DeviceError;
use crate::residual::{Collection, NonFinite};
use crate::{Accumulator, Element, Rank, Reduction};
pub(crate) use completion::Completion;
use completion::RunState;

/// A message to a peer: one of the payloads of a slot.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The receiver.
    pub to: Rank,
    /// At most [`PIECE`](crate::bag::wire::PIECE) bytes, and notes before the first.
    pub payload: Bytes,
    /// The latency round in which it leaves, from 1 on.
    pub round: u64,
}

/// Why a run cannot continue.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum ExecutionError {
    /// A peer sent bytes that are not what the schedule declares.
    #[error("{from} sent something else than its schedule says: {source}")]
    Decode {
        /// The peer.
        from: Rank,
        /// What is wrong with the bytes.
        source: DecodeError,
    },
    /// A message that no step waits for.
    #[error("{from} sent a message that the schedule does not expect now")]
    Unexpected {
        /// The peer.
        from: Rank,
    },
    /// A step that no checked program has.
    #[error(transparent)]
    Fault(Fault),
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
    /// What this worker brings cannot be exchanged, in words.
    #[error("{0}")]
    Own(String),
    /// A device that holds the accumulator has failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
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

crate::sentence::debug_as_sentence!(ExecutionError);

impl From<Fault> for ExecutionError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unexpected { from, .. } => Self::Unexpected { from },
            fault => Self::Fault(fault),
        }
    }
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
    pub(crate) accumulator: Accumulator<T>,
    pub(crate) fates: Vec<Fate<T>>,
    /// This worker's share of what was dropped later on, by block.
    pub(crate) drops: Vec<Entries<T>>,
    /// By block, from which magnitude on to collect candidates in the next step, and memory for them.
    pub(crate) candidates: Vec<Candidates<T>>,
    /// Whether nothing was selected from any worker's contribution, by block.
    pub(crate) whole: Vec<bool>,
    /// Whether this worker ends with the sum, by block.
    pub(crate) ends: Vec<bool>,
    pub(crate) notes: Vec<Option<Arc<[u64]>>>,
    pub(crate) proposed: Vec<Option<Arc<[u32]>>>,
    pub(crate) own: OwnChoice,
    /// What a second run added to the update, which is without it until it is committed.
    pub(crate) completion: Option<Completion<T>>,
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
    /// The indices that were proposed, by block: those of the update, unless something was selected from its sums.
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
                .flat_map(Bag::magnitudes)
                .min()
                .map_or(0.0, |smallest| T::from_magnitude(smallest).to_f64()),
            notes: self.notes.clone(),
            proposed: self.proposed.clone(),
            own: self.own,
        }
    }

    /// Which residuals of a block are collected: what a worker has sent to others alone is theirs.
    pub(crate) fn collection(&self, block: usize, collection: Collection) -> Collection {
        if self.ends[block] { collection } else { Collection::Local }
    }

    /// The number of non-zero entries of the update.
    pub fn entries(&self) -> usize {
        self.update.iter().map(Bag::nonzeros).sum()
    }
}

/// A run of one program, and where sums are [completed](Self::completing) of a second one.
#[derive(Debug)]
pub struct Execution<T: Element = f32> {
    machine: Machine<Values<T>>,
    values: Values<T>,
    runs: RunState<T>,
}

impl<T: Element> Execution<T> {
    /// Starts a run of a checked program on an accumulator of the partition's length, with candidates by block.
    pub fn new(
        program: Arc<Program>,
        accumulator: impl Into<Accumulator<T>>,
        candidates: Vec<Candidates<T>>,
    ) -> Self {
        let (values, held) = Values::new(program, accumulator.into(), candidates);
        Self { machine: Machine::new(held), values, runs: RunState::Only }
    }

    /// With what the method has learnt, for rules that read it, and a seed for stochastic rounding, which must be the same
    /// on all workers and another one in each step.
    #[must_use]
    pub fn with(mut self, memory: Arc<Memory>, seed: u64) -> Self {
        let run = Arc::make_mut(&mut self.values.run);
        (run.memory, run.seed) = (memory, seed);
        self
    }

    /// Reduces by something else than the sum.
    ///
    /// # Errors
    /// A reduction that has no residual, with a schedule that does not keep every entry exactly.
    pub fn reducing(mut self, reduction: Reduction<T>) -> Result<Self, ExecutionError> {
        if !self.values.run.program.keeps_all && !reduction.has_residual() {
            return Err(ExecutionError::NotASum { reduction: reduction.name() });
        }
        Arc::make_mut(&mut self.values.run).reduction = reduction;
        Ok(self)
    }

    /// Words that came so far: two for a sparse entry, one for a dense value.
    pub(super) fn words_received(&self) -> u64 {
        self.values.words_received
    }

    /// Of them, those that came in each latency round.
    pub(super) fn words_by_round(&self) -> &[(u64, u64)] {
        &self.values.words_by_round
    }

    /// What was handled so far.
    pub fn tally(&self) -> Tally {
        self.values.tally
    }

    /// At how many entries its selections of the own gradient will look, before it has begun: at candidates where they were
    /// collected, and otherwise at all entries of a block.
    pub fn chooses_from(&self) -> usize {
        self.values.chooses_from()
    }

    /// Runs until a message is needed, work is to be done, or all is done; appends what is to be sent.
    ///
    /// # Errors
    /// Sums that are not finite. The run cannot be used afterwards.
    pub fn advance(&mut self, outbox: &mut Vec<Outgoing>) -> Result<Progress<Work<T>>, ExecutionError> {
        let schedule = self.values.run.program.schedule.clone();
        let progress = self.machine.advance(&schedule, &mut self.values);
        self.hand_out(outbox);
        match progress? {
            Progress::Finished if self.begin_second()? => self.advance(outbox),
            progress => Ok(progress),
        }
    }

    /// Appends what is to be sent. The rounds of a second run come after those of the first.
    fn hand_out(&mut self, outbox: &mut Vec<Outgoing>) {
        let before = self.first().map_or(0, |first| first.rounds);
        self.values.outbox.iter_mut().for_each(|message| message.round += before);
        outbox.append(&mut self.values.outbox);
    }

    /// Takes back work that was handed out and has been done.
    pub fn complete(&mut self, done: Done<T>) {
        self.values.complete(&mut self.machine.held, done);
        self.machine.done();
    }

    /// [`advance`](Self::advance), doing all work here. Names the rank whose message is needed; None when all is done.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    pub fn go_on(&mut self, outbox: &mut Vec<Outgoing>) -> Result<Option<Rank>, ExecutionError> {
        loop {
            match self.advance(outbox)? {
                Progress::Work(work) => self.complete(work.run()?),
                Progress::Waiting(from) => return Ok(Some(from)),
                Progress::Working => return Err(Fault::Elsewhere.into()),
                Progress::Finished => return Ok(None),
            }
        }
    }

    /// The latency round, from 1 on, that it is in: nothing once all is done.
    pub fn round(&self) -> Option<u64> {
        let before = self.first().map_or(0, |first| first.rounds);
        self.values.run.program.facts.get(self.machine.place().0).map(|facts| before + facts.ended)
    }

    /// How many entries it may handle to take in this payload: all that the message may have if the payload is its last, and
    /// none before. Values of dense blocks do not count: they are passed on as they arrive.
    pub fn entries_of(&self, payload: &Bytes) -> usize {
        let (step, _, received) = self.machine.place();
        let receipts = self.values.run.program.facts.get(step).map(|facts| &facts.receipts[..]);
        let expected =
            receipts.and_then(|receipts| receipts.get(received)).map(|receipt| &receipt.expected[..]);
        // Where gradients are sparse already, a block that may have all of its entries has few of them.
        let is_sparse = self.values.run.is_sparse();
        let sparse =
            expected.unwrap_or_default().iter().filter(|expected| is_sparse || expected.bound < expected.len);
        let most = sparse.map(|expected| expected.bound as usize).sum();
        match payload.len() {
            PIECE => 0,
            // All of the message is in it.
            len if is_sparse && self.values.is_between_messages() => (len / T::WIDTH).min(most),
            _ => most,
        }
    }

    /// Takes the next message from a peer in; appends what can be sent right away.
    ///
    /// A dense block that the next exchange sends unchanged, as in a ring, is passed on piece by piece while it arrives.
    ///
    /// # Errors
    /// A message that is not what the schedule declares, or sums that are not finite. The run cannot be used afterwards.
    pub fn receive(
        &mut self,
        from: Rank,
        payload: Bytes,
        outbox: &mut Vec<Outgoing>,
    ) -> Result<(), ExecutionError> {
        self.receive_in_round((from, 0), payload, outbox)
    }

    /// The same, of a message that was sent in this latency round.
    pub(super) fn receive_in_round(
        &mut self,
        (from, round): (Rank, u64),
        payload: Bytes,
        outbox: &mut Vec<Outgoing>,
    ) -> Result<(), ExecutionError> {
        let schedule = self.values.run.program.schedule.clone();
        let received = self.machine.receive(&schedule, &mut self.values, (from, round), payload);
        self.hand_out(outbox);
        received
    }

    /// What committing this run will handle, once `advance` has said that it is finished.
    pub fn commitment(&self) -> Tally {
        let first = self.first().map_or(Tally::default(), |first| first.commitment);
        first + self.values.commitment(&self.machine.held)
    }

    /// At how many entries committing this run looks, once `advance` has said that it is finished: at all of the blocks whose sum is
    /// dense, or of which everything was sent.
    pub fn commits(&self) -> usize {
        self.first().map_or(0, |first| first.commits) + self.values.commits(&self.machine.held)
    }

    /// Whether a device holds the accumulator: then it is waited for where entries are chosen.
    pub fn is_on_device(&self) -> bool {
        self.values.run.is_on_device()
    }

    /// Waits until a device has all of the accumulator, and says which of its sums were not finite. To be asked before the first
    /// [`advance`](Self::advance), where one may hold it.
    ///
    /// # Errors
    /// What failed on the device.
    pub fn check(&self) -> Result<Option<NonFinite>, DeviceError> {
        self.values.run.check()
    }

    /// Ends a run whose `advance` said that it is finished.
    ///
    /// # Errors
    /// What failed on a device.
    pub fn finish(self) -> Result<Finished<T>, DeviceError> {
        let blocks = self.values.run.program.schedule.partition.clone();
        let finished = self.values.finish(self.machine.held)?;
        match self.runs {
            RunState::After(first) => first.completed(finished, &blocks),
            RunState::Only | RunState::Before(..) => Ok(finished),
        }
    }
}
