//! Completing the sums: a method has agreed on the entries of an update, and each worker adds what it still has there, in a second run.
//!
//! What waits at these entries, on whichever worker, would be delivered in later steps, each time in part. ExDyna and CLT-k deliver all of it by their
//! nature: their workers add up their own values at the indices that one of them has proposed. For other methods a second program delivers every
//! entry of an accumulator that holds nothing else than what an ordinary commit would leave there. Nothing is committed before it has ended.

use std::sync::Arc;

use super::{Execution, ExecutionError, Finished};
use crate::accumulator::{Accumulator, SparseValues, Writable};
use crate::bag::{Bag, Entries, Marks};
use crate::device::DeviceError;
use crate::residual::{Collection, commit_update};
use crate::schedule::machine::Machine;
use crate::schedule::values::Values;
use crate::schedule::{Candidates, Program, Tally};
use crate::{Block, Element, Partition};

/// Which of its runs an execution is in.
#[derive(Debug)]
pub(super) enum RunState<T: Element> {
    /// The last.
    Only,
    /// The first of two.
    Before(Arc<Program>, Collection),
    /// The second.
    After(Box<FirstRun<T>>),
}

/// The result of the first run.
#[derive(Debug)]
pub(super) struct FirstRun<T: Element> {
    finished: Finished<T>,
    partition: Partition,
    collection: Collection,
    /// How many latency rounds it had.
    pub(super) rounds: u64,
    pub(super) commits: usize,
    pub(super) commitment: Tally,
}

/// What a second run added at the entries of an update, by block of the first.
#[derive(Debug)]
pub(crate) struct Completion<T: Element> {
    sums: Vec<Entries<T>>,
    /// What rounding has left to this worker.
    left: Vec<Entries<T>>,
    lost: Vec<Entries<T>>,
}

impl<T: Element> Execution<T> {
    /// Adds what this worker still has at the entries of the update, in a run of a program that keeps every entry, once the present one has
    /// ended. These residuals are collected.
    #[must_use]
    pub fn completing(self, program: Arc<Program>, collection: Collection) -> Self {
        Self { runs: RunState::Before(program, collection), ..self }
    }

    /// Begins the second run, if there is to be one and the first has left something out.
    pub(super) fn begin_second(&mut self) -> Result<bool, ExecutionError> {
        let RunState::Before(program, collection) = &self.runs else { return Ok(false) };
        let (program, collection) = (program.clone(), *collection);
        self.runs = RunState::Only;
        let first = &self.values.run.program;
        if first.whole.iter().all(|whole| *whole) {
            return Ok(false);
        }
        let partition = first.schedule.partition.clone();
        let rounds = first.facts.iter().map(|facts| facts.ended).max().unwrap_or(0);
        let held = &self.machine.held;
        let (commits, commitment) = (self.values.commits(held), self.values.commitment(held));
        let (nothing, held) = Values::new(program.clone(), Accumulator::default(), Vec::new());
        let machine = std::mem::replace(&mut self.machine, Machine::new(held));
        let mut values = std::mem::replace(&mut self.values, nothing);
        let (tally, words_received) = (values.tally, values.words_received);
        let words_by_round = std::mem::take(&mut values.words_by_round);
        let (memory, seed) = (values.run.memory.clone(), values.run.seed);
        let finished = values.finish(machine.held)?;
        let left = left_at_update(&finished, &partition, collection)?;
        let candidates = vec![Candidates::default(); program.schedule.partition.blocks()];
        let accumulator = SparseValues::new(left, partition.entries());
        let (values, held) = Values::new(program, accumulator.into(), candidates);
        (self.machine, self.values) = (Machine::new(held), values);
        (self.values.tally, self.values.words_received) = (tally, words_received);
        self.values.words_by_round = words_by_round;
        let run = Arc::make_mut(&mut self.values.run);
        // Other random numbers than the first run has rounded with.
        (run.memory, run.seed) = (memory, !seed);
        let first = FirstRun { finished, partition, collection, rounds, commits, commitment };
        self.runs = RunState::After(Box::new(first));
        Ok(true)
    }

    /// The result of the first run, in the second.
    pub(super) fn first(&self) -> Option<&FirstRun<T>> {
        match &self.runs {
            RunState::After(first) => Some(first),
            RunState::Only | RunState::Before(..) => None,
        }
    }
}

impl<T: Element> FirstRun<T> {
    /// With the result of the second run, whose blocks these are.
    pub(super) fn completed(
        self,
        mut second: Finished<T>,
        blocks: &Partition,
    ) -> Result<Finished<T>, DeviceError> {
        let Self { mut finished, partition, collection, .. } = self;
        let mut accumulator = std::mem::take(&mut second.accumulator);
        let (mut left, mut lost) = (Entries::default(), Vec::new());
        if !second.whole.iter().all(|whole| *whole) {
            lost = commit_update(&mut accumulator, blocks, &second, collection)?;
            left = entries_of(&accumulator);
        }
        let sums = flat(blocks, second.update.into_iter().map(Bag::into_entries));
        let (left, lost) = (left.split(&partition), flat(blocks, lost.into_iter()).split(&partition));
        finished.completion = Some(Completion { sums: sums.split(&partition), left, lost });
        finished.entries_received += second.entries_received;
        Ok(finished)
    }
}

impl<T: Element> Completion<T> {
    /// Once the first run is committed: at the entries of its update nothing stays but what the second has left.
    pub(crate) fn commit(
        self,
        residual: &mut Writable<'_, T>,
        partition: &Partition,
        update: &mut [Bag<T>],
        lost: &mut [Entries<T>],
    ) -> Result<(), DeviceError> {
        let parts = self.sums.into_iter().zip(self.left).zip(self.lost);
        for (b, ((sums, left), more)) in parts.enumerate() {
            let block = Block(b as u32);
            let mut residual = residual.block(partition, block);
            residual.clear_at(&update[b].indices())?;
            residual.set(&left)?;
            lost[b] = lost[b].merge(&more);
            let sum = std::mem::replace(&mut update[b], Bag::empty());
            update[b] = sum.add(Bag::Sparse(sums), partition.block_len(block));
        }
        Ok(())
    }
}

/// What an ordinary commit would leave of the accumulator at the entries of the update.
fn left_at_update<T: Element>(
    finished: &Finished<T>,
    partition: &Partition,
    collection: Collection,
) -> Result<Entries<T>, DeviceError> {
    let mut own = Vec::with_capacity(finished.update.len());
    for (b, bag) in finished.update.iter().enumerate() {
        let indices = bag.indices().into_owned();
        let values = finished.accumulator.block(partition, Block(b as u32), true).gather(&indices)?;
        own.push(Entries { indices, values });
    }
    let own = flat(partition, own.into_iter());
    let delivered = own.indices.clone();
    let mut there = Accumulator::from(SparseValues::new(own, partition.entries()));
    commit_update(&mut there, partition, finished, collection)?;
    Ok(Marks::of(&delivered).pick::<T, true>(&entries_of(&there)))
}

/// Entries of an accumulator that holds nothing else, but for zeros.
fn entries_of<T: Element>(accumulator: &Accumulator<T>) -> Entries<T> {
    match accumulator {
        Accumulator::Sparse(values) => {
            values.entries().iter().filter(|(_, value)| *value != T::ZERO).collect()
        }
        Accumulator::Host(_) | Accumulator::Device(_) => Entries::default(),
    }
}

/// Entries of all blocks, in the indices of the flat gradient.
fn flat<T: Element>(partition: &Partition, blocks: impl Iterator<Item = Entries<T>>) -> Entries<T> {
    let mut all = Entries::default();
    for (b, Entries { indices, values }) in blocks.enumerate() {
        let start = partition.range(Block(b as u32)).start as u32;
        all.indices.extend(indices.iter().map(|index| start + index));
        all.values.extend(values);
    }
    all
}
