//! Where the time of a step went.

use std::time::{Duration, Instant};

use super::{Gathering, Gradients};
use crate::algorithm::Times;

/// How this worker's time in a step was spent, summed over its groups except for `under_way` and `waiting`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Accumulating gradients, choosing entries and preparing messages.
    pub select: Duration,
    /// Waiting for messages.
    pub exchange: Duration,
    /// Taking received entries in, putting the update together, and committing residuals.
    pub merge: Duration,
    /// For how long at least one group was under way: from its last gradient until its update was there.
    pub under_way: Duration,
    /// How long `ready` waited because the compute threads' queue was full, which has room for 1024 groups.
    pub blocked: Duration,
    /// How long the trainer was blocked in `wait`.
    pub waiting: Duration,
}

/// A trainer that waits longer than this is taken to wait for the exchange.
const AWAITED: Duration = Duration::from_micros(100);

impl Gradients {
    /// Where the time of the last step went.
    pub fn times(&self) -> StepTimes {
        self.times
    }

    /// Takes note of where the time of a step went, by group.
    pub(super) fn record(&mut self, gathered: &[Gathering], times: &[Times]) {
        // A trainer that waited until the end also waited for being woken.
        let awaited = self.times.waiting > AWAITED;
        let mut spans = Vec::with_capacity(times.len());
        for (number, (gathered, times)) in gathered.iter().zip(times).enumerate() {
            let rest = gathered.began.filter(|_| awaited).map_or(times.total, |began| began.elapsed());
            if let Some(auto) = &mut self.auto {
                auto.record(number, gathered.accumulating + rest);
            }
            spans.extend(gathered.began.map(|began| (began, began + times.total)));
            self.times.select += times.select;
            self.times.merge += times.merge;
            self.times.exchange += times.total.saturating_sub(times.select + times.merge);
        }
        self.times.under_way = covered(spans);
    }
}

/// How much time at least one of the spans covers.
fn covered(mut spans: Vec<(Instant, Instant)>) -> Duration {
    spans.sort();
    let mut until = None;
    let mut covered = Duration::ZERO;
    for (begin, end) in spans {
        let from = until.map_or(begin, |until: Instant| until.max(begin));
        covered += end.saturating_duration_since(from);
        until = Some(from.max(end));
    }
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_once_however_many_groups_are_under_way() {
        let zero = Instant::now();
        let of = |spans: &[(u64, u64)]| {
            let at = |ms| zero + Duration::from_millis(ms);
            covered(spans.iter().map(|&(begin, end)| (at(begin), at(end))).collect()).as_millis()
        };
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[(5, 9)]), 4);
        assert_eq!(of(&[(0, 10), (2, 4), (3, 12), (20, 25)]), 17);
        assert_eq!(of(&[(20, 25), (0, 10), (10, 11)]), 16);
    }
}
