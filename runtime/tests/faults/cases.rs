//! Which jobs get which fault, and at which messages.

use gleaner_algorithms::Method;
use gleaner_transport::Transport;

use super::jobs::{Case, probe};
use super::network::{Fault, Injection, Kind, Moment};
use super::worker::{B_SAG, BALANCING, LARGE, OVERLAPPED, R_SAG};

/// A method, its number of workers, and what is counted.
pub type Work = (&'static str, u32, Kind);

/// Every rank of a job fails at every message that it sends or receives in a step, by the faults that are chosen by number.
pub fn everywhere(
    transport: Transport,
    (method, workers, kind): Work,
    faults: impl Fn(u32) -> Vec<Fault>,
) -> Vec<Case> {
    let mut cases = Vec::new();
    let counts = match kind {
        // How many leave messages a rank sends and receives depends on who leaves first, which a case decides.
        Kind::Bye => vec![(workers - 1, workers - 1); workers as usize],
        _ => probe(transport, method, workers, kind),
    };
    for (victim, (sends, receives)) in (0..).zip(counts) {
        assert!(sends > 0 && receives > 0, "rank {victim} takes no part in {method}");
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
            for fault in faults(number) {
                let injection = Injection { fault, moment, step };
                cases.push(Case { transport, method, workers, kind, victim, injection });
            }
        }
    }
    cases
}

/// Options that give another schedule: teams need a number of workers that they divide, and four regions are never so uneven
/// that they are balanced.
pub const OPTIONS: [(&str, u32); 3] = [(R_SAG, 4), (B_SAG, 4), (BALANCING, 5)];

/// Of each rank one case: of the lowest at its first message, of the highest at its last.
fn one_of_each_rank(cases: &[Case]) -> Vec<Case> {
    let of_ranks: Vec<_> = cases.chunk_by(|one, next| one.victim == next.victim).collect();
    let last = of_ranks.len() - 1;
    of_ranks.iter().enumerate().map(|(rank, cases)| cases[rank * (cases.len() - 1) / last]).collect()
}

/// One message of each rank: of every method, by as many workers, and of all else that ranks send each other.
pub fn one_message_of_each_rank(transport: Transport, workers: u32) -> Vec<Case> {
    let fault =
        |number: u32| vec![[Fault::Kill, Fault::Stop, Fault::CutOff, Fault::CutLink][number as usize % 4]];
    let call = |number: u32| vec![[Fault::Kill, Fault::Stop, Fault::CutOff][number as usize % 3]];
    let listed = Method::all().map(|method| (method.collective().name(), workers));
    let special = LARGE.into_iter().chain(OVERLAPPED).map(|method| (method, 4));
    let bags = listed.chain(OPTIONS).chain(special).map(|(method, workers)| (method, workers, Kind::Bags));
    let calls = [(4, Kind::Cancel), (workers, Kind::Note), (workers, Kind::Probe)];
    let work = bags.chain(calls.map(|(workers, kind)| ("ring", workers, kind)));
    let cases = work.flat_map(|work| {
        let is_call = matches!(work.2, Kind::Note | Kind::Probe);
        let cases = everywhere(transport, work, |number| if is_call { call(number) } else { fault(number) });
        one_of_each_rank(&cases)
    });
    cases.collect()
}
