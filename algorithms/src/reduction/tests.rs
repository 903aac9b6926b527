//! The invariants of reductions, for every type and every reduction.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;

/// Every reduction, and one of a user's: the value of larger magnitude, the negative one of two that are opposite.
pub(crate) fn all<T: Element>() -> [Reduction<T>; 5] {
    let combine = |a: T, b: T| if (a.magnitude(), a.bits()) > (b.magnitude(), b.bits()) { a } else { b };
    let custom = Reduction::Custom { name: "largest", neutral: T::ZERO, combine };
    [Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Product, custom]
}

/// A finite value: zeros of both signs, few small numbers that meet and cancel, and any bits.
pub(crate) fn finite<T: Element>(raw: u64) -> T {
    let any = T::from_bits(raw >> 8);
    match raw % 8 {
        0 => T::ZERO,
        1 => -T::ZERO,
        2..5 => T::from_f64((raw >> 8) as f64 % 7.0 - 3.0),
        _ if any.is_finite() => any,
        _ => T::LEAST,
    }
}

fn check_algebra<T: Element>(a: u64, b: u64, c: u64) {
    let [a, b, c] = [a, b, c].map(finite::<T>);
    for reduction in all::<T>() {
        let combine = |a, b| reduction.combine(a, b);
        assert_eq!(combine(a, b).bits(), combine(b, a).bits(), "{reduction:?} of {a:?} and {b:?}");
        assert_eq!(combine(a, reduction.neutral()).bits(), a.bits(), "{reduction:?}, {a:?}");
        assert!(reduction.neutral().is_finite());
        let exact = match reduction {
            Reduction::Sum => a + b,
            Reduction::Product => a * b,
            Reduction::Max => T::from_f64(a.to_f64().max(b.to_f64())),
            Reduction::Min => T::from_f64(a.to_f64().min(b.to_f64())),
            Reduction::Custom { .. } => combine(a, b),
        };
        assert_eq!(combine(a, b), exact, "{reduction:?} of {a:?} and {b:?}");
        if !matches!(reduction, Reduction::Sum | Reduction::Product) {
            let (left, right) = (combine(combine(a, b), c), combine(a, combine(b, c)));
            assert_eq!(left.bits(), right.bits(), "{reduction:?} of {a:?}, {b:?} and {c:?}");
        }
    }
}

fn check_kernels<T: Element>(pairs: &[(u64, u64)], odd: usize) {
    let (a, b): (Vec<T>, Vec<T>) = pairs.iter().map(|&(a, b)| (finite::<T>(a), finite::<T>(b))).unzip();
    let bytes = |values: &[T]| -> Vec<u8> {
        // Behind some other bytes, so that no alignment is relied on.
        std::iter::repeat_n(7, odd).chain(values.iter().flat_map(|value| value.to_le())).collect()
    };
    for reduction in all::<T>() {
        let expected: Vec<u64> = a.iter().zip(&b).map(|(&a, &b)| reduction.combine(a, b).bits()).collect();
        let mut into = a.clone();
        reduction.combine_slices(&mut into, &b);
        assert_eq!(into.iter().map(|value| value.bits()).collect::<Vec<_>>(), expected, "{reduction:?}");
        let mut into = bytes(&a);
        reduction.combine_bytes(&mut into[odd..], &bytes(&b)[odd..]);
        assert_eq!(values::<T>(&into[odd..]).map(T::bits).collect::<Vec<_>>(), expected, "{reduction:?}");
        assert_eq!(into[..odd], vec![7; odd]);
    }
}

fn check_entries<T: Element>(dense: &[u64], sparse: &[(usize, u64)]) {
    let dense: Vec<T> = dense.iter().map(|&raw| finite(raw)).collect();
    let mut entries: Vec<(u32, T)> =
        sparse.iter().map(|&(i, raw)| ((i % dense.len()) as u32, finite(raw))).collect();
    entries.sort_by_key(|entry| entry.0);
    entries.dedup_by_key(|entry| entry.0);
    for reduction in all::<T>() {
        let mut expected = dense.clone();
        for &(i, value) in &entries {
            expected[i as usize] = reduction.combine(expected[i as usize], value);
        }
        let mut found = dense.clone();
        reduction.combine_entries(&mut found, &entries.iter().copied().collect());
        assert!(found.iter().map(|value| value.bits()).eq(expected.iter().map(|value| value.bits())));
    }
}

proptest! {
    #[test]
    fn reductions_are_commutative_and_have_neutral_elements(a in any::<u64>(), b in any::<u64>(), c in any::<u64>()) {
        check_algebra::<f32>(a, b, c);
        check_algebra::<f64>(a, b, c);
        check_algebra::<bf16>(a, b, c);
        check_algebra::<f16>(a, b, c);
    }

    #[test]
    fn many_are_combined_as_one_is(
        pairs in prop::collection::vec((any::<u64>(), any::<u64>()), 0..400),
        odd in 0usize..9,
    ) {
        check_kernels::<f32>(&pairs, odd);
        check_kernels::<f64>(&pairs, odd);
        check_kernels::<bf16>(&pairs, odd);
        check_kernels::<f16>(&pairs, odd);
    }

    #[test]
    fn entries_are_combined_where_they_belong(
        dense in prop::collection::vec(any::<u64>(), 1..60),
        sparse in prop::collection::vec((any::<usize>(), any::<u64>()), 0..60),
    ) {
        check_entries::<f32>(&dense, &sparse);
        check_entries::<f64>(&dense, &sparse);
        check_entries::<bf16>(&dense, &sparse);
        check_entries::<f16>(&dense, &sparse);
    }
}

#[test]
fn zeros_have_an_order() {
    for (a, b) in [(0.0f32, -0.0f32), (-0.0, 0.0)] {
        assert_eq!(Reduction::Max.combine(a, b).to_bits(), 0.0f32.to_bits());
        assert_eq!(Reduction::Min.combine(a, b).to_bits(), (-0.0f32).to_bits());
    }
    assert_eq!(Reduction::Max.combine(-0.0f32, -0.0).to_bits(), (-0.0f32).to_bits());
    assert_eq!(Reduction::Min.combine(0.0f32, 0.0).to_bits(), 0.0f32.to_bits());
}

#[test]
fn only_a_sum_has_residuals() {
    let names = all::<f32>().map(|reduction| (reduction.name(), reduction.has_residual()));
    let expected = [("sum", true), ("max", false), ("min", false), ("product", false), ("largest", false)];
    assert_eq!(names, expected);
    assert!(Reduction::<f32>::default().has_residual());
}

#[test]
#[should_panic(expected = "every value has one to be combined with")]
fn different_lengths_are_refused() {
    Reduction::Sum.combine_slices(&mut [1.0f32; 3], &[1.0; 4]);
}
