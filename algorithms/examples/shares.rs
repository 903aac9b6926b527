//! What groups that compete for k cost: counting the largest entries, and going over to other shares.

use std::time::Instant;

use gleaner_algorithms::collectives::{Routine, RoutineError};
use gleaner_algorithms::{Membership, Method, Rank, shares};

/// The entries of VGG-16.
const N: usize = 14_728_266;

fn main() -> Result<(), RoutineError> {
    let values: Vec<f32> = (0..N as u32)
        .map(|i| (i.wrapping_mul(0x9e37_79b9) as i32 as f32 / i32::MAX as f32).powi(3))
        .collect();
    let parts: Vec<&[f32]> = values.chunks(N / 50).collect();
    let median = |mut seconds: Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        1e3 * seconds[seconds.len() / 2]
    };
    let count = || {
        let clock = Instant::now();
        let counts = shares::among_largest(&parts, N / 100);
        assert!(counts.iter().sum::<u64>() >= N as u64 / 100);
        clock.elapsed().as_secs_f64()
    };
    println!("counting {N} entries: {:.1} ms", median((0..11).map(|_| count()).collect()));
    for workers in [4, 16, 64] {
        let membership = Membership::first(Rank(0), workers);
        let mut routine = Routine::new(Method::spardl().k(1000), membership, 100_000, 0)?;
        let mut seconds = Vec::new();
        for k in 1001..1012 {
            let clock = Instant::now();
            routine.aim_at(k)?;
            seconds.push(clock.elapsed().as_secs_f64());
        }
        println!("another k for a group among {workers} workers: {:.2} ms", median(seconds));
    }
    Ok(())
}
