//! A rank is killed, stopped or cut off, or one of its links is cut, at every message of every method: all others end with a
//! sentence that names it, and nothing hangs.
//!
//! A job is a handful of real processes over TCP: this test program starts itself as workers. The victim's network is
//! wrapped, and strikes by itself at the wanted message. Methods are those that are listed; a new one needs nothing here.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod jobs;
mod network;
mod worker;

use gleaner_algorithms::collectives::COLLECTIVES;

use jobs::{Case, probe, run_all};
use network::{Blow, Moment, Strike};

/// The world sizes: a power of two, and one that is none.
const WORKERS: [u32; 2] = [4, 5];

/// Not a test of its own: as a process of its own, it is a worker.
#[test]
fn worker_process() {
    if let Ok(job) = std::env::var(worker::JOB) {
        worker::main(&serde_json::from_str(&job).unwrap());
    }
}

/// The messages of a step, for every rank of every method: so many are sent, so many received.
fn moments(strikes: impl Fn(u32, Strike) -> bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for collective in COLLECTIVES {
        for workers in WORKERS {
            for (victim, (sends, receives)) in (0..).zip(probe(collective.name(), workers)) {
                assert!(sends + receives > 0, "rank {victim} of {} takes no part", collective.name());
                let moments = (0..sends).map(Moment::Send).chain((0..receives).map(Moment::Receive));
                for (i, moment) in moments.enumerate() {
                    for blow in [Blow::Kill, Blow::Stop, Blow::CutOff, Blow::CutLink] {
                        // While links are still being opened, and when all are there.
                        let step = 2 * ((i as u32 + victim) % 2);
                        let strike = Strike { blow, moment, step };
                        if strikes(i as u32 + victim, strike) {
                            cases.push(Case { method: collective.name(), workers, victim, strike });
                        }
                    }
                }
            }
        }
    }
    cases
}

#[test]
fn a_rank_that_is_killed_at_any_message_is_named_by_all_others() {
    run_all(moments(|_, strike| strike.blow == Blow::Kill));
}

/// Every message has one of the three, and every round of a method has all of them, on other ranks.
#[test]
fn a_rank_that_is_stopped_or_cut_off_at_any_message_is_named_by_all_others() {
    let blows = [Blow::Stop, Blow::CutOff, Blow::CutLink];
    run_all(moments(|number, strike| strike.blow == blows[number as usize % blows.len()]));
}
