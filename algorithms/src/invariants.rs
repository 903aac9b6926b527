//! The invariants that every method keeps, to be tested for one of your own. That its schedules add up to an all-reduce at all is
//! proved whenever they are made.

mod sparse;
mod trial;

pub use sparse::check_sparse;
pub use trial::{Outcome, Trial};

use crate::Method;
use crate::bag::Coding;
use crate::collectives::RoutineError;
use crate::device::DeviceError;
use crate::residual::{AccumulateError, Collection};
use crate::schedule::{ExecutionError, Scope};
use crate::selectors::Selector;

/// An invariant that a method breaks.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum InvariantError {
    /// A method that cannot run, or that teaches its workers different things.
    #[error(transparent)]
    Routine(#[from] RoutineError),
    /// A step that fails.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
    /// Residuals that grow without end.
    #[error("a residual overflows: {0}")]
    Accumulate(#[from] AccumulateError),
    /// A residual on a device that has failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Updates that are not the same.
    #[error("in step {step} rank {rank} ends with another update than rank 0")]
    Update {
        /// The step, from 0.
        step: u64,
        /// The first rank that differs.
        rank: usize,
    },
    /// Something is lost although all residuals are collected.
    #[error(
        "in step {step} rank {rank} loses a value of entry {entry}: expected it in the update or in a residual"
    )]
    Lost {
        /// The step, from 0.
        step: u64,
        /// The position in the flat gradient.
        entry: usize,
        /// The worker that loses it.
        rank: usize,
    },
    /// Something disappears, or comes from nowhere.
    #[error(
        "in step {step} the workers bring {brought} to entry {entry}, and {found} is delivered, kept or lost: expected the same"
    )]
    Conservation {
        /// The step, from 0.
        step: u64,
        /// The position in the flat gradient.
        entry: usize,
        /// Gradients and old residuals, added up.
        brought: f64,
        /// The update, new residuals and what was lost, added up.
        found: f64,
    },
    /// Entries alone that give something else than all values.
    #[error(
        "in step {step} rank {rank} takes entries alone, and entry {entry} is {found} in {what}; expected {expected}, as of all \
         values"
    )]
    Sparse {
        /// The step, from 0.
        step: u64,
        /// The first rank that differs.
        rank: usize,
        /// The position in the flat gradient.
        entry: usize,
        /// The update, or the residual after it.
        what: &'static str,
        /// What it is of entries alone.
        found: f64,
        /// What it is of all values.
        expected: f64,
    },
    /// Something waits for ever.
    #[error("after {steps} steps without gradients entry {entry} still waits in the residual of rank {rank}")]
    Waits {
        /// How many steps there were.
        steps: u64,
        /// The position in the flat gradient.
        entry: usize,
        /// Whose residual it is.
        rank: usize,
    },
    /// Something has no turn.
    #[error(
        "with the same gradients on all workers in every step, entry {entry} is not delivered in {steps} steps on end, although \
         it has at least half of the largest magnitude: expected it at least every {within} steps"
    )]
    Starves {
        /// The position in the flat gradient.
        entry: usize,
        /// In how many steps it was not delivered.
        steps: u64,
        /// Within how many it should have been.
        within: u64,
    },
}

crate::sentence::debug_as_sentence!(InvariantError);

/// How many steps with gradients are looked at.
const STEPS: u64 = 12;

/// Tests the three invariants for a method among this many workers, with gradients of n entries: conservation and one update in each
/// step, and liveness, which has two parts. *Drain*: residuals are empty within the steps without gradients that the method
/// [states](crate::collectives::Collective::drains_within), with contributions that all add up, with small ones that often
/// cancel, and with large ones that cancel between two workers while smaller ones wait behind them. *Fairness*: where all
/// workers receive the same gradient in every step, every entry of at least δ times the largest magnitude is delivered at
/// least every 4n/(kδ) + P steps, with δ = 1/2; where entries are sampled at random, every (n/k)(ln n + 20).
///
/// Liveness is tested where the method states a number, values are encoded exactly, and there is no momentum correction, which
/// goes on without gradients; fairness where nothing is lost on purpose as well, and no residual decays: what waits then fades.
///
/// # Errors
/// The first invariant that it breaks, and options that do not suit this many workers.
pub fn check(method: &Method, workers: u32, n: usize) -> Result<(), InvariantError> {
    let trial = || Trial::<f32>::new(method.clone(), workers, n);
    let gradients = |value: &dyn Fn(usize, usize) -> f32| -> Vec<Vec<f32>> {
        (0..workers as usize).map(|rank| (0..n).map(|entry| value(rank, entry)).collect()).collect()
    };
    let mut several = trial()?;
    for step in 0..STEPS {
        several.step(&gradients(&|rank, entry| whole(rank, step, entry)))?.check()?;
    }
    let shape = several.ensemble.shape();
    let exact = shape.coding == Coding::Exact && method.correction().momentum == 0.0;
    let Some(within) = method.collective().drains_within(shape).filter(|_| exact) else { return Ok(()) };
    let small = |rank, entry| whole(rank, 0, entry) % 3.0;
    let opposite = |rank, entry| match entry % 2 {
        0 => between_two(rank, workers as usize, entry),
        _ => small(rank, entry),
    };
    let inputs: [&dyn Fn(usize, usize) -> f32; 3] =
        [&|rank, entry| whole(rank, 0, entry).abs() + 1.0, &small, &opposite];
    for input in inputs {
        let mut drained = trial()?;
        drained.step(&gradients(input))?.check()?;
        drained.drain(within)?;
    }
    match method.collection() {
        Collection::Global if method.collective().is_sparse() && method.correction().decay.is_none() => {
            is_fair(trial()?)
        }
        _ => Ok(()),
    }
}

/// Tests that every entry is delivered within the bound.
fn is_fair(mut trial: Trial<f32>) -> Result<(), InvariantError> {
    const DELTA: f64 = 0.5;
    let shape = trial.ensemble.shape();
    let (n, k, workers) = (shape.n, shape.k, shape.workers as usize);
    let mut by_chance = shape.selection.as_ref().is_some_and(|s| s.selector == Selector::Random);
    for schedule in trial.ensemble.prepared().map(|prepared| prepared.program.schedule()) {
        let mut rules = schedule.steps.iter().filter_map(|step| step.chooses(schedule.lane));
        by_chance |= rules.any(|(_, rule)| rule.scope() == Scope::Sampled);
    }
    let share = n as f64 / k as f64;
    let within = match by_chance {
        true => share * ((n as f64).ln() + 20.0),
        false => 4.0 * share / DELTA + workers as f64,
    } as u64;
    let value = |entry: usize| match whole(0, 0, entry) {
        small if (small as i64) % 2 == 0 => DELTA as f32 * (small + 0.5).signum(),
        other => other.signum(),
    };
    let gradients = vec![(0..n).map(value).collect::<Vec<f32>>(); workers];
    let mut last = vec![0; n];
    for step in 1..=within + within / 4 {
        let outcome = trial.step(&gradients)?;
        outcome.check()?;
        let delivered = outcome.delivered.iter().take(1).flatten();
        last.iter_mut().zip(delivered).filter(|(_, value)| **value != 0.0).for_each(|(last, _)| *last = step);
        if let Some(entry) = last.iter().position(|last| step - last > within) {
            return Err(InvariantError::Starves { entry, steps: step - last[entry], within });
        }
    }
    Ok(())
}

/// A power of two, opposite on two workers that depend on the entry, and nothing on others.
fn between_two(rank: usize, workers: usize, entry: usize) -> f32 {
    let first = entry / 2 % workers.max(1);
    let size = (64 << (entry % 8)) as f32;
    match rank {
        _ if rank == first => size,
        _ if rank == (first + 1) % workers => -size,
        _ => 0.0,
    }
}

/// A small whole number, whose sums are exact.
fn whole(rank: usize, step: u64, entry: usize) -> f32 {
    let x = ((rank as u64 + 1) * 0x9e37_79b9_7f4a_7c15)
        ^ (step << 32 ^ entry as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    f32::from((x ^ x >> 29).wrapping_mul(0x94d0_49bb_1331_11eb).rotate_left(7) as i8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::{Collective, MethodError, Number, Shape, State, Structure, all_gather as bruck};
    use crate::residual::{Correction, WholeSteps};
    use crate::schedule::{Observed, Rule, Slots, Step};
    use crate::{Block, Partition, Rank};
    use std::num::NonZeroU64;

    #[test]
    fn listed_methods_keep_the_invariants() {
        for workers in [1, 2, 3, 5, 8] {
            let candidates = Method::auto().density(0.1).candidates(workers, 60).unwrap();
            for method in Method::all().map(|method| method.density(0.1)).chain(candidates) {
                assert_eq!(check(&method, workers, 60), Ok(()), "{method}, P {workers}");
                let coded = method.coding(Coding::ALL[workers as usize % Coding::ALL.len()]);
                if coded.shape(workers, 60).is_ok() {
                    assert_eq!(check(&coded, workers, 60), Ok(()), "{coded}, P {workers}");
                }
            }
        }
    }

    /// Velocities are what is conserved; and what is not collected may be lost.
    #[test]
    fn corrected_methods_keep_the_invariants() {
        let correction = Correction { momentum: 0.5, mask: true, warm_up: 3, ..Correction::default() };
        for method in Method::all().map(|method| method.density(0.1)) {
            assert_eq!(check(&method.clone().corrected(correction), 4, 60), Ok(()), "{method}");
            let ef21 = Correction { mask: false, ef21: true, ..correction };
            assert_eq!(check(&method.clone().corrected(ef21), 4, 60), Ok(()), "{method}");
            for collection in [Collection::Partial, Collection::Local] {
                assert_eq!(check(&method.clone().residual(collection), 4, 60), Ok(()), "{method}");
            }
            if method.collective().is_sparse() {
                let decays = Correction { decay: Some(0.9), ..Correction::default() };
                assert_eq!(check(&method.clone().corrected(decays), 4, 60), Ok(()), "{method}");
            }
            let whole = WholeSteps { every: NonZeroU64::new(5), at: vec![0, 1] };
            assert_eq!(check(&method.clone().whole_steps(whole), 4, 60), Ok(()), "{method}");
            assert_eq!(check(&method.clone().complete_sums(), 4, 60), Ok(()), "{method}");
        }
    }

    /// Every worker sends its k largest entries to every other, which adds them up: TopkA.
    #[derive(Clone, Debug)]
    struct Gathers {
        /// What it states of residuals.
        drains_within: Option<u64>,
        /// Whether it takes what only this worker knows for agreed.
        presumes: bool,
    }

    #[derive(Clone, Debug, Default)]
    struct Presumed(f64);

    impl State for Presumed {
        fn agreed(&mut self) -> Vec<&mut dyn Number> {
            vec![&mut self.0]
        }
    }

    impl Collective for Gathers {
        type State = Presumed;

        fn name(&self) -> &'static str {
            "gathers"
        }
        fn summary(&self) -> &'static str {
            "topka"
        }
        fn blocks(&self, _: &Shape) -> u32 {
            1
        }
        fn lanes(&self, shape: &Shape, _: &Structure) -> u32 {
            shape.workers
        }
        fn lane(&self, rank: Rank, _: &Shape) -> u32 {
            rank.0
        }
        fn steps(&self, rank: Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
            let slots = Slots::one(Block(0));
            let rule = Rule::Jointly(shape.k);
            let mut steps = vec![Step::Keep { slots: slots.in_lane(rank.0), rule, coding: shape.coding }];
            let parts = |first, count| slots.in_lanes(first, count, shape.workers);
            steps.extend(bruck(rank.0, shape.workers, Rank, parts));
            steps.push(Step::Sum { slots });
            steps
        }
        fn learn(&self, _: &Shape, _: &Structure, state: &mut Presumed, observed: &Observed) {
            if self.presumes {
                state.0 = observed.own.smallest;
            }
        }
        fn drains_within(&self, _: &Shape) -> Option<u64> {
            self.drains_within
        }
    }

    /// One entry of a hundred in a step does not empty residuals within 40 steps.
    #[test]
    fn what_is_never_delivered_waits() {
        let hasty = Method::of(Gathers { drains_within: Some(40), presumes: false });
        assert_eq!(check(&hasty.clone().k(10), 3, 100), Ok(()));
        let waits = check(&hasty.k(1), 3, 100).unwrap_err();
        assert!(matches!(waits, InvariantError::Waits { steps: 40, .. }), "{waits}");
    }

    /// Delivers from the first half of the gradient as long as that has k entries, and from the second half only then: what waits
    /// is delivered once no gradient comes, and while one comes the second half has no turn.
    #[derive(Clone, Debug)]
    struct Prefers;

    #[derive(Clone, Debug, Default)]
    struct Half(bool);

    impl State for Half {
        fn agreed(&mut self) -> Vec<&mut dyn Number> {
            vec![&mut self.0]
        }
    }

    impl Collective for Prefers {
        type State = Half;

        fn name(&self) -> &'static str {
            "prefers"
        }
        fn summary(&self) -> &'static str {
            "topka of one half"
        }
        fn blocks(&self, _: &Shape) -> u32 {
            2
        }
        fn lanes(&self, shape: &Shape, _: &Structure) -> u32 {
            shape.workers
        }
        fn lane(&self, rank: Rank, _: &Shape) -> u32 {
            rank.0
        }
        fn structure(&self, shape: &Shape, _: u64, half: &Half) -> Result<Structure, MethodError> {
            Structure::of(Partition::even(shape.n, 2), shape.k, u32::from(half.0))
        }
        fn steps(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Vec<Step> {
            let slots = Slots::range(0, 2);
            let k = shape.k as u32;
            let rule = Rule::Top(if structure.kind == 0 { vec![k, 0] } else { vec![0, k] }.into());
            let mut steps = vec![Step::Keep { slots: slots.in_lane(rank.0), rule, coding: shape.coding }];
            let parts = |first, count| slots.in_lanes(first, count, shape.workers);
            steps.extend(bruck(rank.0, shape.workers, Rank, parts));
            steps.push(Step::Sum { slots });
            steps
        }
        fn learn(&self, shape: &Shape, structure: &Structure, half: &mut Half, observed: &Observed) {
            half.0 ^= observed.counts[structure.kind as usize] < shape.k;
        }
    }

    #[test]
    fn what_has_no_turn_starves() {
        let prefers = Method::of(Prefers).k(5);
        let error = check(&prefers, 3, 40).unwrap_err();
        // 4 · 40 / (5 / 2) + 3 steps, and then one more.
        assert!(matches!(error, InvariantError::Starves { entry: 20.., steps: 68, within: 67 }), "{error}");
        assert_eq!(
            check(&Method::of(Gathers { drains_within: Some(100), presumes: false }).k(5), 3, 40),
            Ok(())
        );
    }

    #[test]
    fn workers_that_learn_different_things_are_found() {
        let presumes = Method::of(Gathers { drains_within: None, presumes: true });
        let error = check(&presumes.k(5), 4, 100).unwrap_err();
        assert!(error.to_string().contains("rank 1 has learnt something else than rank 0"), "{error}");
    }

    /// What a step of correct workers gave, changed in one place.
    #[test]
    fn a_changed_outcome_breaks_a_law() {
        let gradients = [[4.0, 1.0, 1.0, 2.0], [1.0, 4.0, 1.0, 2.0], [1.0, 1.0, 4.0, 2.0]].map(Vec::from);
        let of = |method: Method| Trial::new(method, 3, 4).unwrap().step(&gradients).unwrap();
        let sparse = of(Method::spardl().k(2));
        assert_eq!(sparse.check(), Ok(()));
        let mut other = sparse.clone();
        other.delivered[2][1] += 1.0;
        assert_eq!(other.check(), Err(InvariantError::Update { step: 0, rank: 2 }));
        let mut less = sparse.clone();
        less.new[1][0] += 1.0;
        let missing = InvariantError::Conservation { step: 0, entry: 0, brought: 6.0, found: 7.0 };
        assert_eq!(less.check(), Err(missing));
        let mut local = of(Method::named("gtopk").unwrap().k(1).residual(Collection::Local));
        assert!(local.anything_lost() && local.check().is_ok());
        local.may_lose = false;
        assert!(matches!(local.check(), Err(InvariantError::Lost { step: 0, .. })));
    }
}
