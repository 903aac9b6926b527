//! What groups that compete for k cost: counting the largest entries, and going over to other shares.

use std::time::Instant;

use gleaner_algorithms::collectives::{Routine, RoutineError};
use gleaner_algorithms::{Membership, Method, Rank, shares};
use gleaner_statistics::median;
use gleaner_statistics::random::Generator;

/// The entries of VGG-16.
const N: usize = 14_728_266;

fn main() -> Result<(), RoutineError> {
    let mut random = Generator::seeded(0);
    let values: Vec<f32> = (0..N).map(|_| random.symmetric().powi(3)).collect();
    let parts: Vec<&[f32]> = values.chunks(N / 50).collect();
    let count = || {
        let clock = Instant::now();
        let counts = shares::among_largest(&parts, N / 100);
        assert!(counts.iter().sum::<u64>() >= N as u64 / 100);
        clock.elapsed().as_secs_f64()
    };
    println!("counting {N} entries: {:.1} ms", 1e3 * median((0..11).map(|_| count())));
    for workers in [4, 16, 64] {
        let membership = Membership::first(Rank(0), workers);
        let mut routine = Routine::new(Method::spardl().k(1000), membership, 100_000, 0)?;
        let mut seconds = Vec::new();
        for k in 1001..1012 {
            let clock = Instant::now();
            routine.aim_at(k)?;
            seconds.push(clock.elapsed().as_secs_f64());
        }
        println!("another k for a group among {workers} workers: {:.2} ms", 1e3 * median(seconds));
    }
    Ok(())
}
