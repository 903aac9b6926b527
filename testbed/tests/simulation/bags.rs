//! What travels: bags that are executed, profiled, and of expected lengths.

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::schedule::{check, lockstep};
use gleaner_testbed::simulation::{
    Machine, Network, Op, Overlap, Part, Steps, Trace, Work, Workload, lengths, replay, traces, traces_on,
};
use std::time::Instant;

use super::{carried, close, gradient, infinite, methods, seconds, star, steps, work};

/// What is written down of a run is what the lock-step interpreter and the checker count.
#[test]
fn bytes_and_rounds_are_those_of_the_interpreter() {
    for workers in [2u32, 5, 8] {
        let n = 4000;
        for method in methods(workers, n, 0.05) {
            let trace = carried(&method, workers, n).remove(0);
            let mut ensemble = Ensemble::<f32>::new(method.clone(), workers, n).unwrap();
            let learns = !(ensemble.memories()[0].agreed.is_empty() && ensemble.memories()[0].own.is_empty());
            let last = 3 + if learns { 0 } else { 2 };
            let mut entries = vec![0.0; n];
            for step in 0..=last {
                let executions = (0..workers).map(|rank| {
                    gradient(rank, step, &mut entries);
                    ensemble.residuals[rank as usize].accumulate(0, &entries).unwrap();
                    ensemble.begin(rank as usize).unwrap()
                });
                let done = lockstep(executions.collect()).unwrap();
                if step == last {
                    let bytes: Vec<f64> = done.runs.iter().map(|run| run.bytes_received as f64).collect();
                    assert_eq!(trace.bytes_received(), bytes, "{method}");
                    assert_eq!(trace.rounds, ensemble.cost().rounds, "{method}");
                }
                ensemble.commit(done, method.collection()).unwrap();
            }
        }
    }
}

/// Profiled bags are the same bags: what is sent, in how many rounds, and the result. All of their work has a time.
#[test]
fn timed_bags_are_real_bags() {
    for workers in [1u32, 3, 8] {
        let n = 4000;
        for method in methods(workers, n, 0.05) {
            let clock = Instant::now();
            let timed =
                traces(&method, (workers, n), Workload::Profiled { steps: steps(4), at_once: 2 }, &gradient)
                    .unwrap();
            let lasted = clock.elapsed().as_secs_f64();
            assert_eq!(timed.len(), 4, "{method}");
            let real = carried(&method, workers, n);
            // All steps of a method that learns, or the middle one.
            let same = if real.len() == 1 { &timed[2..3] } else { &timed[..] };
            assert_eq!(same.len(), real.len(), "{method}");
            for (timed, real) in same.iter().zip(&real) {
                assert_eq!(timed.bytes_received(), real.bytes_received(), "{method}");
                assert_eq!((timed.rounds, timed.messages()), (real.rounds, real.messages()), "{method}");
                assert_eq!(timed.delivered, real.delivered, "{method}");
            }
            // Two work at a time, or one, and no clock runs while its worker waits.
            let clock = Instant::now();
            let alone = Workload::Profiled { steps: steps(4), at_once: 1 };
            let alone = traces(&method, (workers, n), alone, &gradient).unwrap();
            for (at_once, timed, lasted) in
                [(2.0, &timed, lasted), (1.0, &alone, clock.elapsed().as_secs_f64())]
            {
                let machine = infinite();
                let took = |trace: &Trace| {
                    (0..trace.workers.len()).map(|rank| work(trace, rank, &machine)).sum::<f64>()
                };
                let took: f64 = timed.iter().map(took).sum();
                assert!(took > 0.0 && took <= at_once * lasted, "{method}: {took} s of work in {lasted} s");
            }
        }
    }
    let refused = traces(
        &Method::spardl(),
        (3, 100),
        Workload::Profiled { steps: steps(1), at_once: 1 },
        &|_, _, entries| entries.fill(f32::NAN),
    );
    assert!(refused.unwrap_err().to_string().contains("finite"));
}

/// The steps that count are those after the warm-up, however long it is.
#[test]
fn a_longer_warm_up_leaves_later_steps() {
    let method = methods(3, 4000, 0.05).into_iter().find(|method| method.label() == "oktopk").unwrap();
    let (all, later) = (steps(4), Steps { warm_up: 5, counted: 2 });
    let of = |bags| traces(&method, (3, 4000), bags, &gradient).unwrap();
    let carried = of(Workload::Executed { scale: 1, steps: all });
    assert_eq!(carried.len(), 4, "it learns, so that no step is like the one before");
    assert_ne!(carried[0], carried[2]);
    assert_eq!(of(Workload::Executed { scale: 1, steps: later }), carried[2..]);
    let timed = of(Workload::Profiled { steps: later, at_once: 2 });
    let received = |traces: &[Trace]| traces.iter().map(Trace::bytes_received).collect::<Vec<_>>();
    assert_eq!(received(&timed), received(&carried[2..]));
}

/// Of a step that was timed twice, each piece of work counts with its shorter time; all else is as it was.
#[test]
fn the_shorter_of_two_times_counts() {
    let step = |first: f32, second: f32| {
        let ops = vec![
            Op::Work(Part::Select, Work::Took(first)),
            Op::Send { to: 1, bytes: 7.0 },
            Op::Receive { from: 1 },
            Op::Work(Part::Merge, Work::Took(second)),
        ];
        Trace { workers: vec![ops, Vec::new()], rounds: 3, delivered: 5.0 }
    };
    let mut timed = step(0.5, 0.25);
    assert!(timed.shorten(&step(0.125, 1.0)));
    assert_eq!(timed, step(0.125, 0.25));
    let other = Trace { workers: vec![vec![Op::Receive { from: 1 }], Vec::new()], ..step(0.0, 0.0) };
    assert!(!timed.shorten(&other) && timed == step(0.125, 0.25), "of another step nothing is taken");
}

/// Lengths are those of real bags, for every method: bytes, entries and work, and so the step.
#[test]
fn lengths_are_near_real_bags() {
    let (n, density) = (120_000, 0.01);
    let overlap = Overlap::of_source(density, &gradient);
    let machine = Machine::default();
    for workers in [2u32, 4, 6, 7, 8] {
        for method in methods(workers, n, density) {
            let real = carried(&method, workers, n);
            let name = method.collective().name();
            // How many entries a threshold gives while it is still being searched for, no length says.
            if name.starts_with("exdyna") || name == "oktopk" {
                continue;
            }
            let lengths = traces(&method, (workers, n), Workload::Expected(overlap), &gradient).unwrap();
            let near = |what: &str, real: f64, model: f64, tolerance: f64| {
                let ratio = model / real;
                assert!(
                    (ratio - 1.0).abs() <= tolerance,
                    "{method}, P = {workers}: {what} {model} for {real}"
                );
            };
            let received = |trace: &Trace| trace.bytes_received().iter().sum::<f64>();
            near("bytes", received(&real[0]), received(&lengths[0]), 0.05);
            near("entries", real[0].delivered, lengths[0].delivered, 0.05);
            assert_eq!(real[0].rounds, lengths[0].rounds, "{method}");
            let network = star(workers);
            let (real, model) =
                (seconds(&real[0], &machine, &network), seconds(&lengths[0], &machine, &network));
            near("seconds", real, model, 0.15);
        }
    }
}

/// One sampled entry stands for several: what is received of the whole is foreseen by a sample, also while a threshold is
/// still being searched for.
#[test]
fn samples_stand_for_the_whole() {
    // So long that a partition into a thousand blocks of whole vectors is about as even in the sample.
    let (workers, n) = (4, 1_600_000);
    for method in methods(workers, n, 0.01) {
        let name = method.collective().name();
        let whole = carried(&method, workers, n);
        let bags = Workload::Executed { scale: 4, steps: steps(4) };
        let sample = traces(&method, (workers, n), bags, &gradient).unwrap();
        assert_eq!(whole.len(), sample.len());
        for (whole, sample) in whole.iter().zip(&sample) {
            let received = |trace: &Trace| trace.bytes_received().iter().sum::<f64>();
            let ratio = received(sample) / received(whole);
            assert!((ratio - 1.0).abs() < 0.1, "{name}: {ratio}");
            let taken = |trace: &Trace| seconds(trace, &Machine::default(), &star(workers));
            let ratio = taken(sample) / taken(whole);
            assert!((ratio - 1.0).abs() < 0.1, "{name}: {ratio}");
        }
    }
}

/// What is too large is refused in a sentence, and what is large is not.
#[test]
fn large_cases() {
    let overlap = Workload::Expected(Overlap { shared: 0.1, support: 0.5 });
    let refused = traces(&Method::ring(), (4096, 1_000_000), overlap, &gradient).unwrap_err().to_string();
    assert!(refused.contains("choose fewer workers"), "{refused}");
    let equal = star(4096);
    let mut unequal = star(4096);
    unequal.hosts[7].slow = 2.0;
    assert!(traces_on(&unequal, &Method::ring(), (4096, 1_000_000), overlap, &gradient).is_err());
    let (ring, network) = traces_on(&equal, &Method::ring(), (4096, 1_000_000), overlap, &gradient).unwrap();
    assert_eq!((ring[0].workers.len(), ring[0].rounds, network.hosts.len()), (1, 8190, 1));
    let spardl = Method::spardl().density(0.001);
    let trace = traces(&spardl, (256, 10_000_000_000), overlap, &gradient).unwrap().remove(0);
    assert_eq!(trace.rounds, 16);
    // SparDL, equation 3: 4k(P − 1)/P words of four bytes at most, and an index takes less than a word.
    let most = 16.0 * 1e7 * 255.0 / 256.0;
    let received = trace.bytes_received().into_iter().fold(0.0, f64::max);
    assert!(received < 1.01 * most && received > most / 2.0, "{received} of {most}");
}

/// Where schedules are rotations of one another and hosts are equal, one worker does what each of all does, at the same time.
#[test]
fn one_worker_stands_for_all() {
    let machine = Machine::default();
    let overlap = Overlap { shared: 0.1, support: 0.5 };
    for workers in [2u32, 5, 16] {
        // So that all blocks are equally long, with equal shares of k.
        let n = 60_000 * workers as usize;
        let mut rotated = Vec::new();
        for method in methods(workers, n, 0.01) {
            let name = method.collective().name();
            let Some(one) = lengths::by_symmetry(&method, workers, n, overlap).unwrap() else { continue };
            rotated.push(name);
            let all = lengths::trace(&method, workers, n, overlap).unwrap();
            assert_eq!((one.rounds, one.workers.len()), (all.rounds, 1), "{name}");
            assert!(close(one.delivered, all.delivered), "{name}");
            assert!(
                all.bytes_received().iter().all(|&bytes| close(bytes, one.bytes_received()[0])),
                "{name}"
            );
            let network = star(workers);
            let taken = replay(&one, &machine, &network.one_of_equals().unwrap(), false);
            for worker in replay(&all, &machine, &network, false).workers {
                let ratio = taken.seconds() / worker.seconds;
                assert!((ratio - 1.0).abs() < 1e-3, "{name}, P = {workers}: {ratio}");
            }
        }
        println!("P = {workers}: {rotated:?}");
        assert!(["ring", "spardl", "ssar-split-all-gather"].iter().all(|name| rotated.contains(name)));
    }
    // Everything that tells workers apart keeps them apart.
    let apart = |change: fn(&mut Network)| {
        let mut network = star(4);
        change(&mut network);
        assert_eq!(network.one_of_equals(), None);
    };
    apart(|network| network.hosts[2].slow = 2.0);
    apart(|network| network.links[5].rate = 1.0);
    apart(|network| network.links.iter_mut().for_each(|link| link.loss = 0.01));
    apart(|network| network.hosts[1].pool = 0);
    apart(|network| network.hosts[3].up.push(0));
    assert!(star(4).one_of_equals().is_some());
}

/// A schedule's checker and the lengths agree on rounds where a first step is typical.
#[test]
fn rounds_of_lengths_are_the_checkers() {
    for workers in [2u32, 3, 5, 9, 16] {
        for name in ["spardl", "ring", "gtopk", "topka", "random-k", "rabenseifner"] {
            let method = Method::named(name).unwrap();
            let proof = check(method.schedules(workers, 10_000).unwrap()).unwrap();
            let overlap = Workload::Expected(Overlap { shared: 0.2, support: 1.0 });
            let trace = traces(&method, (workers, 10_000), overlap, &gradient).unwrap().remove(0);
            assert_eq!(trace.rounds, proof.cost.rounds, "{name} among {workers}");
        }
    }
}
