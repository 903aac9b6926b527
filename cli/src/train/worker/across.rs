//! What counts of a run over all of its workers.

use std::time::Duration;

use gleaner_runtime::Session;

use super::clock::{self, Clock, Spent};
use crate::crew::gather;
use crate::train::error::TrainResult;
use crate::train::summary::Together;

/// All workers exchange what they have measured, and come to the same. `samples`: of each of this worker's passes; `received`: bytes so far.
pub fn all_workers(
    session: &Session,
    clock: &Clock,
    (samples, received): (usize, u64),
) -> TrainResult<Together> {
    let all = gather(session, &(samples, received - clock.bytes_at_start, clock.spent.clone()))?;
    let steps_of = |spent: &Spent| spent.steps.max(1) as f64;
    let ranks: Vec<&Spent> = all.iter().map(|(.., spent)| spent).collect();
    let (times, steps) =
        (clock::typical(&ranks), ranks.iter().map(|spent| spent.steps).sum::<usize>().max(1));
    let most = |number: fn(&Spent) -> f64| ranks.iter().map(|spent| number(spent)).fold(0.0, f64::max);
    let of_step =
        |seconds: fn(&Spent) -> f64| ranks.iter().map(|spent| seconds(spent)).sum::<f64>() / steps as f64;
    // Workers that do not wait for each other are not equally fast.
    let rate = |of: fn(&Spent) -> (u64, Duration)| -> f64 {
        let rates = all.iter().map(|(samples, _, spent)| (*samples, of(spent)));
        let rates = rates.filter(|(_, (_, took))| !took.is_zero());
        rates.map(|(samples, (steps, took))| samples as f64 * steps as f64 / took.as_secs_f64()).sum()
    };
    let bytes_received = all.iter().map(|(_, received, _)| *received).max().unwrap_or_default();
    Ok(Together {
        seconds_iteration: times.iteration,
        seconds_forward: times.forward,
        seconds_backward: times.backward,
        seconds_select: times.select,
        seconds_exposed: times.exposed,
        waiting_share: most(Spent::waiting_share),
        hidden_share: times.hidden_share(),
        seconds_blocked: most(|spent| spent.blocked.as_secs_f64()),
        throughput: rate(|spent| (spent.steps as u64, spent.worked)),
        throughput_at_bound: ranks
            .iter()
            .any(|spent| spent.at_bound.0 > 0)
            .then(|| rate(|spent| spent.at_bound)),
        seconds_batch_synchronisation: of_step(|spent| spent.waited.as_secs_f64()),
        seconds_batch_computation: of_step(|spent| spent.computed.as_secs_f64()),
        seconds_batch_computation_by_rank: ranks
            .iter()
            .map(|spent| spent.computed.as_secs_f64() / steps_of(spent))
            .collect(),
        seconds_background: of_step(|spent| spent.background.as_secs_f64()),
        bytes_received,
    })
}
