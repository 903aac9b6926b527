//! What one server has of the parameters, and how it changes.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use gleaner_algorithms::Element;
use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::schedule::{Execution, ExecutionError, Program};
use gleaner_algorithms::synchrony::{Sgd, osp};

use super::store::{State, Store, StoreError};

/// The smallest value that is not zero: it encodes a zero where only entries travel, and zeros are not entries.
const TINY: u32 = 1;
const SIGN: u32 = 1 << 31;

/// Entries that go through memory once where more is done with them than a step of the optimiser.
const PIECE: usize = 4096;

/// See the module. Its parts are numbered in the order of their units.
#[derive(Debug)]
pub(crate) struct Shard {
    sgd: Sgd,
    /// Whether workers get only what has changed.
    is_sparse: bool,
    /// Whether it is asked how important its parts are.
    is_weighed: bool,
    /// How often the optimiser has made a step.
    pub(crate) updates: u64,
    pub(crate) parts: Vec<Values>,
    /// In order; each part has at least one.
    pub(crate) slices: Vec<Slice>,
    /// Where it survives this process.
    store: Option<Store>,
}

/// Some entries of a part to which the same has been applied. A part has several where servers that cut the parameters otherwise were
/// interrupted at different steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) part: usize,
    /// Within the part.
    pub(crate) range: Range<usize>,
    /// By worker, the first step that was not applied.
    pub(crate) applied: Vec<u64>,
}

/// The values of one part.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) parameters: Arc<Vec<f32>>,
    pub(crate) velocities: Vec<f32>,
    /// By which update each has changed last, if only what has changed travels.
    changed: Vec<u32>,
    /// The last mean gradient, if it is asked how important the part is.
    gradient: Vec<f32>,
    /// What was reported last: to a worker that has all of one update, as of another.
    encoded: Option<(u32, u32, Vec<Bytes>)>,
}

/// What makes one step of the optimiser.
#[derive(Debug)]
pub(crate) struct Update {
    /// The learning rate.
    pub(crate) rate: f32,
    /// Among this many workers the sum is a mean.
    pub(crate) workers: u32,
    /// In the order in which they are added up.
    pub(crate) pushes: Vec<Push>,
    /// Workers that have left. A job that resumes later does not repeat the steps that they missed.
    pub(crate) gone: Vec<u32>,
}

/// What one worker has pushed.
#[derive(Debug)]
pub(crate) struct Push {
    pub(crate) worker: u32,
    pub(crate) step: u64,
    pub(crate) samples: u64,
    /// By part.
    pub(crate) bags: Vec<(usize, Bag)>,
}

impl Shard {
    /// With these parts and slices.
    pub(crate) fn new(sgd: Sgd, (is_sparse, is_weighed): (bool, bool), state: State) -> Self {
        let State { updates, parts, slices } = state;
        let values = |(parameters, velocities): (Vec<f32>, Vec<f32>)| {
            let n = parameters.len();
            let changed = vec![0; if is_sparse { n } else { 0 }];
            let gradient = vec![0.0; if is_weighed { n } else { 0 }];
            Values { parameters: Arc::new(parameters), velocities, changed, gradient, encoded: None }
        };
        let parts = parts.into_iter().map(values).collect();
        Self { sgd, is_sparse, is_weighed, updates, parts, slices, store: None }
    }

    /// From here on every step of the optimiser is in a file before any worker is notified.
    pub(crate) fn keep_in(&mut self, store: Store) {
        self.store = Some(store);
    }

    /// Undoes its last update, if that leaves exactly the steps before this one.
    pub(crate) fn go_back(&mut self, step: u64, ranges: &[Range<usize>]) -> Result<(), StoreError> {
        let mut store = self.store.take();
        if let Some(state) = store.as_mut().map_or(Ok(None), |store| store.go_back(step, ranges))? {
            *self = Self::new(self.sgd, (self.is_sparse, self.is_weighed), state);
        }
        self.store = store;
        Ok(())
    }

    /// The first step of which not every worker's gradient is applied to everything.
    pub(crate) fn next(&self) -> u64 {
        self.slices.iter().flat_map(|slice| &slice.applied).copied().min().unwrap_or(0)
    }

    /// Makes a step of the optimiser. What was applied before, of a job that was interrupted, counts once.
    pub(crate) fn apply(&mut self, update: Update) -> Result<(), StoreError> {
        let Update { rate, workers, pushes, gone } = update;
        let (count, total) =
            (pushes.len() as f32, pushes.iter().map(|push| push.samples as f32).sum::<f32>());
        let is_even = pushes.iter().all(|push| push.samples == pushes[0].samples);
        let mut bags: Vec<Vec<(u32, u64, f32, Bag)>> = self.parts.iter().map(|_| Vec::new()).collect();
        for Push { worker, step, samples, bags: pushed } in pushes {
            let weight = if is_even { 1.0 } else { samples as f32 * count / total };
            for (part, bag) in pushed {
                bags[part].push((worker, step, weight, bag));
            }
        }
        let mut is_new = false;
        for Slice { part, range, applied } in &mut self.slices {
            let values = &mut self.parts[*part];
            let (mut sum, is_whole): (Option<Bag>, _) = (None, range.len() == values.parameters.len());
            for (worker, step, weight, bag) in &mut bags[*part] {
                let next = &mut applied[*worker as usize];
                if *step < *next {
                    continue;
                }
                *next = *step + 1;
                let bag = if is_whole { std::mem::replace(bag, Bag::empty()) } else { cut(bag, range) };
                let bag = if is_even { bag } else { scaled(bag, *weight) };
                sum = Some(match sum {
                    None => bag,
                    Some(sum) => sum.add(bag, range.len()),
                });
            }
            let present = (0..).zip(&*applied).filter(|(worker, _)| !gone.contains(worker));
            if let Some(least) = present.map(|(_, next)| *next).min() {
                gone.iter()
                    .for_each(|&worker| applied[worker as usize] = applied[worker as usize].max(least));
            }
            if let Some(sum) = sum {
                self.updates += u64::from(!std::mem::replace(&mut is_new, true));
                values.step(sum, range, &self.sgd, (rate, workers, self.updates as u32));
            }
        }
        match &mut self.store {
            Some(store) if is_new => store.write(self.updates, &self.parts, &self.slices),
            _ => Ok(()),
        }
    }

    /// How important each part is (OSP, equation 4), by its last gradient.
    pub(crate) fn importance(&self) -> Vec<f64> {
        let of = |part: &Values| osp::importance(&part.parameters, &part.gradient);
        self.parts.iter().filter(|_| self.is_weighed).map(of).collect()
    }

    /// What brings a part to a worker: all of it, or what has changed since it had all of an update.
    pub(crate) fn encode(
        &mut self,
        part: usize,
        program: &Arc<Program>,
        since: Option<u32>,
    ) -> Result<Vec<Bytes>, ExecutionError> {
        let (now, values) = (self.updates as u32, &mut self.parts[part]);
        let since = since.filter(|_| self.is_sparse);
        if let Some((from, to, encoded)) = &values.encoded
            && since == Some(*from)
            && now == *to
        {
            return Ok(encoded.clone());
        }
        let brings = match since {
            None => Arc::clone(&values.parameters),
            Some(since) => {
                let is_new = |changed: u32| changed.wrapping_sub(since) as i32 > 0;
                let entries = values.parameters.iter().zip(&values.changed);
                let entry =
                    |(&value, &changed): (&f32, &u32)| if is_new(changed) { nonzero(value) } else { 0.0 };
                Arc::new(entries.map(entry).collect())
            }
        };
        let mut outbox = Vec::new();
        let blocks = program.schedule().partition.blocks();
        Execution::new(Arc::clone(program), brings, vec![Default::default(); blocks]).go_on(&mut outbox)?;
        let encoded: Vec<Bytes> = outbox.into_iter().map(|outgoing| outgoing.payload).collect();
        values.encoded = since.map(|since| (since, now, encoded.clone()));
        Ok(encoded)
    }
}

impl Values {
    /// A step of the optimiser with a sum of gradients of some entries.
    fn step(&mut self, sum: Bag, range: &Range<usize>, sgd: &Sgd, (rate, workers, update): (f32, u32, u32)) {
        let count = workers as f32;
        let parameters = &mut Arc::make_mut(&mut self.parameters)[range.clone()];
        let velocities = &mut self.velocities[range.clone()];
        let changed = self.changed.get_mut(range.clone()).unwrap_or_default();
        let mean = self.gradient.get_mut(range.clone()).unwrap_or_default();
        if let Bag::Sparse(entries) = &sum
            && sgd.momentum == 0.0
            && sgd.weight_decay == 0.0
        {
            // All others stay as they are.
            mean.fill(0.0);
            for (index, value) in entries.iter() {
                let here = index as usize..index as usize + 1;
                mean.get_mut(here.clone()).unwrap_or_default().fill(value / count);
                let changed = changed.get_mut(here.clone()).unwrap_or_default();
                let here = (&mut parameters[here.clone()], &mut velocities[here], changed);
                step::<1>(sgd, here, &[value / count], rate, update);
            }
            return;
        }
        let mut gradient: Vec<f32> = match sum {
            Bag::Sparse(entries) => entries.to_dense(range.len()),
            Bag::Dense(values) => values.to_vec(),
        };
        gradient.iter_mut().for_each(|value| *value /= count);
        if !mean.is_empty() {
            mean.copy_from_slice(&gradient);
        }
        for (piece, gradient) in gradient.chunks(PIECE).enumerate() {
            let here = piece * PIECE..piece * PIECE + gradient.len();
            let changed = changed.get_mut(here.clone()).unwrap_or_default();
            let here = (&mut parameters[here.clone()], &mut velocities[here], changed);
            step::<PIECE>(sgd, here, gradient, rate, update);
        }
    }
}

/// A step of the optimiser for a few entries, that notes which of them have changed if that is asked for.
fn step<const N: usize>(
    sgd: &Sgd,
    (parameters, velocities, changed): (&mut [f32], &mut [f32], &mut [u32]),
    gradient: &[f32],
    rate: f32,
    update: u32,
) {
    let mut before = [0.0; N];
    let before = &mut before[..changed.len()];
    before.copy_from_slice(&parameters[..changed.len()]);
    sgd.step(parameters, velocities, gradient, rate);
    for ((value, before), changed) in parameters.iter_mut().zip(before).zip(changed) {
        if value.to_bits() & !SIGN == TINY {
            *value = f32::from_bits(value.to_bits() & SIGN);
        }
        if value.to_bits() != before.to_bits() {
            *changed = update;
        }
    }
}

/// What a bag has in a range.
fn cut(bag: &Bag, range: &Range<usize>) -> Bag {
    match bag {
        Bag::Dense(values) => Bag::Dense(values.to_vec()[range.clone()].to_vec().into()),
        Bag::Sparse(entries) => {
            let inside = entries.iter().filter(|(index, _)| range.contains(&(*index as usize)));
            Bag::Sparse(inside.map(|(index, value)| (index - range.start as u32, value)).collect())
        }
    }
}

fn scaled(bag: Bag, weight: f32) -> Bag {
    match bag {
        Bag::Sparse(mut entries) => {
            entries.values.iter_mut().for_each(|value| *value *= weight);
            Bag::Sparse(entries)
        }
        Bag::Dense(values) => {
            Bag::Dense(values.iter().map(|value| value * weight).collect::<Vec<f32>>().into())
        }
    }
}

/// A value as it travels where zeros do not.
fn nonzero(value: f32) -> f32 {
    if value == f32::ZERO { f32::from_bits(value.to_bits() | TINY) } else { value }
}

/// What [`nonzero`] made of a value.
pub(crate) fn value_of(value: f32) -> f32 {
    if value.to_bits() & !SIGN == TINY { f32::from_bits(value.to_bits() & SIGN) } else { value }
}
