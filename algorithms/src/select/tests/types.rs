//! The passes and selections for every type, against a loop and a full sort.

use half::{bf16, f16};
use proptest::prelude::*;

use super::super::bucket::bucketed_with;
use super::*;
use crate::Element;

/// Values with many ties, zeros of both signs and the edges of the type; not all finite.
fn values<T: Element>(raw: &[u64]) -> Vec<T> {
    let value = |&raw: &u64| match raw % 8 {
        0 => T::ZERO,
        1 => -T::ZERO,
        2..6 => T::from_f64(((raw >> 8) as f64 % 9.0 - 4.0) / 4.0),
        _ => T::from_bits(raw >> 8),
    };
    raw.iter().map(value).collect()
}

fn same<T: Element>(found: &Entries<T>, expected: &[(u32, T)]) {
    let bits =
        |entries: &mut dyn Iterator<Item = (u32, T)>| entries.map(|(i, v)| (i, v.bits())).collect::<Vec<_>>();
    assert_eq!(bits(&mut found.iter()), bits(&mut expected.iter().copied()));
}

/// The top k by sorting everything: magnitude descending, then index ascending, without zeros or with them.
fn sorted_top_k<T: Element>(values: &[T], zeros: bool, k: usize) -> Vec<(u32, T)> {
    let mut all: Vec<(u32, T)> =
        (0..).zip(values.iter().copied()).filter(|(_, value)| zeros || *value != T::ZERO).collect();
    all.sort_by_key(|(_, value)| std::cmp::Reverse(value.magnitude()));
    all.truncate(k);
    all.sort_by_key(|&(index, _)| index);
    all
}

fn check_selections<T: Element>(raw: &[u64], k: usize) {
    let values = values::<T>(raw);
    let indices: Vec<u32> = (0..values.len() as u32).collect();
    let (expected, with_zeros) = (sorted_top_k(&values, false, k), sorted_top_k(&values, true, k));
    for simd in paths() {
        same(&top_k_dense_with(simd, &values, k), &expected);
        let (mut kept, mut dropped) = (Entries::default(), Entries::default());
        let smallest = top_k_with(simd, &indices, &values, k, &mut kept, Some(&mut dropped));
        same(&kept, &with_zeros);
        let least = with_zeros.iter().map(|(_, value)| value.magnitude()).min().unwrap_or_default();
        assert_eq!(smallest.magnitude(), least);
        let others =
            (0..).zip(values.iter().copied()).filter(|(i, _)| kept.indices.binary_search(i).is_err());
        same(&dropped, &others.collect::<Vec<_>>());
    }
}

fn check_buckets<T: Element>(raw: &[u64], bucket: usize, k: usize) {
    let values = values::<T>(raw);
    let mut expected = vec![(7, T::ONE)];
    for (number, values) in values.chunks(bucket).enumerate() {
        let top = sorted_top_k(values, false, k).into_iter();
        expected.extend(top.map(|(index, value)| (index + (number * bucket) as u32, value)));
    }
    for simd in paths() {
        let mut kept = Entries::default();
        kept.push(7, T::ONE);
        bucketed_with(simd, &values, bucket, k, &mut kept);
        same(&kept, &expected);
    }
}

fn check_passes<T: Element>(old: &[u64], new: &[u64], threshold: u64) {
    let (residual, gradient) = (values::<T>(old), values::<T>(new));
    let threshold = values::<T>(&[threshold])[0];
    let sums: Vec<T> = residual.iter().zip(&gradient).map(|(&old, &new)| old + new).collect();
    let good = sums.iter().position(|sum| !sum.is_finite()).unwrap_or(sums.len());
    let plain_order = threshold.to_f64() > 0.0;
    let reaches = |sum: &T| *sum != T::ZERO && (!plain_order || sum.to_f64().abs() >= threshold.to_f64());
    let expected = (5..).zip(sums[..good].iter().copied()).filter(|(_, sum)| reaches(sum));
    let expected = expected.collect::<Vec<_>>();
    for simd in paths() {
        let (mut swept, mut out) = (residual.clone(), Entries::default());
        let result = sweep::<T, Accumulate>(simd, &mut swept, &gradient, limit(threshold), 5, &mut out);
        assert_eq!(result.is_ok(), good == sums.len());
        assert!(swept[..good].iter().zip(&sums).all(|(a, b)| a.bits() == b.bits()));
        assert!(swept[good..].iter().zip(&residual[good..]).all(|(a, b)| a.bits() == b.bits()));
        same(&out, &expected);
        let mut out = Entries::default();
        scan_with(simd, &swept[..good], threshold, 5, &mut out);
        same(&out, &expected);
    }
}

/// What all four types do.
macro_rules! each_type {
    ($check:ident($($argument:expr),*)) => {
        $check::<f32>($($argument),*);
        $check::<f64>($($argument),*);
        $check::<bf16>($($argument),*);
        $check::<f16>($($argument),*);
    };
}

proptest! {
    #[test]
    fn every_type_is_selected_as_a_full_sort_would(raw in prop::collection::vec(any::<u64>(), 0..300), k in 0usize..350) {
        each_type!(check_selections(&raw, k));
    }

    #[test]
    fn every_bucket_is_selected_as_a_full_sort_would(
        raw in prop::collection::vec(any::<u64>(), 0..900),
        bucket in prop_oneof![1usize..20, 100usize..600],
        k in prop_oneof![0usize..6, 0usize..70],
    ) {
        each_type!(check_buckets(&raw, bucket, k));
    }

    #[test]
    fn passes_over_every_type_mean_the_same(
        pairs in prop::collection::vec((any::<u64>(), any::<u64>()), 0..100),
        calm in any::<bool>(),
        threshold in any::<u64>(),
    ) {
        // Small values only, in half of the cases: else few passes come to their end.
        let (old, new): (Vec<u64>, Vec<u64>) = pairs.into_iter().map(|(a, b)| if calm { (a & !4, b & !4) } else { (a, b) }).unzip();
        each_type!(check_passes(&old, &new, threshold));
    }
}

fn check_long<T: Element>(seed: u64) {
    let mut numbers = Numbers(Generator::seeded(seed));
    let raw: Vec<u64> = (0..20_000).map(|_| numbers.next()).collect();
    for k in [1, 20, 200, 5000, 19_999] {
        check_selections::<T>(&raw, k);
    }
    for (bucket, k) in [(512, 4), (512, 16), (512, 32), (512, 33), (20_000, 9), (1024, 300)] {
        check_buckets::<T>(&raw, bucket, k);
    }
    let smooth: Vec<T> = raw.iter().map(|&raw| T::from_f64((raw >> 40) as f64 / 1e6 - 8.0)).collect();
    for k in [10, 500] {
        let threshold = estimate_threshold(&smooth, k);
        let reached = smooth.iter().filter(|value| value.magnitude() >= threshold.magnitude()).count();
        // Types of few bits have many ties at the threshold.
        assert!(reached >= k && reached <= 2 * k + 1500, "{reached} reach {threshold:?}, for {k}");
    }
}

#[test]
fn long_slices_of_every_type() {
    each_type!(check_long(9));
}

#[test]
#[should_panic(expected = "a bucket has at least one entry")]
fn a_bucket_of_nothing_is_refused() {
    bucketed(&[1.0f32], 0, 1, &mut Entries::default());
}
