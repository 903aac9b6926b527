//! Where the time of a run goes, and how it is reported while it trains.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::summary::{Progress, dense_bytes_per_step};
use super::Run;
use crate::train::exchange::Ended;
use gleaner_runtime::{Session, Waits};
use gleaner_statistics::median;

/// The shortest time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Of so many steps at most are the times kept.
const LATE: usize = 128;

/// Where the time of the steps went.
pub struct Clock {
    /// In steps, without evaluations and checkpoints.
    pub worked: Duration,
    /// Waiting for updates.
    pub waited: Duration,
    /// Waiting until compute threads took a group over.
    pub blocked: Duration,
    /// The updates' entries, and those that travelled during the next pass.
    pub entries: u64,
    pub deferred: u64,
    /// Passes; exchanges during passes.
    pub computed: Duration,
    pub background: Duration,
    /// How many steps had as much in the background as their passes left time for, and how long these took.
    pub at_bound: (u64, Duration),
    /// The entries that the last pass left time for.
    pub most: Option<u64>,
    /// Who waited for whom.
    pub waits: Waits,
    /// What was received before.
    pub bytes_at_start: u64,
    /// How many steps were counted.
    pub steps: usize,
    late: VecDeque<Times>,
}

/// What one step took on one rank, in seconds; or the medians of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// From the beginning of the forward pass until the update was there.
    pub iteration: f32,
    pub forward: f32,
    /// The backward pass, with handing gradients over.
    pub backward: f32,
    /// Choosing entries, on compute threads.
    pub select: f32,
    /// At least one group was under way.
    pub under_way: f32,
    /// Waiting for the update after the backward pass.
    pub exposed: f32,
}

impl Times {
    const FIELDS: usize = 6;

    fn fields(self) -> [f32; Self::FIELDS] {
        [self.iteration, self.forward, self.backward, self.select, self.under_way, self.exposed]
    }

    fn of([iteration, forward, backward, select, under_way, exposed]: [f32; Self::FIELDS]) -> Self {
        Self { iteration, forward, backward, select, under_way, exposed }
    }

    /// The share of the time in which groups were under way that was not waited for.
    pub fn hidden_share(&self) -> f64 {
        if self.under_way > 0.0 { f64::from(1.0 - self.exposed / self.under_way).max(0.0) } else { 0.0 }
    }
}

impl Clock {
    /// Begins after so many bytes.
    pub fn new(session: &Session, bytes_at_start: u64) -> Self {
        let zero = Duration::ZERO;
        Clock {
            worked: zero,
            waited: zero,
            blocked: zero,
            entries: 0,
            deferred: 0,
            computed: zero,
            background: zero,
            at_bound: (0, zero),
            most: None,
            waits: Waits::new(session),
            bytes_at_start,
            steps: 0,
            late: VecDeque::new(),
        }
    }

    /// Counts a step by what its forward and its backward pass, all of it, and its exchange took.
    pub fn count(&mut self, step: u64, [forward, backward, iteration]: [Duration; 3], ended: &Ended) {
        let exchange = ended.times;
        self.waits.count(step, exchange.waiting, ended.awaited);
        self.waited += exchange.waiting;
        self.computed += iteration.saturating_sub(exchange.waiting);
        self.background += ended.background;
        self.entries += ended.entries;
        self.deferred += ended.deferred;
        self.blocked += exchange.blocked;
        self.steps += 1;
        self.late.push_back(Times {
            iteration: iteration.as_secs_f32(),
            forward: forward.as_secs_f32(),
            backward: backward.as_secs_f32(),
            select: exchange.select.as_secs_f32(),
            under_way: exchange.under_way.as_secs_f32(),
            exposed: exchange.waiting.min(exchange.under_way).as_secs_f32(),
        });
        if self.late.len() > LATE {
            self.late.pop_front();
        }
    }

    /// A step took so long in all.
    pub fn end_step(&mut self, took: Duration, ended: &Ended) {
        self.worked += took;
        self.most = ended.budget.map(|(_, most)| most);
        if ended.budget.is_some_and(|(budget, most)| most > 0 && budget >= most) {
            self.at_bound.0 += 1;
            self.at_bound.1 += took;
        }
    }

    /// What the last step took on this rank.
    pub fn last(&self) -> Times {
        self.late.back().copied().unwrap_or_default()
    }

    /// The share of the time in which the trainer waited.
    pub fn waiting_share(&self) -> f64 {
        share(self.waited, self.worked)
    }

    /// The steps of the second half, the last 128 at most, for [`typical`].
    pub fn note(&self) -> Vec<u8> {
        let second_half = self.late.iter().rev().take(self.steps.div_ceil(2));
        second_half.flat_map(|times| times.fields()).flat_map(f32::to_le_bytes).collect()
    }
}

/// The medians over steps, from what [`Clock::note`] gave on each rank: of each step the times of the rank that waited least, since all
/// others waited for its passes too, and the longest iteration. Nothing where the notes differ in length.
pub fn typical(notes: &[&[u8]]) -> Option<Times> {
    let steps = |note: &&[u8]| -> Option<Vec<Times>> {
        let (words, rest) = note.as_chunks::<4>();
        let values: Vec<f32> = words.iter().map(|&word| f32::from_le_bytes(word)).collect();
        let (rows, more) = values.as_chunks::<{ Times::FIELDS }>();
        (rest.is_empty() && more.is_empty()).then(|| rows.iter().copied().map(Times::of).collect())
    };
    let ranks: Vec<Vec<Times>> = notes.iter().map(steps).collect::<Option<_>>()?;
    let count = ranks.first()?.len();
    if ranks.iter().any(|steps| steps.len() != count) {
        return None;
    }
    let of_step = |step: usize| {
        let ranks = || ranks.iter().map(|steps| steps[step]);
        let last = ranks().min_by(|a, b| a.exposed.total_cmp(&b.exposed))?;
        Some(Times { iteration: ranks().map(|times| times.iteration).fold(0.0, f32::max), ..last })
    };
    let rows: Vec<[f32; Times::FIELDS]> = (0..count).filter_map(of_step).map(Times::fields).collect();
    let median = |field: usize| median(rows.iter().map(|row| f64::from(row[field]))) as f32;
    Some(Times::of(std::array::from_fn(median)))
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
    last_step: u64,
    last_bytes: u64,
    last_worked: Duration,
    last_waited: Duration,
}

impl<F: FnMut(Progress)> Reporter<F> {
    /// Begins with a run.
    pub fn new(run: &Run, progress: F) -> Self {
        Reporter {
            progress: (run.session.rank() == 0).then_some(progress),
            steps: run.settings.steps,
            dense_bytes_per_step: dense_bytes_per_step(run.session.world_size(), run.parameters.count()),
            last: Instant::now(),
            last_step: run.first_step,
            last_bytes: run.exchange.bytes_received(),
            last_worked: Duration::ZERO,
            last_waited: Duration::ZERO,
        }
    }

    /// Reports a step that is done, unless the last report was just before.
    pub fn report(&mut self, done: u64, loss: f32, clock: &Clock, bytes: u64) {
        let Some(progress) = &mut self.progress else { return };
        if self.last.elapsed() < REPORT_INTERVAL && done < self.steps {
            return;
        }
        let (worked, waited) = (clock.worked - self.last_worked, clock.waited - self.last_waited);
        let steps = (done - self.last_step) as f64;
        progress(Progress {
            step: done,
            steps: self.steps,
            loss,
            steps_per_second: steps / worked.as_secs_f64().max(f64::MIN_POSITIVE),
            waiting_share: share(waited, worked),
            most_awaited: clock.waits.most_awaited(),
            bytes_per_step: (bytes - self.last_bytes) as f64 / steps,
            dense_bytes_per_step: self.dense_bytes_per_step,
        });
        self.last = Instant::now();
        self.last_step = done;
        self.last_bytes = bytes;
        self.last_worked = clock.worked;
        self.last_waited = clock.waited;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gleaner_runtime::{Awaited, StepTimes};

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
                let ended = Ended {
                    came: Instant::now(),
                    times,
                    background: ms(2),
                    entries: 3,
                    deferred: 5,
                    budget: Some((waiting, 8)),
                    awaited: Awaited::Unknown,
                    skipped: None,
                };
                clock.count(0, [ms(5), ms(20 - waiting), ms(25)], &ended);
                clock.end_step(ms(30), &ended);
            }
            let waited = ms(waits.iter().sum());
            assert_eq!((clock.waited, clock.blocked, clock.computed), (waited, ms(4), ms(100) - waited));
            assert_eq!(
                (clock.worked, clock.background, clock.entries, clock.deferred),
                (ms(120), ms(8), 12, 20)
            );
            let at_bound = waits.iter().filter(|waiting| **waiting >= 8).count() as u64;
            assert_eq!(clock.most, Some(8));
            assert_eq!(clock.at_bound, (at_bound, ms(30 * at_bound)));
            clock
        };
        // Only the second half counts; in it another rank is the last in each step, and the median is half-way between 4 and 2 ms.
        let (a, b) = (rank([0, 0, 4, 8]).note(), rank([1, 1, 9, 2]).note());
        let times = typical(&[&a, &b]).unwrap();
        assert_eq!((times.exposed, times.forward, times.iteration), (0.003, 0.005, 0.025));
        assert!((times.hidden_share() - 0.7).abs() < 1e-6, "{times:?}");
        assert_eq!(typical(&[&a, &b[4..]]), None);
        let none = Clock::new(&session, 0).note();
        assert_eq!(typical(&[&none, &none]), Some(Times::default()));
    }
}
