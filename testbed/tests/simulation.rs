//! Laws of simulated steps, for every method that there is.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::schedule::{check, lockstep};
use gleaner_testbed::simulation::calibration::{Prepared, fit};
use gleaner_testbed::simulation::measured::{Measured, read};
use gleaner_testbed::simulation::{
    Bags, Link, Machine, Network, Op, Overlap, Part, Steps, Trace, Work, lengths, replay, traces, traces_on,
};
use gleaner_testbed::topology::Topology;

/// Heavy-tailed, partly shared between the ranks, another one in each step.
fn gradient(rank: u32, step: u64, entries: &mut [f32]) {
    let of = |seed: u64, i: usize| {
        let mut x = (seed << 40 ^ i as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = ((x ^ (x >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        uniform * uniform * uniform
    };
    let own = 2 * (step * 1000 + u64::from(rank)) + 1;
    entries.iter_mut().enumerate().for_each(|(i, entry)| *entry = of(2 * step, i) + of(own, i));
}

/// All methods that run among so many workers.
fn methods(workers: u32, n: usize, density: f64) -> Vec<Method> {
    let named = Method::all().map(|method| method.density(density));
    named.filter(|method| method.shape(workers, n).is_ok()).collect()
}

fn steps(counted: u32) -> Steps {
    Steps { counted, ..Steps::default() }
}

fn carried(method: &Method, workers: u32, n: usize) -> Vec<Trace> {
    traces(method, (workers, n), Bags::Carried { scale: 1, steps: steps(4) }, &gradient).unwrap()
}

const LINK: Link = Link { rate: 1.25e8, burst: 0.0, latency: 5e-5, loss: 0.0 };

fn star(workers: u32) -> Network {
    Network::star(workers, LINK, 2.0, false)
}

fn seconds(trace: &Trace, machine: &Machine, network: &Network) -> f64 {
    replay(trace, machine, network, false).seconds()
}

/// Seconds of processor that a worker's operations take.
fn work(trace: &Trace, rank: usize, machine: &Machine) -> f64 {
    let seconds = |op: &Op| if let Op::Work(_, work) = op { machine.work(work) } else { 0.0 };
    trace.workers[rank].iter().map(seconds).sum()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs())
}

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

/// Timed bags are the same bags: what is sent, in how many rounds, and what comes of it. All of their work has a time.
#[test]
fn timed_bags_are_real_bags() {
    for workers in [1u32, 3, 8] {
        let n = 4000;
        for method in methods(workers, n, 0.05) {
            let clock = Instant::now();
            let timed = traces(&method, (workers, n), Bags::Timed { steps: steps(4), at_once: 2 }, &gradient)
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
            // Two work at a time, or one, and nobody's clock runs while it waits.
            let clock = Instant::now();
            let alone = Bags::Timed { steps: steps(4), at_once: 1 };
            let alone = traces(&method, (workers, n), alone, &gradient).unwrap();
            for (at_once, timed, lasted) in
                [(2.0, &timed, lasted), (1.0, &alone, clock.elapsed().as_secs_f64())]
            {
                let machine = Machine::infinite();
                let took = |trace: &Trace| {
                    (0..trace.workers.len()).map(|rank| work(trace, rank, &machine)).sum::<f64>()
                };
                let took: f64 = timed.iter().map(took).sum();
                assert!(took > 0.0 && took <= at_once * lasted, "{method}: {took} s of work in {lasted} s");
            }
        }
    }
    let refused =
        traces(&Method::spardl(), (3, 100), Bags::Timed { steps: steps(1), at_once: 1 }, &|_, _, entries| {
            entries.fill(f32::NAN)
        });
    assert!(refused.unwrap_err().to_string().contains("finite"));
}

/// The steps that count are those after the warm-up, however long it is.
#[test]
fn a_longer_warm_up_leaves_later_steps() {
    let method = methods(3, 4000, 0.05).into_iter().find(|method| method.label() == "oktopk").unwrap();
    let (all, later) = (steps(4), Steps { warm_up: 5, counted: 2 });
    let of = |bags| traces(&method, (3, 4000), bags, &gradient).unwrap();
    let carried = of(Bags::Carried { scale: 1, steps: all });
    assert_eq!(carried.len(), 4, "it learns, so that no step is like the one before");
    assert_ne!(carried[0], carried[2]);
    assert_eq!(of(Bags::Carried { scale: 1, steps: later }), carried[2..]);
    let timed = of(Bags::Timed { steps: later, at_once: 2 });
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

/// What was timed takes longer where workers share cores, and only there.
#[test]
fn timed_work_takes_longer_beside_other_work() {
    let work = |_| vec![Op::Work(Part::Select, Work::Took(0.5))];
    let trace = Trace { workers: (0..2).map(work).collect(), ..Trace::default() };
    let machine = Machine { crowding: 1.5, ..Machine::infinite() };
    assert!(close(seconds(&trace, &machine, &star(2)), 0.5));
    assert!(close(seconds(&trace, &machine, &Network::star(2, LINK, 2.0, true)), 0.75));
}

/// Whoever wakes up waits for a core where workers share them and all are busy, and for nobody where one is idle.
#[test]
fn who_wakes_up_waits_for_a_core() {
    let machine = Machine { crowding: 1.0, wake: 10_000.0, ..Machine::infinite() };
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
    let machine = Machine { crowding: 1.0, message: 10_000.0, ..Machine::infinite() };
    let link = Link { rate: f64::INFINITY, burst: 0.0, latency: 0.0, loss: 0.0 };
    let replayed = replay(&trace, &machine, &Network::star(3, link, 1.0, true), false);
    // Ten milliseconds on each side, whatever else wants the core; and the computing has to wait for them.
    assert!(close(replayed.workers[1].seconds, 0.02), "{}", replayed.workers[1].seconds);
    assert!(close(replayed.seconds(), 2.02), "{}", replayed.seconds());
}

/// Workers that share cores begin one after the other, and each step is counted from its own beginning; those with cores of
/// their own begin together.
#[test]
fn workers_of_a_machine_begin_one_after_the_other() {
    let machine = Machine { stagger: 1000.0, ..Machine::infinite() };
    let link = Link { rate: f64::INFINITY, burst: 0.0, latency: 0.0, loss: 0.0 };
    let ring = carried(&Method::ring(), 5, 5000).remove(0);
    // What takes no time keeps nobody waiting.
    assert_eq!(seconds(&ring, &machine, &Network::star(5, link, 2.0, true)), 0.0);
    let compute = Op::Work(Part::Select, Work::Took(1.0));
    let trace = Trace { workers: vec![vec![compute]; 5], ..Trace::default() };
    let machine = Machine { crowding: 1.0, ..machine };
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

/// The α-β model is a lower bound: nobody receives faster than its link, and each message takes a latency and its transfer
/// before what waits for it.
#[test]
fn no_step_is_faster_than_latency_and_bandwidth_allow() {
    for workers in [2, 4, 7] {
        for method in methods(workers, 6000, 0.02) {
            let trace = carried(&method, workers, 6000).remove(0);
            let taken = seconds(&trace, &Machine::infinite(), &star(workers));
            let bytes = trace.bytes_received().into_iter().fold(0.0, f64::max);
            let least = (bytes / LINK.rate).max(chain(&trace, &Machine::infinite(), LINK));
            assert!(taken >= least * (1.0 - 1e-9), "{method}: {taken} below {least}");
        }
    }
}

/// Where links take no time and nobody shares a core, only chains of computation are left: never shorter than the longest
/// worker's own, never longer than all work in a row.
#[test]
fn an_infinite_network_leaves_the_longest_chain() {
    let machine = Machine { message: 0.0, byte: 0.0, wake: 0.0, ..Machine::default() };
    let link = Link { rate: f64::INFINITY, burst: 0.0, latency: 0.0, loss: 0.0 };
    for workers in [2u32, 6] {
        let network = Network::star(workers, link, f64::INFINITY, false);
        for method in methods(workers, 6000, 0.02) {
            let trace = carried(&method, workers, 6000).remove(0);
            let taken = seconds(&trace, &machine, &network);
            assert!(close(taken, chain(&trace, &machine, link)), "{method}: {taken}");
        }
    }
}

/// The longest chain of work and messages where nobody shares anything, computed without events.
fn chain(trace: &Trace, machine: &Machine, link: Link) -> f64 {
    let workers = trace.workers.len();
    let mut times = vec![0.0f64; workers];
    let mut next = vec![0; workers];
    let mut mail: std::collections::HashMap<(u32, u32), std::collections::VecDeque<f64>> = Default::default();
    let mut progress = true;
    while std::mem::take(&mut progress) {
        for rank in 0..workers {
            while let Some(op) = trace.workers[rank].get(next[rank]) {
                match op {
                    Op::Work(_, work) => times[rank] += machine.work(work),
                    Op::Send { to, bytes } => {
                        let there = times[rank] + 2.0 * link.latency + f64::from(*bytes) / link.rate;
                        mail.entry((rank as u32, *to)).or_default().push_back(there);
                    }
                    Op::Receive { from } => {
                        let queue = mail.entry((*from, rank as u32)).or_default();
                        let Some(sent) = queue.pop_front() else { break };
                        times[rank] = times[rank].max(sent);
                    }
                }
                next[rank] += 1;
                progress = true;
            }
        }
    }
    times.into_iter().fold(0.0, f64::max)
}

/// Slower links, later bytes, fewer cores, and losses make no step shorter.
#[test]
fn worse_is_not_faster() {
    let machine = Machine::default();
    for workers in [3u32, 8] {
        for method in methods(workers, 20_000, 0.02) {
            let trace = carried(&method, workers, 20_000).remove(0);
            let best = seconds(&trace, &machine, &star(workers));
            let link = |link: Link| Network::star(workers, link, 2.0, false);
            let worse = [
                ("narrow", link(Link { rate: LINK.rate / 8.0, ..LINK })),
                ("far", link(Link { latency: 20.0 * LINK.latency, ..LINK })),
                ("lossy", link(Link { loss: 0.3, ..LINK })),
                ("one core each", Network::star(workers, LINK, 1.0, false)),
                ("one core for all", Network::star(workers, LINK, 1.0, true)),
            ];
            for (name, network) in worse {
                let taken = seconds(&trace, &machine, &network);
                // Who comes first at a link may change with what comes before: an anomaly, and a small one.
                assert!(taken >= 0.98 * best, "{method}, {name}: {taken} after {best}");
            }
        }
    }
}

/// A straggler's step takes as much longer as the straggler computes longer, at least.
#[test]
fn everybody_waits_for_a_straggler() {
    let machine = Machine::default();
    for method in methods(4, 20_000, 0.02) {
        let trace = carried(&method, 4, 20_000).remove(0);
        let mut network = star(4);
        network.hosts[1].slow = 10.0;
        let replayed = replay(&trace, &machine, &network, false);
        assert!(replayed.workers[1].seconds >= 10.0 * work(&trace, 1, &machine) * (1.0 - 1e-9), "{method}");
        // It contributes to every sum, so nobody is done before it has read its own gradient.
        let read = 10.0 * machine.accumulate * 20_000.0 * 1e-9;
        assert!(replayed.workers.iter().all(|worker| worker.seconds >= read), "{method}");
    }
}

/// Two senders, one with twice as many messages as the other, each get half of a receiver's link while both send.
#[test]
fn messages_that_meet_at_a_link_share_it() {
    let link = Link { latency: 0.0, ..LINK };
    let send = |to: u32, count: usize| vec![Op::Send { to, bytes: 250_000.0 }; count];
    let receive = |from: u32, count: usize| vec![Op::Receive { from }; count];
    let answer = Op::Send { to: 2, bytes: 0.0 };
    let trace = Trace {
        workers: vec![
            [receive(2, 25), vec![answer], receive(1, 50)].concat(),
            send(0, 50),
            [send(0, 25), receive(0, 1)].concat(),
        ],
        ..Trace::default()
    };
    let replayed = replay(&trace, &Machine::infinite(), &Network::star(3, link, 2.0, false), false);
    // 18.75 MB at 125 MB/s in all, of which the first half of 12.5 MB is the other one's.
    assert!((replayed.workers[2].seconds - 0.1).abs() < 0.002, "{}", replayed.workers[2].seconds);
    assert!((replayed.workers[0].seconds - 0.15).abs() < 0.001, "{}", replayed.workers[0].seconds);
}

/// Messages from one rank to another come in the order in which they were sent, however long they are, and also where the
/// first of their links is the faster one.
#[test]
fn messages_between_two_come_in_order() {
    let trace = Trace {
        workers: vec![
            vec![Op::Receive { from: 1 }, Op::Send { to: 1, bytes: 0.0 }, Op::Receive { from: 1 }],
            vec![Op::Send { to: 0, bytes: 1e6 }, Op::Send { to: 0, bytes: 8.0 }, Op::Receive { from: 0 }],
        ],
        ..Trace::default()
    };
    for factor in [1.0, 10.0, 0.1] {
        let mut network = star(2);
        network.links[2].rate *= factor;
        let replayed = replay(&trace, &Machine::infinite(), &network, false);
        let long = 1e6 / (LINK.rate * factor.min(1.0));
        let answered = replayed.workers[1].seconds;
        assert!(answered >= long && answered < 1.2 * long, "{answered} s after {long} s");
    }
}

/// What a link lets through at once is nothing that a message waits for, in however many pieces it is sent.
#[test]
fn a_burst_passes_at_once() {
    for bytes in [60_000.0f32, 1_048_576.0, 1_048_577.0, 30e6] {
        let link = Link { burst: 125_000.0, latency: 0.0, ..LINK };
        let trace = Trace {
            workers: vec![vec![Op::Receive { from: 1 }], vec![Op::Send { to: 0, bytes }]],
            ..Trace::default()
        };
        let taken = seconds(&trace, &Machine::infinite(), &Network::star(2, link, 2.0, false));
        let expected = (f64::from(bytes) - link.burst).max(0.0) / link.rate;
        assert!((taken - expected).abs() < 1e-9, "{taken} instead of {expected}");
    }
}

/// Equal seeds give equal steps, bit by bit; other seeds lose other segments.
#[test]
fn steps_repeat() {
    let trace = carried(&Method::ring(), 4, 400_000).remove(0);
    let lossy = |seed: u64| {
        let link = Link { loss: 0.05, ..LINK };
        let network = Network { seed, ..Network::star(4, link, 2.0, false) };
        seconds(&trace, &Machine::default(), &network)
    };
    assert_eq!(lossy(1).to_bits(), lossy(1).to_bits());
    assert_ne!(lossy(1), lossy(2));
    let again = carried(&Method::ring(), 4, 400_000).remove(0);
    assert_eq!(trace, again);
}

/// A lost segment costs a round trip where later ones follow, so that a far network suffers more.
#[test]
fn losses_cost_round_trips() {
    let trace = carried(&Method::ring(), 3, 300_000).remove(0);
    let taken = |latency: f64, loss: f64| {
        let link = Link { latency, loss, ..LINK };
        seconds(&trace, &Machine::infinite(), &Network::star(3, link, 2.0, false))
    };
    let cost = |latency: f64| taken(latency, 0.01) - taken(latency, 0.0);
    assert!(cost(1e-2) > cost(1e-3) && cost(1e-3) > 0.0);
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
            let lengths = traces(&method, (workers, n), Bags::Lengths(overlap), &gradient).unwrap();
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
        let bags = Bags::Carried { scale: 4, steps: steps(4) };
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

/// Two racks whose uplinks carry less than their hosts: what crosses them waits for the uplink, and only that.
#[test]
fn an_oversubscribed_core_is_shared() {
    let topology = |uplink: &str| {
        let group = |name: &str| {
            format!("[[group]]\nname = '{name}'\nhosts = 2\n[uplink.{name}]\nrate = '{uplink}'\n")
        };
        Topology::parse(&["[link]\nrate = '1gbit'\n".into(), group("a"), group("b")].concat()).unwrap()
    };
    let network = |uplink: &str| Network::of_topology(&topology(uplink), Duration::ZERO, 2.0, false);
    let bytes = 125e6 / 4.0;
    // Rank 0 sends to its neighbour, ranks 2 and 3 to the other rack.
    let mut trace = Trace::new(4);
    let send = |to: u32| Op::Send { to, bytes: bytes as f32 };
    trace.workers[0] = vec![send(1)];
    trace.workers[2] = vec![send(0)];
    trace.workers[3] = vec![send(1)];
    trace.workers[1] = vec![Op::Receive { from: 0 }, Op::Receive { from: 3 }];
    trace.workers[0].push(Op::Receive { from: 2 });
    let replayed = |uplink: &str| replay(&trace, &Machine::infinite(), &network(uplink), false);
    // Each message takes a quarter of a second. With half the rate, what crosses the core takes one after the other.
    assert!(close(replayed("1gbit").seconds(), 0.5));
    assert!(close(replayed("500mbit").seconds(), 1.0));
    let alone = |to: u32, from: u32| {
        let mut trace = Trace::new(4);
        trace.workers[from as usize] = vec![send(to)];
        trace.workers[to as usize] = vec![Op::Receive { from }];
        replay(&trace, &Machine::infinite(), &network("500mbit"), false).seconds()
    };
    assert!(close(alone(1, 0), 0.25));
    assert!(close(alone(0, 2), 0.5));
}

/// A machine's numbers are found again from steps that were simulated with them.
#[test]
fn a_machine_is_fitted() {
    let machine = Machine { message: 90.0, byte: 1.5, accumulate: 3.0, ..Machine::default() };
    let mut cases = Vec::new();
    for workers in [2u32, 4] {
        for name in ["spardl", "ring", "gtopk", "topka", "dsar-split-all-gather"] {
            let method = Method::named(name).unwrap().density(0.01);
            let traces = carried(&method, workers, 100_000);
            let network = Network::star(workers, LINK, 2.0, true);
            let replayed = replay(&traces[0], &machine, &network, false);
            let slowest = replayed.slowest();
            let measured = Measured {
                label: name.into(),
                method,
                workers,
                n: 100_000,
                shape: None,
                cores: Some(2),
                steps: steps(1),
                seconds: slowest.seconds,
                turns: vec![slowest.seconds],
                select: slowest.select,
                merge: slowest.merge,
                bytes_received: 0.0,
            };
            cases.push(Prepared { measured, traces, network });
        }
    }
    let off = |machine: &Machine| {
        let ratio = |case: &Prepared| {
            replay(&case.traces[0], machine, &case.network, false).seconds() / case.measured.seconds
        };
        cases.iter().map(|case| (ratio(case) - 1.0).abs()).fold(0.0, f64::max)
    };
    let start = Machine::default();
    let fitted = fit(&cases, &start, |_, _| {});
    assert!(off(&start) > 0.2, "nothing to find: {}", off(&start));
    assert!(off(&fitted) < 0.05, "off by {}: {fitted:?}", off(&fitted));
}

/// Files of measurements: what an experiment stored and what bench printed; other jobs are passed over, nonsense is refused.
#[test]
fn measurements_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measurements.jsonl");
    let summary = serde_json::json!({
        "method": "spardl/2", "workers": 4, "params": 1000, "k": 10, "steps": 5, "seconds": 0.5,
        "slowest_select": 0.1, "slowest_merge": 0.2, "bytes_received": 800,
    });
    let with = |case: serde_json::Value, chaos: &[&str], traffic: serde_json::Value| {
        serde_json::json!({
            "version": 1, "experiment": "e", "case": case, "turn": 0, "started": 0.0, "seconds": 1.0,
            "machine": { "processor": "p", "cores": 3, "memory": 1, "kernel": "k" }, "commit": null, "command": [],
            "chaos": chaos, "traffic": traffic, "outcome": { "done": summary },
        })
        .to_string()
    };
    let emulated = || serde_json::json!([{ "host": "host0", "received": 1, "sent": 1 }]);
    let record = |case: serde_json::Value, chaos: &[&str]| with(case, chaos, emulated());
    let shaped = serde_json::json!({ "command": "bench", "rate": "100mbit", "delay": "1ms", "loss": "1%", "warmup": 8 });
    let train = serde_json::json!({ "command": "train" });
    let slower = |seconds: f64| {
        let mut record: serde_json::Value = serde_json::from_str(&record(shaped.clone(), &[])).unwrap();
        record["outcome"]["done"]["seconds"] = seconds.into();
        record.to_string()
    };
    let lines = [
        record(shaped.clone(), &[]),
        record(shaped.clone(), &["kill"]),
        // Two more turns of the first.
        slower(0.9),
        slower(0.6),
        record(train, &[]),
        // No link, links that are not alike, and links that vary.
        with(shaped.clone(), &[], serde_json::json!([])),
        record(serde_json::json!({ "command": "bench", "topology": "racks.toml" }), &[]),
        record(serde_json::json!({ "command": "bench", "jitter": "1ms" }), &[]),
        format!("[0] {}", serde_json::json!({ "methods": [summary, summary], "refused": [] })),
        "a launcher's words".into(),
        // A warm-up that only the command tells, and links without a limit.
        with(serde_json::json!({ "command": "bench", "seed": 2 }), &[], emulated())
            .replace("\"command\":[]", "\"command\":[\"gleaner\",\"bench\",\"--warmup\",\"7\"]"),
    ];
    std::fs::write(&path, lines.join("\n")).unwrap();
    let found = read(&path).unwrap();
    assert_eq!(found.len(), 4);
    assert_eq!((found[3].steps.warm_up, found[3].shape.unwrap().rate), (7, None));
    let shape = found[0].shape.unwrap();
    assert_eq!((shape.rate.unwrap().bytes_per_second(), shape.loss.share()), (1.25e7, 0.01));
    assert_eq!((found[0].cores, found[0].workers, found[0].label.as_str()), (Some(3), 4, "spardl/2"));
    assert_eq!(found[0].method.option("teams").unwrap(), "2");
    assert_eq!(found[0].steps, Steps { warm_up: 8, counted: 5 });
    assert_eq!(found[1].steps, steps(5), "bench has three steps before, if nothing else is said");
    assert_eq!((found[0].seconds, &found[0].turns[..]), (0.6, &[0.5, 0.9, 0.6][..]));
    assert_eq!((found[1].shape, found[1].cores), (None, None));
    let none = summary.to_string().replace("\"steps\":5", "\"steps\":0");
    for (text, words) in
        [("{}", "line 1"), ("{\"method\": 3}", "no measurement"), (&none, "no steps"), ("", "no step of")]
    {
        std::fs::write(&path, text).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    let error = read(&folder.path().join("nowhere")).unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
}

/// What is too large is refused in a sentence, and what is large is not.
#[test]
fn large_cases() {
    let overlap = Bags::Lengths(Overlap { shared: 0.1, support: 0.5 });
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
            let Some(one) = lengths::one_for_all(&method, workers, n, overlap).unwrap() else { continue };
            rotated.push(name);
            let all = lengths::trace(&method, workers, n, overlap).unwrap();
            assert_eq!((one.rounds, one.workers.len()), (all.rounds, 1), "{name}");
            assert!(close(one.delivered, all.delivered), "{name}");
            assert!(
                all.bytes_received().iter().all(|&bytes| close(bytes, one.bytes_received()[0])),
                "{name}"
            );
            let network = star(workers);
            let taken = replay(&one, &machine, &network.one_for_all().unwrap(), false);
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
        assert_eq!(network.one_for_all(), None);
    };
    apart(|network| network.hosts[2].slow = 2.0);
    apart(|network| network.links[5].rate = 1.0);
    apart(|network| network.links.iter_mut().for_each(|link| link.loss = 0.01));
    apart(|network| network.hosts[1].pool = 0);
    apart(|network| network.hosts[3].up.push(0));
    assert!(star(4).one_for_all().is_some());
}

/// The model of overlap finds its own numbers again, and never leaves its bounds.
#[test]
fn overlap_is_fitted() {
    for overlap in [(0.0, 1.0), (0.3, 0.5), (0.1, 0.05), (0.9, 1.0)] {
        let overlap = Overlap { shared: overlap.0, support: overlap.1 };
        let (k, n) = (1e4, 1e6);
        let unions: Vec<u64> = (1..=12).map(|m| overlap.union(f64::from(m), k, n).round() as u64).collect();
        let found = Overlap::fit(&unions, k as usize, n as usize);
        for (workers, &union) in (1..).map(f64::from).zip(&unions) {
            let model = found.union(workers, k, n);
            assert!((model / union as f64 - 1.0).abs() < 0.03, "{overlap:?}: {model} for {union}");
            assert!(model >= k * 0.999 && model <= k * workers * 1.001);
        }
    }
}

/// A schedule's checker and the lengths agree on rounds where a first step is typical.
#[test]
fn rounds_of_lengths_are_the_checkers() {
    for workers in [2u32, 3, 5, 9, 16] {
        for name in ["spardl", "ring", "gtopk", "topka", "random-k", "rabenseifner"] {
            let method = Method::named(name).unwrap();
            let proof = check(method.schedules(workers, 10_000).unwrap()).unwrap();
            let overlap = Bags::Lengths(Overlap { shared: 0.2, support: 1.0 });
            let trace = traces(&method, (workers, 10_000), overlap, &gradient).unwrap().remove(0);
            assert_eq!(trace.rounds, proof.cost.rounds, "{name} among {workers}");
        }
    }
}
