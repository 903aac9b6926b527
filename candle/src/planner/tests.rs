use std::time::Duration;

use gleaner_algorithms::forecast::{Network, OVERLAP, Speed};
use gleaner_algorithms::merging;
use gleaner_runtime::Session;
use gleaner_transport::memory;

use super::*;

/// A network on which an exchange of 30,000 dense entries among three workers takes about 40 ms.
fn model() -> Model {
    let network = Network { latency: Duration::from_millis(1), bytes_per_second: 4e6 };
    let speed = Speed { select: 0.8, encode: 10.0, merge: 20.0, add: 1.5, message: 4000.0 };
    Model { network, speed, overlap: OVERLAP, bytes_per_entry: 6.0 }
}

fn planner(workers: u32, strategy: &str) -> Planner {
    let strategy = merging::named(strategy).unwrap().into();
    let planner = Planner::new(strategy, workers, vec![10_000, 10_000, 10_000]).unwrap();
    Planner { model: Some(model()), ..planner }
}

fn step(rank: usize, layers: [f64; 3], exchange: f64) -> Measured {
    // Each rank is somewhat slower than the one before.
    let own = 1.0 + 0.1 * rank as f64;
    Measured {
        forward: 0.01,
        layers: layers.iter().map(|seconds| own * seconds).collect(),
        under_way: own * exchange,
        iteration: 1.0,
    }
}

/// Runs a planner on three ranks, by the times of each step, and gives the groups after each step on each rank.
fn run(times: &(dyn Fn(usize) -> ([f64; 3], f64) + Sync), steps: usize) -> Vec<Vec<String>> {
    let rank = |network| {
        let session = Session::over(async { Ok(network) }, Duration::from_secs(30)).unwrap();
        let mut planner = planner(3, "optimal");
        let mut groups = Vec::new();
        for number in 0..steps {
            let (layers, exchange) = times(number);
            let before = planner.grouping().clone();
            let changed =
                planner.conclude(&session, &Method::ring(), step(session.rank(), layers, exchange)).unwrap();
            assert_eq!(changed, before != *planner.grouping());
            groups.push(planner.grouping().to_string());
        }
        groups
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            memory::networks(3).into_iter().map(|network| scope.spawn(move || rank(network))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn all_ranks_switch_at_the_same_step_when_layer_times_drift() {
    // First a backward pass that takes a moment, behind which nothing can be hidden; then a slow one.
    let slow_from = FIRST + 2 * WINDOW + 3;
    let times = |number: usize| (if number < slow_from { [1e-5; 3] } else { [0.03, 0.03, 0.03] }, 0.02);
    let ranks = run(&times, FIRST + 6 * WINDOW);
    assert_eq!(ranks[0], ranks[1]);
    assert_eq!(ranks[0], ranks[2]);
    let groups = &ranks[0];
    assert!(groups[..slow_from].iter().all(|groups| groups == "3"), "{groups:?}");
    // Most steps of the window after that are slow.
    let switch = FIRST + 3 * WINDOW - 1;
    assert_eq!(groups[switch - 1], "3");
    assert_eq!(groups[switch], "1 + 1 + 1");
    assert!(groups[switch..].iter().all(|later| *later == groups[switch]), "{groups:?}");
}

#[test]
fn all_ranks_switch_when_exchanges_take_another_time() {
    // Where they take a tenth, exchanges can be hidden that were better merged before.
    let fast_from = FIRST + 2 * WINDOW;
    let times = |number: usize| ([0.004; 3], if number < fast_from { 0.04 } else { 0.004 });
    let ranks = run(&times, FIRST + 5 * WINDOW);
    assert!(ranks.iter().all(|groups| *groups == ranks[0]));
    let (before, after) = (&ranks[0][fast_from], &ranks[0][FIRST + 3 * WINDOW]);
    assert_ne!(before, after);
}

#[test]
fn what_does_not_drift_stays() {
    // A window of times that are far off in fewer than half of its steps.
    let times = |number: usize| {
        let slow = number >= FIRST + WINDOW && number % 5 < 2;
        ([if slow { 0.1 } else { 0.01 }; 3], if slow { 0.1 } else { 0.02 })
    };
    let ranks = run(&times, FIRST + 4 * WINDOW);
    assert!(ranks[0][FIRST..].iter().all(|groups| *groups == ranks[0][FIRST]), "{:?}", ranks[0]);
}

#[test]
fn a_single_worker_and_strategies_without_times_plan_nothing() {
    let session = Session::join().unwrap();
    for (workers, strategy, groups) in [
        (1, "optimal", "3"),
        (3, "layer-wise", "1 + 1 + 1"),
        (3, "threshold/20000", "2 + 1"),
        (3, "single", "3"),
    ] {
        let mut planner = planner(workers, strategy);
        for _ in 0..3 * WINDOW {
            assert!(!planner.conclude(&session, &Method::ring(), step(0, [0.1; 3], 0.1)).unwrap());
        }
        assert_eq!(planner.grouping().to_string(), groups, "{strategy}");
    }
}

#[test]
fn layers_that_cannot_be_are_refused() {
    let of = |entries: Vec<usize>| Planner::new(merging::named("optimal").unwrap().into(), 2, entries);
    assert!(of(vec![]).err().unwrap().to_string().contains("no layers"));
    assert!(of(vec![3, 0]).err().unwrap().to_string().contains("layer 1 has no entries"));
}

/// Selection runs beside the backward pass as long as every worker of a machine has a core.
#[test]
fn more_workers_than_cores_select_in_the_backward_pass() {
    let cores = thread::available_parallelism().unwrap().get() as u32;
    for (workers, expected) in
        [(1, Placement::Beside), (cores, Placement::Beside), (cores + 1, Placement::InBackward)]
    {
        let start = |network| {
            thread::spawn(move || {
                let session = Session::over(async { Ok(network) }, Duration::from_secs(30)).unwrap();
                place(&session).unwrap()
            })
        };
        let ranks: Vec<_> = memory::networks(workers).into_iter().map(start).collect();
        ranks.into_iter().for_each(|rank| assert_eq!(rank.join().unwrap(), expected, "{workers} workers"));
    }
    let (model, method) = (model(), Method::spardl().density(0.01));
    let beside = Predicted { model: &model, method: &method, workers: 3 };
    let of = |place| Shared { predicted: beside, place }.of(10_000).unwrap();
    let (within, besides) = (of(Placement::InBackward), of(Placement::Beside));
    assert_eq!(besides, beside.of(10_000).unwrap());
    assert!((within.select + within.exchange - besides.select - besides.exchange).abs() < 1e-12);
    assert!(within.select > besides.select);
}

/// Workers that share cores take turns to be late: their medians are all alike, and every step waits for one of them. Who begins
/// a step late is late as well.
#[test]
fn a_step_takes_as_long_as_the_last_of_its_ranks() {
    let agreed = |of: fn(usize, usize) -> Measured| {
        let rank = move |network| {
            let session = Session::over(async { Ok(network) }, Duration::from_secs(30)).unwrap();
            let mut planner = planner(3, "optimal");
            planner.steps = (0..6).map(|number| of(number, session.rank())).collect();
            planner.agree(&session).unwrap()
        };
        let ranks: Vec<_> =
            memory::networks(3).into_iter().map(|network| thread::spawn(move || rank(network))).collect();
        let mut agreed: Vec<Measured> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(agreed.iter().all(|measured| *measured == agreed[0]));
        agreed.remove(0)
    };
    let times = |forward: f64, layer: f64, iteration: f64| {
        let layers = vec![layer; 3];
        Measured { forward, layers, under_way: 1.0, iteration }
    };
    let slow = agreed(|number, rank| {
        let late = if number % 3 == rank { 2.0 } else { 1.0 };
        Measured { forward: late, layers: vec![late; 3], under_way: 1.0, iteration: 10.0 }
    });
    assert_eq!(slow, times(2.0, 2.0, 10.0));
    let late = agreed(|number, rank| {
        let iteration = if number % 3 == rank { 8.5 } else { 10.0 };
        Measured { forward: 1.0, layers: vec![2.0; 3], under_way: 1.0, iteration }
    });
    assert_eq!(late, times(2.5, 2.0, 10.0));
}
