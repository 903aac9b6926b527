//! Liveness, the third invariant: no entry waits for ever. What waits drains once gradients are zero, and of equal gradients every
//! entry is delivered.

use std::collections::BTreeSet;

use gleaner_algorithms::collectives::{Sag, SparDl};
use gleaner_algorithms::selectors::Selector;
use gleaner_algorithms::{Block, Layers, Method, Partition};

use super::harness::{Team, methods, selecting, selectors};
use super::inputs::{Pattern, Random};

/// All methods, SparDL in every number of teams by R-SAG and B-SAG, and every selector, each with another method in every
/// number of workers.
fn forms(workers: usize) -> Vec<Method> {
    let mut forms: Vec<Method> = methods().collect();
    for teams in (2..=workers as u32).filter(|d| (workers as u32).is_multiple_of(*d)) {
        forms.extend([Sag::Recursive, Sag::Bruck].map(|sag| Method::of(SparDl { teams, sag })));
    }
    let selecting: Vec<Method> = selecting().collect();
    let with = |(i, s): (usize, Selector)| selecting[(i + workers) % selecting.len()].clone().selector(s);
    forms.extend(selectors().into_iter().enumerate().map(with));
    forms
}

/// What a gradient of n entries is made of: P + 1 layers, each longer than the one before, for a selector that looks at each
/// by itself, and one for all others.
fn layers(method: &Method, workers: usize, n: usize) -> Layers {
    let shape = method.shape(workers as u32, n).unwrap();
    if shape.selection.is_none_or(|selection| selection.selector != Selector::Layers) {
        return n.into();
    }
    let count = workers + 1;
    let cuts = (1..count).map(|i| n * i * i / (count * count));
    let partition = Partition::at(n, cuts);
    Layers::of((0..count as u32).map(|layer| partition.block_len(Block(layer))))
}

/// The numbers k of which a gradient of n entries is tested.
fn groups(workers: usize, n: usize) -> impl Iterator<Item = usize> {
    [1, workers / 2, workers + 1].into_iter().filter(move |&k| 0 < k && k <= n)
}

/// Each of them with k = 1, fewer entries than workers and more, of small groups and of larger ones.
fn each(workers: usize, mut invariant: impl FnMut(Method, Layers)) {
    let (mut cases, mut several) = (BTreeSet::new(), 0);
    for n in [1, workers, 2 * workers + 3] {
        cases.extend(groups(workers, n).map(|k| (n, k)));
    }
    for method in forms(workers) {
        for &(n, k) in cases.iter().filter(|&&(n, _)| method.shape(workers as u32, n).is_ok()) {
            let method = method.clone().k(k);
            let layers = layers(&method, workers, n);
            several += usize::from(layers.ranges().filter(|layer| !layer.is_empty()).count() > 1);
            invariant(method, layers);
        }
    }
    assert!(several > 0, "no gradient of several layers among {workers} workers");
}

/// Drain: within the bound that the method states, nothing is left, whether or not values cancel.
#[test]
fn what_waits_drains() {
    let mut without = BTreeSet::new();
    for workers in 1..=17 {
        let mut random = Random::new(workers as u64);
        each(workers, |method, layers| {
            let n = layers.entries();
            let shape = method.shape(workers as u32, layers.clone()).unwrap();
            let Some(bound) = method.collective().drains_within(&shape) else {
                without.insert(format!(
                    "{} {}",
                    method.collective().name(),
                    shape.selection.as_ref().map_or("", |s| s.selector.name())
                ));
                return;
            };
            let apart = [Pattern::Full, Pattern::Disjoint, Pattern::Overlapping, Pattern::Wide];
            let cancels = [Pattern::Cancelling, Pattern::Integers, Pattern::Opposite, Pattern::Opposite];
            for patterns in [apart, cancels] {
                let mut team = Team::of(method.clone(), workers, layers.clone());
                let pattern = patterns[random.below(4)];
                for _ in 0..1 + random.below(12) {
                    team.step(&pattern.gradients(workers, n, &mut random));
                }
                let drained = team.drain(bound);
                assert!(drained.is_ok(), "{method}, P {workers}, n {n}, {pattern:?}: {drained:?}");
            }
        });
    }
    // Nothing else may opt out.
    let fixed = selecting().map(|m| format!("{} threshold", m.collective().name()));
    assert_eq!(without, fixed.chain(["exdyna-printed ".to_owned()]).collect());
}

/// Fairness: where all workers receive the same gradient in every step, every entry of at least δ times the largest magnitude
/// is delivered at least every 4n/(kδ) + P steps, and one that is chosen at random every (n/k)(ln n + 20).
#[test]
fn every_entry_has_its_turn() {
    for workers in 1..=17 {
        let delta = [1.0, 0.5][workers % 2];
        let mut random = Random::new(workers as u64);
        each(workers, |method, layers| {
            let n = layers.entries();
            let mut team = Team::of(method.clone(), workers, layers);
            let shape = team.ensemble.shape().clone();
            let selector = shape.selection.as_ref().map(|s| s.selector);
            if matches!(selector, Some(Selector::Threshold(_))) {
                return;
            }
            // What delivers everything ignores k, so one is enough: the largest, whose bound is the strictest.
            if !method.collective().is_sparse() && Some(shape.k) != groups(workers, n).max() {
                return;
            }
            let by_chance = selector == Some(Selector::Random) || method.collective().name() == "random-k";
            let share = n as f64 / shape.k as f64;
            let bound = match by_chance {
                true => share * ((n as f64).ln() + 20.0),
                false => 4.0 * share / f64::from(delta) + workers as f64,
            } as u64;
            let mut entry = |i: usize| {
                let size = [1.0, delta, delta + (1.0 - delta) * random.unit().abs()][i.min(2)];
                if random.below(2) == 0 { size } else { -size }
            };
            let gradients = vec![(0..n).map(&mut entry).collect::<Vec<f32>>(); workers];
            let mut last = vec![0; n];
            for t in 1..=5 * bound / 4 {
                let delivered = team.step(&gradients).delivered.swap_remove(0);
                (0..n).filter(|&i| delivered[i] != 0.0).for_each(|i| last[i] = t);
                let waiting = last.iter().map(|last| t - last).max().unwrap_or(0);
                assert!(
                    waiting <= bound,
                    "{method}, P {workers}, n {n}: {waiting} steps without one of the entries"
                );
            }
        });
    }
}

/// 768 entries among 16 workers, of which one is delivered in each step: every block is reached.
#[test]
fn one_entry_a_step_comes_from_every_block() {
    for method in [Method::spardl(), Method::named("random-k").unwrap()].map(|m| m.density(0.001)) {
        let (workers, n) = (16, 768);
        let mut team = Team::of(method.clone(), workers, n);
        let mut random = Random::new(1);
        let mut ever = BTreeSet::new();
        for _ in 0..60 {
            let outcome = team.step(&Pattern::Full.gradients(workers, n, &mut random));
            ever.extend((0..n).filter(|&i| outcome.delivered[0][i] != 0.0));
        }
        assert!(ever.len() > 48, "{method}: {} entries were ever delivered", ever.len());
        for block in (0..workers as u32).map(Block) {
            let here = team.partition().range(block);
            assert!(ever.range(here).count() >= 2, "{method}: {block} has {ever:?}");
        }
    }
}

/// A sum of zero is delivered like any other. Otherwise all workers would choose what cancels again in every step, and
/// nothing else.
#[test]
fn what_cancels_is_delivered() {
    for workers in [2, 4, 6] {
        let n = 3 * workers;
        for method in forms(workers).into_iter().map(|method| method.k(1)) {
            if method.shape(workers as u32, n).is_err() {
                continue;
            }
            let mut team = Team::of(method.clone(), workers, n);
            let Some(bound) = method.collective().drains_within(team.ensemble.shape()) else { continue };
            let gradient = |w: usize| {
                (0..n).map(move |i| if w.is_multiple_of(2) { 1.0 + i as f32 } else { -1.0 - i as f32 })
            };
            team.step(&(0..workers).map(|w| gradient(w).collect()).collect::<Vec<_>>());
            let drained = team.drain(bound);
            assert!(drained.is_ok(), "{method}, P {workers}: {drained:?}");
        }
    }
}
