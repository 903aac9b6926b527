//! Merging from outside: the optimum against all groupings, and all strategies against the optimum.

#![allow(clippy::unwrap_used)]

mod clock;
mod instances;

use std::time::Duration;

use clock::Clock;
use gleaner_algorithms::Method;
use gleaner_algorithms::forecast::{Model, Network, Speed};
use gleaner_algorithms::merging::{
    Costs, Grouping, MODELS, Optimal, Pass, Placement, Predicted, Problem, STRATEGIES, evaluate,
};
use instances::{FAMILIES, Family, Random, instance};

const SEED: u64 = 18;

const PLACES: [Placement; 2] = [Placement::InBackward, Placement::Beside];

/// The groups of a number's bits: a cut behind layer i where bit i is set.
fn cut(layers: usize, bits: usize) -> Grouping {
    let ends = (1..=layers).filter(|&end| end == layers || bits >> (end - 1) & 1 == 1).collect();
    Grouping::new(ends, layers).unwrap()
}

/// The iteration time in the paper's words, by another road than the evaluator: layers from L to 1, with t_s = t_c = 0 of merged
/// ones (13), sizes that move on (14), and equations 2 and 6 to 8 for each layer; 17 is the end. Beside the backward pass
/// equation 6 is replaced by equation 2, and a selection waits for the one before.
fn printed(pass: &Pass, costs: &dyn Costs, place: Placement, bits: usize) -> f64 {
    let layers = pass.layers();
    let (mut tau_b, mut selected, mut exchanged, mut waiting) = (pass.forward(), 0.0f64, 0.0f64, 0);
    let mut done = 0.0f64;
    for (i, layer) in layers.iter().enumerate() {
        waiting += layer.entries;
        let tau_s = tau_b + layer.backward;
        tau_b = tau_s;
        if i + 1 < layers.len() && bits >> i & 1 == 0 {
            continue;
        }
        let cost = costs.of(waiting).unwrap();
        waiting = 0;
        selected = match place {
            Placement::InBackward => tau_s + cost.select,
            Placement::Beside => tau_s.max(selected) + cost.select,
        };
        if place == Placement::InBackward {
            tau_b = selected;
        }
        exchanged = selected.max(exchanged) + cost.exchange;
        done = done.max(exchanged + cost.latency);
    }
    done
}

/// Thousands of problems of up to 14 layers, each compared with all its 2^(L − 1) groupings: the optimum is their minimum to the
/// last bit by the evaluator, and within rounding (10⁻¹², as sums are taken in another order) by the paper's equations.
#[test]
fn merging_optimal_is_the_minimum() {
    let mut random = Random::new(SEED);
    let mut compared = 0;
    for round in 0..4000 {
        let (family, seed) = (FAMILIES[round % FAMILIES.len()], random.next());
        let mut random = Random::new(seed);
        // Few large ones: they take long.
        let layers = if round % 100 < 5 { 11 + random.below(4) } else { 1 + random.below(10) };
        let (pass, costs) = instance(&mut random, layers, family).unwrap();
        for place in PLACES {
            let problem = Problem { pass: &pass, costs: costs.as_ref(), place };
            let solution = Optimal::solve(&problem).unwrap();
            let (mut least, mut least_printed) = (f64::INFINITY, f64::INFINITY);
            for bits in 0..1 << (layers - 1) {
                least = least.min(evaluate(&problem, &cut(layers, bits)).unwrap().iteration);
                least_printed = least_printed.min(printed(&pass, costs.as_ref(), place, bits));
                compared += 1;
            }
            let case = format!("seed {seed}, {layers} layers, {family:?}, {place:?}: {solution:?}");
            assert_eq!(solution.iteration, least, "{case}");
            assert_eq!(evaluate(&problem, &solution.grouping).unwrap().iteration, least, "{case}");
            assert!((solution.iteration - least_printed).abs() <= 1e-12 * least, "{case}: {least_printed}");
        }
    }
    assert!(compared > 1_000_000, "{compared} groupings");
}

/// On the evaluator no strategy is better than the optimum, and every time is made of its parts.
#[test]
fn merging_strategies_are_never_better() {
    let mut random = Random::new(SEED + 1);
    let mut worse = 0;
    for round in 0..3000 {
        let (family, seed) = (FAMILIES[round % FAMILIES.len()], random.next());
        let mut random = Random::new(seed);
        let layers = 1 + random.below(60);
        let (pass, costs) = instance(&mut random, layers, family).unwrap();
        for place in PLACES {
            let problem = Problem { pass: &pass, costs: costs.as_ref(), place };
            let least = Optimal::solve(&problem).unwrap().iteration;
            for strategy in STRATEGIES.iter().map(|strategy| strategy()) {
                let timeline = evaluate(&problem, &strategy.group(&problem).unwrap()).unwrap();
                let case =
                    format!("seed {seed}, {layers} layers, {family:?}, {place:?}, {}", strategy.name());
                assert!(timeline.iteration >= least, "{case}: {} and {least}", timeline.iteration);
                let parts = pass.forward() + pass.backward() + timeline.selecting + timeline.non_overlapped;
                assert!((timeline.iteration - parts).abs() <= 1e-12 * parts, "{case}");
                worse += usize::from(timeline.iteration > least);
            }
            // Nor is any grouping that has one cut more, or one less, than the optimum's.
            let best = Optimal::solve(&problem).unwrap().grouping;
            for flipped in 1..layers {
                let cut = |&end: &usize| end == layers || best.ends().contains(&end) != (end == flipped);
                let other = Grouping::new((1..=layers).filter(cut).collect(), layers).unwrap();
                let iteration = evaluate(&problem, &other).unwrap().iteration;
                assert!(iteration >= least, "seed {seed}, {layers} layers, {family:?}, {place:?}: {other}");
            }
        }
    }
    assert!(worse > 1000, "the others are no optimum: {worse}");
}

/// The pairs of times that no other grouping of the first n layers is no later than in both, with nothing left out: sorted, for each
/// number of layers from one on.
fn complete(pass: &Pass, costs: &dyn Costs, place: Placement) -> Vec<Vec<(f64, f64)>> {
    let layers = pass.layers();
    let mut frontiers = vec![vec![(0.0, 0.0)]];
    let mut end = pass.forward();
    for (to, layer) in layers.iter().enumerate() {
        end += layer.backward;
        let mut reached: Vec<(f64, f64)> = Vec::new();
        for (from, before) in frontiers.iter().enumerate() {
            let entries = layers[from..=to].iter().map(|layer| layer.entries).sum();
            let cost = costs.of(entries).unwrap();
            reached.extend(before.iter().map(|&(busy, exchanged)| {
                let (selected, busy) = match place {
                    Placement::InBackward => (end + busy + cost.select, busy + cost.select),
                    Placement::Beside => (end.max(busy) + cost.select, end.max(busy) + cost.select),
                };
                (busy, selected.max(exchanged) + cost.exchange)
            }));
        }
        reached.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut least = f64::INFINITY;
        reached.retain(|&(_, exchanged)| {
            let is_better = exchanged < least;
            least = least.min(exchanged);
            is_better
        });
        frontiers.push(reached);
    }
    frontiers.split_off(1)
}

/// What the book says of complete frontiers with affine costs. In the backward pass the selections so far take a·m + γ d, so that there are as
/// many times as numbers of groups: the frontier of i layers has at most i points. Beside it, selection is done at a time that follows from
/// the first group since it last waited, which begins and ends somewhere, and the number of groups since: at most a sixth of i³ points and a
/// little more. In whole numbers nothing is rounded, so both hold as they stand. The optimum leaves points out, and adds none.
#[test]
fn merging_frontiers_are_small() {
    let mut random = Random::new(SEED + 2);
    let mut largest = [0; 2];
    for _ in 0..150 {
        let seed = random.next();
        let mut random = Random::new(seed);
        let layers = 1 + random.below(60);
        let (pass, costs) = instance(&mut random, layers, Family::Whole).unwrap();
        for (place, largest) in PLACES.into_iter().zip(&mut largest) {
            let frontiers = complete(&pass, costs.as_ref(), place);
            let most = |i: usize| match place {
                Placement::InBackward => i,
                // It ends behind e layers, begins behind fewer, and up to i − e groups have followed it.
                Placement::Beside => (1..=i).map(|e| e * (i - e + 1)).sum(),
            };
            let case = format!("seed {seed}, {layers} layers, {place:?}");
            for (i, frontier) in (1..).zip(&frontiers) {
                assert!(frontier.len() <= most(i), "{case}: {} points after {i}", frontier.len());
                *largest = frontier.len().max(*largest);
            }
            let solution = Optimal::solve(&Problem { pass: &pass, costs: costs.as_ref(), place }).unwrap();
            let points = frontiers.iter().map(Vec::len).max().unwrap();
            assert!(solution.largest_frontier <= points, "{case}: {solution:?}, and {points} in all");
            assert_eq!(solution.iteration, frontiers[layers - 1].last().unwrap().1, "{case}");
        }
    }
    println!("largest complete frontiers: {} in the backward pass, {} beside it", largest[0], largest[1]);
    assert!(largest[0] > 1 && largest[1] > 1, "no frontier was tried: {largest:?}");
}

/// A thousand layers in less than a second of a processor, of every family and for both places, at least once in a few times.
#[test]
fn merging_plans_a_thousand_layers_in_a_second() {
    if cfg!(debug_assertions) {
        gleaner_skips::skip("release", "times are those of the release profile");
        return;
    }
    for family in FAMILIES {
        let (pass, costs) = instance(&mut Random::new(SEED + 3), 1000, family).unwrap();
        for place in PLACES {
            let problem = Problem { pass: &pass, costs: costs.as_ref(), place };
            let took = (0..5).map(|_| {
                let clock = Clock::start();
                let solution = Optimal::solve(&problem).unwrap();
                (clock.elapsed(), solution.largest_frontier)
            });
            let (least, frontier) = took.min().unwrap();
            println!("{family:?}, {place:?}: {least:?}, largest frontier {frontier}");
            assert!(least < Duration::from_secs(1), "{family:?}, {place:?}: {least:?}");
        }
    }
}

/// VGG-16 with the costs that this project forecasts among eight workers, sparse and dense: the optimum is the least, and shorter than
/// all layers at once, and than each by itself where that costs anything.
#[test]
fn merging_takes_the_costs_that_are_forecast() {
    let network = Network { latency: Duration::from_micros(300), bytes_per_second: 1.25e8 };
    let speed = Speed { select: 0.8, encode: 10.0, merge: 20.0, add: 1.5, message: 4000.0 };
    let pass = MODELS[0].evenly(0.02, 0.05).unwrap();
    for method in [Method::spardl().density(0.01), Method::ring()] {
        let model = Model::new(network, speed, &method, 14_728_266).unwrap();
        let costs = Predicted { model: &model, method: &method, workers: 8 };
        for place in PLACES {
            let problem = Problem { pass: &pass, costs: &costs, place };
            let takes = |name: &str| {
                let grouping = gleaner_algorithms::merging::named(name).unwrap().group(&problem).unwrap();
                evaluate(&problem, &grouping).unwrap().iteration
            };
            let least = takes("optimal");
            assert!(STRATEGIES.iter().all(|strategy| takes(strategy().name()) >= least));
            assert!(least < takes("single"), "{}, {place:?}", method.title());
            // Beside the pass, rounds of small bags overlap, and nothing is lost by groups of one layer.
            let overlaps = place == Placement::Beside && method.collective().is_sparse();
            assert_eq!(least < takes("layer-wise"), !overlaps, "{}, {place:?}", method.title());
        }
    }
}
