//! All workers of a job in one thread, and the two laws that hold after every step of every method.

use std::collections::VecDeque;

use gleaner_algorithms::bag::{Bag, Coding, Entries};
use gleaner_algorithms::collectives::{Ensemble, Sag, SparDl};
use gleaner_algorithms::residual::Collection;
use gleaner_algorithms::schedule::{CheckError, Execution, Memory, Schedule, check, lockstep};
use gleaner_algorithms::selectors::Selector;
use gleaner_algorithms::{Block, Element, Layers, Method, Partition};
use proptest::test_runner::{Config, RngSeed};

use super::by_hand;

pub const COLLECTIONS: [Collection; 3] = [Collection::Global, Collection::Partial, Collection::Local];

/// All methods that are listed.
pub fn methods() -> impl Iterator<Item = Method> {
    Method::all()
}

/// The methods that take a selector.
pub fn selecting() -> impl Iterator<Item = Method> {
    methods().filter(|m| m.collective().takes_selector())
}

/// One of each selector but the exact top-k.
pub fn selectors() -> Vec<Selector> {
    let named = Selector::NAMED.into_iter().filter(|selector| *selector != Selector::Top);
    named.chain([Selector::Bucketed(7), Selector::Threshold(0.5), Selector::Threshold(1e20)]).collect()
}

/// SparDL in teams.
pub fn spardl(teams: usize, sag: Sag) -> Method {
    Method::of(SparDl { teams: teams as u32, sag })
}

/// All methods for so many workers, with every combination of their options: teams and how they come together, a selector,
/// which is another one for each, and how values are told. Each method with each selector is a test of its own; which
/// residuals are collected, and by what they are reduced, is for the tests to run through.
pub fn variants(workers: usize) -> Vec<Method> {
    let mut forms: Vec<Method> = methods().collect();
    for teams in (2..=workers).filter(|d| workers.is_multiple_of(*d)) {
        forms.push(spardl(teams, Sag::Auto));
        if teams.is_power_of_two() {
            forms.push(spardl(teams, Sag::Bruck));
        }
    }
    let selectors = selectors();
    let with = |(i, m): (usize, Method)| m.selector(selectors[(i + workers) % selectors.len()]);
    forms.extend(selecting().enumerate().map(with));
    let codings = |form: Method| {
        Coding::ALL
            .into_iter()
            .map(move |coding| form.clone().coding(coding))
            .filter(|method| method.collective().is_sparse() || method.values() == Coding::Exact)
    };
    forms.into_iter().flat_map(codings).collect()
}

/// Lets everything through B-SAG, whose h starts at the least: other methods learn no number that is agreed and alone.
pub fn open<T: Element>(ensemble: &mut Ensemble<T>) {
    let mut memories = ensemble.memories();
    for memory in memories.iter_mut().filter(|memory| memory.own.is_empty()) {
        memory.agreed.iter_mut().take(1).for_each(|h| *h = f64::from(u32::MAX));
    }
    ensemble.restore(memories).unwrap();
}

/// All methods that deliver everything.
pub fn dense_methods() -> impl Iterator<Item = Method> {
    methods().filter(|m| !m.collective().is_sparse())
}

/// So many random cases, the same ones in every run unless the environment says otherwise.
pub fn cases(cases: u32) -> Config {
    let default = Config::default();
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse().ok());
    Config {
        cases: number("PROPTEST_CASES").map_or(cases, |c: u64| c as u32),
        rng_seed: RngSeed::Fixed(number("PROPTEST_RNG_SEED").unwrap_or(0x91ea_0e55)),
        failure_persistence: None,
        ..default
    }
}

/// The workers of a job, with their residuals.
pub struct Team {
    pub ensemble: Ensemble,
    pub collection: Collection,
}

impl Team {
    /// The workers of a method that runs as the user asked for it.
    pub fn of(method: Method, workers: usize, layers: impl Into<Layers>) -> Self {
        let ensemble = Ensemble::new(method.clone(), workers as u32, layers)
            .unwrap_or_else(|e| panic!("{method}, P {workers}: {e}"));
        Self { ensemble, collection: method.collection() }
    }

    /// The workers of any schedules that the checker accepts.
    pub fn checked(schedules: Vec<Schedule>, collection: Collection) -> Result<Self, CheckError> {
        Self::checked_with(schedules, Memory::default(), collection)
    }

    /// The same, of workers that have learnt something.
    pub fn checked_with(
        schedules: Vec<Schedule>,
        memory: Memory,
        collection: Collection,
    ) -> Result<Self, CheckError> {
        check(schedules.clone())?;
        let (workers, n) = (schedules.len(), schedules[0].partition.entries());
        Ok(Self { collection, ..Self::of(by_hand::method(schedules, memory), workers, n) })
    }

    pub fn partition(&self) -> &Partition {
        self.ensemble.partition()
    }

    pub fn workers(&self) -> usize {
        self.ensemble.residuals.len()
    }

    /// One step in lock step, the gradients handed over in one piece.
    pub fn step(&mut self, gradients: &[Vec<f32>]) -> Outcome {
        self.step_in_pieces(gradients, usize::MAX)
    }

    /// One step in lock step; the gradients arrive in pieces of a size, the last ones first, as a backward pass
    /// brings them.
    pub fn step_in_pieces(&mut self, gradients: &[Vec<f32>], size: usize) -> Outcome {
        let partition = self.partition().clone();
        let n = partition.entries();
        let old: Vec<Vec<f32>> = self.ensemble.residuals.iter().map(|r| r.read(0..n)).collect();
        let holders = self.ensemble.prepared().flat_map(|prepared| prepared.program.facts());
        let holders = holders.flat_map(|facts| &facts.holders).map(|h| h.count);
        let holders = holders.max().unwrap_or(1);
        let executions = (0..self.workers()).map(|w| self.begin(w, &gradients[w], size)).collect();
        let step = lockstep(executions).unwrap();
        let by_chance = self.ensemble.shape().coding.is_stochastic();
        let gradients = gradients.to_vec();
        let mut outcome = Outcome { old, gradients, holders, by_chance, ..Outcome::default() };
        outcome.words_critical = step.words_critical;
        for run in &step.runs {
            outcome.entries_received.push(run.finished.entries_received);
            outcome.words_received.push(run.words_received);
            outcome.bytes_received.push(run.bytes_received);
        }
        for committed in self.ensemble.commit(step, self.collection).unwrap() {
            outcome.lost.push(flat(&partition, &committed.lost));
            outcome.anything_lost |= committed.lost.iter().any(|lost| !lost.is_empty());
            outcome.delivered.push(flat_bags(&partition, &committed.update));
            outcome.update.push(committed.update);
        }
        outcome.new = self.ensemble.residuals.iter().map(|residual| residual.read(0..n)).collect();
        outcome.partition = Some(partition);
        outcome
    }

    /// One worker's run, from its gradient on.
    pub fn begin(&mut self, worker: usize, gradient: &[f32], size: usize) -> Execution {
        let residual = &mut self.ensemble.residuals[worker];
        let mut pieces: VecDeque<(usize, &[f32])> = VecDeque::new();
        let size = size.min(gradient.len().max(1));
        gradient.chunks(size).enumerate().for_each(|(i, piece)| pieces.push_front((i * size, piece)));
        for (offset, piece) in pieces {
            residual.accumulate(offset, piece).unwrap();
        }
        self.ensemble.begin(worker).unwrap()
    }
}

/// What went into a step and what came out of it, by worker.
#[derive(Default)]
pub struct Outcome {
    partition: Option<Partition>,
    /// How many workers share a drop, at most.
    holders: u32,
    /// Whether chance decided how values were rounded.
    by_chance: bool,
    pub gradients: Vec<Vec<f32>>,
    /// The residuals before the step.
    pub old: Vec<Vec<f32>>,
    pub update: Vec<Vec<Bag>>,
    /// The update as a vector.
    pub delivered: Vec<Vec<f32>>,
    /// The residuals after the step.
    pub new: Vec<Vec<f32>>,
    pub lost: Vec<Vec<f32>>,
    pub anything_lost: bool,
    pub entries_received: Vec<u64>,
    pub words_received: Vec<u64>,
    /// Of the bags as they were.
    pub words_critical: u64,
    pub bytes_received: Vec<u64>,
}

impl Outcome {
    /// What the workers brought to one entry, summed up, and the sum of the absolute values.
    pub fn brought(&self, i: usize) -> (f64, f64) {
        self.gradients.iter().chain(&self.old).fold((0.0, 0.0), |(sum, size), v| {
            let v = f64::from(v[i]);
            (sum + v, size + v.abs())
        })
    }

    /// Conservation: gradients + old residuals = delivered + new residuals + lost, entry by entry. Shares of a number next
    /// to the smallest there is are whole multiples of that, so where drops are shared it counts too.
    pub fn assert_conserved(&self) {
        let smallest = f64::from(f32::from_bits(1));
        let shares = if self.holders > 1 { f64::from(self.holders * self.holders) * smallest } else { 0.0 };
        for i in 0..self.delivered[0].len() {
            let (brought, size) = self.brought(i);
            let left = || self.new.iter().chain(&self.lost).map(|v| f64::from(v[i]));
            let found = f64::from(self.delivered[0][i]) + left().sum::<f64>();
            // A small value that chance rounded up to its bucket's level leaves an error as large as the level.
            let rounded = f64::from(self.delivered[0][i].abs()) + left().map(f64::abs).sum::<f64>();
            let size = if self.by_chance { size + rounded } else { size };
            assert!(
                (brought - found).abs() <= 1e-5 * size + shares,
                "entry {i}: {brought} came in, {found} is delivered, kept or lost: gradients {:?}, old {:?}, \
                 delivered {}, new {:?}, lost {:?}",
                column(&self.gradients, i),
                column(&self.old, i),
                self.delivered[0][i],
                column(&self.new, i),
                column(&self.lost, i),
            );
        }
    }

    /// Conservation without any rounding, for inputs whose sums and shares are exact.
    pub fn assert_conserved_exactly(&self) {
        for i in 0..self.delivered[0].len() {
            let left: f64 = self.new.iter().chain(&self.lost).map(|v| f64::from(v[i])).sum();
            assert_eq!(self.brought(i).0, f64::from(self.delivered[0][i]) + left, "entry {i}");
        }
    }

    /// The update has the same bits, and the same form, on every worker.
    pub fn assert_identical(&self) {
        for (worker, update) in self.update.iter().enumerate() {
            for (block, (here, first)) in update.iter().zip(&self.update[0]).enumerate() {
                assert_eq!(bits(here), bits(first), "block {block} of rank {worker} and rank 0");
            }
        }
    }

    /// Both laws, and that nothing is lost where everything is collected.
    pub fn assert_laws(&self, collection: Collection) {
        self.assert_conserved();
        self.assert_identical();
        if collection == Collection::Global {
            assert!(!self.anything_lost, "lost under global collection: {:?}", self.lost);
        }
        for lost in self.lost.iter().chain(&self.new).chain(&self.delivered) {
            assert!(lost.iter().all(|v| v.is_finite()));
        }
    }

    /// The non-zero entries of the update in each block.
    pub fn delivered_by_block(&self) -> Vec<usize> {
        let partition = self.partition.as_ref().unwrap();
        let nonzeros = |b| self.delivered[0][partition.range(Block(b))].iter().filter(|v| **v != 0.0).count();
        (0..partition.blocks() as u32).map(nonzeros).collect()
    }

    /// The bits of all that a step leaves behind.
    pub fn bits(&self) -> StepBits {
        let vectors = |v: &[Vec<f32>]| v.iter().map(|v| v.iter().map(|v| v.to_bits()).collect()).collect();
        let update = self.update.iter().map(|u| u.iter().map(bits).collect()).collect();
        (update, vectors(&self.new), vectors(&self.lost))
    }
}

/// The bits of the updates, the residuals and what was lost, by worker.
pub type StepBits = (Vec<Vec<Bits>>, Vec<Vec<u32>>, Vec<Vec<u32>>);

/// A bag's form, indices and values.
pub type Bits = (bool, Vec<u32>, Vec<u32>);

fn bits(bag: &Bag) -> Bits {
    match bag {
        Bag::Sparse(e) => (false, e.indices.clone(), e.values.iter().map(|v| v.to_bits()).collect()),
        Bag::Dense(values) => (true, Vec::new(), values.iter().map(|v| v.to_bits()).collect()),
    }
}

fn column(vectors: &[Vec<f32>], i: usize) -> Vec<f32> {
    vectors.iter().map(|v| v[i]).collect()
}

fn flat(partition: &Partition, blocks: &[Entries]) -> Vec<f32> {
    let mut values = vec![0.0; partition.entries()];
    for (b, entries) in blocks.iter().enumerate() {
        let start = partition.range(Block(b as u32)).start;
        assert!(entries.indices.windows(2).all(|i| i[0] < i[1]), "indices ascend");
        entries.iter().for_each(|(i, v)| values[start + i as usize] = v);
    }
    values
}

fn flat_bags(partition: &Partition, blocks: &[Bag]) -> Vec<f32> {
    let blocks: Vec<Entries> = blocks.iter().map(|bag| bag.iter().collect()).collect();
    flat(partition, &blocks)
}
