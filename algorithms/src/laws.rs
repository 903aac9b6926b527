//! The laws that every method keeps, to be tested for one of your own. That its schedules add up to an all-reduce at all is
//! proved whenever they are made.

use crate::bag::Bag;
use crate::collectives::{Ensemble, RoutineError};
use crate::residual::NonFinite;
use crate::schedule::{ExecutionError, lockstep};
use crate::{Block, Method, Partition};

/// A law that a method breaks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LawError {
    /// A method that cannot run, or that teaches its workers different things.
    #[error(transparent)]
    Routine(#[from] RoutineError),
    /// A step that fails.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
    /// Residuals that grow without end.
    #[error("a residual overflows: {0}")]
    NonFinite(#[from] NonFinite),
    /// Updates that are not the same.
    #[error("in step {step} rank {rank} ends with another update than rank 0")]
    Update {
        /// The step, from 0.
        step: u64,
        /// The first rank that differs.
        rank: usize,
    },
    /// Something is lost, or comes from nowhere.
    #[error(
        "in step {step} the workers bring {brought} to entry {entry}, and {found} is delivered or kept: expected the same"
    )]
    Conservation {
        /// The step, from 0.
        step: u64,
        /// The position in the flat gradient.
        entry: usize,
        /// Gradients and old residuals, added up.
        brought: f64,
        /// The update and new residuals, added up.
        found: f64,
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
}

/// How many steps are looked at.
const STEPS: u64 = 12;

/// Whether a method conserves what workers bring, entry by entry, and leaves the same update on all of them, over some steps
/// with gradients of n entries. All residuals are collected.
///
/// # Errors
/// The first law that it breaks, and options that do not suit so many workers.
pub fn check(method: &Method, workers: u32, n: usize) -> Result<(), LawError> {
    let mut ensemble = Ensemble::new(method.clone(), workers, n)?;
    (0..STEPS).try_for_each(|number| step(&mut ensemble, method, number, whole))
}

/// Whether residuals run dry within so many steps without gradients: nothing waits for ever. That is tried with contributions
/// that all add up, with small ones that often cancel, and with large ones that cancel between two workers while smaller
/// ones wait behind them.
///
/// # Errors
/// The first entry that still waits, and as [`check`].
pub fn drains(method: &Method, workers: u32, n: usize, within: u64) -> Result<(), LawError> {
    let positive = |rank, entry| whole(rank, 0, entry).abs() + 1.0;
    let small = |rank, entry| whole(rank, 0, entry) % 3.0;
    let opposite = |rank, entry| match entry % 2 {
        0 => between_two(rank, workers as usize, entry),
        _ => small(rank, entry),
    };
    let inputs: [&dyn Fn(usize, usize) -> f64; 3] = [&positive, &small, &opposite];
    inputs.into_iter().try_for_each(|input| drains_of(method, workers, n, within, input))
}

/// The same of one gradient, by rank and entry.
fn drains_of(
    method: &Method,
    workers: u32,
    n: usize,
    within: u64,
    gradient: impl Fn(usize, usize) -> f64,
) -> Result<(), LawError> {
    let mut ensemble = Ensemble::new(method.clone(), workers, n)?;
    step(&mut ensemble, method, 0, |rank, _, entry| gradient(rank, entry))?;
    (1..=within).try_for_each(|number| step(&mut ensemble, method, number, |_, _, _| 0.0))?;
    for (rank, residual) in ensemble.residuals.iter().enumerate() {
        if let Some(entry) = residual.read(0..n).iter().position(|v| *v != 0.0) {
            return Err(LawError::Waits { steps: within, entry, rank });
        }
    }
    Ok(())
}

/// A power of two, opposite on two workers that depend on the entry, and nothing on others.
fn between_two(rank: usize, workers: usize, entry: usize) -> f64 {
    let first = entry / 2 % workers.max(1);
    let size = f64::from(64 << (entry % 8));
    match rank {
        _ if rank == first => size,
        _ if rank == (first + 1) % workers => -size,
        _ => 0.0,
    }
}

/// A small whole number, whose sums are exact.
fn whole(rank: usize, step: u64, entry: usize) -> f64 {
    let x = ((rank as u64 + 1) * 0x9e37_79b9_7f4a_7c15)
        ^ (step << 32 ^ entry as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ x >> 29).wrapping_mul(0x94d0_49bb_1331_11eb).rotate_left(7) as i8 as f64
}

/// One step of all workers.
fn step(
    ensemble: &mut Ensemble<f64>,
    method: &Method,
    step: u64,
    gradient: impl Fn(usize, u64, usize) -> f64,
) -> Result<(), LawError> {
    let partition = ensemble.partition().clone();
    let n = partition.entries();
    let mut executions = Vec::new();
    let (mut brought, mut size) = (vec![0.0; n], vec![0.0; n]);
    for rank in 0..ensemble.residuals.len() {
        let gradient: Vec<f64> = (0..n).map(|entry| gradient(rank, step, entry)).collect();
        for (entry, old) in ensemble.residuals[rank].read(0..n).into_iter().enumerate() {
            brought[entry] += old + gradient[entry];
            size[entry] += old.abs() + gradient[entry].abs();
        }
        ensemble.residuals[rank].accumulate(0, &gradient)?;
        executions.push(ensemble.begin(rank)?);
    }
    let committed = ensemble.commit(lockstep(executions)?, method.collection())?;
    let updates: Vec<Vec<f64>> = committed.iter().map(|of| flat(&partition, &of.update)).collect();
    let bits = |update: &[f64]| update.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    if let Some(rank) = updates.iter().position(|update| bits(update) != bits(&updates[0])) {
        return Err(LawError::Update { step, rank });
    }
    let mut found = updates[0].clone();
    for (residual, committed) in ensemble.residuals.iter().zip(&committed) {
        let lost = committed.lost.iter().cloned().map(Bag::Sparse).collect::<Vec<_>>();
        let kept = residual.read(0..n).into_iter().zip(flat(&partition, &lost));
        found.iter_mut().zip(kept).for_each(|(found, (kept, lost))| *found += kept + lost);
    }
    for (entry, (&brought, &found)) in brought.iter().zip(&found).enumerate() {
        // Shares of what several workers drop are rounded.
        if (brought - found).abs() > 1e-5 * size[entry] {
            return Err(LawError::Conservation { step, entry, brought, found });
        }
    }
    Ok(())
}

fn flat(partition: &Partition, blocks: &[Bag<f64>]) -> Vec<f64> {
    let mut values = vec![0.0; partition.entries()];
    for (b, bag) in blocks.iter().enumerate() {
        let start = partition.range(Block(b as u32)).start;
        bag.iter().for_each(|(i, v)| values[start + i as usize] = v);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;
    use crate::collectives::{Collective, Number, Shape, State, Structure, all_gather as bruck};
    use crate::schedule::{Observed, Rule, Slots, Step};

    #[test]
    fn listed_methods_keep_the_laws() {
        for workers in [1, 2, 3, 5, 8] {
            for method in Method::all().chain(Method::auto().density(0.1).candidates(workers, 200).unwrap()) {
                check(&method.density(0.1), workers, 200).unwrap();
            }
        }
    }

    #[test]
    fn listed_methods_drain() {
        for workers in [1, 2, 3, 5, 8] {
            for method in Method::all().map(|method| method.k(6)) {
                let shape = method.shape(workers, 60).unwrap();
                let Some(within) = method.collective().drains_within(&shape) else { continue };
                assert_eq!(drains(&method, workers, 60, within), Ok(()), "{method}, P {workers}");
            }
        }
    }

    #[test]
    fn what_is_never_delivered_waits() {
        let topka = Method::named("topka").unwrap();
        assert_eq!(drains(&topka.clone().k(10), 3, 100, 40), Ok(()));
        let waits = drains(&topka.k(1), 3, 100, 40).unwrap_err();
        assert!(matches!(waits, LawError::Waits { steps: 40, .. }), "{waits}");
    }

    /// Takes what only this worker knows for agreed.
    #[derive(Clone, Debug)]
    struct Presumes;

    #[derive(Clone, Debug, Default)]
    struct Presumed(f64);

    impl State for Presumed {
        fn agreed(&mut self) -> Vec<&mut dyn Number> {
            vec![&mut self.0]
        }
    }

    impl Collective for Presumes {
        type State = Presumed;

        fn name(&self) -> &'static str {
            "presumes"
        }
        fn summary(&self) -> &'static str {
            "topka among two"
        }
        fn is_sparse(&self) -> bool {
            true
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
            let mut steps = vec![Step::Keep {
                slots: slots.in_lane(rank.0),
                rule: Rule::Jointly(shape.k),
                coding: shape.coding,
            }];
            let parts = |first, count| slots.in_lanes(first, count, shape.workers);
            steps.extend(bruck(rank.0, shape.workers, Rank, parts));
            steps.push(Step::Sum { slots });
            steps
        }
        fn learn(&self, _: &Shape, _: &Structure, state: &mut Presumed, observed: &Observed) {
            state.0 = observed.own.smallest;
        }
    }

    #[test]
    fn workers_that_learn_different_things_are_found() {
        let error = check(&Method::of(Presumes).k(5), 4, 100).unwrap_err();
        assert!(error.to_string().contains("rank 1 has learnt something else than rank 0"), "{error}");
    }
}
