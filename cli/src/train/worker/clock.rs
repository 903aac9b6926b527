//! Where the time of a run goes, on one worker and over all, and how it is reported while it trains.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Run;
use crate::crew::{Progress, gather};
use crate::train::SHOWN;
use crate::train::error::TrainResult;
use crate::train::exchange::Ended;
use crate::train::summary::{Together, dense_bytes_per_step};
use gleaner_runtime::{Session, Waits};
use gleaner_statistics::median;
use gleaner_units as units;
use serde::{Deserialize, Serialize};

/// The shortest time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Of so many steps at most are the times kept.
const LATE: usize = 128;

/// Where the time of the steps of a worker went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Spent {
    /// In steps, without evaluations and checkpoints.
    pub worked: Duration,
    pub waited: Duration,
    /// Waiting until compute threads took a group over.
    pub blocked: Duration,
    /// The updates' entries, and those that were exchanged during the next pass.
    pub entries: u64,
    pub deferred: u64,
    /// Passes; exchanges during passes.
    pub computed: Duration,
    pub background: Duration,
    /// How many steps had as much in the background as their passes left time for, and how long these took.
    pub at_bound: (u64, Duration),
    pub steps: usize,
    /// The times of the last of them, [`LATE`] at most.
    late: VecDeque<Times>,
}

/// Counts the steps of this worker.
pub struct Clock {
    pub spent: Spent,
    /// The entries that the last pass left time for.
    pub most: Option<u64>,
    /// Which worker waited for which.
    pub waits: Waits,
    /// What was received before.
    pub bytes_at_start: u64,
}

/// What one step took on one rank, in seconds; or the medians of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// From the beginning of the forward pass until the update was there.
    pub iteration: f64,
    pub forward: f64,
    /// The backward pass, with handing gradients over.
    pub backward: f64,
    /// Choosing entries, on compute threads.
    pub select: f64,
    /// At least one group was under way.
    pub under_way: f64,
    /// Waiting for the update after the backward pass.
    pub exposed: f64,
}

impl Times {
    /// The share of the time in which groups were under way that was not waited for.
    pub fn hidden_share(&self) -> f64 {
        if self.under_way > 0.0 { (1.0 - self.exposed / self.under_way).max(0.0) } else { 0.0 }
    }
}

impl Clock {
    pub fn new(session: &Session, bytes_at_start: u64) -> Self {
        Clock { spent: Spent::default(), most: None, waits: Waits::new(session), bytes_at_start }
    }

    /// Counts a step by what its forward and its backward pass took, both with the exchange, and all of it, and by the result of its exchange.
    pub fn count(&mut self, step: u64, [forward, backward, iteration, took]: [Duration; 4], ended: &Ended) {
        let (exchange, stepped) = (ended.times, &ended.stepped);
        self.waits.count(step, exchange.waiting, stepped.awaited);
        let spent = &mut self.spent;
        spent.waited += exchange.waiting;
        spent.computed += iteration.saturating_sub(exchange.waiting);
        spent.background += stepped.background;
        spent.entries += stepped.entries;
        spent.deferred += stepped.deferred;
        spent.blocked += exchange.blocked;
        spent.steps += 1;
        let [iteration, forward, backward, select, under_way, exposed] = [
            iteration,
            forward,
            backward,
            exchange.select,
            exchange.under_way,
            exchange.waiting.min(exchange.under_way),
        ]
        .map(|time| time.as_secs_f64());
        spent.late.push_back(Times { iteration, forward, backward, select, under_way, exposed });
        if spent.late.len() > LATE {
            spent.late.pop_front();
        }
        spent.worked += took;
        self.most = stepped.budget.map(|(_, most)| most);
        if stepped.budget.is_some_and(|(budget, most)| most > 0 && budget >= most) {
            spent.at_bound.0 += 1;
            spent.at_bound.1 += took;
        }
    }

    /// What the last step took on this rank.
    pub fn last(&self) -> Times {
        self.spent.late.back().copied().unwrap_or_default()
    }
}

/// All workers exchange what they have measured, and get the same result. `samples`: of each of this worker's passes; `received`: bytes so far.
pub fn all_workers(
    session: &Session,
    clock: &Clock,
    (samples, received): (usize, u64),
) -> TrainResult<Together> {
    let all = gather(session, &(samples, received - clock.bytes_at_start, clock.spent.clone()))?;
    let steps_of = |spent: &Spent| spent.steps.max(1) as f64;
    let ranks: Vec<&Spent> = all.iter().map(|(.., spent)| spent).collect();
    let (times, steps) = (typical(&ranks), ranks.iter().map(|spent| spent.steps).sum::<usize>().max(1));
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
        waiting_share: most(|spent| share(spent.waited, spent.worked)),
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

/// The medians over the steps of the second half, the last 128 at most: of each step the times of the rank that waited least, since all
/// others waited for its passes too, and the longest iteration.
fn typical(ranks: &[&Spent]) -> Times {
    let of_rank = |spent: &&Spent| spent.late.len().min(spent.steps.div_ceil(2));
    let before_last = |back: usize| {
        let ranks = || ranks.iter().map(|spent| &spent.late[spent.late.len() - 1 - back]);
        let last = ranks().min_by(|a, b| a.exposed.total_cmp(&b.exposed))?;
        Some(Times { iteration: ranks().map(|times| times.iteration).fold(0.0, f64::max), ..*last })
    };
    let count = ranks.iter().map(of_rank).min().unwrap_or(0);
    let steps: Vec<Times> = (0..count).filter_map(before_last).collect();
    let median = |field: fn(&Times) -> f64| median(steps.iter().map(field));
    Times {
        iteration: median(|times| times.iteration),
        forward: median(|times| times.forward),
        backward: median(|times| times.backward),
        select: median(|times| times.select),
        under_way: median(|times| times.under_way),
        exposed: median(|times| times.exposed),
    }
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

/// Reports to the caller of worker 0 how far the run is.
pub struct Reporter<F> {
    progress: Option<F>,
    steps: u64,
    dense_bytes_per_step: f64,
    last: Instant,
    /// Steps, bytes, and the time worked and waited by the last report.
    counted: (u64, u64, Duration, Duration),
}

impl<F: FnMut(Progress)> Reporter<F> {
    pub fn new(run: &Run, progress: F) -> Self {
        Reporter {
            progress: (run.session.rank() == 0).then_some(progress),
            steps: run.settings.steps,
            dense_bytes_per_step: dense_bytes_per_step(run.session.world_size(), run.parameters.count()),
            last: Instant::now(),
            counted: (run.first_step, run.exchange.bytes_received(), Duration::ZERO, Duration::ZERO),
        }
    }

    /// Reports a step that is done, unless the last report was just before.
    pub fn report(&mut self, done: u64, loss: f32, clock: &Clock, bytes: u64) {
        let Some(progress) = &mut self.progress else { return };
        if self.last.elapsed() < REPORT_INTERVAL && done < self.steps {
            return;
        }
        let (last_step, last_bytes, last_worked, last_waited) = self.counted;
        let (worked, waited) = (clock.spent.worked - last_worked, clock.spent.waited - last_waited);
        let steps = (done - last_step) as f64;
        let awaited = clock.waits.most_awaited().filter(|(.., seconds)| *seconds >= SHOWN);
        let awaited =
            awaited.map_or(String::new(), |(rank, by, _)| format!(", mostly rank {by} for rank {rank}"));
        let note = format!(
            "loss {loss:.3}, {:.1} steps/s, {:.0}% waiting{awaited}, {} a step (dense: {})",
            steps / worked.as_secs_f64().max(f64::MIN_POSITIVE),
            share(waited, worked) * 100.0,
            units::bytes((bytes - last_bytes) as f64 / steps),
            units::bytes(self.dense_bytes_per_step),
        );
        progress(Progress { done, of: self.steps, note });
        self.last = Instant::now();
        self.counted = (done, bytes, clock.spent.worked, clock.spent.waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gleaner_runtime::{StepTimes, Stepped};

    #[test]
    fn what_the_last_rank_does_not_wait_for_is_hidden() {
        let ms = Duration::from_millis;
        let session = Session::join().unwrap();
        let rank = |waits: [u64; 4]| {
            let mut clock = Clock::new(&session, 0);
            for waiting in waits {
                let times = StepTimes {
                    under_way: ms(10),
                    waiting: ms(waiting),
                    blocked: ms(1),
                    ..StepTimes::default()
                };
                let budget = Some((waiting, 8));
                let stepped =
                    Stepped { background: ms(2), entries: 3, deferred: 5, budget, ..Stepped::default() };
                let ended = Ended { came: Instant::now(), times, stepped };
                clock.count(0, [ms(5), ms(20 - waiting), ms(25), ms(30)], &ended);
            }
            let (spent, waited) = (clock.spent, ms(waits.iter().sum()));
            assert_eq!((spent.waited, spent.blocked, spent.computed), (waited, ms(4), ms(100) - waited));
            assert_eq!(
                (spent.worked, spent.background, spent.entries, spent.deferred),
                (ms(120), ms(8), 12, 20)
            );
            let at_bound = waits.iter().filter(|waiting| **waiting >= 8).count() as u64;
            assert_eq!(clock.most, Some(8));
            assert_eq!(spent.at_bound, (at_bound, ms(30 * at_bound)));
            spent
        };
        // Only the second half counts; in it another rank is the last in each step, and the median is half-way between 4 and 2 ms.
        let (a, b) = (rank([0, 0, 4, 8]), rank([1, 1, 9, 2]));
        let times = typical(&[&a, &b]);
        assert_eq!((times.exposed, times.forward, times.iteration), (0.003, 0.005, 0.025));
        assert!((times.hidden_share() - 0.7).abs() < 1e-6, "{times:?}");
        let none = Spent::default();
        assert_eq!(typical(&[&none, &none]), Times::default());
    }
}
