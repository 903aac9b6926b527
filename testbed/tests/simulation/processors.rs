//! Work on cores: what a worker computes, alone and beside others.

use gleaner_algorithms::Method;
use gleaner_testbed::simulation::{Link, Machine, Network, Op, Part, Trace, Work, replay};

use super::{LINK, carried, close, infinite, methods, seconds, star, work};

#[test]
fn one_worker_takes_what_it_computes_and_no_more() {
    let machine = Machine::default();
    for method in methods(1, 5000, 0.02) {
        for trace in carried(&method, 1, 5000) {
            let replayed = replay(&trace, &machine, &star(1), false);
            assert!(close(replayed.seconds(), work(&trace, 0, &machine)), "{method}");
            assert_eq!(replayed.workers[0].exchange, 0.0, "{method}");
        }
    }
}

/// The parts of every worker's step are its step.
#[test]
fn parts_add_up() {
    for workers in [2, 3, 6] {
        for method in methods(workers, 6000, 0.02) {
            let replayed =
                replay(&carried(&method, workers, 6000)[0], &Machine::default(), &star(workers), true);
            for worker in &replayed.workers {
                let sum = worker.select + worker.exchange + worker.merge;
                assert!(close(sum, worker.seconds), "{method}: {sum} of {}", worker.seconds);
                let spans: f64 = worker.spans.iter().map(|span| span.end - span.start).sum();
                assert!(close(spans, worker.seconds), "{method}");
                assert!(worker.spans.windows(2).all(|pair| pair[0].end == pair[1].start), "{method}");
            }
        }
    }
}

/// What was timed takes longer where workers share cores, and only there.
#[test]
fn timed_work_takes_longer_beside_other_work() {
    let work = |_| vec![Op::Work(Part::Select, Work::Took(0.5))];
    let trace = Trace { workers: (0..2).map(work).collect(), ..Trace::default() };
    let machine = Machine { contention: 1.5, ..infinite() };
    assert!(close(seconds(&trace, &machine, &star(2)), 0.5));
    assert!(close(seconds(&trace, &machine, &Network::star(2, LINK, 2.0, true)), 0.75));
}

/// A worker that wakes up waits for a core where workers share them and all are busy, and for none where one is idle.
#[test]
fn who_wakes_up_waits_for_a_core() {
    let machine = Machine { contention: 1.0, wakeup: 10_000.0, ..infinite() };
    let link = Link { rate: f64::INFINITY, burst: 0.0, latency: 0.0, loss: 0.0 };
    let waits = |third, shared| {
        let workers = vec![vec![Op::Send { to: 1, bytes: 1.0 }], vec![Op::Receive { from: 0 }], third];
        let trace = Trace { workers, ..Trace::default() };
        replay(&trace, &machine, &Network::star(3, link, 1.0, shared), false).workers[1].seconds
    };
    let compute = || vec![Op::Work(Part::Select, Work::Took(1.0))];
    assert!(close(waits(compute(), true), 0.01));
    assert_eq!((waits(Vec::new(), true), waits(compute(), false)), (0.0, 0.0));
}

/// Messages are handled before anything is computed: two workers compute on one core, and their messages pass all the same.
#[test]
fn messages_come_before_computing() {
    let compute = Op::Work(Part::Select, Work::Took(1.0));
    let first = vec![Op::Send { to: 1, bytes: 1.0 }, compute];
    let trace =
        Trace { workers: vec![first, vec![Op::Receive { from: 0 }], vec![compute]], ..Trace::default() };
    let machine = Machine { contention: 1.0, message: 10_000.0, ..infinite() };
    let link = Link { rate: f64::INFINITY, burst: 0.0, latency: 0.0, loss: 0.0 };
    let replayed = replay(&trace, &machine, &Network::star(3, link, 1.0, true), false);
    // Ten milliseconds on each side, whatever else needs the core; and the computing has to wait for them.
    assert!(close(replayed.workers[1].seconds, 0.02), "{}", replayed.workers[1].seconds);
    assert!(close(replayed.seconds(), 2.02), "{}", replayed.seconds());
}

/// Workers that share cores begin one after the other, and each step is counted from its own beginning; those with cores of
/// their own begin together.
#[test]
fn workers_of_a_machine_begin_one_after_the_other() {
    let machine = Machine { quantum: 1000.0, ..infinite() };
    let link = Link { rate: f64::INFINITY, burst: 0.0, latency: 0.0, loss: 0.0 };
    let ring = carried(&Method::ring(), 5, 5000).remove(0);
    // What takes no time keeps no worker waiting.
    assert_eq!(seconds(&ring, &machine, &Network::star(5, link, 2.0, true)), 0.0);
    let compute = Op::Work(Part::Select, Work::Took(1.0));
    let trace = Trace { workers: vec![vec![compute]; 5], ..Trace::default() };
    let machine = Machine { contention: 1.0, ..machine };
    let begun = |shared| {
        let replayed = replay(&trace, &machine, &Network::star(5, link, 5.0, shared), true);
        assert!(replayed.workers.iter().all(|worker| close(worker.seconds, 1.0)));
        let mut begun: Vec<f64> = replayed.workers.iter().map(|worker| worker.spans[0].start).collect();
        begun.sort_by(f64::total_cmp);
        begun
    };
    assert_eq!(begun(false), [0.0; 5]);
    for (begun, expected) in begun(true).into_iter().zip([0.0, 1e-3, 2e-3, 3e-3, 4e-3]) {
        assert!((begun - expected).abs() < 1e-9, "{begun} instead of {expected}");
    }
}

/// A straggler's step takes as much longer as the straggler computes longer, at least.
#[test]
fn all_wait_for_a_straggler() {
    let machine = Machine::default();
    for method in methods(4, 20_000, 0.02) {
        let trace = carried(&method, 4, 20_000).remove(0);
        let mut network = star(4);
        network.hosts[1].slow = 10.0;
        let replayed = replay(&trace, &machine, &network, false);
        assert!(replayed.workers[1].seconds >= 10.0 * work(&trace, 1, &machine) * (1.0 - 1e-9), "{method}");
        // It contributes to every sum, so no worker is done before it has read its own gradient.
        let read = 10.0 * machine.accumulate * 20_000.0 * 1e-9;
        assert!(replayed.workers.iter().all(|worker| worker.seconds >= read), "{method}");
    }
}
