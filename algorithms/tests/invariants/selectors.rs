//! Selectors: both invariants with every method that takes one.

use gleaner_algorithms::residual::Residual;
use gleaner_algorithms::schedule::{Candidates, CheckError, Rule, Slots, Step, check};
use gleaner_algorithms::selectors::{Selection, Selector};
use gleaner_algorithms::{Layers, Method};
use proptest::prelude::*;

use super::choices::gradient;
use super::harness::{COLLECTIONS, Team, cases, methods, selecting, selectors};
use super::inputs::{Pattern, Random, Share, entries, pattern, share};

/// Cuts n entries into layers, some of them shorter than a block, some empty.
pub fn layers(n: usize, random: &mut Random) -> Layers {
    let mut left = n;
    let mut lengths = Vec::new();
    while left > 0 {
        lengths.push(random.below(left.min(40) + 1));
        left -= lengths[lengths.len() - 1];
    }
    Layers::of(lengths)
}

/// Every selector with every method that takes one, several steps in a row.
fn selectors_obey_the_invariants(workers: usize, n: usize, share: Share, patterns: &[Pattern], seed: u64) {
    for method in selecting() {
        for (i, selector) in selectors().into_iter().enumerate() {
            let collection = COLLECTIONS[(i + n) % 3];
            let mut random = Random::new(seed);
            let method = share.of(method.clone(), n).selector(selector).residual(collection);
            let mut team = Team::of(method, workers, layers(n, &mut random));
            for pattern in patterns {
                let gradients = pattern.gradients(workers, n, &mut random);
                let size = 1 + random.below(n.max(1));
                team.step_in_pieces(&gradients, size).assert_invariants();
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn nothing_is_lost_whatever_selects(
        (workers, n) in (1usize..=9).prop_flat_map(|p| (Just(p), entries(p))),
        share in share(),
        patterns in proptest::collection::vec(pattern(), 1..8),
        seed: u64,
    ) {
        selectors_obey_the_invariants(workers, n, share, &patterns, seed);
    }
}

#[test]
fn from_no_entries_to_more_than_a_sample() {
    for n in [0, 1, 2, 5000] {
        for share in [Share::Density(0.0), Share::Density(1e-9), Share::Density(0.1), Share::Density(1.0)] {
            selectors_obey_the_invariants(3, n, share, &[Pattern::Integers, Pattern::Zero, Pattern::Wide], 3);
        }
    }
}

/// What nothing reaches waits, and all of it is delivered once it has grown.
#[test]
fn a_threshold_that_nothing_reaches_for_long_delays_and_loses_nothing() {
    for method in selecting() {
        let (workers, n) = (3, 50);
        let mut team = Team::of(method.clone().selector(Selector::Threshold(64.0)).density(0.5), workers, n);
        for step in 1..=70u32 {
            let outcome = team.step(&vec![vec![1.0; n]; workers]);
            outcome.assert_invariants();
            let kept = if step < 64 { step } else { step - 64 };
            let few = outcome.delivered[0].iter().filter(|v| **v != 0.0).count();
            // gTopk selects k of what all sent.
            if method.collective().name() != "gtopk" {
                assert_eq!(few, if step == 64 { n } else { 0 }, "{method}, step {step}");
                assert_eq!(outcome.new, vec![vec![kept as f32; n]; workers]);
            }
        }
    }
}

#[test]
fn a_method_takes_selectors_or_names_those_that_do() {
    let taking: Vec<&str> = selecting().map(|m| m.collective().name()).collect();
    assert!(taking.len() >= 6);
    for method in methods().filter(|m| !taking.contains(&m.collective().name())) {
        let sentence = method.selector(Selector::Gaussian).shape(4, 100).unwrap_err().to_string();
        assert!(
            sentence.contains("the selector gaussian") && taking.iter().all(|name| sentence.contains(name))
        );
    }
    for selector in
        [Selector::Blocks(0), Selector::Bucketed(0), Selector::Threshold(-1.0), Selector::Threshold(f64::NAN)]
    {
        assert!(Method::named("topka").unwrap().selector(selector).shape(4, 100).is_err());
    }
    let long = Method::named("topkdsa").unwrap().selector(Selector::Sampled).shape(4, 5_000_000_000);
    assert!(long.unwrap_err().to_string().contains("5000000000 entries"));
}

/// The checker lets a selector choose from all of a worker's own gradient, and from nothing else.
#[test]
fn selectors_stand_at_the_start_or_are_refused() {
    let method = Method::named("ssar-split-all-gather").unwrap().selector(Selector::Sampled);
    let schedules = method.schedules(3, 30).unwrap();
    assert!(check(schedules.clone()).is_ok());
    let Step::Keep { rule: rule @ Rule::By(_), coding, .. } = schedules[0].steps[0].clone() else { panic!() };
    let keep = |slots| Step::Keep { slots, rule: rule.clone(), coding };
    let changed = |change: &dyn Fn(&mut Vec<Step>)| {
        let mut schedules = schedules.clone();
        schedules.iter_mut().for_each(|schedule| change(&mut schedule.steps));
        check(schedules.clone())
    };
    let part = changed(&|steps| steps[0] = keep(Slots::range(0, 2)));
    assert!(matches!(part, Err(CheckError::Slot { .. })), "{part:?}");
    let turned = changed(&|steps| steps[0] = keep(Slots::range(1, 3)));
    assert!(matches!(turned, Err(CheckError::Slot { .. })), "{turned:?}");
    let twice = changed(&|steps| steps.insert(1, steps[0].clone()));
    assert!(matches!(twice, Err(CheckError::Slot { .. })), "{twice:?}");
    let sums = changed(&|steps| steps.push(keep(Slots::range(0, 3))));
    assert!(matches!(sums, Err(CheckError::Slot { .. })), "{sums:?}");
    let proposed =
        changed(&|steps| steps[0] = Step::Propose { slots: Slots::range(0, 3), rule: rule.clone() });
    assert!(proposed.is_err());
}

/// Equal magnitudes, of any sign, have no distribution to fit; something is delivered all the same, and soon.
#[test]
fn equal_magnitudes_are_delivered() {
    let (workers, n) = (3, 1000);
    let selectors = Selector::NAMED.into_iter().chain([Selector::Threshold(3.0)]);
    for selector in selectors {
        for signs in [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]] {
            let mut team = Team::of(Method::named("topka").unwrap().k(10).selector(selector), workers, n);
            let gradient: Vec<f32> = (0..n).map(|i| signs[i % 2]).collect();
            let delivered = |team: &mut Team| {
                let outcome = team.step(&vec![gradient.clone(); workers]);
                outcome.delivered[0].iter().filter(|value| **value != 0.0).count()
            };
            let total: usize = (0..6).map(|_| delivered(&mut team)).sum();
            assert!(total >= 10, "{selector}, signs {signs:?}: {total} entries in six steps");
        }
    }
}

/// Workers sample different entries from equal gradients, and different ones in each step.
#[test]
fn every_worker_draws_for_itself() {
    let method = Method::named("topka").unwrap().density(0.1).selector(Selector::Random);
    let mut team = Team::of(method, 4, 1000);
    let mut unions = Vec::new();
    for _ in 0..2 {
        let outcome = team.step(&vec![vec![1.0; 1000]; 4]);
        unions.push(outcome.delivered[0].iter().filter(|v| **v != 0.0).count());
        // 1000·(1 − 0.9⁴) = 344 on average, with a standard deviation below 11.
        assert!((290..=400).contains(&unions[unions.len() - 1]), "{unions:?}");
    }
}

/// In a job the thresholds stay where they belong: what a threshold selector chose is what reaches it, step after step,
/// whether it was collected on the way or not.
#[test]
fn collected_candidates_never_change_a_choice() {
    let n = 5000;
    for selector in selectors() {
        let selection = Selection { selector, k: 50, layers: n.into() };
        let mut random = Random::new(11);
        let method = Method::named("topka").unwrap().k(50).selector(selector);
        let mut team = Team::of(method, 1, n);
        let mut sums = vec![0.0f32; n];
        for step in 0..12 {
            let scale = [1.0, 1.0, 1e-3, 100.0][step / 3];
            let gradient: Vec<f32> = gradient(n, &mut random).iter().map(|g| g * scale).collect();
            sums.iter_mut().zip(&gradient).for_each(|(s, g)| *s += g);
            let memory = team.ensemble.memories()[0].own.clone();
            let outcome = team.step(&[gradient]);
            if selector != Selector::Random {
                let chosen = selection.choose(&sums, &Candidates::default(), &memory, 0);
                assert_eq!(outcome.delivered[0], chosen.entries.to_dense(n), "{selector}, step {step}");
            }
            sums.clone_from(&outcome.new[0]);
        }
    }
}

/// The count that a fixed selector promises is what the shape says, and what comes.
#[test]
fn fixed_counts_are_k() {
    for selector in [Selector::Layers, Selector::Blocks(9), Selector::Bucketed(16), Selector::Random] {
        let layers = Layers::of([3, 200, 0, 1, 500]);
        let method = Method::named("topkdsa").unwrap().density(0.05).selector(selector);
        let k = method.shape(1, layers.clone()).unwrap().k;
        let mut team = Team::of(method, 1, layers);
        let outcome = team.step(&[(0..704).map(|i| 1.0 + i as f32).collect()]);
        assert_eq!(outcome.delivered[0].iter().filter(|v| **v != 0.0).count(), k, "{selector}");
    }
    // 3, 200, 1 and 500 entries at 5%, and none of them without an entry.
    let method = Method::named("topka").unwrap().density(0.05).selector(Selector::Layers);
    assert_eq!(method.shape(1, Layers::of([3, 200, 0, 1, 500])).unwrap().k, 1 + 10 + 1 + 25);
}

/// What a residual collects is what the selector asked for: after the first step it chooses without another pass.
#[test]
fn a_hard_threshold_is_collected_on_the_way() {
    let method = Method::named("topka").unwrap().selector(Selector::Threshold(0.5));
    let mut team = Team::of(method, 1, 100);
    team.step(&[vec![0.1; 100]]);
    let residual: &mut Residual = &mut team.ensemble.residuals[0];
    assert_eq!(residual.thresholds(), [Some(0.5)]);
    let mut gradient = vec![0.1; 100];
    gradient[7] = 0.6;
    residual.accumulate(0, &gradient).unwrap();
    let lent = residual.begin().unwrap();
    assert_eq!(lent.candidates[0].entries.indices, [7]);
}

/// So that the invariants above are not about empty choices.
#[test]
fn every_selector_chooses_something() {
    let gradient = gradient(2000, &mut Random::new(2));
    for selector in selectors().into_iter().filter(|s| *s != Selector::Threshold(1e20)) {
        let selection = Selection { selector, k: 20, layers: 2000.into() };
        let chosen = selection.choose(&gradient, &Candidates::default(), &selection.memory(), 1);
        assert!(!chosen.entries.is_empty(), "{selector}");
    }
}
