//! Updates where parameters lie: quotients, products, sums and their rounding to each format.

use half::{bf16, f16};

use crate::emulation::{THREADS, emulation, launch};
use crate::format::{Format, comparable};
use crate::random::Random;

const N: usize = 5000;

/// Any bits, and values of about one size, whose sums cancel and round.
fn values<F: Format>(random: &mut Random) -> Vec<F> {
    (0..N).map(|i| if i % 2 == 0 { F::with_bits(random.word()) } else { F::of(random.unit()) }).collect()
}

fn same<F: Format>(kernel: &[F], plain: impl Iterator<Item = F>) {
    for (i, (kernel, plain)) in kernel.iter().zip(plain).enumerate() {
        assert_eq!(comparable(*kernel), comparable(plain), "entry {i}: {kernel:?}, {plain:?}");
    }
}

fn means<F: Format>() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(31);
    for (grid, divisor) in [(1, 1u32), (2, 2), (3, 3), (4, 7), (5, 1000), (30, u32::MAX)] {
        let held: Vec<F> = values(&mut random);
        let mut given: Vec<f32> = values(&mut random);
        (given[0], given[1]) = (-0.0, f32::from_bits(0x8000_0001));
        let mean = |value: f32| F::of(value / divisor as f32 + 0.0);

        let mut all = held.clone();
        let name = format!("write_all_{}", F::NAME);
        launch!(emulation, &name, grid, THREADS, all.as_mut_ptr(), given.as_ptr(), N as u64, divisor);
        same(&all, given.iter().map(|value| mean(*value)));

        let indices = random.indices(N as u32, N / 3);
        let (mut some, mut plain) = (held.clone(), held);
        let name = format!("write_at_{}", F::NAME);
        launch!(
            emulation,
            &name,
            grid,
            THREADS,
            some.as_mut_ptr(),
            indices.as_ptr(),
            given.as_ptr(),
            indices.len() as u32,
            divisor
        );
        for (index, value) in indices.iter().zip(&given) {
            plain[*index as usize] = mean(*value);
        }
        same(&some, plain.into_iter());
    }
}

fn scaled_sums<F: Format>() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(32);
    for (grid, scale) in [(1, 1.0f32), (2, -0.1), (3, 1.0 / 3.0), (4, 0.0), (5, -1e-38), (30, 3e38)] {
        let (held, given): (Vec<F>, Vec<f32>) = (values(&mut random), values(&mut random));
        // In Rust neither is contracted.
        let sum = |held: F, value: f32| F::of(held.wide() + scale * value);

        let mut all = held.clone();
        let name = format!("add_all_scaled_{}", F::NAME);
        launch!(emulation, &name, grid, THREADS, all.as_mut_ptr(), given.as_ptr(), N as u64, scale);
        same(&all, held.iter().zip(&given).map(|(held, value)| sum(*held, *value)));

        let indices = random.indices(N as u32, N / 3);
        let (mut some, mut plain) = (held.clone(), held);
        let name = format!("add_at_{}", F::NAME);
        launch!(
            emulation,
            &name,
            grid,
            THREADS,
            some.as_mut_ptr(),
            indices.as_ptr(),
            given.as_ptr(),
            indices.len() as u32,
            scale
        );
        for (index, value) in indices.iter().zip(&given) {
            plain[*index as usize] = sum(plain[*index as usize], *value);
        }
        same(&some, plain.into_iter());
    }
}

/// What lies half-way between two values of 16 bits, and just beside it.
fn halfway<F: Format>() {
    let Some(emulation) = emulation() else { return };
    let mut given = Vec::new();
    for bits in 0..1 << 16 {
        let (low, high) = (F::with_bits(bits).wide(), F::with_bits(bits + 1).wide());
        let middle = (f64::from(low) + f64::from(high)) / 2.0;
        let bits = (middle as f32).to_bits();
        given.extend([bits.wrapping_sub(1), bits, bits.wrapping_add(1)].map(f32::from_bits));
    }
    let mut all = vec![F::of(0.0); given.len()];
    let name = format!("write_all_{}", F::NAME);
    launch!(emulation, &name, 16, THREADS, all.as_mut_ptr(), given.as_ptr(), given.len() as u64, 1u32);
    same(&all, given.iter().map(|value| F::of(*value + 0.0)));
}

#[test]
fn f32_means_and_sums() {
    means::<f32>();
    scaled_sums::<f32>();
}

#[test]
fn f16_means_and_sums() {
    means::<f16>();
    scaled_sums::<f16>();
    halfway::<f16>();
}

#[test]
fn bf16_means_and_sums() {
    means::<bf16>();
    scaled_sums::<bf16>();
    halfway::<bf16>();
}
