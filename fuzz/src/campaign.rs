//! A campaign of random inputs over one target.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use super::mutate::{self, Random};

/// A target: its name, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// The result of a campaign.
pub struct Outcome {
    /// Inputs that were tried.
    pub inputs: u64,
    /// How long they took.
    pub took: Duration,
    /// The input on which the target panicked, if it did, and its number.
    pub failed: Option<(u64, Vec<u8>)>,
}

/// The seeds of a target, from its folder: none if there is no folder.
pub fn seeds(folder: &Path, target: &str) -> io::Result<Vec<Vec<u8>>> {
    let folder = folder.join(target);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths: Vec<_> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    // An input follows from their order.
    paths.sort();
    paths.iter().map(fs::read).collect()
}

/// Tries this many inputs, or as many as there is time for, and stops at the first that makes the target panic.
pub fn run(
    (_, target): Target,
    seeds: &[Vec<u8>],
    seed: u64,
    inputs: std::ops::Range<u64>,
    time: Duration,
) -> Outcome {
    let (started, first) = (Instant::now(), inputs.start);
    let mut input = Vec::new();
    for number in inputs.clone() {
        mutate::input(seeds, &mut Random::of(seed, number), &mut input);
        let failed = panic::catch_unwind(AssertUnwindSafe(|| target(&input))).is_err();
        let late = number % 256 == 255 && started.elapsed() > time;
        if failed || late {
            let failed = failed.then_some((number, input));
            return Outcome { inputs: number + 1 - first, took: started.elapsed(), failed };
        }
    }
    Outcome { inputs: inputs.end - first, took: started.elapsed(), failed: None }
}
