//! The choice of one group: what is tried, in which order, and what stays. It knows forecasts and times, and no network.

use std::collections::VecDeque;
use std::time::Duration;

use gleaner_algorithms::forecast::Forecast;
use gleaner_statistics::median;

use super::{AutoChoice, Tried};
use crate::probe::Probed;

/// Steps of a try that do not count: links open, thresholds are learnt.
const TRANSIENT: usize = 3;

/// Steps of a try whose median counts.
pub(super) const COUNTED: usize = 7;

/// By this factor the forecast of an all-reduce that was not tried yet may be too high: one whose workers take turns, for
/// instance, gains where they share cores.
const DOUBT: f64 = 3.0;

/// And that of one which was tried with other teams: those resemble each other.
const DOUBT_OF_TEAMS: f64 = 1.25;

/// What is tried after the first choice, at most.
const TRIES: usize = 10;

/// A method that took at most this many times as long as the fastest may really be the fastest.
const CLOSE: f64 = 1.25;

/// How many of them take turns, at most, and how often.
const FINALISTS: usize = 4;
const TURNS: usize = 3;

/// The choice of one group.
pub(super) struct Course {
    /// The cheapest first.
    ranking: Vec<Forecast>,
    /// The steps measured of each, in seconds.
    measured: Vec<Vec<f64>>,
    /// The present one, as its place in the ranking.
    running: usize,
    /// Seconds of the steps with the present one.
    steps: Vec<f64>,
    /// Those that are near the fastest in the order of their turns, once all tries are over.
    turns: Option<VecDeque<usize>>,
    decided: bool,
}

impl Course {
    /// The ranking has at least one forecast.
    pub(super) fn new(ranking: Vec<Forecast>) -> Self {
        let measured = vec![Vec::new(); ranking.len()];
        // One candidate needs no measuring.
        let decided = ranking.len() < 2;
        Self { ranking, measured, running: 0, steps: Vec::new(), turns: None, decided }
    }

    pub(super) fn present(&self) -> &Forecast {
        &self.ranking[self.running]
    }

    /// Goes over to the method at this place of the ranking.
    fn run(&mut self, running: usize) {
        self.running = running;
        self.steps.clear();
    }

    /// Goes over to the method of this name, if it is in the ranking.
    pub(super) fn resume(&mut self, name: &str) -> bool {
        let found = self.ranking.iter().position(|forecast| forecast.method.to_string() == name);
        if let Some(running) = found {
            self.run(running);
        }
        found.is_some()
    }

    /// A step took so long on this rank.
    pub(super) fn record(&mut self, took: Duration) {
        if !self.decided {
            self.steps.push(took.as_secs_f64());
        }
    }

    /// Whether this rank has seen as many steps of the present method as a conclusion takes. Ranks agree on this, since
    /// all of them go through the same steps.
    pub(super) fn is_due(&self) -> bool {
        !self.decided && self.steps.len() >= TRANSIENT + COUNTED
    }

    /// The seconds of the steps that count, on this rank: [`COUNTED`] numbers. Those of a course that is not due are not
    /// used.
    pub(super) fn counted(&self) -> impl Iterator<Item = f64> {
        (TRANSIENT..TRANSIENT + COUNTED).map(|i| self.steps.get(i).copied().unwrap_or(f64::INFINITY))
    }

    /// Draws the consequence of what each rank [counted](Self::counted). Every rank knows the same numbers, and so draws
    /// the same conclusion. Whether another method runs now.
    pub(super) fn conclude(&mut self, ranks: &[&[f64]]) -> bool {
        // A job goes on when its slowest worker does.
        let slowest = |step: usize| ranks.iter().map(|counted| counted[step]).fold(0.0, f64::max);
        let before = self.running;
        self.measured[before].extend((0..COUNTED).map(slowest));
        self.decide();
        self.running != before
    }

    pub(super) fn has_chosen(&self) -> bool {
        self.decided
    }

    /// The median step of a method, if it was tried.
    fn seconds(&self, place: usize) -> Option<f64> {
        let steps = &self.measured[place];
        (!steps.is_empty()).then(|| median(steps.iter().copied()))
    }

    /// What was tried, with its median step, the fastest first.
    fn tried(&self) -> Vec<(usize, f64)> {
        let all = 0..self.ranking.len();
        let mut tried: Vec<(usize, f64)> = all.filter_map(|i| Some((i, self.seconds(i)?))).collect();
        tried.sort_by(|a, b| a.1.total_cmp(&b.1));
        tried
    }

    /// Draws the consequence of what the present method took: tries another one, lets those that are near the fastest
    /// take turns, or chooses the fastest.
    fn decide(&mut self) {
        let tried = self.tried();
        let best = tried[0].1;
        if self.turns.is_none() {
            if let Some(next) = self.untried(best).filter(|_| tried.len() <= TRIES) {
                return self.run(next);
            }
            let close = tried.iter().take_while(|(_, seconds)| *seconds < CLOSE * best).take(FINALISTS);
            let finalists: Vec<usize> = close.map(|(place, _)| *place).collect();
            let turns = if finalists.len() > 1 { TURNS } else { 0 };
            self.turns = Some(finalists.repeat(turns).into());
        }
        let next = self.turns.as_mut().and_then(VecDeque::pop_front);
        self.decided = next.is_none();
        self.run(next.unwrap_or(tried[0].0));
    }

    /// Of what was not tried yet and may be faster than the best time measured, what is expected to be fastest.
    fn untried(&self, best: f64) -> Option<usize> {
        let factor = self.correction();
        let may_be_faster = |i: usize| {
            let (factor, doubt) =
                self.correction_of(i).map_or((factor, DOUBT), |known| (known, DOUBT_OF_TEAMS));
            let seconds = factor * self.ranking[i].seconds;
            (seconds < doubt * best).then_some((i, seconds))
        };
        let untried = (0..self.ranking.len()).filter(|&i| self.measured[i].is_empty());
        untried.filter_map(may_be_faster).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)
    }

    /// Measured by expected time of what was tried.
    fn factors(&self) -> impl Iterator<Item = (usize, f64)> {
        let factors = self.tried().into_iter().map(|(i, seconds)| (i, seconds / self.ranking[i].seconds));
        factors.filter(|(_, factor)| factor.is_finite())
    }

    /// What forecasts have to be multiplied by, where all that were tried were too high: the smallest of measured by
    /// expected time, and at most 1. One that was too low says nothing about the others.
    fn correction(&self) -> f64 {
        self.factors().map(|(_, factor)| factor).fold(1.0, f64::min)
    }

    /// What a forecast has to be multiplied by, where the same all-reduce was tried with other teams.
    fn correction_of(&self, place: usize) -> Option<f64> {
        let name = |i: usize| self.ranking[i].method.collective().name();
        let others = self.factors().filter(|&(i, _)| name(i) == name(place));
        others.map(|(_, factor)| factor).reduce(f64::min)
    }

    /// Where it stands.
    pub(super) fn chosen(&self) -> AutoChoice {
        let at = |place: usize| Tried {
            forecast: self.ranking[place].clone(),
            // A rank that said nothing took for ever.
            measured: self
                .seconds(place)
                .map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
        };
        let tried = self.tried().into_iter().map(|(place, _)| at(place)).collect();
        AutoChoice { taken: at(self.running), decided: self.decided, tried }
    }

    /// What is taken, and why.
    pub(super) fn announce(&self, probed: &Probed) -> String {
        let best = self.present();
        let is_sparse = |forecast: &&Forecast| forecast.method.collective().is_sparse();
        let dense = self.ranking.iter().find(|forecast| !is_sparse(forecast));
        let sparse = self.ranking.iter().find(is_sparse);
        let time = |forecast: &Forecast| milliseconds(forecast.seconds);
        let beside = match (is_sparse(&best), dense, sparse) {
            (true, Some(dense), _) => format!(" (dense {dense}: {})", time(dense)),
            (false, _, Some(sparse)) => {
                format!(", for dense is faster here than any sparse method ({sparse}: {})", time(sparse))
            }
            _ => String::new(),
        };
        let delivered = match best.delivered {
            (low, high) if low == high => format!("{low} entries"),
            (low, high) => format!("{low} to {high} entries"),
        };
        let network = match probed.network.bytes_per_second {
            rate if rate.is_finite() => {
                format!("; {:.0} Mbit/s, {:.0} µs", rate * 8e-6, probed.network.latency.as_secs_f64() * 1e6)
            }
            _ => String::new(),
        };
        format!("auto takes {best}: {} a step expected{beside}, {delivered} delivered{network}", time(best))
    }

    /// What it has chosen in the end.
    pub(super) fn summary(&self) -> String {
        let took = self.seconds(self.running).map(milliseconds).unwrap_or_default();
        let others = self.tried().into_iter().filter(|(i, _)| *i != self.running);
        let tried: Vec<String> =
            others.map(|(i, seconds)| format!("{}: {}", self.ranking[i], milliseconds(seconds))).collect();
        let others = if tried.is_empty() { String::new() } else { format!("; tried {}", tried.join(", ")) };
        let (present, expected) = (self.present(), milliseconds(self.present().seconds));
        let verb = if self.running == 0 { "stays with" } else { "chooses" };
        format!("auto {verb} {present}: {took} a step measured ({expected} expected){others}")
    }
}

/// A time as people read it.
pub(super) fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    if ms < 9.95 {
        format!("{ms:.2} ms")
    } else if ms < 99.5 {
        format!("{ms:.1} ms")
    } else {
        format!("{ms:.0} ms")
    }
}

#[cfg(test)]
mod tests;
