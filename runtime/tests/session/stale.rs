//! What a worker has seen of the others under each synchrony, whatever the delays: over parameter servers, bit for bit.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_runtime::{Roles, Session};
use gleaner_statistics::random::Generator;

use crate::job::{self, NETWORKS, Over, gradient};
use crate::servers::{SGD, bits, entries, give, initial, layout, options, pass};

const WORKERS: u32 = 3;

const STEPS: u64 = 6;

/// The parameters after each push of one worker, applied one by one in this order by one optimiser.
fn one_by_one(pushes: impl IntoIterator<Item = (usize, u64)>) -> Vec<Vec<u32>> {
    let (mut parameters, mut velocities) = (initial(), vec![0.0; entries()]);
    let apply = |(rank, step)| {
        let mean: Vec<f32> =
            gradient(entries(), rank, step).iter().map(|value| value / WORKERS as f32).collect();
        SGD.step(&mut parameters, &mut velocities, &mean, pass().rate);
        bits(&parameters)
    };
    pushes.into_iter().map(apply).collect()
}

/// What each worker has after each of its steps, under a synchrony; `pause` comes before each.
fn run(over: Over, servers: u32, synchrony: &str, pause: impl Fn(usize, u64) + Sync) -> Vec<Vec<Vec<u32>>> {
    let roles = Roles { servers, ..Roles::default() };
    let mut all = job::run_as(over, WORKERS + servers, roles, |session: Session| {
        if session.is_server() {
            session.serve().unwrap();
            return Vec::new();
        }
        let options = options(Method::ring(), synchrony, SGD);
        let mut replica = session.replica(&layout(), &initial(), options).unwrap();
        let step = |step| {
            pause(session.rank(), step);
            give(&mut replica, &gradient(entries(), session.rank(), step));
            replica.step(pass()).unwrap();
            bits(replica.parameters())
        };
        let found = (0..STEPS).map(step).collect();
        // Among fewer workers a push counts more.
        session.barrier().unwrap();
        found
    });
    all.truncate(WORKERS as usize);
    all
}

/// A random pause, which is longer for one of the workers.
fn dawdle(seed: u64) -> impl Fn(usize, u64) {
    move |rank, step| {
        let pause = Generator::new(seed, "pause", step << 8 | rank as u64).below(2048);
        let slow = if rank as u64 == seed % u64::from(WORKERS) { 3000 } else { 0 };
        std::thread::sleep(Duration::from_micros(u64::from(pause) + slow));
    }
}

/// With bound 0 no rank goes on before all of a step has come: the sums of a barrier, in its order.
#[test]
fn a_bound_of_zero_is_a_barrier() {
    for (seed, over) in (0..).zip(NETWORKS) {
        for servers in 1..=2 {
            let barrier = run(over, servers, "bsp", |_, _| ());
            for synchrony in ["bsp", "ssp/0", "dssp/0-0", "osp/budget=0"] {
                let late = run(over, servers, synchrony, dawdle(seed));
                assert!(late == barrier, "{synchrony}, {servers} servers, {over:?}");
            }
        }
    }
}

/// Who is late changes nothing that is seen under these.
#[test]
fn delays_change_nothing_where_a_worker_sees_what_it_is_given_to_see() {
    for synchrony in ["osp/lgp=off,cap=1,budget=1", "osp/budget=0.5", "local/2", "r2sp"] {
        let punctual = run(Over::Memory, 2, synchrony, |_, _| ());
        for seed in 0..3 {
            assert!(run(Over::Memory, 2, synchrony, dawdle(seed)) == punctual, "{synchrony}, delays {seed}");
        }
    }
}

/// In round robin one optimiser takes the pushes rank by rank in every step, and a worker is answered with the result of its own push.
#[test]
fn round_robin_takes_pushes_rank_by_rank() {
    let all = one_by_one((0..STEPS).flat_map(|step| (0..WORKERS as usize).map(move |rank| (rank, step))));
    for over in NETWORKS {
        for (rank, own) in run(over, 2, "r2sp", dawdle(2)).iter().enumerate() {
            for (step, found) in own.iter().enumerate() {
                assert!(
                    *found == all[step * WORKERS as usize + rank],
                    "rank {rank} after step {step}, {over:?}"
                );
            }
        }
    }
}

/// Without a barrier there is an update for each push, in the order in which they arrive: here in this one.
#[test]
fn every_push_is_an_update_of_its_own_where_no_rank_waits() {
    let turns: Vec<(usize, u64)> = {
        let mut next = [0; WORKERS as usize];
        let order = [0, 0, 2, 1, 2, 2, 0, 1, 1, 1, 2, 0, 1, 0, 2, 2, 0, 1];
        let turn = |rank: usize| {
            next[rank] += 1;
            (rank, next[rank] - 1)
        };
        order.into_iter().map(turn).collect()
    };
    let all = one_by_one(turns.clone());
    for servers in 1..=2 {
        let (turn, passed) = (Mutex::new(0), Condvar::new());
        let own = |rank, step| turns.iter().position(|turn| *turn == (rank, step)).unwrap();
        let roles = Roles { servers, ..Roles::default() };
        let found = job::run_as(Over::Tcp, WORKERS + servers, roles, |session| {
            if session.is_server() {
                session.serve().unwrap();
                return Vec::new();
            }
            let options = options(Method::ring(), "asp", SGD);
            let mut replica = session.replica(&layout(), &initial(), options).unwrap();
            let mut found = Vec::new();
            for step in 0..STEPS {
                give(&mut replica, &gradient(entries(), session.rank(), step));
                let waits =
                    passed.wait_while(turn.lock().unwrap(), |turn| *turn != own(session.rank(), step));
                let mut turn = waits.unwrap();
                replica.step(pass()).unwrap();
                found.push(bits(replica.parameters()));
                *turn += 1;
                passed.notify_all();
            }
            session.barrier().unwrap();
            found
        });
        for (rank, step) in turns.iter().copied() {
            assert!(found[rank][step as usize] == all[own(rank, step)], "rank {rank} after step {step}");
        }
    }
}
