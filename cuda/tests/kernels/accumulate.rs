//! Sums, candidates, records and what is not finite, in any alignment.

use half::{bf16, f16};

use crate::emulation::{Emulation, NO_LIMIT, POISON, Placed, THREADS, TILE, emulation, launch};
use crate::format::{Format, comparable, magnitude};
use crate::random::Random;

/// One call of accumulate.
struct Case<F> {
    held: Vec<f32>,
    gradient: Vec<F>,
    /// By how many values each is past a multiple of 16 bytes.
    past: (usize, usize),
    first: u32,
    replaces: bool,
    limit: u32,
    capacity: usize,
    grid: u32,
}

impl<F: Format> Case<F> {
    fn random(random: &mut Random, count: usize) -> Self {
        Self {
            held: (0..count).map(|_| random.gradient()).collect(),
            gradient: (0..count).map(|_| F::of(random.gradient())).collect(),
            past: (0, 0),
            first: 0,
            replaces: false,
            limit: magnitude(5e-3),
            capacity: count,
            grid: 3,
        }
    }

    fn sums(&self) -> Vec<f32> {
        let sum = |(held, given): (&f32, &F)| if self.replaces { given.wide() } else { held + given.wide() };
        self.held.iter().zip(&self.gradient).map(sum).collect()
    }

    /// Runs it, and compares everything that it writes.
    fn check(&self, emulation: &Emulation) {
        let count = self.gradient.len();
        let tiles = count.div_ceil(TILE);
        let mut values = Placed::new(&self.held, self.past.0, 123.0);
        let mut gradient = Placed::new(&self.gradient, self.past.1, F::of(123.0));
        let mut indices = Placed::new(&vec![POISON; self.capacity], 0, POISON);
        let mut found = Placed::new(&vec![POISON; self.capacity], 0, POISON);
        let mut records = Placed::new(&vec![[POISON; 2]; tiles], 0, [POISON; 2]);
        let mut status = [u64::MAX, 0];
        let mut reserved = 0u32;
        // Where in memory the values lie that the positions count from.
        let base = 1u64 << 40;
        launch!(
            emulation,
            &format!("accumulate_{}", F::NAME),
            self.grid,
            THREADS,
            values.as_mut_ptr(),
            gradient.as_mut_ptr(),
            count as u32,
            self.first,
            u32::from(self.replaces),
            self.limit,
            indices.as_mut_ptr(),
            found.as_mut_ptr(),
            self.capacity as u32,
            &raw mut reserved,
            records.as_mut_ptr(),
            &raw mut status,
            base
        );

        let sums = self.sums();
        let bits = |values: &[f32]| values.iter().copied().map(comparable).collect::<Vec<_>>();
        assert!(bits(values.values()) == bits(&sums), "sums");
        let broken: Vec<usize> = (0..count).filter(|&i| !sums[i].is_finite()).collect();
        assert_eq!(status, [broken.first().map_or(u64::MAX, |&i| base + i as u64), broken.len() as u64]);
        if self.limit == NO_LIMIT {
            assert!(reserved == 0 && records.values().iter().all(|record| *record == [POISON; 2]));
            return;
        }
        self.check_candidates(&sums, records.values(), indices.values(), found.values(), reserved);
    }

    fn check_candidates(
        &self,
        sums: &[f32],
        records: &[[u32; 2]],
        indices: &[u32],
        found: &[u32],
        reserved: u32,
    ) {
        let mut taken = vec![false; self.capacity];
        let mut all = 0;
        for (tile, &[start, count]) in records.iter().enumerate() {
            let from = tile * TILE;
            let of_tile = from..sums.len().min(from + TILE);
            let expected: Vec<usize> = of_tile.filter(|&i| magnitude(sums[i]) >= self.limit).collect();
            assert_eq!(count as usize, expected.len(), "candidates of tile {tile}");
            for (at, i) in (start as usize..).zip(expected).take_while(|(at, _)| *at < self.capacity) {
                assert_eq!((indices[at], found[at]), (self.first + i as u32, sums[i].to_bits()));
                assert!(!std::mem::replace(&mut taken[at], true), "two tiles have one place");
            }
            all += count;
        }
        assert_eq!(reserved, all);
        assert!((0..self.capacity).all(|at| taken[at] == (at < all as usize)), "gaps");
        assert!((0..self.capacity).all(|at| taken[at] || indices[at] == POISON));
    }
}

fn every_alignment<F: Format>() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(1);
    for count in [1, 3, 31, 512, 513, TILE - 1, TILE, TILE + 1, 3 * TILE + 517] {
        for past in [(0, 0), (0, 1), (1, 0), (2, 2), (3, 1), (1, 5)] {
            for replaces in [false, true] {
                let case = Case { past, replaces, first: 77, ..Case::<F>::random(&mut random, count) };
                case.check(emulation);
            }
        }
    }
}

#[test]
fn f32_in_every_alignment() {
    every_alignment::<f32>();
}

#[test]
fn f16_in_every_alignment() {
    every_alignment::<f16>();
}

#[test]
fn bf16_in_every_alignment() {
    every_alignment::<bf16>();
}

#[test]
fn any_limit_any_grid_any_order() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(2);
    for limit in [1, magnitude(1e-9), magnitude(9e-3), 0x7f7f_ffff, NO_LIMIT - 1, NO_LIMIT] {
        for (grid, past) in [(1, 0), (2, 1), (7, 0)] {
            emulation.descend(grid == 7);
            let mut case =
                Case::<f32> { limit, grid, past: (past, past), ..Case::random(&mut random, 6 * TILE + 100) };
            // Whole tiles of zeros: tiles without candidates among others.
            case.held[TILE..3 * TILE].fill(0.0);
            case.gradient[TILE..3 * TILE].fill(-0.0);
            case.check(emulation);
        }
    }
    emulation.descend(false);
}

#[test]
fn what_does_not_fit_is_counted() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(3);
    for capacity in [0, 1, 100, 4095, 2 * TILE - 1, 2 * TILE + 5] {
        for past in [0, 1] {
            let count = 2 * TILE + 5;
            Case::<f32> { capacity, limit: 1, past: (past, past), ..Case::random(&mut random, count) }
                .check(emulation);
        }
    }
}

#[test]
fn what_is_not_finite_is_counted() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(4);
    for past in [0, 3] {
        for broken in [1, 20, 4000] {
            let mut case = Case::<f32> { past: (past, past), ..Case::random(&mut random, 3 * TILE + 9) };
            for i in random.indices(3 * TILE as u32, broken) {
                let i = i as usize;
                match i % 4 {
                    0 => case.gradient[i] = f32::NAN,
                    1 => case.held[i] = f32::NEG_INFINITY,
                    2 => (case.held[i], case.gradient[i]) = (f32::INFINITY, f32::NEG_INFINITY),
                    // Neither is infinite by itself.
                    _ => (case.held[i], case.gradient[i]) = (f32::MAX, f32::MAX),
                }
            }
            // A NaN's payload differs between processors where it is a sum: only finite ones are compared by bits.
            case.limit = NO_LIMIT;
            case.check(emulation);
        }
    }
    let mut all: Case<f16> = Case::random(&mut random, TILE + 1);
    all.gradient.fill(f16::INFINITY);
    (all.replaces, all.limit) = (true, 1);
    all.check(emulation);
}

#[test]
fn sums_round_as_on_the_cpu() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(5);
    let count = 16 * TILE;
    let mut case = Case::<f32> { limit: NO_LIMIT, ..Case::random(&mut random, count) };
    for i in 0..count {
        case.held[i] = random.finite();
        // Close enough that both count, and subnormal sums.
        let near = f32::from_bits(case.held[i].to_bits() ^ (random.word() & 0x83ff_ffff));
        case.gradient[i] = if i % 3 == 0 {
            random.finite()
        } else if near.is_finite() {
            near
        } else {
            0.0
        };
        if i % 5 == 0 {
            (case.held[i], case.gradient[i]) =
                (f32::from_bits(random.word() & 0x80ff_ffff), f32::from_bits(random.word() & 0x80ff_ffff));
        }
    }
    case.check(emulation);
}

fn every_value<F: Format>() {
    let Some(emulation) = emulation() else { return };
    for past in [0, 1] {
        for replaces in [false, true] {
            let gradient: Vec<F> = (0..1 << 16).map(F::with_bits).collect();
            let held = vec![-0.0; gradient.len()];
            let (first, limit, capacity, grid) = (0, NO_LIMIT, 0, 4);
            Case { held, gradient, past: (past, past), first, replaces, limit, capacity, grid }
                .check(emulation);
        }
    }
}

#[test]
fn every_f16() {
    every_value::<f16>();
}

#[test]
fn every_bf16() {
    every_value::<bf16>();
}
