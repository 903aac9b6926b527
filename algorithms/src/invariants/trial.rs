//! All workers of a job in one process, with what each step took in and gave out.

use super::InvariantError;
use crate::bag::Bag;
use crate::collectives::Ensemble;
use crate::element::Magnitude;
use crate::residual::{Collection, Residual};
use crate::schedule::{Execution, Run, lockstep};
use crate::{Block, Element, Layers, Method, Partition};

/// All workers of a job in one process, step after step.
#[derive(Debug)]
pub struct Trial<T: Element = f32> {
    /// The workers.
    pub ensemble: Ensemble<T>,
    collection: Collection,
    may_lose: bool,
    /// The momentum, where changes of velocities are accumulated.
    ef21: Option<T>,
    /// The share of the residuals that each step keeps, where they decay.
    decay: Option<T>,
    step: u64,
}

/// What went into a step and the result. All vectors are by rank, and have n values each.
#[derive(Clone, Debug)]
pub struct Outcome<T: Element = f32> {
    /// The step, from 0.
    pub step: u64,
    /// The gradients; with momentum correction, the velocities after them, and in EF21 by how much these have changed.
    pub gradients: Vec<Vec<T>>,
    /// The residuals before the step; where they decay, what is left of them in it.
    pub old: Vec<Vec<T>>,
    /// The residuals after the step.
    pub new: Vec<Vec<T>>,
    /// What is neither delivered nor kept.
    pub lost: Vec<Vec<T>>,
    /// The update, as bags by block.
    pub update: Vec<Vec<Bag<T>>>,
    /// The update as a vector; where nothing is delivered stands the reduction's neutral element.
    pub delivered: Vec<Vec<T>>,
    /// How the gradient was cut.
    pub partition: Partition,
    /// Entries that each worker received.
    pub entries_received: Vec<u64>,
    /// 32-bit words that each worker received.
    pub words_received: Vec<u64>,
    /// Bytes that each worker received.
    pub bytes_received: Vec<u64>,
    /// The sum over the rounds of the largest receive, in 32-bit words.
    pub words_critical: u64,
    /// Rank and position of the first entry that is lost.
    first_lost: Option<(usize, usize)>,
    /// Whether anything may be lost.
    pub(super) may_lose: bool,
    /// How many workers share a drop, at most.
    holders: u32,
    /// Whether values were rounded at random.
    stochastic: bool,
}

impl<T: Element> Trial<T> {
    /// Workers before their first step, with gradients of this many entries or of these layers.
    ///
    /// # Errors
    /// As [`Ensemble::new`].
    pub fn new(method: Method, workers: u32, layers: impl Into<Layers>) -> Result<Self, InvariantError> {
        Ok(Self::of(&method.clone(), Ensemble::new(method, workers, layers)?))
    }

    /// The same with gradients of n entries of which only those are taken in that are not zero, and residuals of entries alone.
    ///
    /// # Errors
    /// As [`Ensemble::sparse`].
    pub fn sparse(method: &Method, workers: u32, n: usize) -> Result<Self, InvariantError> {
        Ok(Self::of(method, Ensemble::sparse(method, workers, n)?))
    }

    fn of(method: &Method, ensemble: Ensemble<T>) -> Self {
        let collection = method.collection();
        let may_lose = collection != Collection::Global && method.collective().is_sparse();
        let correction = method.correction();
        let ef21 = correction.ef21.then(|| T::from_f64(f64::from(correction.momentum)));
        let decay = correction.decay.map(|decay| T::from_f64(f64::from(decay)));
        Self { ensemble, collection, may_lose, ef21, decay, step: 0 }
    }

    /// Which residuals are collected.
    pub fn collection(&self) -> Collection {
        self.collection
    }

    /// How the gradient is cut in the next step.
    pub fn partition(&self) -> &Partition {
        self.ensemble.partition()
    }

    /// The number of workers, P.
    pub fn workers(&self) -> usize {
        self.ensemble.residuals.len()
    }

    /// One step of all workers, with these gradients by rank. What it did is to be [checked](Outcome::check).
    ///
    /// # Errors
    /// Gradients that are not finite, and as [`lockstep`] and [`Ensemble::commit`].
    pub fn step(&mut self, gradients: &[Vec<T>]) -> Result<Outcome<T>, InvariantError> {
        self.step_in_pieces(gradients, usize::MAX)
    }

    /// As [`step`](Self::step), with gradients that arrive in pieces of this many entries, the last piece first, as from a
    /// backward pass.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_in_pieces(
        &mut self,
        gradients: &[Vec<T>],
        size: usize,
    ) -> Result<Outcome<T>, InvariantError> {
        let partition = self.partition().clone();
        let n = partition.entries();
        let facts = self.ensemble.prepared().flat_map(|prepared| prepared.program.facts());
        let holders = facts.flat_map(|facts| &facts.holders).map(|holders| holders.count).max().unwrap_or(1);
        let stochastic = self.ensemble.shape().coding.is_stochastic();
        let neutral = self.ensemble.reduction().neutral();
        let mut old = self.residuals()?;
        if let Some(decay) = self.decay {
            old.iter_mut().flatten().for_each(|value| *value = decay * *value);
        }
        let mut executions = Vec::new();
        let mut moved = Vec::new();
        for (rank, gradient) in gradients.iter().enumerate() {
            let before = self.ensemble.residuals[rank].velocity(0..n).map(<[T]>::to_vec);
            self.accumulate(rank, gradient, size)?;
            let velocity = self.ensemble.residuals[rank].velocity(0..n);
            moved.push(match (self.ef21, before) {
                (Some(momentum), Some(before)) => {
                    let changed = before.iter().zip(gradient);
                    changed.map(|(&u, &gradient)| (momentum - T::ONE) * u + gradient).collect()
                }
                _ => velocity.map_or_else(|| gradient.clone(), <[T]>::to_vec),
            });
            executions.push(self.ensemble.begin(rank)?);
        }
        let step = lockstep(executions)?;
        let of_runs = |number: fn(&Run<T>) -> u64| step.runs.iter().map(number).collect();
        let mut outcome = Outcome {
            step: self.step,
            gradients: moved,
            old,
            new: Vec::new(),
            lost: Vec::new(),
            update: Vec::new(),
            delivered: Vec::new(),
            entries_received: of_runs(|run| run.finished.entries_received),
            words_received: of_runs(|run| run.words_received),
            bytes_received: of_runs(|run| run.bytes_received),
            words_critical: step.words_critical,
            first_lost: None,
            may_lose: self.may_lose,
            holders,
            stochastic,
            partition,
        };
        let partition = &outcome.partition;
        for committed in self.ensemble.commit(step, self.collection)? {
            let lost: Vec<Bag<T>> = committed.lost.into_iter().map(Bag::Sparse).collect();
            let rank = outcome.lost.len();
            let first = (0..).map(Block).zip(&lost).find_map(|(block, bag)| {
                bag.iter().next().map(|(i, _)| (rank, partition.range(block).start + i as usize))
            });
            outcome.first_lost = outcome.first_lost.or(first);
            outcome.lost.push(vector(partition, T::ZERO, &lost));
            outcome.delivered.push(vector(partition, neutral, &committed.update));
            outcome.update.push(committed.update);
        }
        outcome.new = self.residuals()?;
        self.step += 1;
        Ok(outcome)
    }

    /// One worker's step, from its gradient on, which arrives in pieces of this many entries.
    ///
    /// # Errors
    /// A gradient that is not finite, and as [`Ensemble::begin`].
    pub fn begin(
        &mut self,
        rank: usize,
        gradient: &[T],
        size: usize,
    ) -> Result<Execution<T>, InvariantError> {
        self.accumulate(rank, gradient, size)?;
        Ok(self.ensemble.begin(rank)?)
    }

    fn accumulate(&mut self, rank: usize, gradient: &[T], size: usize) -> Result<(), InvariantError> {
        let size = size.clamp(1, gradient.len().max(1));
        for (i, piece) in gradient.chunks(size).enumerate().rev() {
            self.ensemble.residuals[rank].accumulate(i * size, piece)?;
        }
        // An empty gradient is given as well.
        if gradient.is_empty() {
            self.ensemble.residuals[rank].accumulate(0, &[])?;
        }
        Ok(())
    }

    /// Goes on without gradients until nothing waits, and returns after how many steps.
    ///
    /// # Errors
    /// [`InvariantError::Waits`], where something still waits after this many steps; and what [`Outcome::check`] finds on the way.
    pub fn drain(&mut self, within: u64) -> Result<u64, InvariantError> {
        let n = self.partition().entries();
        let zeros = vec![vec![T::ZERO; n]; self.workers()];
        let mut steps = 0;
        while let Some((rank, entry)) = self.waiting()? {
            if steps == within {
                return Err(InvariantError::Waits { steps, entry, rank });
            }
            self.step(&zeros)?.check()?;
            steps += 1;
        }
        Ok(steps)
    }

    /// The first rank with something in its residual, and where.
    pub(super) fn waiting(&self) -> Result<Option<(usize, usize)>, InvariantError> {
        let of = |(rank, residual): (usize, &Vec<T>)| {
            residual.iter().position(|value| *value != T::ZERO).map(|entry| (rank, entry))
        };
        Ok(self.residuals()?.iter().enumerate().find_map(of))
    }

    /// By rank.
    fn residuals(&self) -> Result<Vec<Vec<T>>, InvariantError> {
        let n = self.partition().entries();
        let read = |residual: &Residual<T>| residual.read(0..n).map_err(InvariantError::from);
        self.ensemble.residuals.iter().map(read).collect()
    }
}

impl<T: Element> Outcome<T> {
    /// Whether an entry is neither delivered nor kept, on any worker.
    pub fn anything_lost(&self) -> bool {
        self.first_lost.is_some()
    }

    /// What the workers brought to an entry: the sum, and the sum of the absolute values.
    pub fn brought(&self, entry: usize) -> (f64, f64) {
        sums(self.gradients.iter().chain(&self.old), entry)
    }

    /// What of an entry is kept or lost: the sum, and the sum of the absolute values.
    pub fn left(&self, entry: usize) -> (f64, f64) {
        sums(self.new.iter().chain(&self.lost), entry)
    }

    /// Tests conservation, for sums of values of 32 or 64 bits, and that the update is one: gradients + old residuals =
    /// delivered + new residuals + lost, entry by entry, within 10⁻⁵ of the sum of the absolute contributions; nothing is
    /// lost where all residuals are collected; and the update has the same bits on every worker.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), InvariantError> {
        let step = self.step;
        let bits = |update: &[T]| update.iter().map(|value| value.bits()).collect::<Vec<_>>();
        let first = self.delivered.first().map(|update| bits(update)).unwrap_or_default();
        if let Some(rank) = self.delivered.iter().position(|update| bits(update) != first) {
            return Err(InvariantError::Update { step, rank });
        }
        if let Some((rank, entry)) = self.first_lost.filter(|_| !self.may_lose) {
            return Err(InvariantError::Lost { step, entry, rank });
        }
        // Shares of a number next to the smallest one are multiples of that.
        let smallest = T::from_magnitude(T::Magnitude::ONE).to_f64();
        let shares = if self.holders > 1 { f64::from(self.holders.pow(2)) * smallest } else { 0.0 };
        for (entry, update) in self.delivered.first().into_iter().flatten().enumerate() {
            let ((brought, size), (left, kept)) = (self.brought(entry), self.left(entry));
            let (update, found) = (update.to_f64().abs(), update.to_f64() + left);
            // A small value that was rounded up at random to its bucket's level leaves an error as large as the level.
            let size = if self.stochastic { size + update + kept } else { size };
            let holds = (brought - found).abs() <= 1e-5 * size + shares;
            if !holds {
                return Err(InvariantError::Conservation { step, entry, brought, found });
            }
        }
        Ok(())
    }
}

fn sums<'a, T: Element>(vectors: impl Iterator<Item = &'a Vec<T>>, entry: usize) -> (f64, f64) {
    let values = vectors.map(|vector| vector[entry].to_f64());
    values.fold((0.0, 0.0), |(sum, size), value| (sum + value, size + value.abs()))
}

/// The blocks as a vector.
fn vector<T: Element>(partition: &Partition, absent: T, blocks: &[Bag<T>]) -> Vec<T> {
    let mut values = vec![absent; partition.entries()];
    for (block, bag) in (0..).map(Block).zip(blocks) {
        let place = &mut values[partition.range(block)];
        match bag {
            Bag::Dense(dense) => place.copy_from_slice(&dense.to_vec()),
            Bag::Sparse(entries) => entries.iter().for_each(|(i, value)| place[i as usize] = value),
        }
    }
    values
}
