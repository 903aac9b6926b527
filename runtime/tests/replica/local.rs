//! Local steps, and the difference that they made.

use gleaner_algorithms::Method;
use gleaner_algorithms::synchrony::Sgd;

use gleaner_runtime::{Options, Pass};

use crate::job::{self, Over};
use crate::problem::{self, N, SAMPLES, SGD, bits, cases, gradient, initial, layout, options, places, rate};

const STEPS: u64 = 14;

/// What local steps are, written out with the session's gradients: steps of each worker's own, and every few of them, and at the
/// end, an outer step with the mean of the differences.
fn oracle(workers: u32, method: &Method, outer: (u64, f32, f32), after: u64) -> Vec<Vec<Vec<u32>>> {
    let (every, outer_rate, momentum) = outer;
    let sgd = Sgd { momentum, weight_decay: 0.0, nesterov: momentum > 0.0 };
    job::run(Over::Memory, workers, |session| {
        let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
        let (mut own, mut own_velocities) = (initial(), vec![0.0; N]);
        let (mut common, mut velocities) = (initial(), vec![0.0; N]);
        let mut since = 0;
        let mut all = Vec::new();
        for step in 0..=STEPS {
            if step < STEPS {
                let gradient = gradient(&own, session.rank(), step);
                SGD.step(&mut own, &mut own_velocities, &gradient, rate(step));
                since += 1;
            }
            if since == every || step < after || step == STEPS && since > 0 {
                let difference: Vec<f32> =
                    common.iter().zip(&own).map(|(common, own)| common - own).collect();
                places().for_each(|(name, place)| gradients.ready(&name, &difference[place]).unwrap());
                let mean = problem::mean(&gradients.wait().unwrap());
                sgd.step(&mut common, &mut velocities, &mean, outer_rate);
                own.copy_from_slice(&common);
                since = 0;
            }
            all.push(bits(&own));
        }
        all
    })
}

#[test]
fn local_steps_are_what_they_say() {
    let kinds = [
        ("local/4", (4, 1.0, 0.0), 0),
        ("local/1", (1, 1.0, 0.0), 0),
        ("local/5,0.7,0.9", (5, 0.7, 0.9), 0),
        ("local/4,1,0,after=3", (4, 1.0, 0.0), 3),
    ];
    for (over, workers, method) in cases() {
        for (synchrony, outer, after) in kinds {
            let found = problem::run(over, workers, &options(synchrony, method.clone()), STEPS);
            let expected = oracle(workers, &method, outer, after);
            assert!(found == expected, "{synchrony}, {workers} workers, {method}");
            let last = STEPS as usize;
            assert!(found.iter().all(|rank| rank[last] == found[0][last]), "{synchrony}, {workers} workers");
        }
    }
}

/// Error feedback: whatever of a difference a sparse method leaves out is delivered later.
#[test]
fn nothing_of_a_difference_is_lost() {
    let method = Method::spardl().density(0.05);
    let sums = job::run(Over::Memory, 3, |session| {
        // Without decay, whose pull depends on where the parameters are.
        let plain = Sgd { weight_decay: 0.0, ..SGD };
        let options = Options { sgd: plain, ..options("local/2", method.clone()) };
        let mut replica = session.replica(&layout(), &initial(), options).unwrap();
        let (mut own, mut velocities) = (vec![0.0; N], vec![0.0f32; N]);
        // Gradients for some steps, and none afterwards, until the residuals are empty.
        for step in 0..200 {
            let gradient = if step < 8 { gradient(&initial(), session.rank(), step) } else { vec![0.0; N] };
            plain.step(&mut own, &mut velocities, &gradient, rate(step));
            places().for_each(|(name, place)| replica.ready(&name, &gradient[place]).unwrap());
            replica.step(Pass { rate: rate(step), samples: SAMPLES, loss: 1.0 }).unwrap();
        }
        (own, replica.parameters().to_vec())
    });
    for i in 0..N {
        let moved: f64 = sums.iter().map(|(own, _)| f64::from(own[i])).sum::<f64>() / 3.0;
        let found = f64::from(sums[0].1[i]) - f64::from(initial()[i]);
        assert!((found - moved).abs() < 1e-4, "entry {i} moved by {found}, expected {moved}");
    }
}
