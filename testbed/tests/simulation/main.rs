//! Invariants of simulated steps, for every method that there is.

#![allow(clippy::unwrap_used)]

mod bags;
mod fits;
mod links;
mod processors;

use gleaner_algorithms::Method;
use gleaner_statistics::random;
use gleaner_testbed::simulation::{Link, Machine, Network, Op, Steps, Trace, Workload, replay, traces};

/// Heavy-tailed, partly shared between the ranks, another one in each step.
fn gradient(rank: u32, step: u64, entries: &mut [f32]) {
    let of = |seed: u64, i: usize| random::symmetric(random::at(seed << 40, i as u64 + 1)).powi(3);
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
    traces(method, (workers, n), Workload::Executed { scale: 1, steps: steps(4) }, &gradient).unwrap()
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

/// A machine that does everything in no time, on links that carry nothing but payload.
fn infinite() -> Machine {
    let nothing = Machine::default().numbers().map(|_| 0.0);
    Machine { goodput: 1.0, ..Machine::of("a machine that takes no time".into(), nothing) }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs())
}
