//! Exact selections, from values and from candidates, of streams that a selection by digits or by samples may trip over.

use std::ops::Range;

use crate::emulation::{CHUNK, Emulation, THREADS, TILE, emulation, launch};
use crate::format::magnitude;
use crate::random::Random;
use crate::selection::{Candidates, Want, expected, select_dense};

const N: usize = 3 * TILE + 517;

fn streams() -> Vec<(&'static str, Vec<f32>)> {
    let mut random = Random::new(11);
    let of = |value: &mut dyn FnMut(usize) -> f32| (0..N).map(value).collect::<Vec<_>>();
    let mut streams = vec![
        ("equal", of(&mut |_| 0.25)),
        ("zero", of(&mut |i| if i % 2 == 0 { 0.0 } else { -0.0 })),
        ("two values", of(&mut |i| if i % 7 == 0 { -3.0 } else { 2.0 })),
        ("few non-zero", of(&mut |i| if i % 1000 == 999 { 1.0 } else { 0.0 })),
        ("subnormal", of(&mut |i| f32::from_bits((i as u32 * 2_654_435_761) >> 12))),
        ("one huge", of(&mut |i| if i == N - 2 { f32::MAX } else { 1e-20 })),
        ("alternating", of(&mut |i| if i % 2 == 0 { i as f32 } else { -(i as f32) })),
        ("ascending", of(&mut |i| i as f32)),
        ("descending bits", of(&mut |i| f32::from_bits((N - i) as u32))),
        ("last digit differs", of(&mut |i| f32::from_bits(0x3f80_0000 | (i as u32 % 1024)))),
        ("infinite", of(&mut |i| if i % 5 == 0 { f32::INFINITY } else { i as f32 })),
    ];
    streams.push(("gradient", of(&mut |_| random.gradient())));
    streams.push(("any bits", of(&mut |_| random.finite())));
    streams
}

/// Parts of a block as backpropagation hands them over: the last one first.
fn backwards(len: usize, cuts: &[usize]) -> Vec<Range<usize>> {
    let edges: Vec<usize> = [0].into_iter().chain(cuts.iter().copied()).chain([len]).collect();
    edges.windows(2).rev().map(|edge| edge[0]..edge[1]).collect()
}

fn check_dense(emulation: &Emulation, name: &str, values: &[f32], want: Want) {
    for (grid, descending) in [(1, false), (3, true)] {
        emulation.descend(descending);
        let (selected, cut) = select_dense(emulation, values, want, values.len(), grid);
        assert_eq!(selected, expected(values, want, values.len()), "{want:?} of {name}");
        if let Want::Largest(k) = want {
            let non_zero = values.iter().filter(|value| **value != 0.0).count();
            assert_eq!(cut.reached as usize, if k == 0 { 0 } else { non_zero }, "{want:?} of {name}");
        }
    }
    emulation.descend(false);
}

#[test]
fn the_largest_values() {
    let Some(emulation) = emulation() else { return };
    for (name, values) in streams() {
        for k in [0, 1, 2, 100, TILE, N - 1, N, N + 10] {
            check_dense(emulation, name, &values, Want::Largest(k as u32));
        }
    }
}

#[test]
fn values_that_reach_a_limit() {
    let Some(emulation) = emulation() else { return };
    for (name, values) in streams() {
        for limit in [1, magnitude(0.25), magnitude(0.25) + 1, magnitude(2.0), 0x7f80_0000, 0x7fff_ffff] {
            check_dense(emulation, name, &values, Want::Reaching(limit));
        }
    }
}

#[test]
fn any_length() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(12);
    for n in [1, 2, 31, 32, 33, 511, 513, TILE - 1, TILE, TILE + 1, 2 * TILE] {
        // Few different magnitudes, so that the cut is among equal ones.
        let values: Vec<f32> = (0..n).map(|_| random.below(9) as f32 - 4.0).collect();
        for k in [1, n / 3, n / 2, n] {
            check_dense(emulation, "few magnitudes", &values, Want::Largest(k as u32));
        }
    }
}

#[test]
fn the_largest_candidates() {
    let Some(emulation) = emulation() else { return };
    let parts = [vec![], vec![700, 5000, 5001, 9999], vec![TILE, 2 * TILE]];
    for (name, values) in streams() {
        let mut magnitudes: Vec<u32> =
            values.iter().map(|value| magnitude(*value)).filter(|&bits| bits != 0).collect();
        magnitudes.sort_unstable_by(|a, b| b.cmp(a));
        for (cuts, k) in parts.iter().zip([40, 1000, 1]) {
            // As if twice as many were wanted, and with all non-zero ones.
            for limit in [magnitudes.get(2 * k).copied().unwrap_or(1), 1] {
                let reaching = magnitudes.iter().filter(|&&bits| bits >= limit).count();
                for (grid, descending) in [(2, false), (5, true)] {
                    emulation.descend(descending);
                    let calls = backwards(N, cuts);
                    let found = Candidates::collect(emulation, &values, &calls, limit, reaching, grid);
                    for want in [
                        Want::Largest(k as u32),
                        Want::Largest(0),
                        Want::Reaching(limit),
                        Want::Reaching(limit + 9),
                    ] {
                        let (selected, cut) = found.select(emulation, want, N, grid);
                        assert_eq!(selected, expected(&values, want, N), "{want:?} of {name}, {cuts:?}");
                        if let Want::Largest(_) = want {
                            assert_eq!(cut.reached as usize, reaching);
                        }
                    }
                }
                emulation.descend(false);
            }
        }
    }
}

#[test]
fn ties_across_tiles_go_to_the_lower_index() {
    let Some(emulation) = emulation() else { return };
    let mut values = vec![0.5f32; N];
    values[N - 1] = 9.0;
    values[0] = -0.5;
    let calls = backwards(N, &[100, TILE + 3, 2 * TILE]);
    for k in [1, 2, 101, TILE as u32 + 1, 2 * TILE as u32 + 2, N as u32 - 1] {
        let found = Candidates::collect(emulation, &values, &calls, 1, N, 2);
        let (selected, _) = found.select(emulation, Want::Largest(k), N, 2);
        let indices: Vec<u32> = selected.entries.iter().map(|(index, _)| *index).collect();
        let lowest: Vec<u32> = (0..k - 1).chain([N as u32 - 1]).collect();
        assert!(indices == lowest, "{k}");
    }
}

#[test]
fn of_more_than_fit_the_first_are_written() {
    let Some(emulation) = emulation() else { return };
    let (_, values) = streams().pop().unwrap();
    let found = Candidates::collect(emulation, &values, &backwards(N, &[5000]), 1, N, 2);
    for most in [0, 1, 100] {
        for want in [Want::Reaching(magnitude(1.0)), Want::Largest(500)] {
            let wanted = expected(&values, want, most);
            assert_eq!(select_dense(emulation, &values, want, most, 2).0, wanted);
            assert_eq!(found.select(emulation, want, most, 2).0, wanted);
        }
    }
}

#[test]
fn of_candidates_without_room_nothing_is_chosen() {
    let Some(emulation) = emulation() else { return };
    let (_, values) = streams().pop().unwrap();
    let found = Candidates::collect(emulation, &values, &backwards(N, &[5000]), 1, N / 2, 2);
    for want in [Want::Largest(10), Want::Reaching(1)] {
        let (selected, cut) = found.select(emulation, want, N, 2);
        assert_eq!((selected.kept, selected.smallest), (0, u32::MAX));
        if let Want::Largest(_) = want {
            assert!(cut.reached as usize > N / 2, "it shows why");
        }
    }
}

#[test]
fn offsets_of_many_tiles() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(13);
    for tiles in [0usize, 1, 3, 4, 1023, 1024, 1025, 4095, 4096, 4097, 12_345, 300_000] {
        let given: Vec<u32> = (0..2 * tiles).map(|_| random.below(TILE) as u32).collect();
        let ties = given.iter().skip(1).step_by(2).sum::<u32>() / 2;
        let mut counts = given.clone();
        let mut cut = [123u32, ties, 5, 0, u32::MAX, ties, 0, 0];
        let mut chunks = vec![0u64; tiles.div_ceil(CHUNK).max(1)];
        let (grid, at) = (chunks.len() as u32, chunks.as_mut_ptr());
        launch!(emulation, "offsets", grid, THREADS, counts.as_mut_ptr(), tiles as u32, at, cut.as_mut_ptr());
        let mut sums = [0u32; 2];
        for i in 0..2 * tiles {
            let before = (chunks[i / 2 / CHUNK] >> (32 * (i % 2))) as u32;
            assert_eq!(before + counts[i], sums[i % 2], "{i} of {tiles}");
            sums[i % 2] += given[i];
        }
        let smallest = if ties > 0 { 123 } else { u32::MAX };
        assert_eq!(cut, [123, ties, 5, sums[0] + ties, smallest, ties, 0, 0]);
    }
}
