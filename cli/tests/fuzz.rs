//! The fuzz targets for a moment each, over seeds changed at random. `fuzz/` has longer campaigns.

#![allow(clippy::unwrap_used)]

#[path = "../../fuzz/src/lib.rs"]
mod fuzz;

use std::path::Path;
use std::time::Duration;

use fuzz::{TARGETS, campaign};

/// Inputs follow from it.
const SEED: u64 = 17;

#[test]
fn nothing_that_comes_from_outside_makes_a_decoder_panic() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    for &target in TARGETS {
        let (name, _) = target;
        let seeds = campaign::seeds(&seeds, name).unwrap();
        assert!(
            !seeds.is_empty(),
            "{name} has no seeds: cargo run --manifest-path fuzz/Cargo.toml --example seeds"
        );
        let outcome = campaign::run(target, &seeds, SEED, 0..1_000_000, Duration::from_millis(400));
        println!("{name}: {} inputs in {:?}, seed {SEED}", outcome.inputs, outcome.took);
        if let Some((number, input)) = outcome.failed {
            panic!("{name} fails on input {number} of seed {SEED}: {input:02x?}");
        }
    }
}
