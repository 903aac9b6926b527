//! Gradients that are asked for their health.

use gleaner_algorithms::Method;
use gleaner_runtime::{Finding, Health, Layout, Session};

use crate::job::{self, Over, gradient};

const WORKERS: u32 = 3;
const N: usize = 4000;

/// Runs steps in which each worker's gradient is as `own` says of its rank, the step and the parameters, which follow the mean with this rate.
fn trained(
    method: &Method,
    steps: u64,
    rate: f32,
    own: impl Fn(usize, u64, &[f32]) -> Vec<f32> + Sync,
) -> Health {
    let run = |session: Session| {
        let layout = Layout::new().parameter("first", N / 4).group().parameter("second", N - N / 4);
        let mut gradients = session.gradients(&layout, method.clone()).unwrap();
        let mut weights = vec![1.0; N];
        for step in 0..steps {
            let gradient = own(session.rank(), step, &weights);
            gradients.ready("first", &gradient[..N / 4]).unwrap();
            gradients.ready("second", &gradient[N / 4..]).unwrap();
            let update = gradients.wait().unwrap();
            let (first, second) = weights.split_at_mut(N / 4);
            update.add_to("first", first, -rate).unwrap();
            update.add_to("second", second, -rate).unwrap();
        }
        gradients.health()
    };
    job::run(Over::Memory, WORKERS, run).swap_remove(0)
}

fn noise(rank: usize, step: u64, _: &[f32]) -> Vec<f32> {
    gradient(N, rank, step)
}

fn names(health: &Health, momentum: f32) -> Vec<&'static str> {
    health.findings(momentum).iter().map(Finding::name).collect()
}

/// As by default, and with every listed method at the default density.
#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let methods = Method::all().chain(Method::all().map(|method| method.density(Method::DENSITY)));
    for method in methods {
        let health = trained(&method, 120, 0.1, noise);
        // That one is listed as it was printed, and delivers what its threshold happens to let through.
        if method.collective().name() == "exdyna-printed" {
            continue;
        }
        assert_eq!(names(&health, 0.9), [""; 0], "{method}: {health:?}");
        assert_eq!(health.looks, if method.collective().is_sparse() { 7 } else { 0 }, "{method}");
        assert_eq!(health.waits() > 0.0, method.collective().is_sparse(), "{method}: {health:?}");
    }
}

/// One entry in 2,000 in a step.
#[test]
fn a_low_density_makes_updates_stale_and_gives_momentum_late_sums() {
    for name in ["spardl", "gtopk"] {
        let method = Method::named(name).unwrap().density(0.0005);
        let health = trained(&method, 120, 0.1, noise);
        assert_eq!(names(&health, 0.9), ["stale", "momentum"], "{name}: {health:?}");
        assert_eq!(names(&health, 0.0), ["stale"], "{name}");
        assert!(health.waits() < 2.0 / health.density, "{name}: {health:?}");
    }
}

/// A threshold that nothing reaches.
#[test]
fn a_threshold_that_is_too_high_lets_residuals_grow() {
    let method = Method::named("topka").unwrap().density(0.05).selector("threshold=1e9".parse().unwrap());
    let health = trained(&method, 120, 0.1, |rank, _, _| gradient(N, rank, 0));
    assert_eq!(names(&health, 0.9), ["unbounded"], "{health:?}");
}

/// A bowl, whose gradient is where one stands. With a rate of 0.5 a dense step goes half of the way to the bottom; at a density of 2% an entry waits
/// for fifty steps, and goes far beyond.
#[test]
fn a_rate_that_is_too_high_for_the_density_lets_residuals_double() {
    let bowl = |rank: usize, step: u64, weights: &[f32]| -> Vec<f32> {
        let noise = gradient(N, rank, step);
        weights.iter().zip(noise).map(|(weight, noise)| weight + 0.1 * noise).collect()
    };
    let method = Method::spardl().density(0.02);
    let health = trained(&method, 360, 0.5, bowl);
    assert!(names(&health, 0.0).contains(&"doubling"), "{health:?}");
    let health = trained(&method, 360, 0.005, bowl);
    assert_eq!(names(&health, 0.0), [""; 0], "{health:?}");
    assert_eq!(names(&trained(&Method::ring(), 360, 0.5, bowl), 0.9), [""; 0]);
}

/// What was looked at is of these groups, and of this job.
#[test]
fn it_begins_anew_with_other_groups() {
    job::run(Over::Memory, 2, |session| {
        let layout = Layout::new().parameter("all", 100);
        let mut gradients = session.gradients(&layout, Method::spardl().k(5)).unwrap();
        for step in 0..40 {
            gradients.ready("all", &gradient(100, session.rank(), step)).unwrap();
            gradients.wait().unwrap();
        }
        assert_eq!(gradients.health().looks, 2);
        gradients.regroup(&layout).unwrap();
        let health = gradients.health();
        assert_eq!((health.looks, health.waits()), (0, 0.0));
    });
}
