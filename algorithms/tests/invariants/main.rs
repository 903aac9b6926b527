//! The invariants, as tests: every method that stands in `COLLECTIVES` is tested by standing there.
//!
//! What is expected is a paper's formula written out or a computation of its own, never what the code under test says.
//! The random cases are the same in every run; set PROPTEST_RNG_SEED and PROPTEST_CASES to see others, or more.

#![allow(clippy::unwrap_used)]

mod agreed;
mod bounds;
mod by_hand;
mod checker;
mod choices;
mod completed;
mod complexity;
mod conservation;
mod corrections;
mod decaying;
mod decoders;
mod dense;
mod ef21;
mod exdyna;
mod goals;
mod harness;
mod holders;
mod inputs;
mod liveness;
mod methods;
mod mutants;
mod predictions;
mod selections;
mod selectors;
mod spardl;
mod spardl_oracle;
mod spardl_teams;
mod streams;
mod synchrony;
mod tables;
mod types;
mod unbiased;
mod versions;
mod whole;
