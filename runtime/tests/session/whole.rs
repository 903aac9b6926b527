//! What is delivered whole beside what is selected from: small parameters, and all in some steps.

use std::num::NonZeroU64;
use std::path::Path;

use gleaner_algorithms::residual::{Correction, WholeSteps};
use gleaner_algorithms::{Method, SelectOver};
use gleaner_runtime::{Layout, Session, Update};
use gleaner_statistics::random::Generator;
use safetensors::SafeTensors;

use crate::job::{self, Over, gradient};

const SMALL: usize = 9;
const LARGE: usize = 400;

fn layout() -> Layout {
    Layout::new()
        .parameter("bias1", SMALL)
        .parameter("weight1", LARGE)
        .group()
        .parameter("weight2", LARGE)
        .parameter("bias2", SMALL)
}

fn entries(name: &str) -> usize {
    if name.starts_with("bias") { SMALL } else { LARGE }
}

const NAMES: [&str; 4] = ["weight2", "bias1", "weight1", "bias2"];

/// What a worker's gradient of a parameter is.
fn own(name: &str, rank: usize, step: u64) -> Vec<f32> {
    gradient(entries(name), rank + 10 * NAMES.iter().position(|other| *other == name).unwrap(), step)
}

fn step(session: &Session, gradients: &mut gleaner_runtime::Gradients, step: u64) -> Update {
    for name in NAMES {
        gradients.ready(name, &own(name, session.rank(), step)).unwrap();
    }
    gradients.wait().unwrap()
}

/// The mean over the workers in a step.
fn mean(name: &str, workers: usize, step: u64) -> Vec<f64> {
    let sum = |i: usize| (0..workers).map(|rank| f64::from(own(name, rank, step)[i])).sum::<f64>();
    (0..entries(name)).map(|i| sum(i) / workers as f64).collect()
}

fn is_near(found: &[f32], expected: &[f64]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| (f64::from(*found) - expected).abs() < 1e-4)
}

/// Small parameters have the dense mean in every step; k is of the others.
#[test]
fn small_parameters_travel_whole() {
    const WORKERS: u32 = 3;
    for method in [
        Method::spardl().k(20),
        Method::named("exdyna").unwrap().density(0.025),
        Method::named("topka").unwrap().k(20).select_over(SelectOver::Gradient),
    ] {
        job::run(Over::Memory, WORKERS, |session| {
            let method = method.clone().dense_below(SMALL + 1);
            let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
            assert_eq!(gradients.methods().last().unwrap().collective().name(), "ring");
            for number in 0..12 {
                let update = step(&session, &mut gradients, number);
                for name in ["bias1", "bias2"] {
                    let expected = mean(name, WORKERS as usize, number);
                    assert!(
                        is_near(&update.values(name).unwrap(), &expected),
                        "{method}, step {number}: {name}"
                    );
                }
                let selected = update.entries() - 2 * SMALL;
                assert!(selected < LARGE, "{method}: {selected}");
                if number == 5 {
                    // In other groups small parameters are small as well.
                    let names = ["bias2", "weight1", "bias1", "weight2"];
                    let other = names
                        .iter()
                        .fold(Layout::new(), |layout, name| layout.parameter(*name, entries(name)));
                    gradients.regroup(&other).unwrap();
                }
            }
        });
    }
}

/// What waits of a parameter, by a rank's checkpoint.
fn waiting(checkpoint: &Path, parameter: &str) -> Vec<f32> {
    let bytes = std::fs::read(checkpoint).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor(&format!("residual.{parameter}")).unwrap();
    tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Whatever the sizes and the limit: in every step what is below the limit is delivered whole, and of all else k entries at most. What is not
/// delivered waits.
#[test]
fn exactly_what_is_below_the_limit_travels_whole() {
    const STEPS: u64 = 4;
    for seed in 0..24 {
        let mut random = Generator::seeded(seed);
        let sizes: Vec<usize> = (0..random.below(6) + 1).map(|_| 1 + random.below(30) as usize).collect();
        // From none to all but the largest, of which k entries are selected.
        let largest = sizes.iter().copied().max().unwrap_or_default();
        let limit = random.below(largest as u32 + 1) as usize;
        let small: usize = sizes.iter().filter(|size| **size < limit).sum();
        let name = |parameter: usize| format!("p{parameter}");
        let parameters = sizes.iter().enumerate();
        let layout = parameters.fold(Layout::new(), |layout, (p, size)| layout.parameter(name(p), *size));
        // Small whole numbers, so that sums and means of two are exact, and none is 0.
        let own = |rank: usize, step: u64, parameter: usize| -> Vec<f32> {
            let mut random = Generator::new(seed, &format!("{rank}, {step}"), parameter as u64);
            (0..sizes[parameter]).map(|_| 1.0 + random.below(9) as f32).collect()
        };
        let mean = |step: u64, parameter: usize| -> Vec<f32> {
            let of_both = own(0, step, parameter).into_iter().zip(own(1, step, parameter));
            of_both.map(|(a, b)| (a + b) / 2.0).collect()
        };
        let folder = tempfile::tempdir().unwrap();
        let file = |rank: usize| folder.path().join(format!("rank-{rank}.safetensors"));
        let delivered = job::run(Over::Memory, 2, |session| {
            let method = Method::spardl().k(1).dense_below(limit);
            let mut gradients = session.gradients(&layout, method).unwrap();
            let mut sums: Vec<Vec<f32>> = sizes.iter().map(|size| vec![0.0; *size]).collect();
            for step in 0..STEPS {
                for parameter in 0..sizes.len() {
                    gradients.ready(&name(parameter), &own(session.rank(), step, parameter)).unwrap();
                }
                let update = gradients.wait().unwrap();
                let selected = update.entries() - small;
                assert!(selected <= 1, "seed {seed}, step {step}: {selected} of what is not below {limit}");
                for (parameter, sums) in sums.iter_mut().enumerate() {
                    let values = update.values(&name(parameter)).unwrap();
                    let is_mean = values == mean(step, parameter);
                    assert!(is_mean || values.len() >= limit, "seed {seed}, step {step}: {parameter}");
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                }
            }
            gradients.save(file(session.rank())).unwrap();
            sums
        });
        for (parameter, delivered) in delivered[0].iter().enumerate() {
            let [first, second] = [0, 1].map(|rank| waiting(&file(rank), &name(parameter)));
            for (entry, delivered) in delivered.iter().enumerate() {
                let came: f32 = (0..STEPS).map(|step| mean(step, parameter)[entry]).sum();
                let waits = (first[entry] + second[entry]) / 2.0;
                assert_eq!(came, delivered + waits, "seed {seed}: entry {entry} of parameter {parameter}");
            }
        }
    }
}

/// Momentum goes on in small parameters, as without a correction the optimiser's would.
#[test]
fn small_parameters_keep_their_momentum() {
    job::run(Over::Memory, 2, |session| {
        let correction = Correction { momentum: 0.5, mask: true, ..Correction::default() };
        let method = Method::spardl().k(20).corrected(correction).dense_below(SMALL + 1);
        let mut gradients = session.gradients(&layout(), method).unwrap();
        let mut velocity = vec![0.0; SMALL];
        for number in 0..5 {
            let update = step(&session, &mut gradients, number);
            for (velocity, mean) in velocity.iter_mut().zip(mean("bias1", 2, number)) {
                *velocity = 0.5 * *velocity + mean;
            }
            assert!(is_near(&update.values("bias1").unwrap(), &velocity), "step {number}");
        }
    });
}

/// A learning rate that drops.
fn rate(step: u64) -> f32 {
    if step < 2 { 1.0 } else { 0.1 }
}

/// Gradients are multiplied by the rate of their own step. After each whole step the sum of all updates is the sum of rates times
/// gradients, also of what waited over the drop; a job that goes on from a checkpoint has the same steps, bit by bit.
#[test]
fn whole_steps_deliver_all_that_waits_with_its_rate() {
    const WORKERS: u32 = 3;
    let whole = WholeSteps { every: NonZeroU64::new(4), at: vec![5] };
    for name in ["spardl", "exdyna", "oktopk", "gtopk", "random-k"] {
        let folder = tempfile::tempdir().unwrap();
        let method = Method::named(name).unwrap().density(0.05).whole_steps(whole.clone());
        let run = |first: u64, last: u64| {
            job::run(Over::Memory, WORKERS, |session| {
                let file = folder.path().join(format!("rank-{}.safetensors", session.rank()));
                let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
                if first > 0 {
                    gradients.load(&file).unwrap();
                }
                let (mut sums, mut expected, mut bits) = (vec![0.0; LARGE], vec![0.0; LARGE], Vec::new());
                for number in first..last {
                    if number == 6 && first == 0 {
                        gradients.save(&file).unwrap();
                    }
                    for name in NAMES {
                        let times = |value| rate(number) * value;
                        let scaled: Vec<f32> =
                            own(name, session.rank(), number).into_iter().map(times).collect();
                        gradients.ready(name, &scaled).unwrap();
                    }
                    let update = gradients.wait().unwrap();
                    update.add_to("weight1", &mut sums, 1.0).unwrap();
                    let mean = mean("weight1", WORKERS as usize, number);
                    for (expected, mean) in expected.iter_mut().zip(mean) {
                        *expected += f64::from(rate(number)) * mean;
                    }
                    let values = update.values("weight1").unwrap();
                    bits.push(values.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
                    if first == 0 && whole.contains(number) {
                        assert!(is_near(&sums, &expected), "{name}, step {number}");
                        assert!(update.entries() > 2 * LARGE, "{name}, step {number}");
                    }
                }
                bits
            })
        };
        let uninterrupted = run(0, 10);
        let resumed = run(6, 10);
        for (whole, resumed) in uninterrupted.iter().zip(&resumed) {
            assert!(whole[6..] == resumed[..], "{name}");
        }
    }
}
