//! Selectors: both laws with every method that takes one, and their choices beside plain references.

use gleaner_algorithms::residual::Residual;
use gleaner_algorithms::schedule::{Candidates, CheckError, Rule, Slots, Step, check};
use gleaner_algorithms::selectors::sidco::Fit;
use gleaner_algorithms::selectors::{Selection, Selector, clt_k, exdyna};
use gleaner_algorithms::{Block, Layers, Method, Rank};
use proptest::prelude::*;

use super::harness::{COLLECTIONS, Team, cases, methods, selecting, selectors};
use super::inputs::{Pattern, Random, Share, entries, pattern, share};

/// Cuts n entries into layers, some of them shorter than a block, some empty.
fn layers(n: usize, random: &mut Random) -> Layers {
    let mut left = n;
    let mut lengths = Vec::new();
    while left > 0 {
        lengths.push(random.below(left.min(40) + 1));
        left -= lengths[lengths.len() - 1];
    }
    Layers::of(lengths)
}

/// Every selector with every method that takes one, several steps in a row.
fn selectors_obey_the_laws(workers: usize, n: usize, share: Share, patterns: &[Pattern], seed: u64) {
    for method in selecting() {
        for (i, selector) in selectors().into_iter().enumerate() {
            let collection = COLLECTIONS[(i + n) % 3];
            let mut random = Random(seed);
            let method = share.of(method.clone(), n).selector(selector).residual(collection);
            let mut team = Team::of(method, workers, layers(n, &mut random));
            for pattern in patterns {
                let gradients = pattern.gradients(workers, n, &mut random);
                let size = 1 + random.below(n.max(1));
                team.step_in_pieces(&gradients, size).assert_laws(collection);
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
        selectors_obey_the_laws(workers, n, share, &patterns, seed);
    }
}

#[test]
fn from_no_entries_to_more_than_a_sample() {
    for n in [0, 1, 2, 5000] {
        for share in [Share::Density(0.0), Share::Density(1e-9), Share::Density(0.1), Share::Density(1.0)] {
            selectors_obey_the_laws(3, n, share, &[Pattern::Integers, Pattern::Zero, Pattern::Wide], 3);
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
            outcome.assert_laws(method.collection());
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

/// The indices of the k largest that are not zero, by sorting all.
fn largest(values: &[f32], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).filter(|&i| values[i as usize] != 0.0).collect();
    order.sort_by(|&a, &b| values[b as usize].abs().total_cmp(&values[a as usize].abs()).then(a.cmp(&b)));
    order.truncate(k);
    order.sort_unstable();
    order
}

/// The k largest of every range.
fn largest_of_each(values: &[f32], ranges: &[(usize, usize, usize)]) -> Vec<u32> {
    let of = |&(start, end, k): &(usize, usize, usize)| {
        largest(&values[start..end], k).into_iter().map(move |i| start as u32 + i)
    };
    ranges.iter().flat_map(of).collect()
}

fn reaching(values: &[f32], threshold: f32) -> Vec<u32> {
    let reaches = |i: &u32| values[*i as usize] != 0.0 && values[*i as usize].abs() >= threshold;
    (0..values.len() as u32).filter(reaches).collect()
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count() as f64
}

/// SIDCo with exponential fits, as its formulas stand, over what is not zero.
fn exponential(values: &[f32], k: usize, stages: i32) -> f64 {
    let mut above: Vec<f64> = values.iter().map(|v| f64::from(v.abs())).filter(|v| *v > 0.0).collect();
    let delta = k as f64 / above.len() as f64;
    let mut eta = 0.0;
    for stage in 1..=stages {
        let ratio = if stage < stages { 0.25 } else { delta / 0.25f64.powi(stages - 1) };
        eta += mean(above.iter().map(|v| v - eta)) * (1.0 / ratio).ln();
        above.retain(|v| *v >= eta);
    }
    eta
}

/// A gradient with a tail, and some zeros and ties.
fn gradient(n: usize, random: &mut Random) -> Vec<f32> {
    (0..n)
        .map(|_| match random.below(10) {
            0 => 0.0,
            1 => 0.25,
            _ => random.unit() * random.unit() * random.unit(),
        })
        .collect()
}

proptest! {
    #![proptest_config(cases(300))]

    /// Each beside its reference, with candidates collected above any magnitude or none.
    #[test]
    fn choices_are_those_of_plain_references(
        n in prop_oneof![1usize..300, 3000usize..40_000],
        share in 0.0f64..0.3,
        seed: u64,
        collected in proptest::option::of(0.0f32..1.0),
        stages in 1i32..4,
    ) {
        let mut random = Random(seed);
        let values = gradient(n, &mut random);
        let k = ((share * n as f64) as usize).max(1);
        let layers = layers(n, &mut random);
        let candidates = match collected {
            None => Candidates::default(),
            Some(threshold) => {
                let entries = reaching(&values, threshold).into_iter().map(|i| (i, values[i as usize])).collect();
                Candidates { threshold: Some(threshold), entries }
            }
        };
        let choose = |selector, memory: &[f64]| {
            let selection = Selection { selector, k, layers: layers.clone() };
            let chosen = selection.choose(&values, &candidates, memory, seed);
            assert!(chosen.entries.iter().all(|(i, v)| v != 0.0 && v == values[i as usize]));
            assert!(chosen.entries.indices.windows(2).all(|i| i[0] < i[1]));
            assert!(chosen.entries.len() <= selection.most());
            if let Some(threshold) = chosen.threshold {
                assert!(chosen.entries.values.iter().all(|v| v.abs() >= threshold));
            }
            (chosen.entries.indices, chosen.threshold)
        };
        let rounded = |len: usize, times: f64| ((times * len as f64 / n as f64).round() as usize).clamp(1, len.max(1));

        prop_assert_eq!(choose(Selector::Top, &[]).0, largest(&values, k));

        let mut start = 0;
        let mut ranges = Vec::new();
        for range in layers.ranges().filter(|range| !range.is_empty()) {
            prop_assert_eq!(range.start, start);
            start = range.end;
            ranges.push((range.start, range.end, rounded(range.len(), k as f64)));
        }
        prop_assert_eq!(start, n);
        prop_assert_eq!(choose(Selector::Layers, &[]).0, largest_of_each(&values, &ranges));
        let count = Selection { selector: Selector::Layers, k, layers: layers.clone() }.count();
        prop_assert_eq!(count, Some(ranges.iter().map(|r| r.2).sum()));

        // Blocks that take turns in getting one entry more have the lengths that numpy.array_split gives.
        let lengths = (0..7).map(|b| n / 7 + usize::from(b < n % 7));
        let mut end = 0;
        let blocks: Vec<_> = lengths
            .filter(|&len| len > 0)
            .map(|len| {
                end += len;
                (end - len, end, rounded(len, k as f64))
            })
            .collect();
        prop_assert_eq!(choose(Selector::Blocks(7), &[]).0, largest_of_each(&values, &blocks));

        for bucket in [16, 512] {
            let ends = (0..n).step_by(bucket as usize).map(|start| (start, n.min(start + bucket as usize)));
            let buckets: Vec<_> = ends.map(|(start, end)| (start, end, rounded(end - start, k as f64))).collect();
            prop_assert_eq!(choose(Selector::Bucketed(bucket), &[]).0, largest_of_each(&values, &buckets));
            // Near k: half an entry of rounding, and less than one where there must be one, for each bucket.
            let count = Selection { selector: Selector::Bucketed(bucket), k, layers: layers.clone() }.count().unwrap();
            prop_assert!(count.abs_diff(k) <= buckets.len(), "{count} of {n} in buckets of {bucket}, for {k}");
        }

        prop_assert_eq!(choose(Selector::Threshold(0.1), &[]).0, reaching(&values, 0.1));

        // By its promise: the largest entries, k at most; all that a sample of everything can tell.
        let (sampled, threshold) = choose(Selector::Sampled, &[]);
        prop_assert!(sampled.len() <= k);
        prop_assert_eq!(&sampled, &largest(&values, sampled.len()));
        if sampled.len() < k {
            prop_assert_eq!(sampled, reaching(&values, threshold.unwrap()));
        }
        if n <= 1024 {
            prop_assert_eq!(choose(Selector::Sampled, &[]).0, largest(&values, k));
        }

        // Of normal quantiles by bisection of a sum, with no error function.
        let (gaussian, threshold) = choose(Selector::Gaussian, &[]);
        prop_assert_eq!(&gaussian, &reaching(&values, threshold.unwrap()));
        let mu = mean(values.iter().map(|&v| f64::from(v)));
        let sigma = mean(values.iter().map(|&v| (f64::from(v) - mu) * (f64::from(v) - mu))).sqrt();
        let mut expected = mu.abs() + sigma * normal_quantile(k as f64 / (2.0 * n as f64));
        let mut corrections = 0;
        while corrections < 3 {
            let count = reaching(&values, expected as f32).len() as f64;
            if count < 2.0 / 3.0 * k as f64 {
                expected *= 0.5;
            } else if count > 4.0 / 3.0 * k as f64 {
                expected *= 1.5;
            } else {
                break;
            }
            corrections += 1;
        }
        let most = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        if reaching(&values, expected as f32).is_empty() {
            expected = f64::from(most);
        }
        let threshold = f64::from(threshold.unwrap());
        // A count next to 2k/3 or 4k/3 may fall on either side, by the rounding of the last digit.
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs().max(sigma);
        let near_a_limit = [0.5, 1.5, 2.0, 1.0 / 1.5, 0.75, 1.0 / 0.75, 0.25, 4.0, 2.25, 1.0 / 2.25, 3.0, 1.0 / 3.0];
        prop_assert!(
            close(threshold, expected) || near_a_limit.iter().any(|f| close(threshold, f * expected)),
            "{} instead of {}", threshold, expected
        );

        if values.iter().filter(|v| **v != 0.0).count() > 16 * k {
            let (sidco, threshold) = choose(Selector::Sidco(Fit::Exponential), &[f64::from(stages), 0.0, 0.0]);
            let expected = exponential(&values, k, stages.min(most_stages(&values, k))).min(f64::from(most));
            let threshold = threshold.unwrap();
            prop_assert!((f64::from(threshold) - expected).abs() <= 1e-5 * expected, "{} instead of {}", threshold, expected);
            prop_assert_eq!(sidco, reaching(&values, threshold));
        }
    }

    /// Random entries: k of them, others with another seed, and each as likely as any other.
    #[test]
    fn lots_are_fair(n in 1usize..60, seed: u64) {
        let k = 1 + seed as usize % n;
        let values = vec![1.0f32; n];
        let selection = Selection { selector: Selector::Random, k, layers: n.into() };
        let draw = |seed| selection.choose(&values, &Candidates::default(), &[], seed).entries.indices;
        prop_assert_eq!(draw(seed), draw(seed));
        let mut counts = vec![0u32; n];
        let trials = 4000;
        for trial in 0..trials {
            let drawn = draw(seed ^ (trial * 0x9e37_79b9_7f4a_7c15));
            prop_assert_eq!(drawn.len(), k);
            drawn.iter().for_each(|&i| counts[i as usize] += 1);
        }
        let p = k as f64 / n as f64;
        let deviation = (trials as f64 * p * (1.0 - p)).sqrt();
        for count in counts {
            prop_assert!((f64::from(count) - trials as f64 * p).abs() <= 6.0 * deviation + 1e-9);
        }
    }
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

/// So many stages that the last one leaves less than all.
fn most_stages(values: &[f32], k: usize) -> i32 {
    let delta = k as f64 / values.iter().filter(|v| **v != 0.0).count() as f64;
    (1..20).take_while(|m| 0.25f64.powi(m - 1) > delta).last().unwrap()
}

/// By bisection, over the integral of the density from 0 on as a series.
fn normal_quantile(upper_tail: f64) -> f64 {
    let tail = |x: f64| {
        // x + x³/3 + x⁵/15 + …, times the density (Marsaglia).
        let (mut term, mut sum, mut i) = (x, x, 1.0);
        while term > 1e-18 {
            i += 2.0;
            term *= x * x / i;
            sum += term;
        }
        0.5 - sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
    };
    let (mut low, mut high) = (0.0, 8.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if tail(middle) > upper_tail { low = middle } else { high = middle }
    }
    low
}

/// Workers draw different entries from equal gradients, and different ones in each step.
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
        let mut random = Random(11);
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
    let lent = residual.begin();
    assert_eq!(lent.candidates[0].entries.indices, [7]);
}

/// ExDyna's choice on recorded gradients: no index twice, k in all, and all above those of the owners that stayed.
#[test]
fn exclusive_choices_are_the_largest_of_their_owners() {
    let mut random = Random(5);
    for (workers, n, k) in [(1, 10, 3), (3, 100, 10), (4, 3, 2), (5, 101, 101)] {
        let gradients: Vec<Vec<f32>> = (0..workers).map(|_| gradient(n, &mut random)).collect();
        let slices: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
        let chosen = exdyna::choose(&slices, k);
        let even = gleaner_algorithms::Partition::even(n, workers);
        let owner = |i: usize| even.block_of(i).index();
        let owned: Vec<f32> = (0..n).map(|i| gradients[owner(i)][i]).collect();
        let union: Vec<u32> = chosen.iter().flat_map(|entries| entries.indices.clone()).collect();
        assert_eq!(union, largest(&owned, k));
        for (w, entries) in chosen.iter().enumerate() {
            let range = even.range(Block(w as u32));
            assert!(
                entries.iter().all(|(i, v)| range.contains(&(i as usize)) && v == gradients[w][i as usize])
            );
        }
        let leader = Rank(workers as u32 - 1);
        assert_eq!(clt_k::choose(&slices, leader, k).indices, largest(&gradients[leader.index()], k));
    }
}

/// So that the laws above are not about empty choices.
#[test]
fn every_selector_chooses_something() {
    let gradient = gradient(2000, &mut Random(2));
    for selector in selectors().into_iter().filter(|s| *s != Selector::Threshold(1e20)) {
        let selection = Selection { selector, k: 20, layers: 2000.into() };
        let chosen = selection.choose(&gradient, &Candidates::default(), &selection.memory(), 1);
        assert!(!chosen.entries.is_empty(), "{selector}");
    }
}
