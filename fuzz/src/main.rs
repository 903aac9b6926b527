//! The fuzz targets on a stable toolchain: seeds changed at random, without coverage.
//!
//! `cargo run --release --manifest-path fuzz/Cargo.toml -- TARGET|all [--inputs N] [--seed S] [--only K]`

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

use gleaner_fuzz::{TARGETS, campaign};

const USAGE: &str = "expected a target or all, and optionally --inputs N (by default 1000000), --seed S (by default random) \
                     and --only K (the input of that number alone)";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gleaner-fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let mut arguments = env::args().skip(1);
    let wanted = arguments.next().ok_or(USAGE)?;
    let (mut inputs, mut seed, mut only) = (1_000_000, None, None);
    while let Some(option) = arguments.next() {
        let number = || arguments.next()?.replace('_', "").parse::<u64>().ok();
        let number = { number }().ok_or_else(|| format!("{option} has no number; {USAGE}"))?;
        match option.as_str() {
            "--inputs" => inputs = number,
            "--seed" => seed = Some(number),
            "--only" => only = Some(number),
            _ => return Err(format!("{option} is no option; {USAGE}")),
        }
    }
    // A hasher of the standard library is seeded at random.
    let random = || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0) >> 32;
    let seed = seed.unwrap_or_else(random);
    let targets: Vec<_> = TARGETS.iter().filter(|(name, _)| wanted == "all" || wanted == *name).collect();
    if targets.is_empty() {
        let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        return Err(format!("there is no target {wanted}; there are {}", names.join(", ")));
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let range = only.map_or(0..inputs, |only| only..only + 1);
    let (mut total, mut is_fine) = (0, true);
    for &target in targets {
        let name = target.0;
        let seeds = campaign::seeds(&here.join("seeds"), name).map_err(|e| format!("the seeds: {e}"))?;
        let outcome = campaign::run(target, &seeds, seed, range.clone(), Duration::MAX);
        total += outcome.inputs;
        println!(
            "{name:14} {:>12} inputs from {:>3} seeds in {:>7.1} s, {:>9.0} a second, seed {seed}: {}",
            outcome.inputs,
            seeds.len(),
            outcome.took.as_secs_f64(),
            outcome.inputs as f64 / outcome.took.as_secs_f64().max(1e-9),
            if outcome.failed.is_some() { "FAILED" } else { "nothing wrong" },
        );
        if let Some((number, input)) = outcome.failed {
            let path = here.join("artifacts").join(format!("{name}-{seed}-{number}"));
            fs::create_dir_all(here.join("artifacts"))
                .and_then(|()| fs::write(&path, input))
                .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
            println!("  it is in {}; again: {name} --seed {seed} --only {number}", path.display());
            is_fine = false;
        }
    }
    println!("{total} inputs in all");
    Ok(is_fine)
}
