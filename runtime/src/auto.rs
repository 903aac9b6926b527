//! The method `auto`: takes what the cost model expects to be cheapest, and revises that by what steps really take.
//!
//! Every rank comes to the same choice, because all of them reckon with the same numbers: measurements are agreed on before
//! anything is concluded from them. A forecast is right within a factor, so the methods whose forecasts come near the best
//! time measured are tried for a few steps each. Those that were nearly as fast as the fastest then take turns, as a machine
//! is not equally fast at all times, and the one that was fastest over all of its turns stays.

use std::collections::VecDeque;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::forecast::{Forecast, Model};

use crate::failure::Error;
use crate::notes::Purpose;
use crate::probe::{self, Probed};
use crate::session::Inner;

/// Steps of a try that do not count: links open, thresholds are learnt.
const SETTLING: usize = 3;

/// Steps of a try whose median counts.
const COUNTED: usize = 7;

/// By this factor the forecast of an all-reduce that was not tried yet may be too high: one whose workers take turns, for
/// instance, gains where they share cores.
const DOUBT: f64 = 3.0;

/// And that of one which was tried with other teams: those resemble each other.
const DOUBT_OF_TEAMS: f64 = 1.25;

/// What is tried after the first choice, at most.
const TRIES: usize = 10;

/// A method that took at most this many times as long as the fastest may be the fastest in truth.
const CLOSE: f64 = 1.25;

/// How many of them take turns, at most, and how often.
const FINALISTS: usize = 4;
const TURNS: usize = 3;

/// The choices of all groups of one gradient exchange.
pub(crate) struct Auto {
    courses: Vec<Course>,
    /// Says what is chosen: one rank does.
    speaks: bool,
}

/// The choice of one group.
struct Course {
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
    settled: bool,
}

impl Auto {
    /// Measures if nobody has in this session, and chooses for groups of so many entries. All ranks call it together.
    ///
    /// # Errors
    /// A job that has failed, and options that no method takes.
    pub(crate) fn new(session: &Inner, groups: &[(Method, usize)]) -> Result<Self, Error> {
        let longest = groups.iter().map(|(_, n)| *n).max().unwrap_or(0);
        let probed = probe::probe(session, longest)?;
        let (workers, speaks) = (session.post.workers, session.post.rank.0 == 0);
        let mut courses = Vec::new();
        for &(choice, n) in groups {
            let model = Model::new(probed.network, probed.speed, choice, n)?;
            let course = Course::new(model.rank(choice, workers, n)?);
            if speaks {
                eprintln!("gleaner: {}", course.announce(&probed));
            }
            courses.push(course);
        }
        Ok(Self { courses, speaks })
    }

    /// The method that a group runs.
    pub(crate) fn method(&self, group: usize) -> Method {
        self.courses[group].present().method
    }

    /// A group's step took so long on this rank.
    pub(crate) fn record(&mut self, group: usize, took: Duration) {
        let course = &mut self.courses[group];
        if !course.settled {
            course.steps.push(took.as_secs_f64());
        }
    }

    /// Between two steps: the groups that go over to another method now. All ranks call it after every step and come to
    /// the same conclusion.
    ///
    /// # Errors
    /// The job has failed.
    pub(crate) fn revise(&mut self, session: &Inner) -> Result<Vec<usize>, Error> {
        let is_due = |course: &Course| !course.settled && course.steps.len() >= SETTLING + COUNTED;
        if !self.courses.iter().any(is_due) {
            return Ok(Vec::new());
        }
        // A group that is not due has fewer, and nobody looks at what fills the rest.
        let counted = |course: &Course| {
            (SETTLING..SETTLING + COUNTED)
                .map(|i| course.steps.get(i).copied().unwrap_or(f64::INFINITY))
                .collect::<Vec<f64>>()
        };
        let own: Vec<f64> = self.courses.iter().flat_map(counted).collect();
        let ranks = probe::numbers(&session.gather(Purpose::Revise, &probe::bytes(&own))?, own.len());
        let mut changed = Vec::new();
        for (group, course) in self.courses.iter_mut().enumerate().filter(|(_, course)| is_due(course)) {
            // A job goes on when its slowest worker does.
            let slowest =
                |step: usize| ranks.iter().map(|row| row[group * COUNTED + step]).fold(0.0, f64::max);
            let before = course.running;
            course.measured[before].extend((0..COUNTED).map(slowest));
            course.decide();
            if course.running != before {
                changed.push(group);
            }
            if course.settled && self.speaks {
                eprintln!("gleaner: {}", course.conclude());
            }
        }
        Ok(changed)
    }

    /// Goes on with the method that a checkpoint names, if it is one of a group's candidates.
    pub(crate) fn resume(&mut self, group: usize, name: &str) -> bool {
        let course = &mut self.courses[group];
        let found = course.ranking.iter().position(|forecast| forecast.method.to_string() == name);
        if let Some(running) = found {
            course.run(running);
        }
        found.is_some()
    }
}

impl Course {
    fn new(ranking: Vec<Forecast>) -> Self {
        let measured = vec![Vec::new(); ranking.len()];
        // One candidate needs no measuring.
        let settled = ranking.len() < 2;
        Self { ranking, measured, running: 0, steps: Vec::new(), turns: None, settled }
    }

    fn present(&self) -> &Forecast {
        &self.ranking[self.running]
    }

    fn run(&mut self, running: usize) {
        self.running = running;
        self.steps.clear();
    }

    /// The median step of a method, if it was tried.
    fn seconds(&self, place: usize) -> Option<f64> {
        let steps = &self.measured[place];
        (!steps.is_empty()).then(|| probe::median(steps.iter().copied()))
    }

    /// What was tried, with its median step, the fastest first.
    fn tried(&self) -> Vec<(usize, f64)> {
        let all = 0..self.ranking.len();
        let mut tried: Vec<(usize, f64)> = all.filter_map(|i| Some((i, self.seconds(i)?))).collect();
        tried.sort_by(|a, b| a.1.total_cmp(&b.1));
        tried
    }

    /// Draws the consequence of what the present method took: tries another one, lets those that are near the fastest
    /// take turns, or settles for the fastest.
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
        self.settled = next.is_none();
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

    /// What is taken, and why.
    fn announce(&self, probed: &Probed) -> String {
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

    /// What it came to in the end.
    fn conclude(&self) -> String {
        let took = self.seconds(self.running).map(milliseconds).unwrap_or_default();
        let others = self.tried().into_iter().filter(|(i, _)| *i != self.running);
        let tried: Vec<String> =
            others.map(|(i, seconds)| format!("{}: {}", self.ranking[i], milliseconds(seconds))).collect();
        let others = if tried.is_empty() { String::new() } else { format!("; tried {}", tried.join(", ")) };
        let (present, expected) = (self.present(), milliseconds(self.present().seconds));
        let verb = if self.running == 0 { "stays with" } else { "settles for" };
        format!("auto {verb} {present}: {took} a step measured ({expected} expected){others}")
    }
}

fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    if ms < 9.95 {
        format!("{ms:.2} ms")
    } else if ms < 99.5 {
        format!("{ms:.1} ms")
    } else {
        format!("{ms:.0} ms")
    }
}
