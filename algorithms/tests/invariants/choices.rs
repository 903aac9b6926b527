//! What selectors choose, beside plain references.

use gleaner_algorithms::schedule::Candidates;
use gleaner_algorithms::selectors::sidco::Fit;
use gleaner_algorithms::selectors::{Selection, Selector, clt_k, exdyna};
use gleaner_algorithms::{Block, Rank};
use proptest::prelude::*;

use super::harness::cases;
use super::inputs::Random;
use super::selectors::layers;

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
pub fn gradient(n: usize, random: &mut Random) -> Vec<f32> {
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
        let mut random = Random::new(seed);
        let values = gradient(n, &mut random);
        let k = ((share * n as f64) as usize).max(1);
        let layers = layers(n, &mut random);
        let candidates = match collected {
            None => Candidates::default(),
            Some(threshold) => {
                let entries = reaching(&values, threshold).into_iter().map(|i| (i, values[i as usize])).collect();
                Candidates { threshold: Some(threshold), entries, ..Candidates::default() }
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

        // By its promise: the largest entries, k at most; all that a sample of everything can give.
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
            let sampled = draw(seed ^ (trial * 0x9e37_79b9_7f4a_7c15));
            prop_assert_eq!(sampled.len(), k);
            sampled.iter().for_each(|&i| counts[i as usize] += 1);
        }
        let p = k as f64 / n as f64;
        let deviation = (trials as f64 * p * (1.0 - p)).sqrt();
        for count in counts {
            prop_assert!((f64::from(count) - trials as f64 * p).abs() <= 6.0 * deviation + 1e-9);
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

/// ExDyna's choice on recorded gradients: no index twice, k in all, and all above those of the owners that stayed.
#[test]
fn exclusive_choices_are_the_largest_of_their_owners() {
    let mut random = Random::new(5);
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
