//! Bags of every type under every reduction against the dense computation.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::reduction::tests::{all, finite};

/// A vector in which about half of the entries are absent, of whatever type.
fn vector(len: usize) -> impl Strategy<Value = Vec<Option<u64>>> {
    prop::collection::vec(prop_oneof![Just(None), any::<u64>().prop_map(Some)], len)
}

/// The same vector in the form asked for, and its values with the neutral element where there is no entry.
fn bag<T: Element>(raw: &[Option<u64>], dense: bool, reduction: &Reduction<T>) -> (Bag<T>, Vec<T>) {
    let value = |raw: &Option<u64>| raw.map_or(reduction.neutral(), finite);
    let values: Vec<T> = raw.iter().map(value).collect();
    let entries = (0..).zip(raw).filter(|(_, raw)| raw.is_some()).map(|(i, raw)| (i, value(raw))).collect();
    (if dense { Bag::Dense(values.clone().into()) } else { Bag::Sparse(entries) }, values)
}

fn in_full<T: Element>(bag: &Bag<T>, len: usize, reduction: &Reduction<T>) -> Vec<u64> {
    let values = match bag {
        Bag::Sparse(entries) => entries.to_dense_with(len, reduction.neutral()),
        Bag::Dense(values) => values.to_vec(),
    };
    values.into_iter().map(T::bits).collect()
}

/// That it is in the smaller form.
fn check_form<T: Element>(bag: &Bag<T>, len: usize) {
    if let Bag::Sparse(entries) = bag {
        assert!(entries.indices.is_sorted_by(|a, b| a < b));
        assert!(entries.len() * (4 + T::WIDTH) <= len * T::WIDTH);
    }
}

fn check_pair<T: Element>(a: &[Option<u64>], b: &[Option<u64>], forms: (bool, bool)) {
    for reduction in all::<T>() {
        let ((a, a_values), (b, b_values)) = (bag(a, forms.0, &reduction), bag(b, forms.1, &reduction));
        let expected = a_values.iter().zip(&b_values).map(|(&a, &b)| reduction.combine(a, b).bits());
        let len = a_values.len();
        let both = a.clone().combine(b.clone(), len, &reduction);
        check_form(&both, len);
        assert_eq!(
            in_full(&both, len, &reduction),
            expected.collect::<Vec<_>>(),
            "{reduction:?} of {}",
            T::NAME
        );
        let other_way = b.combine(a, len, &reduction);
        assert_eq!(in_full(&other_way, len, &reduction), in_full(&both, len, &reduction));
    }
}

/// The order of a sum of many, as a recursion: the left half has a power of two of them.
fn tree<T: Element>(values: &[T], reduction: &Reduction<T>) -> T {
    match values {
        [] => reduction.neutral(),
        [one] => *one,
        _ => {
            let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
            reduction.combine(tree(left, reduction), tree(right, reduction))
        }
    }
}

fn check_many<T: Element>(raw: &[Vec<Option<u64>>], forms: u32, len: usize) {
    // Whatever has large exponents would overflow in some order of addition, and not in another.
    let tame = |raw: &Option<u64>| raw.map(|raw| (raw & !7) | (raw % 5));
    for reduction in all::<T>() {
        let (bags, values): (Vec<Bag<T>>, Vec<Vec<T>>) = (raw.iter().enumerate())
            .map(|(i, raw)| bag(&raw.iter().map(tame).collect::<Vec<_>>(), forms >> i & 1 > 0, &reduction))
            .unzip();
        let column = |i: usize| values.iter().map(|values| values[i]).collect::<Vec<T>>();
        let expected: Vec<u64> = (0..len).map(|i| tree(&column(i), &reduction).bits()).collect();
        let found = Bag::reduce(bags.clone(), len, &reduction);
        assert_eq!(in_full(&found, len, &reduction), expected, "{reduction:?} of {}", T::NAME);
        if let Some(sets) = bags.into_iter().map(sparse).collect::<Option<Vec<_>>>() {
            let found = Bag::Sparse(Entries::reduce(&sets, &reduction));
            assert_eq!(in_full(&found, len, &reduction), expected, "{reduction:?} of {}", T::NAME);
        }
    }
}

fn sparse<T: Element>(bag: Bag<T>) -> Option<Entries<T>> {
    match bag {
        Bag::Sparse(entries) => Some(entries),
        Bag::Dense(_) => None,
    }
}

proptest! {
    #[test]
    fn combining_bags_is_combining_vectors(a in vector(90), b in vector(90), forms in any::<(bool, bool)>()) {
        check_pair::<f32>(&a, &b, forms);
        check_pair::<f64>(&a, &b, forms);
        check_pair::<bf16>(&a, &b, forms);
        check_pair::<f16>(&a, &b, forms);
    }

    #[test]
    fn many_are_combined_as_a_balanced_tree(
        raw in prop::collection::vec(vector(40), 0..10),
        forms in prop_oneof![Just(0), any::<u32>()],
    ) {
        check_many::<f32>(&raw, forms, 40);
        check_many::<f64>(&raw, forms, 40);
        check_many::<bf16>(&raw, forms, 40);
        check_many::<f16>(&raw, forms, 40);
    }
}

/// So many entries that they are combined window by window; the sets differ in length and in where they lie.
#[test]
fn many_long_sets_are_combined_as_by_pairs() {
    fn check<T: Element>() {
        let set = |number: u32| -> Entries<T> {
            let there = |i: &u32| i.wrapping_mul(0x9e37_79b9) >> (29 + number % 3) == 0 && i % 5 != number;
            let lies = number * 10_000..120_000 + number * 40_000;
            lies.filter(there).map(|i| (i, T::from_f64(f64::from((i + number) % 7) - 3.5))).collect()
        };
        let sets: Vec<Entries<T>> = [4, 0, 1, 3, 2, 5, 1].map(set).into();
        for reduction in all::<T>() {
            let by_pairs = in_pairs(sets.clone(), |a, b| a.merge_with(&b, &reduction)).unwrap_or_default();
            assert!(by_pairs.len() > 60_000);
            assert_eq!(Entries::reduce(&sets, &reduction), by_pairs, "{reduction:?} of {}", T::NAME);
        }
    }
    check::<f32>();
    check::<f64>();
    check::<bf16>();
    check::<f16>();
}

#[test]
fn a_bag_turns_dense_where_that_is_smaller() {
    fn most<T: Element>(len: usize) -> usize {
        let entries = |count: u32| (0..count).map(|i| (i, T::ONE)).collect::<Entries<T>>();
        let is_sparse = |count: &u32| matches!(Bag::smaller(entries(*count), len), Bag::Sparse(_));
        (0..=len as u32).take_while(is_sparse).count() - 1
    }
    // Of 12 values: 48 bytes hold 6 entries of 4 + 4, 96 bytes 8 of 4 + 8, and 24 bytes 4 of 4 + 2.
    assert_eq!((most::<f32>(12), most::<f64>(12), most::<bf16>(12), most::<f16>(12)), (6, 8, 4, 4));
    assert_eq!(Bag::<f32>::sum_of(Vec::new(), 9), Bag::empty());
    assert_eq!(Bag::<f32>::empty().nonzeros(), 0);
}

#[test]
fn what_is_absent_from_a_dense_bag_is_neutral() {
    let entries: Entries = (0..3).map(|i| (i, 5.0)).collect();
    for (reduction, neutral) in [
        (Reduction::Sum, -0.0),
        (Reduction::Max, f32::MIN),
        (Reduction::Min, f32::MAX),
        (Reduction::Product, 1.0),
    ] {
        let bag = Bag::smaller_with(entries.clone(), 4, &reduction);
        let Bag::Dense(values) = bag else { panic!("three of four are dense") };
        assert_eq!(
            values.iter().map(f32::to_bits).collect::<Vec<_>>(),
            [5.0, 5.0, 5.0, neutral].map(f32::to_bits)
        );
    }
}

/// Whichever form a bag has, its encoding says which of its zeros are sums.
#[test]
fn sums_that_cancel_are_entries() {
    let entries = |values: &[(u32, f32)]| values.iter().copied().collect::<Entries>();
    let (a, b) = (entries(&[(0, 1.0), (2, 3.0), (3, 4.0)]), entries(&[(0, -1.0), (3, 1.0)]));
    for len in [4, 5, 90] {
        for forms in 0..4 {
            let form = |entries: &Entries, bit: u32| match forms & bit {
                0 => Bag::Sparse(entries.clone()),
                _ => Bag::Dense(entries.to_dense_with(len, Reduction::Sum.neutral()).into()),
            };
            let sum = form(&a, 1).add(form(&b, 2), len);
            assert_eq!(sum.indices().as_ref(), [0, 2, 3], "{sum:?}");
            assert_eq!((sum.nonzeros(), sum.magnitudes().count()), (2, 2));
            assert_eq!(sum.into_entries(), entries(&[(0, 0.0), (2, 3.0), (3, 5.0)]));
        }
    }
}
