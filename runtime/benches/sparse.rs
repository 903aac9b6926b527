//! What a step of gradients that are sparse already costs as vectors grow and their entries do not:
//! `cargo bench -p gleaner-runtime --bench sparse`.
//!
//! Four workers in one process, over its memory, each with 100,000 entries in every step, at other places on each rank and in each step.
//! Printed for each length n: the median time of a step, and the most bytes that were allocated at once by all four workers together,
//! beside their sessions and gradients. The dense ring and DSAR, whose sums are dense, are there to compare with, as far as memory lasts.

#[path = "../tests/held/mod.rs"]
mod held;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_algorithms::bag::Entries;
use gleaner_runtime::{Error, Roles, Session};
use gleaner_transport::memory;

const WORKERS: u32 = 4;
/// Of each worker in each step.
const ENTRIES: usize = 100_000;
const STEPS: usize = 11;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Methods, and the longest vectors that they are measured with: of those that make something dense, what memory lasts for.
const CASES: [(&str, usize); 4] = [
    ("ssar-recursive-double", 1_000_000_000),
    ("ssar-split-all-gather", 1_000_000_000),
    ("dsar-split-all-gather", 10_000_000),
    ("ring", 10_000_000),
];

fn main() -> Result<(), Error> {
    println!("{WORKERS} workers in one process, {ENTRIES} entries each, median of {STEPS} steps");
    println!("{:<22} {:>13} {:>12} {:>14}", "method", "n", "step (ms)", "peak (MiB)");
    for (name, longest) in CASES {
        let method = Method::named(name)?;
        for n in (5..=9).map(|zeros| 10usize.pow(zeros)).filter(|n| *n <= longest) {
            let (step, peak) = measure(&method, n)?;
            println!(
                "{name:<22} {n:>13} {:>12.2} {:>14.1}",
                1e3 * step.as_secs_f64(),
                peak as f64 / 1048576.0
            );
        }
    }
    Ok(())
}

/// The median time of a step, as the slowest worker takes it, and the most memory that was held in it.
fn measure(method: &Method, n: usize) -> Result<(Duration, usize), Error> {
    let together = &Barrier::new(WORKERS as usize);
    let of_workers: Result<Vec<Vec<Duration>>, Error> = std::thread::scope(|scope| {
        let workers: Vec<_> = memory::networks(WORKERS)
            .into_iter()
            .map(|network| {
                scope.spawn(move || -> Result<Vec<Duration>, Error> {
                    let session = Session::over_as(async { Ok(network) }, TIMEOUT, Roles::default())?;
                    let given: Vec<Entries> =
                        (0..=STEPS).map(|step| entries(n, session.rank(), step)).collect();
                    if together.wait().is_leader() {
                        held::begin();
                    }
                    together.wait();
                    let mut reducer = session.sparse_reducer("w", n, method.clone())?;
                    let mut times = Vec::new();
                    for entries in &given {
                        together.wait();
                        let clock = Instant::now();
                        drop(reducer.start(entries)?.wait()?);
                        times.push(clock.elapsed());
                    }
                    together.wait();
                    Ok(times)
                })
            })
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.map(|times| times.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let of_workers = of_workers?;
    // The first step makes the memory that the others use.
    let slowest = |step: usize| of_workers.iter().map(|times| times[step]).max().unwrap_or_default();
    let mut steps: Vec<Duration> = (1..=STEPS).map(slowest).collect();
    steps.sort();
    Ok((steps[STEPS / 2], held::peak()))
}

/// Entries at even distances, moved by some of them from rank to rank and from step to step.
fn entries(n: usize, rank: usize, step: usize) -> Entries {
    let apart = (n / ENTRIES).max(1);
    let moved = |i: usize| (7919 * i + 31 * rank + 17 * step) % apart;
    (0..ENTRIES.min(n)).map(|i| ((i * apart + moved(i)) as u32, (i % 1000) as f32 - 499.5)).collect()
}
