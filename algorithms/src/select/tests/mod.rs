//! Every path against the plain meaning: a loop for the passes, a full stable sort for the selections.

use gleaner_statistics::random::Generator;
use proptest::prelude::*;

use super::sweep::{Accumulate, Replace, scan_with, sweep};
use super::top::{top_k_dense_with, top_k_with};
use super::*;

mod types;

/// What this processor can run.
fn paths() -> impl Iterator<Item = Simd> {
    [Simd::Portable, Simd::Avx2, Simd::Avx512].into_iter().filter(|&simd| simd <= Simd::best())
}

/// Deterministic numbers without a pattern.
struct Numbers(Generator);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0.bits()
    }

    /// Heavy-tailed, finite, with some zeros, subnormals and many ties.
    fn gradient(&mut self) -> f32 {
        let uniform = (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        match self.next() % 16 {
            0 => 0.0,
            1 => -0.0,
            2 => f32::from_bits((self.next() % 100) as u32),
            3 => 0.125,
            4 => -0.125,
            _ => uniform.powi(3),
        }
    }

    fn gradients(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.gradient()).collect()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[track_caller]
fn assert_same(found: &Entries, expected: &Entries) {
    assert_eq!(found.indices, expected.indices);
    assert_eq!(bits(&found.values), bits(&expected.values));
}

/// What a scan finds, by its definition.
fn scan_plainly(values: &[f32], threshold: f32, base: u32) -> Entries {
    let mut out = Entries::default();
    for (index, &value) in values.iter().enumerate() {
        let reaches = value.abs() >= threshold || !value.is_finite() || threshold.is_nan();
        if value != 0.0 && reaches {
            out.push(base + index as u32, value);
        }
    }
    out
}

/// The top k by sorting everything: magnitude descending, then index ascending, without zeros or with them.
fn top_k_by_sorting(values: &[f32], zeros: bool, k: usize) -> Entries {
    let mut order: Vec<usize> = (0..values.len()).filter(|&i| zeros || values[i] != 0.0).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(values[i].magnitude()));
    order.truncate(k);
    order.sort_unstable();
    let mut out = Entries::default();
    order.into_iter().for_each(|i| out.push(i as u32, values[i]));
    out
}

/// Runs `accumulate` and `replace` on every path and compares with a loop; the candidates follow what is already there.
#[track_caller]
fn check_storing(residual: &[f32], gradient: &[f32], threshold: f32, base: u32) {
    let mut there = Entries::default();
    there.push(0, 7.0);
    for simd in paths() {
        for add in [true, false] {
            let sums: Vec<f32> = if add {
                residual.iter().zip(gradient).map(|(old, new)| old + new).collect()
            } else {
                gradient.to_vec()
            };
            let bad = sums.iter().position(|sum| !sum.is_finite());
            let good = bad.unwrap_or(sums.len());
            let mut expected = there.clone();
            let found = scan_plainly(&sums[..good], threshold, base);
            expected.indices.extend(found.indices);
            expected.values.extend(found.values);

            let (mut swept, mut out) = (residual.to_vec(), there.clone());
            let result = if add {
                sweep::<f32, Accumulate>(simd, &mut swept, gradient, limit(threshold), base, &mut out)
            } else {
                sweep::<f32, Replace>(simd, &mut swept, gradient, limit(threshold), base, &mut out)
            };
            assert_eq!(result.map_err(|error| error.index), bad.map_or(Ok(()), Err), "{simd:?}");
            assert_eq!(bits(&swept[..good]), bits(&sums[..good]), "{simd:?}");
            assert_eq!(bits(&swept[good..]), bits(&residual[good..]), "{simd:?}");
            assert_same(&out, &expected);
        }
    }
}

#[track_caller]
fn check_scan(values: &[f32], threshold: f32, base: u32) {
    for simd in paths() {
        let mut out = Entries::default();
        scan_with(simd, values, threshold, base, &mut out);
        assert_same(&out, &scan_plainly(values, threshold, base));
    }
}

#[track_caller]
fn check_top_k(values: &[f32], k: usize) {
    let (expected, with_zeros) = (top_k_by_sorting(values, false, k), top_k_by_sorting(values, true, k));
    let indices: Vec<u32> = (0..values.len() as u32).collect();
    for simd in paths() {
        assert_same(&top_k_dense_with(simd, values, k), &expected);
        let (mut kept, mut dropped) = (Entries::default(), Entries::default());
        let smallest = top_k_with(simd, &indices, values, k, &mut kept, Some(&mut dropped));
        assert_same(&kept, &with_zeros);
        let least = kept.values.iter().map(|value| value.magnitude()).min().unwrap_or(0);
        assert_eq!(smallest.magnitude(), least, "{simd:?}");
        let mut others = Entries::default();
        for (&index, &value) in indices.iter().zip(values) {
            if kept.indices.binary_search(&index).is_err() {
                others.push(index, value);
            }
        }
        assert_same(&dropped, &others);
    }
}

const THRESHOLDS: [f32; 9] =
    [0.0, -1.0, 0.125, 0.5, 1e-44, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN];

#[test]
fn every_short_length_at_every_alignment() {
    let mut numbers = Numbers(Generator::seeded(1));
    for len in 0..=140 {
        let residual = numbers.gradients(len + 3);
        let gradient = numbers.gradients(len + 3);
        let threshold = THRESHOLDS[len % THRESHOLDS.len()];
        for offset in 0..3 {
            check_storing(&residual[offset..][..len], &gradient[3 - offset..][..len], threshold, 10);
            check_scan(&gradient[offset..][..len], threshold, 10);
        }
        for k in [0, 1, len / 3, len.saturating_sub(1), len, len + 1] {
            check_top_k(&gradient[..len], k);
        }
    }
}

#[test]
fn long_slices() {
    let mut numbers = Numbers(Generator::seeded(2));
    for len in [4095, 4096, 4097, 8192 + 77, 100_003] {
        let (residual, gradient) = (numbers.gradients(len), numbers.gradients(len));
        for threshold in THRESHOLDS {
            check_storing(&residual, &gradient, threshold, 5);
            check_scan(&gradient, threshold, 5);
        }
        for k in [1, len / 1000, len / 100, len / 2, len - 1] {
            check_top_k(&gradient, k);
        }
    }
}

#[test]
fn the_first_entry_that_is_not_finite_stops_the_pass_exactly_there() {
    let mut numbers = Numbers(Generator::seeded(3));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0xff80_0001)] {
        for index in (0..200).chain([4095, 4096, 4999]) {
            let (residual, mut gradient) = (numbers.gradients(5000), numbers.gradients(5000));
            gradient[index] = bad;
            gradient[(index + 7).min(4999)] = bad;
            check_storing(&residual, &gradient, 0.25, 0);
        }
    }
}

#[test]
fn an_overflowing_sum_is_not_finite() {
    let mut residual = vec![f32::MAX; 100];
    let mut out = Entries::default();
    let error = accumulate(&mut residual, &[f32::MAX; 100], 1.0, 0, &mut out).expect_err("the sum overflows");
    assert_eq!(error, NonFiniteSum { index: 0 });
    assert_eq!((residual, out), (vec![f32::MAX; 100], Entries::default()));
}

#[test]
fn indices_reach_the_last_u32() {
    for simd in paths() {
        let mut out = Entries::default();
        scan_with(simd, &[1.0; 131], 0.0, u32::MAX - 130, &mut out);
        assert_eq!(out.indices.last(), Some(&u32::MAX));
        assert_eq!(out.len(), 131);
    }
}

#[test]
#[should_panic(expected = "an index would not fit into u32")]
fn an_index_beyond_u32_is_refused() {
    scan(&[1.0; 2], 0.0, u32::MAX, &mut Entries::default());
}

#[test]
fn selections_of_awkward_slices() {
    let len = 70_000;
    let rising: Vec<f32> = (0..len).map(|i| i as f32).collect();
    let falling: Vec<f32> = rising.iter().rev().copied().collect();
    let mut one_huge = vec![1e-30; len];
    one_huge[len / 2] = -1e30;
    let mut few = vec![0.0; len];
    (0..50).for_each(|i| few[i * 1000] = -(i as f32));
    let subnormal: Vec<f32> = (0..len as u32).map(|i| f32::from_bits(i * 37 % 5000)).collect();
    let mut not_finite = rising.clone();
    (0..20).for_each(|i| not_finite[i * 999] = [f32::NAN, f32::INFINITY, -f32::NAN][i % 3]);
    let mut numbers = Numbers(Generator::seeded(4));
    let any_bits: Vec<f32> = (0..len).map(|_| f32::from_bits(numbers.next() as u32)).collect();
    // Large values only where a sample of every 70000/32768th entry is least likely to look: in one short run.
    let mut hidden: Vec<f32> = numbers.gradients(len);
    hidden[12_345..12_400].fill(9.0);
    // Ties at two levels, of which the larger comes last.
    let mut levels = vec![1.0; len];
    levels[len - 900..].fill(-2.0);
    // Many entries in one bin of the first histogram.
    let mut close: Vec<f32> =
        (0..len as u32).map(|i| f32::from_bits(1.0f32.to_bits() + i * 7919 % 5000)).collect();
    close[len / 3] = f32::MAX;
    close[len / 2] = 1e-40;
    for values in [
        vec![0.5; len],
        vec![0.0; len],
        vec![-0.0; len],
        vec![f32::NAN; len],
        rising,
        falling,
        one_huge,
        few,
        subnormal,
        not_finite,
        any_bits,
        hidden,
        levels,
        close,
    ] {
        for k in [0, 1, 2, 30, 700, 7000, len / 2, len - 1, len, len + 1] {
            check_top_k(&values, k);
        }
    }
}

#[test]
fn estimates_err_on_the_low_side_but_not_far() {
    let mut numbers = Numbers(Generator::seeded(5));
    let values: Vec<f32> = (0..500_000).map(|_| numbers.gradient()).collect();
    for k in [1, 50, 500, 5000, 50_000] {
        let threshold = estimate_threshold(&values, k);
        let reached = values.iter().filter(|value| value.abs() >= threshold).count();
        assert!(reached >= k, "{reached} reach {threshold}, not {k}");
        assert!(reached <= 2 * k + 500, "{reached} reach {threshold}, for {k}");
        assert_eq!(threshold, estimate_threshold(&values, k));
    }
    assert_eq!(estimate_threshold(&values, values.len()), 0.0);
    assert_eq!(estimate_threshold(&values, 0), f32::INFINITY);
    assert_eq!(estimate_threshold::<f32>(&[], 0), f32::INFINITY);
    assert_eq!(estimate_threshold(&[f32::NAN; 9], 3), f32::INFINITY);
}

#[test]
fn predictions_aim_at_twice_k() {
    // A count that falls with the eighth power: 2^8 k entries reach half of what k reach.
    let predicted = predict_threshold(0.5, 25_600, 1.0, 100);
    assert!((predicted - 0.5_f32.powf(1.0 / 8.0)).abs() < 1e-3, "{predicted}");
    for (threshold, reached, smallest, k) in [
        (0.0, 1000, 1.0, 10),
        (-1.0, 1000, 1.0, 10),
        (f32::NAN, 9, 1.0, 5),
        (0.5, 10, 1.0, 10),
        (0.5, 3, 1.0, 10),
    ] {
        assert_eq!(predict_threshold(threshold, reached, smallest, k), 0.8);
    }
    assert_eq!(predict_threshold(0.5, 1000, 1.0, 0), 0.8);
    assert_eq!(predict_threshold(0.0, 0, 0.0, 10), 0.0);
    assert_eq!(predict_threshold(0.999, 20_000, 1.0, 100), 0.98);
    assert_eq!(predict_threshold(1e-9, 101, 1.0, 100), 0.5);
}

#[test]
fn a_step_selects_exactly_what_a_full_sort_would() {
    let (len, k) = (60_000, 600);
    let mut numbers = Numbers(Generator::seeded(6));
    let mut residual = vec![0.0; len];
    let mut threshold = 0.0;
    for _ in 0..5 {
        let gradient = numbers.gradients(len);
        let mut found = Entries::default();
        // Layer by layer, as they become ready.
        for (layer, start) in
            [(0..17_001), (17_001..len)].into_iter().map(|range| (range.clone(), range.start))
        {
            accumulate(&mut residual[layer.clone()], &gradient[layer], threshold, start as u32, &mut found)
                .expect("all sums are finite");
        }
        assert!(found.len() >= k);
        let (mut kept, mut dropped) = (Entries::default(), Entries::default());
        let smallest = top_k(&found.indices, &found.values, k, &mut kept, Some(&mut dropped));
        assert_same(&kept, &top_k_by_sorting(&residual, false, k));
        kept.indices.iter().for_each(|&index| residual[index as usize] = 0.0);
        threshold = predict_threshold(threshold, found.len(), smallest, k);
    }
}

/// Values that meet every case of the comparison: few distinct ones, so that ties abound, and the edges of f32.
fn awkward() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -2.0f32..2.0,
        2 => prop::sample::select(vec![0.0, -0.0, 0.5, -0.5, 1.0, 1e-45, -1e-45, f32::MIN_POSITIVE, f32::MAX]),
        1 => any::<u32>().prop_map(f32::from_bits),
    ]
}

fn finite() -> impl Strategy<Value = f32> {
    awkward().prop_map(|value| if value.is_finite() { value } else { 0.5 })
}

proptest! {
    #[test]
    fn passes_mean_the_same_on_every_path(
        pairs in prop::collection::vec((awkward(), awkward()), 0..300),
        calm in prop::collection::vec((finite(), -1e30f32..1e30), 0..300),
        threshold in awkward(),
        base in 0u32..1000,
    ) {
        for pairs in [pairs, calm] {
            let (residual, gradient): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            check_storing(&residual, &gradient, threshold, base);
            check_scan(&gradient, threshold, base);
        }
    }

    #[test]
    fn selections_match_a_full_sort(values in prop::collection::vec(awkward(), 0..400), k in 0usize..450) {
        check_top_k(&values, k);
    }
}
