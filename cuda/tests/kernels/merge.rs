//! Sums of entries, against the host's.

use gleaner_algorithms::bag::Entries;

use crate::emulation::{CHUNK, Emulation, POISON, Placed, THREADS, emulation, launch};
use crate::random::Random;

/// What the kernels make of both, unless they write anything else than one entry for each index. Nothing beside may be written.
fn merge(emulation: &Emulation, held: &Entries, came: &Entries) -> Entries {
    let place = |words: &[u32]| Placed::new(words, 0, POISON);
    let all = held.len() + came.len();
    let (mut below, mut noted) = (place(&vec![POISON; held.len()]), place(&[0; 4]));
    let (mut out, mut out_values) = (place(&vec![POISON; all]), place(&vec![POISON; all]));
    let grid = held.len().div_ceil(CHUNK) as u32;
    let mut both = Placed::new(&vec![0u64; grid as usize], 0, u64::from(POISON));
    let (a, a_values, n) = (held.indices.as_ptr(), held.values.as_ptr(), held.len() as u32);
    let (b, b_values, m) = (came.indices.as_ptr(), came.values.as_ptr(), came.len() as u32);
    let (lower, sums, at) = (below.as_mut_ptr(), both.as_mut_ptr(), noted.as_mut_ptr());
    let (to, into) = (out.as_mut_ptr(), out_values.as_mut_ptr());
    launch!(emulation, "find_held", grid, THREADS, a, n, b, m, lower, sums, at);
    launch!(emulation, "write_held", grid, THREADS, a, a_values, n, b, b_values, m, lower, sums, to, into);
    launch!(emulation, "write_came", 3, THREADS, a, n, b, b_values, m, lower, at, to, into);
    let &[wrong, joined, ready, unused] = noted.values() else { panic!("four words") };
    assert_eq!((wrong, ready, unused), (0, 0, 0), "left as they were found");
    assert_eq!((below.values().len(), both.values().len()), (held.len(), grid as usize));
    let count = all - joined as usize;
    let values = out_values.values()[..count].iter().map(|bits| f32::from_bits(*bits)).collect();
    assert!(out.values()[count..].iter().all(|word| *word == POISON) || !is_sorted(held, came));
    Entries { indices: out.values()[..count].to_vec(), values }
}

/// What was decoded, with the values of a block.
fn added(emulation: &Emulation, block: &[f32], came: &Entries, wrong: u32) -> Vec<u32> {
    let bits: Vec<u32> = came.values.iter().map(|value| value.to_bits()).collect();
    let (mut values, noted) = (Placed::new(&bits, 0, POISON), [wrong, 0, 0, 0]);
    let (at, indices, into) = (block.as_ptr(), came.indices.as_ptr(), values.as_mut_ptr());
    launch!(emulation, "add_block", 3, THREADS, at, indices, into, came.len() as u32, noted.as_ptr());
    values.values().to_vec()
}

#[test]
fn the_values_of_a_block_are_added_unless_the_bag_is_malformed() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(54);
    let block: Vec<f32> = (0..5000).map(|_| random.finite()).collect();
    let mut came = entries(&mut random, 5000, 3000);
    let sum = |(index, value): (u32, f32)| (block[index as usize] + value).to_bits();
    assert_eq!(added(emulation, &block, &came, 0), came.iter().map(sum).collect::<Vec<_>>());
    // An index beyond the block is not looked up.
    came.indices[2999] = u32::MAX;
    let unchanged: Vec<u32> = came.values.iter().map(|value| value.to_bits()).collect();
    assert_eq!(added(emulation, &block, &came, 1), unchanged);
}

fn is_sorted(held: &Entries, came: &Entries) -> bool {
    [held, came].iter().all(|entries| entries.indices.is_sorted_by(|a, b| a < b))
}

fn check(emulation: &Emulation, held: &Entries, came: &Entries) {
    let bits = |entries: &Entries| entries.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let expected = held.merge(came);
    for descending in [false, true] {
        emulation.descend(descending);
        let found = merge(emulation, held, came);
        assert!(found.indices == expected.indices && bits(&found) == bits(&expected));
    }
    emulation.descend(false);
}

/// So many of the indices below a bound, with any finite values.
fn entries(random: &mut Random, bound: u32, count: usize) -> Entries {
    let mut indices = random.indices(bound, count);
    indices.sort_unstable();
    indices.into_iter().map(|index| (index, random.finite())).collect()
}

#[test]
fn sums_are_those_of_the_host() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(51);
    for (bound, n, m) in [
        (1, 1, 1),
        (2, 1, 1),
        (5000, 1, 3000),
        (5000, 3000, 1),
        (5000, 1023, 1024),
        (5000, 1025, 2049),
        (3000, 3000, 3000),
        (3000, 2900, 40),
        (100_000, 3000, 5000),
    ] {
        let (held, came) = (entries(&mut random, bound, n), entries(&mut random, bound, m));
        check(emulation, &held, &came);
    }
}

#[test]
fn all_before_all_behind_by_turns_and_sums_that_cancel() {
    let Some(emulation) = emulation() else { return };
    let of =
        |indices: Vec<u32>, value: f32| indices.into_iter().map(|index| (index, value)).collect::<Entries>();
    let (low, high) = (of((0..2000).collect(), 1.5), of((2000..4100).collect(), 2.5));
    check(emulation, &low, &high);
    check(emulation, &high, &low);
    check(
        emulation,
        &of((0..3000).map(|i| 2 * i).collect(), 1.0),
        &of((0..3000).map(|i| 2 * i + 1).collect(), 2.0),
    );
    let both = merge(emulation, &low, &of((0..2000).collect(), -1.5));
    assert_eq!(both, of((0..2000).collect(), 0.0), "sums that are zero are entries");
    assert!(both.values.iter().all(|value| value.is_sign_positive()));
    check(emulation, &of(vec![u32::MAX - 1], 1.0), &of(vec![0, u32::MAX - 1], 3e38));
}

#[test]
fn indices_that_do_not_ascend_write_nowhere_else() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(52);
    for _ in 0..20 {
        let mut anything = |count: usize, bound: usize| -> Entries {
            (0..count).map(|_| (random.below(bound) as u32, random.finite())).collect()
        };
        let sides = [anything(2000, 3000), anything(1500, 3000), anything(1500, 5)];
        // As many are said to be on both sides as held ones are found.
        sides.iter().flat_map(|held| sides.iter().map(move |came| (held, came))).for_each(|(held, came)| {
            drop(merge(emulation, held, came));
        });
    }
}
