//! Every path against a map from index to value.

use std::collections::BTreeMap;

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::reduction::tests::{all, finite};

/// What a merge is, by its definition.
fn plainly<T: Element>(a: &Entries<T>, b: &Entries<T>, reduction: &Reduction<T>) -> Vec<(u32, u64)> {
    let mut both: BTreeMap<u32, T> = a.iter().collect();
    for (index, value) in b.iter() {
        both.entry(index).and_modify(|here| *here = reduction.combine(*here, value)).or_insert(value);
    }
    both.into_iter().map(|(i, v)| (i, v.bits())).collect()
}

fn entries<T: Element>(raw: &BTreeMap<u32, u64>) -> Entries<T> {
    raw.iter().map(|(&index, &raw)| (index, finite(raw))).collect()
}

fn check<T: Element>(a: &BTreeMap<u32, u64>, b: &BTreeMap<u32, u64>) {
    let (a, b) = (entries::<T>(a), entries::<T>(b));
    // Memory that held something before, of another length.
    let mut out: Entries<T> = (0..300).map(|i| (i, T::ONE)).collect();
    for reduction in all::<T>() {
        for simd in [Simd::Portable, Simd::best()] {
            merge_on(simd, (SortedRun::of(&a), SortedRun::of(&b)), &reduction, &mut out);
            let found: Vec<(u32, u64)> = out.iter().map(|(i, v)| (i, v.bits())).collect();
            let expected = plainly(&a, &b, &reduction);
            assert_eq!(found, expected, "{simd:?}, {reduction:?}, {}", T::NAME);
            assert_eq!(out.indices.len(), out.values.len());
        }
    }
}

/// Some entries at few indices or at many, near the start or near the end of what u32 holds.
fn raw() -> impl Strategy<Value = BTreeMap<u32, u64>> {
    let index =
        prop_oneof![0u32..100, 0u32..2000, (0u32..600).prop_map(|back| u32::MAX - back), any::<u32>()];
    index.prop_flat_map(|most| {
        prop::collection::btree_map(most.saturating_sub(700)..=most, any::<u64>(), 0..400)
    })
}

proptest! {
    #[test]
    fn every_path_merges_as_a_map_does(a in raw(), b in raw()) {
        check::<f32>(&a, &b);
        check::<f64>(&a, &b);
        check::<bf16>(&a, &b);
        check::<f16>(&a, &b);
    }
}

#[test]
fn runs_of_every_length_that_lie_apart_or_alternate() {
    let run = |len: u32, first: u32, step: u32| -> BTreeMap<u32, u64> {
        // Small numbers, of which some cancel.
        (0..len).map(|i| (first + i * step, u64::from((i % 14) << 8 | 2))).collect()
    };
    for len in (0..70).chain([127, 128, 129, 1000]) {
        for other in [0, 1, 15, 16, 17, 33, 500] {
            for (first, step, other_first, other_step) in [
                (0, 1, 0, 1),
                (0, 2, 1, 2),
                (0, 1, 2000, 1),
                (4_000, 1, 0, 1),
                (0, 3, 0, 2),
                (u32::MAX - 4000, 4, u32::MAX - 3900, 1),
            ] {
                check::<f32>(&run(len, first, step), &run(other, other_first, other_step));
            }
        }
    }
}
