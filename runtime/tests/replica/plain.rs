//! BSP over an all-reduce: the optimiser with the mean gradients, and nothing else.

use gleaner_algorithms::Method;
use gleaner_algorithms::residual::{Correction, OnNonFinite};

use crate::job::{self, Over};
use crate::problem::{self, N, SGD, bits, cases, gradient, initial, layout, options, places, rate};

const STEPS: u64 = 12;

/// The same with the session's gradients, an optimiser beside them.
#[test]
fn bsp_is_gradients_and_an_optimiser() {
    for (over, workers, method) in cases() {
        let expected = job::run(Over::Memory, workers, |session| {
            let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
            let (mut parameters, mut velocities) = (initial(), vec![0.0; N]);
            let mut all: Vec<Vec<u32>> = (0..STEPS)
                .map(|step| {
                    let mean = problem::exchange(&session, &mut gradients, &parameters, step);
                    SGD.step(&mut parameters, &mut velocities, &mean, rate(step));
                    bits(&parameters)
                })
                .collect();
            all.push(bits(&parameters));
            all
        });
        let found = problem::run(over, workers, &options("bsp", method.clone()), STEPS);
        assert!(found == expected, "{workers} workers, {method}");
        assert!(found.iter().all(|rank| *rank == found[0]), "{workers} workers, {method}");
    }
}

/// Local clipping is by the norm of the whole gradient, as it is without units.
#[test]
fn clipping_is_by_the_whole_gradient() {
    let method = Method::ring().corrected(Correction { clip: Some(2.0), ..Correction::default() });
    let expected = job::run(Over::Memory, 3, |session| {
        let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
        let (mut parameters, mut velocities) = (initial(), vec![0.0; N]);
        let mean = problem::exchange(&session, &mut gradients, &parameters, 0);
        SGD.step(&mut parameters, &mut velocities, &mean, rate(0));
        bits(&parameters)
    });
    let found = problem::run(Over::Memory, 3, &options("bsp", method.clone()), 1);
    assert_eq!(found[0][0], expected[0]);
    let unclipped = problem::run(Over::Memory, 3, &options("bsp", Method::ring()), 1);
    assert_ne!(found[0][0], unclipped[0][0], "something is clipped");
}

/// Where a rank has more samples, its gradient counts for more: as the mean over all samples.
#[test]
fn gradients_are_weighted_by_samples() {
    let samples = [8u64, 24, 16];
    let found = job::run(Over::Memory, 3, |session| {
        let own = samples[session.rank()];
        let options = gleaner_runtime::Options { samples: own, ..options("bsp", Method::ring()) };
        let mut replica = session.replica(&layout(), &initial(), options).unwrap();
        let gradient = gradient(&initial(), session.rank(), 0);
        places().for_each(|(name, place)| replica.ready(&name, &gradient[place]).unwrap());
        let pass = gleaner_runtime::Pass { rate: 1.0, samples: own, loss: 1.0 };
        let other = replica.step(gleaner_runtime::Pass { samples: own + 1, ..pass }).unwrap_err().to_string();
        assert!(other.contains(&format!("a pass of {} samples; {own} were agreed", own + 1)), "{other}");
        replica.step(pass).unwrap();
        replica.parameters().to_vec()
    });
    assert!(found.iter().all(|rank| bits(rank) == bits(&found[0])));
    for (i, found) in found[0].iter().enumerate() {
        let of = |rank: usize| f64::from(gradient(&initial(), rank, 0)[i]) * samples[rank] as f64 / 48.0;
        let value = f64::from(initial()[i]);
        let expected = value - (of(0) + of(1) + of(2)) - f64::from(SGD.weight_decay) * value;
        assert!((f64::from(*found) - expected).abs() < 1e-5, "entry {i}");
    }
}

/// A gradient that is not finite in one unit leaves the whole step out, on all ranks.
#[test]
fn a_step_that_is_not_finite_is_left_out_whole() {
    for method in [Method::ring(), Method::spardl().density(0.1)] {
        let options = options("bsp", method.on_nonfinite(OnNonFinite::Skip));
        job::run(Over::Memory, 3, |session| {
            let mut replica = session.replica(&layout(), &initial(), options.clone()).unwrap();
            problem::steps(&session, &mut replica, 0..2);
            let before = bits(replica.parameters());
            let mut values = gradient(replica.parameters(), session.rank(), 2);
            if session.rank() == 1 {
                values[100] = f32::NAN;
            }
            let stepped = problem::step(&mut replica, &values, 2);
            assert_eq!(stepped.skipped.map(|skipped| skipped.rank), Some(1));
            assert_eq!(bits(replica.parameters()), before);
            problem::steps(&session, &mut replica, 3..5);
            assert_ne!(bits(replica.parameters()), before);
        });
    }
}
