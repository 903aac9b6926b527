//! Several steps of one residual open at once: nothing is lost, and steps end in order.

use std::collections::VecDeque;

use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::residual::{Collection, Lent, Residual, VersionError};
use gleaner_algorithms::schedule::{Candidates, Execution, Finished, lockstep};
use gleaner_algorithms::{Block, Method, Partition};
use proptest::prelude::*;

use super::harness::{cases, methods};
use super::inputs::Random;

/// Steps of a history.
const STEPS: usize = 7;

struct Worker {
    residual: Residual<f64>,
    /// Pieces of the present step's gradient that were not given yet.
    pieces: Vec<usize>,
    begun: usize,
    /// The versions of the open steps, and what was lent of them until all workers have begun.
    open: VecDeque<(u64, Option<Lent<f64>>)>,
    ended: usize,
}

/// Workers without a memory, at different places of their steps, with at most so many of them open.
struct History {
    ensemble: Ensemble<f64>,
    gradients: Vec<Vec<Vec<f64>>>,
    workers: Vec<Worker>,
    depth: usize,
    /// By step and worker, until it is committed.
    finished: Vec<Vec<Option<Finished<f64>>>>,
    updates: Vec<Vec<f64>>,
    overlapped: bool,
}

const PIECES: usize = 3;

fn flat(partition: &Partition, update: &[Bag<f64>]) -> Vec<f64> {
    let mut values = vec![0.0; partition.entries()];
    for (b, bag) in update.iter().enumerate() {
        let start = partition.range(Block(b as u32)).start;
        bag.iter().for_each(|(i, value)| values[start + i as usize] = value);
    }
    values
}

impl History {
    /// None for a method that learns.
    fn new(method: Method, workers: usize, n: usize, depth: usize, random: &mut Random) -> Option<Self> {
        let ensemble = Ensemble::new(method, workers as u32, n).unwrap();
        if ensemble.memories().iter().any(|m| !(m.agreed.is_empty() && m.own.is_empty())) {
            return None;
        }
        // Small whole numbers: all sums and shares of them are exact.
        let mut gradient = || (0..n).map(|_| random.below(9) as f64 - 4.0).collect::<Vec<f64>>();
        let gradients = (0..STEPS).map(|_| (0..workers).map(|_| gradient()).collect()).collect();
        let worker = |w: usize| {
            let s = ensemble.prepared().nth(w).unwrap().program.schedule();
            let residual = Residual::new(s.partition.clone(), s.quotas());
            Worker { residual, pieces: (0..PIECES).collect(), begun: 0, open: VecDeque::new(), ended: 0 }
        };
        let workers = (0..workers).map(worker).collect();
        let (finished, updates) = (Vec::new(), Vec::new());
        Some(Self { ensemble, gradients, workers, depth, finished, updates, overlapped: false })
    }

    /// Gives a piece of a gradient, or begins a step.
    fn go_on(&mut self, w: usize, random: &mut Random) {
        let worker = &mut self.workers[w];
        if worker.begun == STEPS || worker.open.len() == self.depth {
            return;
        }
        self.overlapped |= !worker.open.is_empty();
        if !worker.pieces.is_empty() {
            let piece = worker.pieces.swap_remove(random.below(worker.pieces.len()));
            let gradient = &self.gradients[worker.begun][w];
            let bound = |piece: usize| gradient.len() * piece / PIECES;
            worker.residual.accumulate(bound(piece), &gradient[bound(piece)..bound(piece + 1)]).unwrap();
            return;
        }
        let mut lent = worker.residual.begin().unwrap();
        assert_eq!(lent.version, worker.begun as u64);
        let version = std::mem::take(&mut lent.version);
        worker.open.push_back((version, Some(lent)));
        (worker.begun, worker.pieces) = (worker.begun + 1, (0..PIECES).collect());
        let step = worker.begun - 1;
        if self.workers.iter().all(|worker| worker.begun > step) {
            self.run(step);
        }
    }

    fn run(&mut self, step: usize) {
        let mut lent = Vec::new();
        for worker in &mut self.workers {
            let version = step as u64;
            let (_, of_step) = worker.open.iter_mut().find(|(open, _)| *open == version).unwrap();
            lent.push(of_step.take().unwrap());
        }
        let execute = |lent: Vec<Lent<f64>>| {
            let executions = lent.into_iter().enumerate().map(|(w, Lent { accumulator, candidates, .. })| {
                let program = self.ensemble.prepared().nth(w).unwrap().program.clone();
                Execution::new(program, accumulator, candidates)
            });
            let runs = lockstep(executions.collect()).unwrap().runs;
            runs.into_iter().map(|run| run.finished).collect::<Vec<Finished<f64>>>()
        };
        let nothing = |lent: &Lent<f64>| Lent {
            version: lent.version,
            accumulator: lent.accumulator.clone(),
            candidates: vec![Candidates::default(); lent.candidates.len()],
        };
        let without = execute(lent.iter().map(nothing).collect());
        let with = execute(lent);
        let partition = self.ensemble.partition();
        let update = flat(partition, &with[0].update);
        for finished in with.iter().chain(&without) {
            assert_eq!(flat(partition, &finished.update), update, "candidates alter no choice");
        }
        self.updates.push(update);
        self.finished.push(with.into_iter().map(Some).collect());
    }

    /// Ends the oldest open step of a worker, if it has run.
    fn end(&mut self, w: usize) {
        let worker = &mut self.workers[w];
        let Some(finished) = self.finished.get_mut(worker.ended).and_then(|step| step[w].take()) else {
            return;
        };
        let (version, _) = worker.open.pop_front().unwrap();
        worker.residual.commit(version, finished, Collection::Global).unwrap();
        worker.ended += 1;
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn nothing_is_lost_however_steps_overlap(
        workers in prop_oneof![Just(1usize), Just(2), Just(4)], n in 1usize..60, density in 0.02f64..0.7,
        depth in 1usize..=3, seed: u64,
    ) {
        let mut overlapped = false;
        for method in methods() {
            let mut random = Random::new(seed);
            let method = method.density(density);
            let Some(mut history) = History::new(method.clone(), workers, n, depth, &mut random) else { continue };
            while history.workers.iter().any(|worker| worker.ended < STEPS) {
                let w = random.below(workers);
                if random.below(5) == 0 { history.end(w) } else { history.go_on(w, &mut random) }
                // A worker that cannot go on waits for others.
                let stuck = |worker: &Worker| worker.begun == STEPS || worker.open.len() == depth;
                if history.workers.iter().all(stuck) {
                    history.end(w);
                }
            }
            overlapped |= history.overlapped;
            for i in 0..n {
                let given: f64 = history.gradients.iter().flatten().map(|gradient| gradient[i]).sum();
                let delivered: f64 = history.updates.iter().map(|update| update[i]).sum();
                let waits: f64 = history.workers.iter().map(|worker| worker.residual.read(i..i + 1).unwrap()[0]).sum();
                prop_assert_eq!(given, delivered + waits, "{}: entry {}", method, i);
            }
        }
        prop_assert!(overlapped || depth == 1 || n == 0);
    }
}

/// What a step was lent.
fn held(lent: &Lent<f64>) -> Vec<f64> {
    lent.accumulator.host().unwrap().to_vec()
}

fn lend(residual: &mut Residual<f64>, gradient: &[f64]) -> Lent<f64> {
    residual.accumulate(0, gradient).unwrap();
    residual.begin().unwrap()
}

#[test]
fn steps_end_once_and_in_order_or_nothing_changes() {
    let mut residual = Residual::<f64>::new(Partition::even(2, 1), vec![Some(1)]);
    let (first, second) = (lend(&mut residual, &[1.0, 2.0]), lend(&mut residual, &[4.0, 8.0]));
    assert_eq!((held(&first), held(&second)), ([1.0, 2.0].into(), [4.0, 8.0].into()));
    residual.accumulate(0, &[16.0, 32.0]).unwrap();
    let early = VersionError::Early { version: 1, oldest: 0 };
    assert_eq!(residual.give_back(second.version, second.accumulator.clone()), Err(early));
    assert_eq!(residual.give_back(2, second.accumulator.clone()), Err(VersionError::NotLent(2)));
    assert_eq!(residual.read(0..2).unwrap(), [16.0, 32.0]);
    residual.give_back(first.version, first.accumulator.clone()).unwrap();
    assert_eq!(residual.give_back(first.version, first.accumulator), Err(VersionError::Ended(0)));
    residual.give_back(second.version, second.accumulator).unwrap();
    assert_eq!(residual.read(0..2).unwrap(), [21.0, 42.0]);
    assert_eq!(held(&residual.begin().unwrap()), [21.0, 42.0]);
}

#[test]
fn overlapping_steps_cannot_be_undone_and_later_ones_can() {
    let mut residual = Residual::<f64>::new(Partition::even(1, 1), vec![Some(1)]).revertible().unwrap();
    let first = lend(&mut residual, &[1.0]);
    let second = lend(&mut residual, &[2.0]);
    assert_eq!(residual.revert(), Err(VersionError::Overlapped));
    residual.give_back(first.version, first.accumulator).unwrap();
    assert_eq!(residual.revert(), Err(VersionError::Overlapped), "the second has the first's share of time");
    residual.give_back(second.version, second.accumulator).unwrap();
    let third = lend(&mut residual, &[4.0]);
    assert_eq!(held(&third), [7.0]);
    residual.revert().unwrap();
    assert_eq!(residual.read(0..1).unwrap(), [3.0]);
    assert_eq!(residual.give_back(third.version, third.accumulator), Err(VersionError::Ended(2)));
}
