use super::*;
use proptest::prelude::*;

/// Finite values of all sizes, and some that are alike.
fn value() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -1.0f32..1.0,
        1 => Just(0.0f32),
        1 => Just(-0.0f32),
        1 => any::<f32>().prop_filter("finite", |v| v.is_finite()),
        1 => prop_oneof![Just(f32::MAX), Just(f32::MIN), Just(1e-45), Just(65520.0), Just(-1e-40)],
    ]
}

fn vector() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![proptest::collection::vec(value(), 0..40), proptest::collection::vec(value(), 1000..2000)]
}

fn coding() -> impl Strategy<Value = Coding> {
    proptest::sample::select(&Coding::ALL)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

proptest! {
    #[test]
    fn kept_and_errors_are_the_original(values in vector(), spread in 1u32..3000, coding in coding(), seed: u64) {
        let entries: Entries =
            (0..).map(|i| i * spread).zip(values).filter(|(_, v)| *v != 0.0).collect();
        let len = entries.indices.last().map_or(0, |&i| i as usize + 1);
        let (rounded, kept, errors) = coding.round(&entries, len, seed);
        prop_assert_eq!(rounded.coding(), coding);
        prop_assert_eq!(Rounded::from_bytes(rounded.to_bytes()), Some(rounded));
        prop_assert!(kept.iter().chain(errors.iter()).all(|(_, v)| v != 0.0 && v.is_finite()));
        let (kept, errors) = (kept.to_dense(len), errors.to_dense(len));
        for (i, v) in entries.iter() {
            let (kept, error) = (kept[i as usize], errors[i as usize]);
            let sum = f64::from(kept) + f64::from(error);
            let allowed = f64::from(error).abs() * 0.5f64.powi(24);
            prop_assert!((sum - f64::from(v)).abs() <= allowed, "{v} = {kept} + {error}");
            prop_assert!(kept == 0.0 || (kept > 0.0) == (v > 0.0), "{v} became {kept}");
        }
    }

    #[test]
    fn what_is_rounded_stays(values in vector(), coding in coding(), seed: u64, other: u64) {
        let (len, entries) = (values.len(), Entries::from_dense(&values));
        // Of buckets as wide as before: a dropped entry may change how wide they would be chosen.
        let mut once = values.clone();
        let rounded = coding.round_dense(&mut once, &mut vec![0.0; len], seed);
        let (mut twice, mut errors) = (once.clone(), vec![1.0; len]);
        prop_assert_eq!(coding.round_dense(&mut twice, &mut errors, other), rounded);
        prop_assert_eq!(bits(&twice), bits(&once));
        prop_assert!(errors.iter().all(|e| *e == 0.0));
        // Sparse entries that fill more than half of a block are rounded as if they were dense.
        if 2 * entries.len() > len {
            let (tag, kept, _) = coding.round(&entries, len, seed);
            prop_assert_eq!(tag, rounded);
            prop_assert_eq!(kept, Entries::from_dense(&once));
        }
    }

    #[test]
    fn sixteen_bits_are_the_nearest(value in value(), coding in prop_oneof![Just(Coding::Bf16), Just(Coding::F16)]) {
        // All values there are, by a search that knows nothing of bits.
        let all: Vec<f32> = (0..=u16::MAX)
            .map(|bits| match coding {
                Coding::Bf16 => half::bf16::from_bits(bits).to_f32(),
                _ => half::f16::from_bits(bits).to_f32(),
            })
            .collect();
        // Far beyond the largest half, 64 bits do not distinguish which of them is nearest.
        let near = if coding == Coding::F16 { value.clamp(-1e5, 1e5) } else { value };
        let far = |other: f32| (f64::from(other) - f64::from(near)).abs();
        let even = |i: &usize| i % 2;
        let nearest = (0..all.len())
            .filter(|&i| all[i].is_finite())
            .min_by(|&i, &j| far(all[i]).total_cmp(&far(all[j])).then(even(&i).cmp(&even(&j))))
            .map(|i| all[i]);
        let mut rounded = [value];
        coding.round_dense(&mut rounded, &mut [0.0], 0);
        prop_assert_eq!(Some(rounded[0]), nearest);
        prop_assert_eq!(rounded[0].is_sign_negative(), value.is_sign_negative());
    }

    #[test]
    fn a_bucket_has_about_512_entries(len in 1usize..1 << 31, one_in in 1usize..1 << 20) {
        let count = (len / one_in).max(1);
        let shift = qsgd::shift(count, len);
        let (width, whole) = (1u64 << shift, len.next_power_of_two().max(512) as u64);
        prop_assert!(width <= whole, "buckets of {width} in {len}");
        let held = width as f64 * count as f64 / len as f64;
        prop_assert!(held <= 512.5 && (held > 256.0 || width == whole), "{held} entries in a bucket");
    }
}

/// By Hoeffding's inequality, if each of T independent results is unbiased and lies between two levels that are d apart,
/// then their mean is farther than t from the expectation with a probability of at most 2 exp(−2 T t² / d²). With t as
/// below that is 10⁻¹² for one value. Two thousand means are looked at, so a right generator would fail for
/// fewer than one in 10⁸ choices of the seeds, which are fixed.
#[test]
fn quantising_is_unbiased() {
    const TIMES: u32 = 20_000;
    let values: Vec<f32> = (0..300).map(|i| (i as f32 * 0.7).sin().powi(3)).collect();
    let largest = values.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
    for (coding, levels) in [(Coding::Qsgd2, 1.0), (Coding::Qsgd4, 7.0), (Coding::Qsgd8, 127.0)] {
        let step = f64::from(largest) / levels;
        let t = step * ((2e12f64).ln() / (2.0 * f64::from(TIMES))).sqrt();
        let mut sums = vec![0.0f64; values.len()];
        for seed in 0..TIMES {
            let mut rounded = values.clone();
            coding.round_dense(&mut rounded, &mut vec![0.0; values.len()], seed.into());
            for ((sum, rounded), value) in sums.iter_mut().zip(&rounded).zip(&values) {
                assert!(f64::from((rounded - value).abs()) <= step * 1.0001, "{value} became {rounded}");
                *sum += f64::from(*rounded);
            }
        }
        for (sum, value) in sums.iter().zip(&values) {
            let mean = sum / f64::from(TIMES);
            assert!(
                (mean - f64::from(*value)).abs() <= t,
                "{coding}: {value} became {mean} on average, ± {t}"
            );
        }
        // Under one seed the entries of a bucket are as independent as those of different seeds.
        let mut alike = vec![0.3 * largest; TIMES as usize];
        alike.iter_mut().step_by(512).for_each(|v| *v = largest);
        let whole: f64 = alike.iter().map(|v| f64::from(*v)).sum();
        coding.round_dense(&mut alike, &mut vec![0.0; TIMES as usize], 7);
        let rounded: f64 = alike.iter().map(|v| f64::from(*v)).sum();
        assert!((rounded - whole).abs() <= t * f64::from(TIMES), "{coding}: {whole} became {rounded}");
    }
}

#[test]
fn sixteen_bits_saturate() {
    for (coding, largest) in [(Coding::F16, 65504.0), (Coding::Bf16, half::bf16::MAX.to_f32())] {
        let mut values = [f32::MAX, f32::MIN, largest, -largest];
        coding.round_dense(&mut values, &mut [0.0; 4], 0);
        assert_eq!(values, [largest, -largest, largest, -largest]);
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for coding in Coding::ALL {
        assert_eq!(coding.to_string().parse(), Ok(coding));
    }
    assert_eq!("qsgd3".parse::<Coding>(), Err(UnknownCoding("qsgd3".into())));
    let sentence = UnknownCoding("qsdg4".into()).to_string();
    assert!(
        sentence.starts_with("'qsdg4' is not a coding of values (did you mean qsgd4?); expected"),
        "{sentence}"
    );
    assert_eq!(Rounded::default(), Rounded::EXACT);
}
