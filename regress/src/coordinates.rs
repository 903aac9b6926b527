//! Distributed stochastic coordinate descent.
//!
//! Every worker has all samples by column, all margins, and a slice of the columns. In an iteration it changes the next coordinates of
//! its slice, one after another, and the changes of all workers are summed up: their supports are disjoint, so this sum is a sparse
//! all-gather. Then every worker applies all changes, in the same order.
//!
//! A worker does not see what the others change at the same time. If f is convex, f(w + d₁ + … + d_P) is at most the mean of f(w + P·d_p), so
//! that a worker which makes that smaller by its own d_p makes the objective smaller, whatever the others do (as CoCoA⁺ does with
//! σ′ = P; Ma et al., ICML 2015). On sparse data the changes hardly meet, and P is more caution than is needed: σ begins with what
//! is enough in expectation for coordinates chosen at random, 1 + (ω − 1)(τ − 1)/(n − 1) with ω the entries of the longest sample and τ the
//! coordinates of an iteration (Richtárik and Takáč, Mathematical Programming 2016), and doubles, up to P, where an epoch has made the
//! objective larger. The step itself is that of the quadratic above f, with the most that the loss's second derivative is.

use gleaner_algorithms::bag::Entries;

use crate::columns::Columns;
use crate::error::RegressError;
use crate::exchange::Exchange;
use crate::objective::{Loss, Penalty, shrink};
use gleaner_statistics::random::Generator;

/// A worker's coordinate descent.
pub(crate) struct Coordinates<'a> {
    columns: &'a Columns,
    /// Each sample's y.
    signs: &'a [f32],
    loss: Loss,
    penalty: Penalty,
    /// The most that the loss's second derivative is.
    curvature: f64,
    exchange: Exchange,
    seed: u64,
    rank: usize,
    workers: usize,
    /// Coordinates of each worker in an iteration.
    chunk: usize,
    /// The columns of each worker's slice.
    slices: Vec<std::ops::Range<u32>>,
    /// σ.
    caution: f64,
    weights: Vec<f32>,
    margins: Vec<f64>,
    /// σ times what this worker has changed of the margins in this iteration.
    ahead: Vec<f64>,
    objective: f64,
}

impl<'a> Coordinates<'a> {
    pub(crate) fn new(
        columns: &'a Columns,
        signs: &'a [f32],
        (loss, penalty): (Loss, Penalty),
        (rank, workers): (usize, usize),
        (seed, chunk): (u64, usize),
        exchange: Exchange,
    ) -> Self {
        let (count, samples) = (columns.len(), signs.len());
        let at = |rank: usize| (count * rank / workers) as u32;
        let (width, together) = (columns.longest_row as f64, chunk.saturating_mul(workers).min(count) as f64);
        let meeting =
            1.0 + (width - 1.0).max(0.0) * (together - 1.0).max(0.0) / (count as f64 - 1.0).max(1.0);
        let mut descent = Self {
            columns,
            signs,
            loss,
            penalty,
            curvature: loss.curvature().unwrap_or(1.0),
            exchange,
            seed,
            rank,
            workers,
            chunk,
            slices: (0..workers).map(|rank| at(rank)..at(rank + 1)).collect(),
            caution: meeting.min(workers as f64),
            weights: vec![0.0; count],
            margins: vec![0.0; samples],
            ahead: vec![0.0; samples],
            objective: 0.0,
        };
        descent.objective = descent.value();
        descent
    }

    /// Iterations of an epoch.
    pub(crate) fn steps(&self) -> u64 {
        let longest = self.slices.iter().map(|slice| slice.len()).max().unwrap_or(0);
        longest.div_ceil(self.chunk) as u64
    }

    /// Changes every coordinate once. Calls `stepped` with the number of iterations done, and gives the objective.
    pub(crate) fn epoch(&mut self, epoch: u64, mut stepped: impl FnMut(u64)) -> Result<f64, RegressError> {
        let mut own: Vec<u32> = self.slices[self.rank].clone().collect();
        Generator::new(self.seed, "order", epoch << 32 | self.rank as u64).shuffle(&mut own);
        for step in 0..self.steps() {
            let at = |step: u64| (step as usize * self.chunk).min(own.len());
            let changes = self.iterate(&own[at(step)..at(step + 1)]);
            let pending = self.exchange.start(changes)?;
            let changes = self.exchange.finish(pending)?;
            self.apply(&changes);
            stepped(step + 1);
        }
        let objective = self.value();
        // Every worker has the same margins bit by bit, and decides the same.
        if objective > self.objective {
            self.caution = (2.0 * self.caution).min(self.workers as f64);
        }
        self.objective = objective;
        Ok(objective)
    }

    /// This worker's changes of some columns, one after another as they come; sorted by column.
    fn iterate(&mut self, columns: &[u32]) -> Entries<f32> {
        let samples = self.signs.len() as f64;
        let mut changes: Vec<(u32, f32)> = Vec::with_capacity(columns.len());
        for &column in columns {
            let place = column as usize;
            let weight = f64::from(self.weights[place]);
            let term = |(row, x): (usize, f64)| {
                self.loss.slope(self.margins[row] + self.ahead[row], f64::from(self.signs[row])) * x
            };
            let slope = self.columns.iter(place).map(term).sum::<f64>() / samples + self.penalty.l2 * weight;
            let bend =
                self.caution * self.curvature * self.columns.squares[place] / samples + self.penalty.l2;
            let change = (shrink(weight - slope / bend, self.penalty.l1 / bend) - weight) as f32;
            if change != 0.0 {
                changes.push((column, change));
                let scaled = self.caution * f64::from(change);
                self.columns.iter(place).for_each(|(row, x)| self.ahead[row] += scaled * x);
            }
        }
        for &(column, _) in &changes {
            self.columns.iter(column as usize).for_each(|(row, _)| self.ahead[row] = 0.0);
        }
        changes.sort_unstable_by_key(|&(column, _)| column);
        changes.into_iter().collect()
    }

    fn apply(&mut self, changes: &Entries<f32>) {
        for (column, change) in changes.iter() {
            let place = column as usize;
            let before = self.weights[place];
            self.weights[place] = before + change;
            // What the weight has really changed by, so that margins stay those of the weights.
            let change = f64::from(self.weights[place]) - f64::from(before);
            self.columns.iter(place).for_each(|(row, x)| self.margins[row] += change * x);
        }
    }

    /// The objective.
    pub(crate) fn value(&self) -> f64 {
        let scores = self.margins.iter().zip(self.signs);
        let losses: f64 = scores.map(|(&margin, &y)| self.loss.value(margin, f64::from(y))).sum();
        losses / self.signs.len() as f64 + self.penalty.value(self.weights.iter().map(|&w| f64::from(w)))
    }

    /// The weights of n features.
    pub(crate) fn weights(&self, n: usize) -> Vec<f32> {
        let mut all = vec![0.0; n];
        let of = self.columns.features.iter().zip(&self.weights);
        of.for_each(|(&feature, &weight)| all[feature as usize] = weight);
        all
    }

    pub(crate) fn exchange(&mut self) -> &mut Exchange {
        &mut self.exchange
    }
}
