//! The public harness of the invariants, for steps that do not fail, and the methods that it is for.

use std::ops::{Deref, DerefMut};

use gleaner_algorithms::bag::{Bag, Coding};
use gleaner_algorithms::collectives::{Ensemble, Sag, SparDl};
use gleaner_algorithms::invariants::{self, Trial};
use gleaner_algorithms::residual::Collection;
use gleaner_algorithms::schedule::{CheckError, Execution, Memory, Schedule, check};
use gleaner_algorithms::selectors::Selector;
use gleaner_algorithms::{Block, Element, Layers, Method};
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

/// All methods for this many workers, with every combination of their options: teams and how they come together, a selector,
/// which is another one for each, and how values are encoded. Each method with each selector is a test of its own; which
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

/// Values as they are compared: bit by bit.
pub fn bits_of(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// This many random cases, the same ones in every run unless the environment says otherwise.
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

/// The workers of a job, whose steps do not fail.
pub struct Team<T: Element = f32>(Trial<T>);

impl<T: Element> Deref for Team<T> {
    type Target = Trial<T>;

    fn deref(&self) -> &Trial<T> {
        &self.0
    }
}

impl<T: Element> DerefMut for Team<T> {
    fn deref_mut(&mut self) -> &mut Trial<T> {
        &mut self.0
    }
}

impl<T: Element> Team<T> {
    /// The workers of a method that runs as the user asked for it.
    pub fn of(method: Method, workers: usize, layers: impl Into<Layers>) -> Self {
        let trial = Trial::new(method.clone(), workers as u32, layers);
        Self(trial.unwrap_or_else(|e| panic!("{method}, P {workers}: {e}")))
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
        Ok(Self::of(by_hand::method(schedules, memory).residual(collection), workers, n))
    }

    /// One step in lock step, the gradients handed over in one piece.
    pub fn step(&mut self, gradients: &[Vec<T>]) -> Outcome<T> {
        self.step_in_pieces(gradients, usize::MAX)
    }

    /// The same, the gradients handed over in pieces of a size.
    pub fn step_in_pieces(&mut self, gradients: &[Vec<T>], size: usize) -> Outcome<T> {
        Outcome(self.0.step_in_pieces(gradients, size).unwrap())
    }

    /// One worker's run, from its gradient on.
    pub fn begin(&mut self, worker: usize, gradient: &[T], size: usize) -> Execution<T> {
        self.0.begin(worker, gradient, size).unwrap()
    }
}

/// What went into a step and what came out of it, by worker.
#[derive(Debug)]
pub struct Outcome<T: Element = f32>(invariants::Outcome<T>);

impl<T: Element> Deref for Outcome<T> {
    type Target = invariants::Outcome<T>;

    fn deref(&self) -> &invariants::Outcome<T> {
        &self.0
    }
}

impl<T: Element> DerefMut for Outcome<T> {
    fn deref_mut(&mut self) -> &mut invariants::Outcome<T> {
        &mut self.0
    }
}

impl<T: Element> Outcome<T> {
    /// Conservation without any rounding, for inputs whose sums and shares are exact.
    pub fn assert_conserved_exactly(&self) {
        for i in 0..self.delivered[0].len() {
            let found = self.delivered[0][i].to_f64() + self.left(i).0;
            assert_eq!(self.brought(i).0, found, "entry {i}: {self:?}");
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

    /// All that holds after every step, with finite values.
    pub fn assert_invariants(&self) {
        self.check().unwrap_or_else(|error| panic!("{error}: {self:?}"));
        self.assert_identical();
        for vector in self.lost.iter().chain(&self.new).chain(&self.delivered) {
            assert!(vector.iter().all(|v| v.is_finite()));
        }
    }

    /// The non-zero entries of the update in each block.
    pub fn delivered_by_block(&self) -> Vec<usize> {
        let update = &self.delivered[0];
        let nonzeros = |b| update[self.partition.range(Block(b))].iter().filter(|v| **v != T::ZERO).count();
        (0..self.partition.blocks() as u32).map(nonzeros).collect()
    }

    /// The bits of all that a step leaves behind.
    pub fn bits(&self) -> StepBits {
        let vectors = |v: &[Vec<T>]| v.iter().map(|v| v.iter().map(|v| v.bits()).collect()).collect();
        let update = self.update.iter().map(|u| u.iter().map(bits).collect()).collect();
        (update, vectors(&self.new), vectors(&self.lost))
    }
}

/// The bits of the updates, the residuals and what was lost, by worker.
pub type StepBits = (Vec<Vec<Bits>>, Vec<Vec<u64>>, Vec<Vec<u64>>);

/// A bag's form, indices and values.
pub type Bits = (bool, Vec<u32>, Vec<u64>);

fn bits<T: Element>(bag: &Bag<T>) -> Bits {
    match bag {
        Bag::Sparse(e) => {
            assert!(e.indices.windows(2).all(|i| i[0] < i[1]), "indices ascend");
            (false, e.indices.clone(), e.values.iter().map(|v| v.bits()).collect())
        }
        Bag::Dense(values) => (true, Vec::new(), values.iter().map(|v| v.bits()).collect()),
    }
}
