//! Error feedback: what was selected out of a step waits here for the next.
//!
//! SparDL, Algorithm 1 and §3.2: after a step, at the indices of the final update the residual is what this worker
//! itself dropped on the way; at all others it is the worker's whole accumulated gradient. That is exactly
//! conservation: no entry is lost, whoever dropped it.

use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use crate::bag::{Bag, Entries, Marks};
use crate::schedule::{Candidates, Fate, Finished};
use crate::select::{STRIDE, crowd};
use crate::{Block, Element, Partition, select};

/// Which dropped entries are collected (SparDL, §3.2 and §4.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collection {
    /// All of them: local, in-procedure and end-procedure residuals. Nothing is lost.
    #[default]
    Global,
    /// Local and end-procedure residuals; what a worker drops of the others' contributions at indices of the
    /// final update is lost.
    Partial,
    /// Local residuals only; whatever is dropped after it was first sent is lost.
    Local,
}

impl Collection {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Collection::Global => "global",
            Collection::Partial => "partial",
            Collection::Local => "local",
        }
    }
}

impl FromStr for Collection {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Collection::Global, Collection::Partial, Collection::Local]
            .into_iter()
            .find(|c| c.name() == name)
            .ok_or_else(|| format!("'{name}' is no residual collection; expected global, partial or local"))
    }
}

/// A gradient that cannot be synchronised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sum of gradient and residual at entry {entry} is NaN or infinite")]
pub struct NonFinite {
    /// Position in the flat gradient.
    pub entry: usize,
}

/// The residual of one gradient on one worker, and within a step the accumulator.
#[derive(Debug)]
pub struct Residual<T: Element = f32> {
    partition: Partition,
    values: Arc<Vec<T>>,
    /// Whether the residual is zero everywhere, whatever `values` holds.
    zero: bool,
    quotas: Vec<Option<u32>>,
    thresholds: Vec<Option<T>>,
    /// Candidates collected in this step, by block, each piece with its first index.
    pieces: Vec<Vec<(u32, Entries<T>)>>,
    /// Memory for the first piece of each block.
    spare: Vec<Entries<T>>,
}

/// A committed step.
#[derive(Debug)]
pub struct Committed<T: Element = f32> {
    /// The sum over all workers, block by block.
    pub update: Vec<Bag<T>>,
    /// What this worker dropped and did not collect, block by block. Empty bags under global collection.
    pub lost: Vec<Entries<T>>,
}

impl<T: Element> Residual<T> {
    /// A residual of zeros. `quotas` says how many entries the schedule selects from each block, if it does.
    pub fn new(partition: Partition, quotas: Vec<Option<u32>>) -> Self {
        let blocks = partition.blocks();
        Self {
            values: Arc::new(vec![T::ZERO; partition.entries()]),
            zero: true,
            quotas,
            thresholds: vec![None; blocks],
            pieces: vec![Vec::new(); blocks],
            spare: vec![Entries::default(); blocks],
            partition,
        }
    }

    /// Adds a part of the gradient, from position `offset` on, in one pass over memory that also collects
    /// candidates for the selection. Every entry must be given once before [`begin`](Self::begin).
    ///
    /// # Errors
    /// A sum that is NaN or infinite; the first such entry is named and stays as it was.
    pub fn accumulate(&mut self, offset: usize, gradient: &[T]) -> Result<(), NonFinite> {
        let values = Arc::make_mut(&mut self.values);
        let mut from = offset;
        let end = offset + gradient.len();
        while from < end {
            let block = self.partition.block_of(from);
            let range = self.partition.range(block);
            let to = end.min(range.end);
            let start = (from - range.start) as u32;
            let (b, part) = (block.index(), &gradient[from - offset..to - offset]);
            let mut found = match self.pieces[b].is_empty() {
                true => std::mem::take(&mut self.spare[b]),
                false => Entries::default(),
            };
            let before: usize = self.pieces[b].iter().map(|(_, piece)| piece.len()).sum();
            for (number, part) in part.chunks(STRIDE).enumerate() {
                // With nothing to select or nothing predicted, no candidates are collected.
                let threshold =
                    self.quotas[b].and(self.thresholds[b]).unwrap_or(T::from_magnitude(T::INFINITE));
                let first = number * STRIDE;
                let kernel = if self.zero { select::replace } else { select::accumulate };
                kernel(
                    &mut values[from + first..][..part.len()],
                    part,
                    threshold,
                    start + first as u32,
                    &mut found,
                )
                .map_err(|e| NonFinite { entry: from + first + e.index })?;
                if self.quotas[b].is_some_and(|k| before + found.len() > crowd(k as usize, range.len())) {
                    // The prediction was far too low: the selection does without.
                    self.thresholds[b] = None;
                    self.pieces[b].clear();
                    found.clear();
                }
            }
            self.pieces[b].push((start, found));
            from = to;
        }
        Ok(())
    }

    /// Lends the accumulator and its candidates to an execution.
    pub fn begin(&mut self) -> (Arc<Vec<T>>, Vec<Candidates<T>>) {
        let candidates = self
            .pieces
            .iter_mut()
            .zip(&self.thresholds)
            .map(|(pieces, &threshold)| {
                pieces.sort_unstable_by_key(|&(start, _)| start);
                let mut pieces = pieces.drain(..).map(|(_, entries)| entries);
                let mut entries = pieces.next().unwrap_or_default();
                for piece in pieces {
                    entries.indices.extend(piece.indices);
                    entries.values.extend(piece.values);
                }
                Candidates { threshold, entries }
            })
            .collect();
        self.zero = false;
        (std::mem::take(&mut self.values), candidates)
    }

    /// Takes the accumulator back and makes it the residual for the next step: writes at the indices of the
    /// final update only, or nothing at all where everything was delivered.
    pub fn commit(&mut self, finished: Finished<T>, collection: Collection) -> Committed<T> {
        let Finished { update, mut accumulator, fates, drops, candidates, whole, .. } = finished;
        self.zero = whole.iter().all(|&whole| whole);
        for (b, Candidates { threshold, mut entries }) in candidates.into_iter().enumerate() {
            entries.clear();
            (self.thresholds[b], self.spare[b]) = (threshold, entries);
        }
        let mut lost = vec![Entries::default(); update.len()];
        if !self.zero {
            let values = Arc::make_mut(&mut accumulator);
            for (b, ((bag, fate), dropped)) in update.iter().zip(fates).zip(drops).enumerate() {
                let residual = &mut values[self.partition.range(Block(b as u32))];
                lost[b] = match fate {
                    Fate::Whole if whole[b] => {
                        // Every entry is delivered, also those that cancel to zero.
                        residual.fill(T::ZERO);
                        Entries::default()
                    }
                    Fate::Whole => commit_sent(residual, bag, dropped, collection),
                    Fate::Selected { indices, errors, settled } => {
                        let chosen = Chosen { indices: &indices, errors: &errors, settled: &settled };
                        commit_selected(residual, bag, &chosen, dropped, collection)
                    }
                };
            }
        }
        self.values = accumulator;
        Committed { update, lost }
    }

    /// Takes the accumulator back as it was lent: of a step that was given up, everything waits for the next.
    ///
    /// # Panics
    /// If it is of another length.
    pub fn give_back(&mut self, accumulator: Arc<Vec<T>>) {
        assert_eq!(accumulator.len(), self.partition.entries(), "the gradient keeps its length");
        self.values = accumulator;
    }

    /// The residual at some positions.
    pub fn read(&self, range: Range<usize>) -> Vec<T> {
        if self.zero { vec![T::ZERO; range.len()] } else { self.values[range].to_vec() }
    }

    /// Puts a residual back that was [read](Self::read) before, from position `offset` on.
    pub fn restore(&mut self, offset: usize, residual: &[T]) {
        let values = Arc::make_mut(&mut self.values);
        if self.zero {
            values.fill(T::ZERO);
            self.zero = false;
        }
        values[offset..offset + residual.len()].copy_from_slice(residual);
    }

    /// From which magnitude on candidates are collected, by block: a prediction that makes selection fast
    /// and never changes what is selected.
    pub fn thresholds(&self) -> &[Option<T>] {
        &self.thresholds
    }

    /// Puts back what [`thresholds`](Self::thresholds) gave.
    pub fn restore_thresholds(&mut self, thresholds: Vec<Option<T>>) {
        self.thresholds = thresholds;
    }

    /// Cuts the residual into other blocks, between two steps, and takes other quotas. What was predicted for a block is
    /// kept where the number of blocks stays the same.
    ///
    /// # Panics
    /// If the partition is of another number of entries.
    pub fn recut(&mut self, partition: Partition, quotas: Vec<Option<u32>>) {
        assert_eq!(partition.entries(), self.partition.entries(), "the gradient keeps its length");
        if partition.blocks() != self.partition.blocks() {
            self.thresholds = vec![None; partition.blocks()];
            self.pieces = vec![Vec::new(); partition.blocks()];
            self.spare = vec![Entries::default(); partition.blocks()];
        }
        (self.partition, self.quotas) = (partition, quotas);
    }

    /// The blocks of this residual.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }
}

/// The worker's whole contribution went into the sum, from which somebody selected.
fn commit_sent<T: Element>(
    residual: &mut [T],
    bag: &Bag<T>,
    dropped: Entries<T>,
    collection: Collection,
) -> Entries<T> {
    if collection == Collection::Local {
        // Nothing was dropped before it was sent.
        residual.fill(T::ZERO);
        return dropped;
    }
    let delivered = bag.indices();
    delivered.iter().for_each(|&i| residual[i as usize] = T::ZERO);
    collect(residual, &Marks::of(&delivered), &dropped, collection)
}

/// What was selected of a worker's contribution, and what remains of the rest.
struct Chosen<'a, T: Element> {
    indices: &'a [u32],
    /// What rounding took away at some of the indices.
    errors: &'a Entries<T>,
    /// Sums at entries that others contributed to and that were not selected.
    settled: &'a Entries<T>,
}

/// Only some of the worker's contribution was selected.
fn commit_selected<T: Element>(
    residual: &mut [T],
    bag: &Bag<T>,
    chosen: &Chosen<'_, T>,
    dropped: Entries<T>,
    collection: Collection,
) -> Entries<T> {
    let rest = |settled: &Entries<T>, residual: &[T]| -> Entries<T> {
        settled.iter().map(|(i, sum)| (i, sum - residual[i as usize])).collect()
    };
    if collection == Collection::Local {
        // What was sent is gone, wherever it was dropped; what others sent is not this worker's to keep.
        let lost = rest(chosen.settled, residual);
        chosen.indices.iter().for_each(|&i| residual[i as usize] = T::ZERO);
        chosen.errors.iter().for_each(|(i, error)| residual[i as usize] = error);
        return lost.merge(&dropped);
    }
    let delivered = Marks::of(&bag.indices());
    let settled = delivered.pick::<T, true>(chosen.settled);
    let lost = match collection {
        Collection::Global => {
            settled.iter().for_each(|(i, sum)| residual[i as usize] = sum);
            Entries::default()
        }
        _ => rest(&settled, residual),
    };
    delivered.among(chosen.indices).iter().for_each(|&i| residual[i as usize] = T::ZERO);
    delivered.pick::<T, true>(chosen.errors).iter().for_each(|(i, error)| residual[i as usize] = error);
    lost.merge(&collect(residual, &delivered, &dropped, collection))
}

/// Adds this worker's share of later drops where something was delivered, or gives it back as lost.
fn collect<T: Element>(
    residual: &mut [T],
    delivered: &Marks,
    dropped: &Entries<T>,
    collection: Collection,
) -> Entries<T> {
    let late = delivered.pick::<T, true>(dropped);
    if collection != Collection::Global {
        return late;
    }
    late.iter().for_each(|(i, value)| residual[i as usize] += value);
    Entries::default()
}
