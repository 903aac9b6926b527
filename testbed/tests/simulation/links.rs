//! Messages on links: latency, bandwidth, order, bursts and losses.

use gleaner_algorithms::Method;
use gleaner_testbed::simulation::{Link, Machine, Network, Op, Part, Trace, Work, replay};
use gleaner_testbed::topology::Topology;
use std::time::Duration;

use super::{LINK, carried, close, infinite, methods, seconds, star};

/// The α-β model is a lower bound: no worker receives faster than its link, and each message takes a latency and its transfer
/// before what waits for it.
#[test]
fn no_step_is_faster_than_latency_and_bandwidth_allow() {
    for workers in [2, 4, 7] {
        for method in methods(workers, 6000, 0.02) {
            let trace = carried(&method, workers, 6000).remove(0);
            let taken = seconds(&trace, &infinite(), &star(workers));
            let bytes = trace.bytes_received().into_iter().fold(0.0, f64::max);
            let least = (bytes / LINK.rate).max(chain(&trace, &infinite(), LINK));
            assert!(taken >= least * (1.0 - 1e-9), "{method}: {taken} below {least}");
        }
    }
}

/// Where links take no time and no core is shared, only chains of computation are left: never shorter than the longest
/// worker's own, never longer than all work in a row.
#[test]
fn an_infinite_network_leaves_the_longest_chain() {
    let machine = Machine { message: 0.0, byte: 0.0, wakeup: 0.0, ..Machine::default() };
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

/// The longest chain of work and messages where nothing is shared, computed without events.
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
                // The order at a link may change with what comes before: an anomaly, and a small one.
                assert!(taken >= 0.98 * best, "{method}, {name}: {taken} after {best}");
            }
        }
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
    let replayed = replay(&trace, &infinite(), &Network::star(3, link, 2.0, false), false);
    // 18.75 MB at 125 MB/s in all, of which the first half of 12.5 MB is the other one's.
    assert!((replayed.workers[2].seconds - 0.1).abs() < 0.002, "{}", replayed.workers[2].seconds);
    assert!((replayed.workers[0].seconds - 0.15).abs() < 0.001, "{}", replayed.workers[0].seconds);
}

/// Messages of a sender that begins later get their share of a link, too, where messages are shorter than what a link serves at once and each is written while the one
/// before it is on its way.
#[test]
fn a_late_sender_gets_its_share() {
    let machine = Machine { message: 100.0, ..infinite() };
    let messages = |count: usize| vec![Op::Send { to: 0, bytes: 60_000.0 }; count];
    let receive = |from: u32, count: usize| vec![Op::Receive { from }; count];
    let late = Op::Work(Part::Select, Work::Took(0.05));
    let trace = Trace {
        workers: vec![
            [receive(3, 20), vec![Op::Send { to: 3, bytes: 0.0 }], receive(1, 200), receive(2, 200)].concat(),
            messages(200),
            messages(200),
            [vec![late], messages(20), receive(0, 1)].concat(),
        ],
        ..Trace::default()
    };
    let link = Link { latency: 0.0, ..LINK };
    let replayed = replay(&trace, &machine, &Network::star(4, link, 2.0, false), false);
    // 1.2 MB at a third of 125 MB/s.
    let took = replayed.workers[3].seconds - 0.05;
    assert!((0.027..0.036).contains(&took), "{took}");
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
        let replayed = replay(&trace, &infinite(), &network, false);
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
        let taken = seconds(&trace, &infinite(), &Network::star(2, link, 2.0, false));
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
        seconds(&trace, &infinite(), &Network::star(3, link, 2.0, false))
    };
    let cost = |latency: f64| taken(latency, 0.01) - taken(latency, 0.0);
    assert!(cost(1e-2) > cost(1e-3) && cost(1e-3) > 0.0);
}

/// Two racks whose uplinks carry less than their hosts: what crosses them waits for the uplink, and only that.
#[test]
fn an_oversubscribed_core_is_shared() {
    let topology = |uplink: &str| {
        let group = |name: &str| {
            format!("[[group]]\nname = '{name}'\nhosts = 2\n[uplink.{name}]\nbandwidth = '{uplink}'\n")
        };
        Topology::parse(&["[link]\nbandwidth = '1gbit'\n".into(), group("a"), group("b")].concat()).unwrap()
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
    let replayed = |uplink: &str| replay(&trace, &infinite(), &network(uplink), false);
    // Each message takes a quarter of a second. With half the rate, what crosses the core takes one after the other.
    assert!(close(replayed("1gbit").seconds(), 0.5));
    assert!(close(replayed("500mbit").seconds(), 1.0));
    let alone = |to: u32, from: u32| {
        let mut trace = Trace::new(4);
        trace.workers[from as usize] = vec![send(to)];
        trace.workers[to as usize] = vec![Op::Receive { from }];
        replay(&trace, &infinite(), &network("500mbit"), false).seconds()
    };
    assert!(close(alone(1, 0), 0.25));
    assert!(close(alone(0, 2), 0.5));
}
