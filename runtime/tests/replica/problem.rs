//! Something to train: each worker has values that it is drawn to, and noise.

use std::sync::Arc;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::synchrony::{self, Sgd};
use gleaner_runtime::{Gradients, Layout, Options, Pass, Replica, Session, Stepped, Update};
use gleaner_statistics::random::Generator;

/// Lengths of the parameters: two units of one, one of two, one of one.
pub const LENGTHS: [usize; 5] = [70, 1, 130, 40, 259];
pub const N: usize = 500;

/// The parameters of each unit.
pub const UNITS: [&[usize]; 4] = [&[0], &[1], &[2, 3], &[4]];

pub const SAMPLES: u64 = 8;

pub fn layout() -> Layout {
    UNITS.iter().fold(Layout::new(), |layout, unit| {
        unit.iter().fold(layout.group(), |layout, &p| layout.parameter(format!("p{p}"), LENGTHS[p]))
    })
}

/// Each parameter with its place.
pub fn places() -> impl Iterator<Item = (String, std::ops::Range<usize>)> {
    (0..LENGTHS.len()).map(|p| {
        let start = LENGTHS[..p].iter().sum();
        (format!("p{p}"), start..start + LENGTHS[p])
    })
}

pub fn initial() -> Vec<f32> {
    job::gradient(N, 0, 77)
}

use crate::job;

/// The gradient of a pass: it depends on the parameters, the rank and the step.
pub fn gradient(parameters: &[f32], rank: usize, step: u64) -> Vec<f32> {
    let (target, noise) = (job::gradient(N, rank, 1000), job::gradient(N, rank, step));
    parameters.iter().zip(target).zip(noise).map(|((p, t), noise)| 0.3 * (p - t) + 0.1 * noise).collect()
}

pub const SGD: Sgd = Sgd { momentum: 0.9, weight_decay: 1e-3, nesterov: false };

pub fn rate(step: u64) -> f32 {
    if step < 9 { 0.1 } else { 0.03 }
}

pub fn options(synchrony: &str, method: Method) -> Options {
    Options {
        method,
        synchrony: Arc::from(synchrony::named(synchrony).unwrap()),
        sgd: SGD,
        samples: SAMPLES,
        epoch: 5,
    }
}

/// A random pause, which depends on rank and step.
pub fn dawdle(rank: usize, step: u64) {
    let pause = Generator::new(step, "pause", rank as u64).below(2048);
    std::thread::sleep(Duration::from_micros(pause.into()));
}

/// Hands over the gradient of a pass, and ends the step.
pub fn step(replica: &mut Replica, gradient: &[f32], step: u64) -> Stepped {
    for (name, place) in places() {
        replica.ready(&name, &gradient[place]).unwrap();
    }
    let norm: f32 = gradient.iter().map(|v| v * v).sum();
    replica.step(Pass { rate: rate(step), samples: SAMPLES, loss: norm }).unwrap()
}

/// Some steps, after each of which the parameters are noted.
pub fn steps(session: &Session, replica: &mut Replica, steps: std::ops::Range<u64>) -> Vec<Vec<u32>> {
    steps
        .map(|t| {
            assert_eq!(replica.step_number(), t);
            let gradient = gradient(replica.parameters(), session.rank(), t);
            dawdle(session.rank(), t);
            step(replica, &gradient, t);
            bits(replica.parameters())
        })
        .collect()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The whole run of each rank: the parameters after each step, and after a flush.
pub fn run(over: job::Over, workers: u32, options: &Options, count: u64) -> Vec<Vec<Vec<u32>>> {
    job::run(over, workers, |session| {
        let mut replica = session.replica(&layout(), &initial(), options.clone()).unwrap();
        let mut all = steps(&session, &mut replica, 0..count);
        replica.flush().unwrap();
        all.push(bits(replica.parameters()));
        all
    })
}

/// The mean gradient of all workers' passes with these parameters, by the session's gradients: each unit is a group of theirs.
pub fn exchange(session: &Session, gradients: &mut Gradients, parameters: &[f32], step: u64) -> Vec<f32> {
    let gradient = gradient(parameters, session.rank(), step);
    places().for_each(|(name, place)| gradients.ready(&name, &gradient[place]).unwrap());
    mean(&gradients.wait().unwrap())
}

/// The mean of an update, flat.
pub fn mean(update: &Update) -> Vec<f32> {
    let mut mean = vec![0.0; N];
    places().for_each(|(name, place)| update.add_to(&name, &mut mean[place], 1.0).unwrap());
    mean
}

/// Networks, workers and methods that everything is tried with.
pub fn cases() -> impl Iterator<Item = (job::Over, u32, Method)> {
    let methods = || {
        let named = |name| Method::named(name).unwrap().density(0.1);
        [Method::ring(), Method::spardl().density(0.1), named("topka"), named("oktopk")]
    };
    (1..=5).flat_map(move |workers| {
        methods()
            .into_iter()
            .enumerate()
            .map(move |(i, method)| (job::NETWORKS[[0, 2][(i + workers as usize) % 2]], workers, method))
    })
}
