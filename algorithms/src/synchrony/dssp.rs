//! Dynamic stale synchronous parallel (Zhao et al., ICDCS 2019): the bound of [`Ssp`](super::Ssp) adapts within a range.

use std::collections::BTreeMap;
use std::time::Duration;

use gleaner_units as units;

use super::clocks::Clocks;
use super::ssp::Buffer;
use super::{Action, Event, Policy, PolicyError, Synchrony};

/// A worker that is more than `least` steps ahead waits, unless it is the fastest and extra steps would end its waiting sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dssp {
    /// How many steps any worker may be ahead of the slowest (s_L).
    pub least: u64,
    /// How many the fastest may be ahead with its extra steps (s_U).
    pub most: u64,
}

impl Default for Dssp {
    /// The paper's range.
    fn default() -> Self {
        Self { least: 3, most: 15 }
    }
}

impl Synchrony for Dssp {
    fn name(&self) -> String {
        format!("dssp/{}-{}", self.least, self.most)
    }

    fn summary(&self) -> &'static str {
        "stale synchronous, and the fastest worker gets extra steps where it would wait for long (Zhao et al., 2019)"
    }

    fn guarantee(&self) -> &'static str {
        "With the range L-M, in step t a worker sees all gradients of the steps before t - M, of those before t - L unless the step is one of its \
         extra ones, all of its own, and maybe some of others up to step t + M - 1. No worker is ever more than M steps ahead of another. Each server's \
         state is that of one optimiser that took the pushes in the order in which replies needed them, those of one step that were there together as one."
    }

    fn takes(&self) -> &'static str {
        "the least and the most steps that the fastest worker may be ahead, the least at least 0 and not above the most, such as dssp/3-15"
    }

    fn with(&self, value: &str) -> Option<Box<dyn Synchrony>> {
        let (least, most) = value.split_once('-')?;
        let steps = units::within::<u64>(..);
        let (least, most) = (steps(least).ok()?, steps(most).ok()?);
        (least <= most).then(|| Box::new(Self { least, most }) as Box<dyn Synchrony>)
    }

    fn policy(&self, first: &[u64]) -> Box<dyn Policy> {
        Box::new(Adaptive {
            clocks: Clocks::new(first, false),
            buffer: Buffer::default(),
            paces: BTreeMap::new(),
            range: *self,
        })
    }
}

/// The paper's table A for one worker, and its r.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// When it last pushed.
    pushed: Duration,
    /// When it was last answered; none before the first time.
    answered: Option<Duration>,
    /// How long its last step took, from the answer before it to the push after it; none before that is known.
    step: Option<Duration>,
    /// How many extra steps it still has.
    extra: u64,
}

#[derive(Debug)]
struct Adaptive {
    clocks: Clocks,
    buffer: Buffer,
    paces: BTreeMap<u32, Pace>,
    range: Dssp,
}

impl Adaptive {
    /// Algorithm 1 of the paper: a worker has pushed; whether it goes on although it is further ahead than the least bound.
    fn goes_on(&mut self, worker: u32, now: Duration) -> bool {
        let pace = self.paces.entry(worker).or_default();
        pace.step = pace.answered.map(|answered| now.saturating_sub(answered));
        pace.pushed = now;
        let (Some(next), Some(slowest)) = (self.clocks.next(worker), self.clocks.slowest()) else {
            return false;
        };
        let ahead = next - slowest;
        if ahead <= self.range.least || ahead > self.range.most {
            return false;
        }
        if pace.extra == 0 && self.clocks.ranks().all(|rank| self.clocks.next(rank) <= Some(next)) {
            let most = self.range.most - ahead + 1;
            let extra = self
                .slowest_pace(slowest)
                .and_then(|slow| extra_steps(*self.paces.get(&worker)?, slow, most));
            if let Some(pace) = self.paces.get_mut(&worker) {
                pace.extra = extra.unwrap_or(0);
            }
        }
        match self.paces.get_mut(&worker) {
            Some(pace) if pace.extra > 0 => {
                pace.extra -= 1;
                true
            }
            _ => false,
        }
    }

    /// When the last of the slowest pushed, and how long its steps take; none where that is not known of one of them. Of several,
    /// the one that is expected to push last.
    fn slowest_pace(&self, slowest: u64) -> Option<(Duration, Duration)> {
        let of = |rank: u32| self.paces.get(&rank).and_then(|pace| Some((pace.pushed, pace.step?)));
        let paces = self.clocks.ranks().filter(|&rank| self.clocks.next(rank) == Some(slowest)).map(of);
        let paces: Option<Vec<_>> = paces.collect();
        paces?.into_iter().max_by_key(|&(pushed, step)| pushed + step)
    }
}

/// Algorithm 2 of the paper: after how many extra steps, of `most`, a worker that has just pushed is expected to wait least for
/// the next push of the slowest; the fewest of several. None where it has made no step whose time is known.
fn extra_steps(fast: Pace, (pushed, step): (Duration, Duration), most: u64) -> Option<u64> {
    let (fast_step, now) = (fast.step?.as_secs_f64(), fast.pushed.as_secs_f64());
    let (slow_push, slow_step) = (pushed.as_secs_f64(), step.as_secs_f64());
    let waiting = |extra: u64| {
        let end = now + extra as f64 * fast_step;
        // The first of the slowest's pushes from then on; none of those that are past.
        let pushes = ((end - slow_push) / slow_step).ceil().max(1.0);
        (slow_push + pushes * slow_step - end).max(0.0)
    };
    if slow_step <= 0.0 || fast_step <= 0.0 {
        return Some(0);
    }
    // After this many steps of the fast one the two have met as well as they will.
    (0..=most.min(EXAMINED)).min_by(|&a, &b| waiting(a).total_cmp(&waiting(b)))
}

/// Ranges wider than this are examined up to here.
const EXAMINED: u64 = 1000;

impl Policy for Adaptive {
    fn handle(&mut self, event: Event, now: Duration) -> Result<Vec<Action>, PolicyError> {
        let mut goes_on = None;
        match event {
            Event::Asks { .. } | Event::Replied { .. } => {}
            Event::Pushed { worker, step, stage } => {
                if self.clocks.push(worker, step, stage)? {
                    self.buffer.add(worker, step);
                    goes_on = Some(worker).filter(|_| self.goes_on(worker, now));
                }
            }
            Event::Left { worker } => {
                self.clocks.leave(worker)?;
                self.paces.remove(&worker);
            }
        }
        let slowest = self.clocks.slowest().unwrap_or(0);
        let ready =
            |&(worker, next): &(u32, u64)| next - slowest <= self.range.least || goes_on == Some(worker);
        let ready: Vec<u32> = self.clocks.waiting().filter(ready).map(|(worker, _)| worker).collect();
        for &worker in &ready {
            let pace = self.paces.entry(worker).or_default();
            pace.answered = Some(now);
            if goes_on != Some(worker) {
                pace.extra = 0;
            }
        }
        Ok(self.buffer.answer(ready, &mut self.clocks))
    }

    fn awaited(&self) -> Vec<u32> {
        self.clocks.behind(self.range.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synchrony::Stage;

    fn pace(pushed: f64, step: f64) -> Pace {
        let time = Duration::from_secs_f64;
        Pace { pushed: time(pushed), answered: None, step: Some(time(step)), extra: 0 }
    }

    fn slow(pushed: f64, step: f64) -> (Duration, Duration) {
        (Duration::from_secs_f64(pushed), Duration::from_secs_f64(step))
    }

    #[test]
    fn extra_steps_end_just_before_the_slowest_pushes() {
        // The slowest pushed at 9 and does so every 4: at 13 and 17. The fastest is at 10 and takes 1: no waiting after three
        // steps.
        assert_eq!(extra_steps(pace(10.0, 1.0), slow(9.0, 4.0), 12), Some(3));
        // Only two are allowed.
        assert_eq!(extra_steps(pace(10.0, 1.0), slow(9.0, 4.0), 2), Some(2));
        // It takes 2.5: after one step it waits 0.5, after two 2, after three 3.5, after four 1.
        assert_eq!(extra_steps(pace(10.0, 2.5), slow(9.0, 4.0), 4), Some(1));
        // A push that is late is expected at once.
        assert_eq!(extra_steps(pace(20.0, 1.0), slow(9.0, 4.0), 4), Some(1));
        // Steps of a time that is not known.
        assert_eq!(extra_steps(Pace::default(), slow(9.0, 4.0), 4), None);
        assert_eq!(extra_steps(pace(10.0, 1.0), slow(9.0, 0.0), 4), Some(0));
    }

    /// Two workers whose steps take 1 and 4 seconds; when the fast one goes on after its pushes.
    #[test]
    fn the_fastest_gets_extra_steps_once_both_are_known() {
        let mut policy = Dssp { least: 1, most: 4 }.policy(&[0, 0]);
        let (mut pushes, mut steps) = ([Some(1u64), Some(4)], [0, 0]);
        let mut answered = Vec::new();
        for now in 1..=28 {
            for worker in [1, 0] {
                if pushes[worker] != Some(now) {
                    continue;
                }
                let event =
                    Event::Pushed { worker: worker as u32, step: steps[worker], stage: Stage::Routine };
                (pushes[worker], steps[worker]) = (None, steps[worker] + 1);
                for action in policy.handle(event, Duration::from_secs(now)).unwrap() {
                    if let Action::Reply { worker, step, .. } = action {
                        pushes[worker as usize] = Some(now + [1, 4][worker as usize]);
                        answered.push((worker, step, now));
                    }
                }
            }
        }
        let fast: Vec<_> =
            answered.iter().filter(|(worker, ..)| *worker == 0).map(|&(_, step, now)| (step, now)).collect();
        // Step 1 waits until 4 and step 2 until 8: no step of the slow one is timed before. At 9 its next push is expected at 12,
        // which three extra steps reach without waiting; at 12 there is room for one more before the fast one would be 5 ahead,
        // and then it waits until it is 1 ahead.
        assert_eq!(fast, [(0, 1), (1, 4), (2, 8), (3, 9), (4, 10), (5, 11), (6, 12), (7, 28)]);
    }
}
