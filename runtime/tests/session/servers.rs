//! Parameters on servers: what workers push, and what they have afterwards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::synchrony::{self, Sgd, Synchrony};
use gleaner_runtime::{Error, Layout, Options, Pass, Replica, Roles, Session};

use crate::job::{self, NETWORKS, Over, gradient};

const LENS: [usize; 4] = [700, 1, 10_000, 299];

pub fn layout() -> Layout {
    LENS.iter()
        .enumerate()
        .fold(Layout::new(), |layout, (unit, &len)| layout.group().parameter(format!("unit {unit}"), len))
}

pub fn entries() -> usize {
    LENS.iter().sum()
}

pub fn initial() -> Vec<f32> {
    gradient(entries(), 99, 1234)
}

pub fn options(method: Method, synchrony: &str, sgd: Sgd) -> Options {
    let synchrony: Arc<dyn Synchrony> = Arc::from(synchrony::named(synchrony).unwrap());
    Options { method, synchrony, sgd, samples: 16, epoch: 10 }
}

pub const SGD: Sgd = Sgd { momentum: 0.9, weight_decay: 0.01, nesterov: true };

pub fn pass() -> Pass {
    Pass { rate: 0.1, samples: 16, loss: 1.0 }
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The gradient of a pass is ready.
pub fn give(replica: &mut Replica, gradient: &[f32]) {
    try_give(replica, gradient).unwrap();
}

pub fn try_give(replica: &mut Replica, gradient: &[f32]) -> Result<(), Error> {
    let mut start = 0;
    for (unit, len) in LENS.into_iter().enumerate() {
        replica.ready(&format!("unit {unit}"), &gradient[start..start + len])?;
        start += len;
    }
    Ok(())
}

/// The error of a worker that takes steps with this gradient until the job fails.
fn until_failure(replica: &mut Replica, gradient: &[f32]) -> String {
    let mut step = || try_give(replica, gradient).and_then(|()| replica.step(pass()));
    loop {
        if let Err(error) = step() {
            return error.to_string();
        }
    }
}

/// A worker that takes this many steps, and the parameters after each.
fn train(session: &Session, options: Options, steps: u64) -> Vec<Vec<u32>> {
    let mut replica = session.replica(&layout(), &initial(), options).unwrap();
    assert_eq!(bits(replica.parameters()), bits(&initial()));
    (0..steps)
        .map(|step| {
            give(&mut replica, &gradient(entries(), session.rank(), step));
            replica.step(pass()).unwrap();
            bits(replica.parameters())
        })
        .collect()
}

/// What one process computes: a step of the optimiser with the mean of all gradients, added up in the order of the ranks.
fn oracle(workers: usize, steps: u64, sgd: Sgd) -> Vec<Vec<u32>> {
    let (mut parameters, mut velocities) = (initial(), vec![0.0; entries()]);
    (0..steps)
        .map(|step| {
            let gradients = (0..workers).map(|rank| gradient(entries(), rank, step));
            let sum = gradients.reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a + b).collect()).unwrap();
            let mean: Vec<f32> = sum.iter().map(|sum| sum / workers as f32).collect();
            sgd.step(&mut parameters, &mut velocities, &mean, pass().rate);
            bits(&parameters)
        })
        .collect()
}

/// A rank's part in this many steps: a worker's parameters after each of them and after the flush, bit by bit, and nothing of a server.
fn every_step(session: &Session, synchrony: &str, steps: u64) -> Vec<Vec<u32>> {
    if session.is_server() {
        session.serve().unwrap();
        return Vec::new();
    }
    let options = options(Method::ring(), synchrony, SGD);
    let mut replica = session.replica(&layout(), &initial(), options).unwrap();
    let mut all = Vec::new();
    for step in 0..steps {
        give(&mut replica, &gradient(entries(), session.rank(), step));
        replica.step(pass()).unwrap();
        all.push(bits(replica.parameters()));
    }
    replica.flush().unwrap();
    all.push(bits(replica.parameters()));
    all
}

#[test]
fn a_barrier_over_servers_gives_the_bits_of_one_process() {
    for over in NETWORKS {
        for workers in 1..=5 {
            for (servers, colocated) in [(1, false), (2, false), (3, false), (1, true), (workers, true)] {
                let roles = Roles { servers, colocated, ..Roles::default() };
                let ranks = if colocated { workers } else { workers + servers };
                let results = job::run_as(over, ranks, roles, |session| {
                    assert_eq!(
                        (session.world_size(), session.servers()),
                        (workers as usize, servers as usize)
                    );
                    if session.is_server() {
                        session.serve().unwrap();
                        return Vec::new();
                    }
                    train(&session, options(Method::ring(), "bsp", SGD), 4)
                });
                let expected = oracle(workers as usize, 4, SGD);
                for (rank, result) in results.iter().enumerate().take(workers as usize) {
                    assert!(
                        *result == expected,
                        "rank {rank} of {workers}, {servers} servers, {colocated}, {over:?}"
                    );
                }
                assert!(results[workers as usize..].iter().all(Vec::is_empty));
            }
        }
    }
}

/// What a worker pushes of one part: the largest entries of what it has, and the rest waits.
fn select(residual: &mut [f32], k: usize) -> Vec<f32> {
    let mut order: Vec<usize> = (0..residual.len()).collect();
    order.sort_by(|&a, &b| residual[b].abs().total_cmp(&residual[a].abs()).then(a.cmp(&b)));
    let mut pushed = vec![0.0; residual.len()];
    for index in order.into_iter().take(k) {
        pushed[index] = std::mem::take(&mut residual[index]);
    }
    pushed
}

/// The same with a share of the entries of each part.
fn sparse_oracle(workers: usize, servers: usize, steps: u64, density: f64, sgd: Sgd) -> Vec<Vec<u32>> {
    let n = entries();
    let cut = |server: usize| server * (n / servers) + server.min(n % servers);
    let mut parts = Vec::new();
    let mut start = 0;
    for len in LENS {
        let k = ((density * len as f64 + 0.5).floor() as usize).max(1);
        for server in 0..servers {
            let range = start.max(cut(server))..(start + len).min(cut(server + 1));
            if !range.is_empty() {
                let share = (k * range.len() + len / 2) / len;
                parts.push((range.clone(), share.clamp(1, range.len())));
            }
        }
        start += len;
    }
    let (mut parameters, mut velocities) = (initial(), vec![0.0; n]);
    let mut residuals = vec![vec![0.0; n]; workers];
    (0..steps)
        .map(|step| {
            let mut mean = vec![0.0; n];
            for (rank, residual) in residuals.iter_mut().enumerate() {
                residual.iter_mut().zip(gradient(n, rank, step)).for_each(|(sum, g)| *sum += g);
                for (range, k) in &parts {
                    let pushed = select(&mut residual[range.clone()], *k);
                    mean[range.clone()].iter_mut().zip(pushed).for_each(|(sum, value)| *sum += value);
                }
            }
            mean.iter_mut().for_each(|sum| *sum /= workers as f32);
            sgd.step(&mut parameters, &mut velocities, &mean, pass().rate);
            bits(&parameters)
        })
        .collect()
}

#[test]
fn a_share_of_the_entries_gives_the_bits_of_one_process() {
    let plain = Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false };
    for over in NETWORKS {
        for workers in 1..=3 {
            for servers in 1..=3 {
                for (sgd, method) in [(SGD, "topka"), (plain, "spardl")] {
                    let roles = Roles { servers, ..Roles::default() };
                    let results = job::run_as(over, workers + servers, roles, |session| {
                        if session.is_server() {
                            session.serve().unwrap();
                            return Vec::new();
                        }
                        let method = Method::named(method).unwrap().density(0.05);
                        train(&session, options(method, "bsp", sgd), 5)
                    });
                    let expected = sparse_oracle(workers as usize, servers as usize, 5, 0.05, sgd);
                    for (rank, result) in results.iter().enumerate().take(workers as usize) {
                        assert!(
                            *result == expected,
                            "rank {rank} of {workers}, {servers} servers, {over:?}, {method}"
                        );
                    }
                }
            }
        }
    }
}

/// One worker is slower than the others, at random: under a bound no rank is ever further ahead.
#[test]
fn no_rank_is_further_ahead_than_the_bound() {
    for (synchrony, bound) in [
        ("bsp", 0),
        ("ssp/0", 0),
        ("ssp/2", 2),
        ("ssp/5", 5),
        ("dssp/1-4", 4),
        ("r2sp", 1),
        ("osp/budget=0.5", 0),
        ("osp/lgp=off,cap=1,budget=1", 1),
        ("local/3", 2),
    ] {
        let (workers, steps) = (4, 30);
        let entered: Vec<AtomicU64> = (0..workers).map(|_| AtomicU64::new(0)).collect();
        let farthest = AtomicU64::new(0);
        let roles = Roles { servers: 2, ..Roles::default() };
        let results = job::run_as(Over::Memory, workers + 2, roles, |session| {
            if session.is_server() {
                session.serve().unwrap();
                return Vec::new();
            }
            let sgd = Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false };
            let mut replica =
                session.replica(&layout(), &initial(), options(Method::ring(), synchrony, sgd)).unwrap();
            for step in 0..steps {
                let delay = (step * 7 + session.rank() as u64 * 13) % 5;
                let slow = if session.rank() == 1 { 3 } else { 0 };
                std::thread::sleep(Duration::from_millis(delay / 2 + slow));
                give(&mut replica, &gradient(entries(), session.rank(), step));
                entered[session.rank()].store(step + 1, Ordering::SeqCst);
                replica.step(pass()).unwrap();
                // A worker that begins its next step has the gradients of all others up to the bound's number of steps before it.
                let last = entered.iter().map(|entered| entered.load(Ordering::SeqCst)).min().unwrap();
                assert!(
                    last + bound > step,
                    "{synchrony}: step {step} is over, and a rank is in step {last}"
                );
                farthest.fetch_max(step + 1 - last.min(step + 1), Ordering::SeqCst);
            }
            replica.flush().unwrap();
            bits(replica.parameters())
        });
        let (workers, servers) = results.split_at(workers as usize);
        assert!(workers.iter().all(|result| *result == workers[0]), "{synchrony}: the same after a flush");
        assert!(servers.iter().all(Vec::is_empty));
        if bound > 0 {
            assert!(farthest.load(Ordering::SeqCst) > 0, "{synchrony}: a rank was ahead");
        }
    }
}

/// Every gradient is applied once, in any order of arrival: without momentum the order does not matter.
#[test]
fn every_gradient_is_applied_once() {
    for synchrony in ["asp", "ssp/1", "dssp", "r2sp"] {
        for method in [Method::ring(), Method::named("topka").unwrap().density(1.0)] {
            let (workers, steps) = (4u32, 5);
            let roles = Roles { servers: 2, ..Roles::default() };
            let results = job::run_as(Over::Tcp, workers + 2, roles, |session| {
                if session.is_server() {
                    session.serve().unwrap();
                    return Vec::new();
                }
                let sgd = Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false };
                let zeros = vec![0.0; entries()];
                let options = options(method.clone(), synchrony, sgd);
                let mut replica = session.replica(&layout(), &zeros, options).unwrap();
                for step in 0..steps {
                    // Sums of powers of two have no rounding.
                    let value = (1u64 << (session.rank() as u64 * steps + step)) as f32;
                    give(&mut replica, &vec![value; entries()]);
                    replica.step(Pass { rate: 4.0, ..pass() }).unwrap();
                }
                replica.flush().unwrap();
                replica.parameters().to_vec()
            });
            let all = -(((1u64 << (u64::from(workers) * steps)) - 1) as f32);
            for result in &results[..workers as usize] {
                assert!(result.iter().all(|value| *value == all), "{synchrony}: {} and not {all}", result[0]);
            }
        }
    }
}

#[test]
fn what_cannot_be_is_a_sentence_on_every_rank() {
    let roles = Roles { servers: 3, ..Roles::default() };
    let said = job::run_as(Over::Tcp, 5, roles, |session| {
        if session.is_server() {
            return session.serve().unwrap_err().to_string();
        }
        let layout = Layout::new().parameter("w", 2);
        let error = session.replica(&layout, &[0.0, 1.0], options(Method::ring(), "bsp", SGD));
        error.err().unwrap().to_string()
    });
    for said in &said {
        assert!(said.contains("3 servers for a model of 2 parameters"), "{said}");
    }
    // A gradient with NaN.
    let said = job::run_as(Over::Tcp, 5, roles, |session| {
        if session.is_server() {
            return session.serve().unwrap_err().to_string();
        }
        let mut replica =
            session.replica(&layout(), &initial(), options(Method::ring(), "ssp/1", SGD)).unwrap();
        let mut values = vec![1.0; entries()];
        if session.rank() == 1 {
            values[705] = f32::NAN;
        }
        until_failure(&mut replica, &values)
    });
    for said in &said {
        assert!(
            said.starts_with(
                "rank 1 failed at step 0: the gradient of 'unit 2' has 1 entries that are not finite"
            ),
            "{said}"
        );
    }
}

/// A server's own defect or a peer's nonsense names it by its number, too.
#[test]
fn a_server_that_leaves_is_named_as_server() {
    let roles = Roles { servers: 2, ..Roles::default() };
    let joined = Barrier::new(4);
    let said = job::run_as(Over::Memory, 4, roles, |session| {
        joined.wait();
        if session.rank() == 3 {
            // All are linked by then.
            std::thread::sleep(Duration::from_millis(300));
            let reason = "the disk is gone";
            return session.abort(&reason).to_string();
        }
        if session.is_server() {
            return session.serve().unwrap_err().to_string();
        }
        let mut replica = match session.replica(&layout(), &initial(), options(Method::ring(), "bsp", SGD)) {
            Ok(replica) => replica,
            Err(error) => return error.to_string(),
        };
        until_failure(&mut replica, &vec![0.0; entries()])
    });
    for said in &said {
        assert!(said.starts_with("rank 3 (server 1) failed"), "{said}");
        assert!(said.ends_with(": its program failed: the disk is gone"), "{said}");
    }
}

/// OSP's ends: all in the routine stage is a barrier, and all in the background is one that is a step late.
#[test]
fn osp_over_servers_has_its_ends() {
    for servers in 1..=2 {
        let roles = Roles { servers, ..Roles::default() };
        for (synchrony, late) in [("osp/budget=0", 0), ("osp/lgp=off,cap=1,budget=1", 1)] {
            let results =
                job::run_as(Over::Adverse, 3 + servers, roles, |session| every_step(&session, synchrony, 5));
            let mut expected = oracle(3, 5, SGD);
            expected.push(expected[4].clone());
            if late == 1 {
                expected.insert(0, bits(&initial()));
                expected.remove(5);
            }
            for (rank, result) in results.iter().enumerate().take(3) {
                assert!(*result == expected, "{synchrony}, rank {rank}, {servers} servers");
            }
        }
    }
}

/// Two gradients have one sum, in whichever order: with servers and without, the bits are the same.
#[test]
fn servers_give_the_bits_of_an_all_reduce() {
    for synchrony in ["bsp", "osp/budget=0.5", "osp/budget=0.5,lgp=ema:0.5", "local/3", "local/2,0.7,0.9"] {
        let run = |servers| {
            let roles = Roles { servers, ..Roles::default() };
            job::run_as(Over::Memory, 2 + servers, roles, |session| every_step(&session, synchrony, 8))
        };
        let reduced = run(0);
        for servers in 1..=2 {
            let served = run(servers);
            for rank in 0..2 {
                let differs = (0..9).find(|&step| served[rank][step] != reduced[rank][step]);
                assert_eq!(differs, None, "{synchrony}, {servers} servers: rank {rank} differs in a step");
            }
        }
    }
}

#[test]
fn a_server_takes_no_part_in_what_workers_do() {
    let roles = Roles { servers: 1, ..Roles::default() };
    let said = job::run_as(Over::Memory, 3, roles, |session| {
        if !session.is_server() {
            session.barrier().unwrap();
            return String::new();
        }
        let error = session.gradients(&layout(), Method::ring()).err().unwrap().to_string();
        session.serve().unwrap();
        error
    });
    assert!(said[2].starts_with("this rank is parameter server 0"), "{}", said[2]);
}
