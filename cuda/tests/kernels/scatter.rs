//! Entries of the accumulator at indices, and all of it.

use crate::emulation::{Emulation, THREADS, emulation, launch};
use crate::format::comparable;
use crate::random::Random;

/// Values, indices of some of them, and a value for each index, of any bits.
fn given(random: &mut Random, n: u32, count: usize) -> (Vec<f32>, Vec<u32>, Vec<f32>) {
    let values = (0..n).map(|_| random.finite()).collect();
    let indices = random.indices(n, count);
    (values, indices, (0..count).map(|_| random.finite()).collect())
}

fn check(emulation: &Emulation, grid: u32, n: u32, count: usize) {
    let mut random = Random::new(21);
    let (values, indices, entries) = given(&mut random, n, count);
    let len = count as u32;
    let at: Vec<usize> = indices.iter().map(|&index| index as usize).collect();

    let mut out = vec![0.0f32; count];
    launch!(emulation, "gather", grid, THREADS, values.as_ptr(), indices.as_ptr(), len, out.as_mut_ptr());
    assert!((0..count).all(|i| out[i].to_bits() == values[at[i]].to_bits()));

    let (mut cleared, mut set, mut added) = (values.clone(), values.clone(), values.clone());
    launch!(emulation, "clear_at", grid, THREADS, cleared.as_mut_ptr(), indices.as_ptr(), len);
    launch!(emulation, "set_at", grid, THREADS, set.as_mut_ptr(), indices.as_ptr(), entries.as_ptr(), len);
    launch!(emulation, "add_at", grid, THREADS, added.as_mut_ptr(), indices.as_ptr(), entries.as_ptr(), len);
    let (mut zeros, mut written, mut sums) = (values.clone(), values.clone(), values.clone());
    for i in 0..count {
        zeros[at[i]] = 0.0;
        written[at[i]] = entries[i];
        sums[at[i]] += entries[i];
    }
    for (kernel, plain) in [(cleared, zeros), (set, written), (added, sums)] {
        assert!(kernel.iter().zip(&plain).all(|(a, b)| comparable(*a) == comparable(*b)));
    }
}

#[test]
fn at_indices() {
    let Some(emulation) = emulation() else { return };
    for (grid, n, count) in [(1, 1, 1), (1, 5000, 0), (2, 5000, 255), (3, 5000, 4999), (40, 5000, 5000)] {
        check(emulation, grid, n, count);
    }
}

#[test]
fn all_of_it() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(22);
    for (grid, n) in [(1, 1), (1, 1023), (1, 1024), (2, 5001), (9, 5001)] {
        let (values, _, given) = given(&mut random, n, n as usize);
        let mut sums = values.clone();
        launch!(emulation, "add_all", grid, THREADS, sums.as_mut_ptr(), given.as_ptr(), u64::from(n));
        assert!((0..n as usize).all(|i| comparable(sums[i]) == comparable(values[i] + given[i])));
    }
}
