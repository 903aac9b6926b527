//! A rank is killed, stopped or cut off, or one of its links is cut, at every message of every method: all others end with a
//! sentence that names it, and nothing hangs.
//!
//! A job is a handful of real processes over TCP: this test program starts itself as workers. The victim's network is
//! wrapped, and strikes by itself at the wanted message. Methods are those that are listed; a new one needs nothing here.
//! With `GLEANER_TRANSPORT=quic` in the environment they go over QUIC.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod jobs;
mod network;
mod worker;

use gleaner_algorithms::Method;

use jobs::{Case, probe, run_all};
use network::{Blow, Kind, Moment, Strike};
use worker::{B_SAG, BALANCING, LARGE, OVERLAPPED, R_SAG};

/// The world sizes: a power of two, and one that is none.
const WORKERS: [u32; 2] = [4, 5];

/// Not a test of its own: as a process of its own, it is a worker.
#[test]
fn worker_process() {
    if let Ok(job) = std::env::var(worker::JOB) {
        worker::main(&serde_json::from_str(&job).unwrap());
    }
}

/// Every rank of a job struck at every message that it sends or receives in a step, by the blows that are chosen by number.
fn everywhere(method: &'static str, workers: u32, kind: Kind, blows: impl Fn(u32) -> Vec<Blow>) -> Vec<Case> {
    let mut cases = Vec::new();
    for (victim, (sends, receives)) in (0..).zip(probe(method, workers, kind)) {
        // A rank that leaves does not wait for the goodbyes of others.
        let hears = receives > 0 || kind == Kind::Bye;
        assert!(sends > 0 && hears, "rank {victim} takes no part in {method}");
        // Measuring takes seconds of all processors, and how often it repeats the same messages depends on the time.
        let most = if kind == Kind::Probe { 1 } else { u32::MAX };
        let moments =
            (0..sends.min(most)).map(Moment::Send).chain((0..receives.min(most)).map(Moment::Receive));
        for (number, moment) in (victim..).zip(moments) {
            // While links are still being opened, or when all are there; where steps have other messages, as CLT-k's have with
            // every leader, in the one that was counted.
            let step = match kind {
                Kind::Bye => 0,
                Kind::Probe => 2,
                _ if [BALANCING, "clt-k"].contains(&method) => 2,
                _ => 2 * (number % 2),
            };
            for blow in blows(number) {
                cases.push(Case { method, workers, kind, victim, strike: Strike { blow, moment, step } });
            }
        }
    }
    cases
}

fn all_methods(blows: impl Fn(u32) -> Vec<Blow>) -> Vec<Case> {
    let listed = Method::all().flat_map(|m| WORKERS.map(|workers| (m.collective().name(), workers)));
    // Options that give another schedule: teams need a number of workers that they divide, and four regions are never so
    // uneven that they are balanced.
    let jobs = listed.chain([(R_SAG, 4), (B_SAG, 4), (BALANCING, 5)]);
    jobs.flat_map(|(method, workers)| everywhere(method, workers, Kind::Bags, &blows)).collect()
}

/// Balancing sends P − 1 messages more than the P − 1 + ⌈log2 P⌉ of Ok-Topk; teams have other rounds than one team alone.
#[test]
fn options_give_the_schedules_that_they_are_listed_for() {
    assert_eq!(probe("oktopk", 5, Kind::Bags), [(7, 7); 5]);
    assert_eq!(probe(BALANCING, 5, Kind::Bags), [(11, 11); 5]);
    assert_eq!(probe("spardl", 4, Kind::Bags), [(4, 4); 4]);
    assert_eq!(probe(R_SAG, 4, Kind::Bags), [(3, 3); 4]);
    assert_eq!(probe(B_SAG, 4, Kind::Bags), [(3, 3); 4]);
}

#[test]
fn a_rank_that_is_killed_at_any_message_is_named_by_all_others() {
    run_all(all_methods(|_| vec![Blow::Kill]));
}

/// Every message has one of the three, and every round of a method has all of them, on other ranks.
#[test]
fn a_rank_that_is_stopped_or_cut_off_at_any_message_is_named_by_all_others() {
    run_all(all_methods(|number| vec![[Blow::Stop, Blow::CutOff, Blow::CutLink][number as usize % 3]]));
}

/// While a step is being cancelled, too, a failure counts more, and nobody waits for a verdict that does not come.
#[test]
fn a_rank_that_is_struck_while_all_decide_whether_to_cancel_is_named_by_all_others() {
    let blows = [Blow::Kill, Blow::Stop, Blow::CutOff, Blow::CutLink];
    run_all(everywhere("ring", 4, Kind::Cancel, |_| blows.to_vec()));
}

/// Blocks that travel in pieces, that are passed on while they come, and that are lent to several peers at once.
#[test]
fn a_rank_that_is_struck_in_the_middle_of_a_large_block_is_named_by_all_others() {
    let blows =
        |number: u32| vec![[Blow::Kill, Blow::Stop, Blow::CutOff, Blow::CutLink][number as usize % 4]];
    run_all(LARGE.into_iter().flat_map(|method| everywhere(method, 4, Kind::Bags, blows)).collect());
}

/// While some units are waited for, and while others travel in the background.
#[test]
fn a_rank_that_is_struck_while_units_travel_in_the_background_is_named_by_all_others() {
    let blows =
        |number: u32| vec![[Blow::Kill, Blow::Stop, Blow::CutOff, Blow::CutLink][number as usize % 4]];
    run_all(OVERLAPPED.into_iter().flat_map(|method| everywhere(method, 4, Kind::Bags, blows)).collect());
}

/// Agreeing on a layout, gathering notes, and measuring the network.
#[test]
fn a_rank_that_is_struck_in_a_call_of_all_ranks_is_named_by_all_others() {
    let blows = |number: u32| vec![[Blow::Kill, Blow::Stop, Blow::CutOff][number as usize % 3]];
    let calls = [Kind::Note, Kind::Probe].into_iter().flat_map(|kind| everywhere("ring", 5, kind, blows));
    run_all(calls.collect());
}

/// A rank that is struck when it leaves has done its part: nobody hangs, and nobody else is named.
#[test]
fn a_rank_that_is_struck_when_it_leaves_holds_nobody_up() {
    let blows = [Blow::Kill, Blow::Stop, Blow::CutOff];
    run_all(everywhere("ring", 4, Kind::Bye, |_| blows.to_vec()));
}
