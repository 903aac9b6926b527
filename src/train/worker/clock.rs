//! Where the time of a run goes, and how it is told while it trains.

use std::time::{Duration, Instant};

use super::super::summary::{Progress, dense_bytes_per_step};
use super::Run;
use gleaner_runtime::{Gradients, StepTimes};

/// The shortest time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Where the time of the steps went.
pub struct Clock {
    /// In steps, without evaluations and checkpoints.
    pub worked: Duration,
    /// Waiting for updates.
    pub waited: Duration,
    /// At least one group was under way, and how much of that was waited for.
    under_way: Duration,
    exposed: Duration,
    /// Waiting until compute threads took a group over.
    pub blocked: Duration,
    /// What the iterations took.
    pub iterations: Vec<Duration>,
    /// The updates' entries.
    pub entries: u64,
    /// What was received before.
    pub bytes_at_start: u64,
}

impl Clock {
    /// Begins after so many bytes.
    pub fn new(bytes_at_start: u64) -> Self {
        let zero = Duration::ZERO;
        let (worked, waited, under_way, exposed, blocked) = (zero, zero, zero, zero, zero);
        Clock {
            worked,
            waited,
            under_way,
            exposed,
            blocked,
            iterations: Vec::new(),
            entries: 0,
            bytes_at_start,
        }
    }

    /// Counts a step's exchange.
    pub fn count(&mut self, times: StepTimes) {
        self.waited += times.waiting;
        self.under_way += times.under_way;
        self.exposed += times.waiting.min(times.under_way);
        self.blocked += times.blocked;
    }

    /// The share of the time in which the trainer waited.
    pub fn waiting_share(&self) -> f64 {
        share(self.waited, self.worked)
    }

    /// The median of the second half of the iterations, in seconds; 0 of none.
    pub fn iteration(&self) -> f64 {
        let mut late = self.iterations[self.iterations.len() / 2..].to_vec();
        late.sort();
        late.get(late.len().saturating_sub(1) / 2).map_or(0.0, Duration::as_secs_f64)
    }

    /// The share of the time in which groups were under way that the trainer did not wait for.
    pub fn hidden_share(&self) -> f64 {
        1.0 - share(self.exposed, self.under_way)
    }
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

/// Tells the caller of worker 0 how far the run is.
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
            last_bytes: run.overlap.gradients().bytes_received(),
            last_worked: Duration::ZERO,
            last_waited: Duration::ZERO,
        }
    }

    /// Reports a step that is done, unless the last report was just before.
    pub fn report(&mut self, done: u64, loss: f32, clock: &Clock, gradients: &Gradients) {
        let Some(progress) = &mut self.progress else { return };
        if self.last.elapsed() < REPORT_INTERVAL && done < self.steps {
            return;
        }
        let (worked, waited) = (clock.worked - self.last_worked, clock.waited - self.last_waited);
        let steps = (done - self.last_step) as f64;
        let bytes = gradients.bytes_received();
        progress(Progress {
            step: done,
            steps: self.steps,
            loss,
            steps_per_second: steps / worked.as_secs_f64().max(f64::MIN_POSITIVE),
            waiting_share: share(waited, worked),
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

    #[test]
    fn what_is_not_waited_for_is_hidden() {
        let ms = Duration::from_millis;
        let mut clock = Clock::new(0);
        clock.count(StepTimes { under_way: ms(10), waiting: ms(4), ..StepTimes::default() });
        clock.count(StepTimes { under_way: ms(10), waiting: ms(12), blocked: ms(1), ..StepTimes::default() });
        assert!((clock.hidden_share() - 0.3).abs() < 1e-12);
        assert_eq!((clock.waited, clock.blocked), (ms(16), ms(1)));
    }
}
