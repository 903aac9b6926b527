//! ExDyna on a stream of gradients that become 100 times smaller over 2,000 steps, with three jumps of the learning rate:
//!
//! - `cargo run --release -p gleaner-algorithms --example exdyna -- controllers --svg FILE`: the printed controllers beside the
//!   corrected ones;
//! - `… --example exdyna -- figures --svg FILE`: what the paper plots (Figs. 6, 9 and 10), beside other ways of choosing.
//!
//! Options: `--workers P`, `--n ENTRIES`, `--k ENTRIES`, `--svg FILE`.

mod controllers;
mod figures;
mod panel;
#[path = "../../tests/invariants/streams.rs"]
mod streams;

use std::error::Error;

use streams::{Followed, JUMPS, STEPS};

/// Steps until a controller is expected to be steady.
const TRANSIENT: usize = 100;

/// What is run: this many workers, entries, and entries to select.
struct Job {
    workers: usize,
    n: usize,
    k: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1)
    };
    let number = |name: &str, default: usize| option(name).map_or(Ok(default), |text| text.parse());
    let job = Job { workers: number("--workers", 4)?, n: number("--n", 200_000)?, k: number("--k", 4000)? };
    let Job { workers, n, k } = job;
    println!("P = {workers}, n = {n}, k = {k}, {STEPS} steps, learning rate jumps at {JUMPS:?}");
    println!("steady: {TRANSIENT} steps after the start and after each jump\n");
    let svg = match arguments.get(1).map(String::as_str) {
        Some("controllers") => controllers::run(&job)?,
        Some("figures") => figures::run(&job)?,
        other => return Err(format!("expected 'controllers' or 'figures', found {other:?}").into()),
    };
    if let Some(path) = option("--svg") {
        std::fs::write(path, svg)?;
    }
    Ok(())
}

/// The steady steps.
fn steady(followed: &[Followed]) -> impl Iterator<Item = &Followed> {
    let is_steady =
        |t: usize| t >= TRANSIENT && JUMPS.iter().all(|(at, _)| !(*at..at + TRANSIENT).contains(&t));
    followed.iter().enumerate().filter(move |(t, _)| is_steady(*t)).map(|(_, f)| f)
}

fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = numbers.fold((0.0, 0), |(sum, count), number| (sum + number, count + 1));
    sum / f64::from(count)
}
