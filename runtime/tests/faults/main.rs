//! A rank is killed, stopped or cut off, or one of its links is cut, at every message of every method: all others end with a
//! sentence that names it, and nothing hangs.
//!
//! A job is a handful of real processes over TCP: this test program starts itself as workers. The victim's network is
//! wrapped, and injects the fault by itself at the wanted message. Methods are those that are listed; a new one needs nothing here.
//!
//! Over QUIC it is one message of each rank, for every method: what the runtime makes of the end of a link does not depend on what
//! carries it. Every message has a fault over QUIC, in place of TCP, by `GLEANER_TEST_TRANSPORT=quic cargo test --release --package
//! gleaner-runtime --test faults`. Over verbs one message of each rank has a fault in an emulated machine, by `cli/tests/verbs`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod cases;
mod jobs;
mod network;
mod worker;

use gleaner_algorithms::Method;
use gleaner_transport::Transport;

use cases::{OPTIONS, everywhere, one_message_of_each_rank};
use jobs::{Case, probe, run_all};
use network::{Fault, Kind};
use worker::{B_SAG, BALANCING, LARGE, OVERLAPPED, R_SAG};

/// The world sizes: a power of two, and one that is none.
const WORKERS: [u32; 2] = [4, 5];

/// Not a test of its own: as a process of its own, it is a worker.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn worker_process() {
    if let Ok(job) = std::env::var(worker::JOB) {
        worker::main(&serde_json::from_str(&job).unwrap());
    }
}

/// What carries the links of jobs that have a fault at every message.
fn usual() -> Transport {
    let asked = std::env::var("GLEANER_TEST_TRANSPORT");
    if asked.is_ok_and(|name| name == Transport::Quic.to_string()) { Transport::Quic } else { Transport::Tcp }
}

fn all_methods(faults: impl Fn(u32) -> Vec<Fault>) -> Vec<Case> {
    let listed = Method::all().flat_map(|m| WORKERS.map(|workers| (m.collective().name(), workers)));
    let jobs = listed.chain(OPTIONS).map(|(method, workers)| (method, workers, Kind::Bags));
    jobs.flat_map(|work| everywhere(usual(), work, &faults)).collect()
}

/// Balancing sends P − 1 messages more than the P − 1 + ⌈log2 P⌉ of Ok-Topk; teams have other rounds than one team alone.
#[test]
fn options_give_the_schedules_that_they_are_listed_for() {
    assert_eq!(probe(usual(), "oktopk", 5, Kind::Bags), [(7, 7); 5]);
    assert_eq!(probe(usual(), BALANCING, 5, Kind::Bags), [(11, 11); 5]);
    assert_eq!(probe(usual(), "spardl", 4, Kind::Bags), [(4, 4); 4]);
    assert_eq!(probe(usual(), R_SAG, 4, Kind::Bags), [(3, 3); 4]);
    assert_eq!(probe(usual(), B_SAG, 4, Kind::Bags), [(3, 3); 4]);
}

#[test]
fn a_rank_that_is_killed_at_any_message_is_named_by_all_others() {
    run_all(all_methods(|_| vec![Fault::Kill]));
}

/// Every message has one of the three, and every round of a method has all of them, on other ranks.
#[test]
fn a_rank_that_is_stopped_or_cut_off_at_any_message_is_named_by_all_others() {
    run_all(all_methods(|number| vec![[Fault::Stop, Fault::CutOff, Fault::CutLink][number as usize % 3]]));
}

/// While a step is being cancelled, too, a failure counts more, and no rank waits for a decision that does not come.
#[test]
fn a_rank_that_fails_while_all_decide_whether_to_cancel_is_named_by_all_others() {
    let faults = [Fault::Kill, Fault::Stop, Fault::CutOff, Fault::CutLink];
    run_all(everywhere(usual(), ("ring", 4, Kind::Cancel), |_| faults.to_vec()));
}

/// Blocks that travel in pieces, that are passed on while they come, and that are lent to several peers at once.
#[test]
fn a_rank_that_fails_in_the_middle_of_a_large_block_is_named_by_all_others() {
    let faults =
        |number: u32| vec![[Fault::Kill, Fault::Stop, Fault::CutOff, Fault::CutLink][number as usize % 4]];
    let work = LARGE.map(|method| (method, 4, Kind::Bags));
    run_all(work.into_iter().flat_map(|work| everywhere(usual(), work, faults)).collect());
}

/// While some units are waited for, and while others travel in the background.
#[test]
fn a_rank_that_fails_while_units_travel_in_the_background_is_named_by_all_others() {
    let faults =
        |number: u32| vec![[Fault::Kill, Fault::Stop, Fault::CutOff, Fault::CutLink][number as usize % 4]];
    let work = OVERLAPPED.map(|method| (method, 4, Kind::Bags));
    run_all(work.into_iter().flat_map(|work| everywhere(usual(), work, faults)).collect());
}

/// Agreeing on a layout, gathering notes, and measuring the network.
#[test]
fn a_rank_that_fails_in_a_call_of_all_ranks_is_named_by_all_others() {
    let faults = |number: u32| vec![[Fault::Kill, Fault::Stop, Fault::CutOff][number as usize % 3]];
    let calls = [Kind::Note, Kind::Probe].map(|kind| ("ring", 5, kind));
    run_all(calls.into_iter().flat_map(|work| everywhere(usual(), work, faults)).collect());
}

/// A rank that fails when it leaves has done its part: no rank hangs, and no other is named.
#[test]
fn a_rank_that_fails_when_it_leaves_delays_no_other() {
    let faults = [Fault::Kill, Fault::Stop, Fault::CutOff];
    run_all(everywhere(usual(), ("ring", 4, Kind::Bye), |_| faults.to_vec()));
}

/// Every method, and all else that has a fault above.
#[test]
fn over_quic_a_rank_that_fails_is_named_by_all_others() {
    run_all(one_message_of_each_rank(Transport::Quic, 5));
}

#[test]
fn over_quic_a_rank_that_fails_when_it_leaves_delays_no_other() {
    let faults = [Fault::Kill, Fault::Stop, Fault::CutOff];
    run_all(everywhere(Transport::Quic, ("ring", 4, Kind::Bye), |_| faults.to_vec()));
}
