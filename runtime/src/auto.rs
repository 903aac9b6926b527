//! The method `auto`: takes what the cost model expects to be cheapest, and revises that by what steps really take.
//!
//! Every rank makes the same choice, because all of them compute with the same numbers: measurements are agreed on before
//! anything is concluded from them. A forecast is right within a factor, so the methods whose forecasts come near the best
//! time measured are tried for a few steps each. Those that were nearly as fast as the fastest then take turns, as a machine
//! is not equally fast at all times, and the one that was fastest over all of its turns stays.

mod course;

use std::collections::BTreeSet;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::MethodError;
use gleaner_algorithms::forecast::{Forecast, Model};

use crate::failure::Error;
use crate::notes::Purpose;
use crate::probe::{self, Probed};
use crate::report::say;
use crate::session::Inner;
use course::{COUNTED, Course, milliseconds};

/// What `make` makes of the method that is expected to be cheapest for n entries, or of the next one where a reduction is
/// refused. No other is tried in its place later. Measures if that was not done in this session; all ranks call it together.
///
/// # Errors
/// A job that has failed, options that no method takes, and what `make` fails with.
pub(crate) fn cheapest<T>(
    session: &Inner,
    name: &str,
    choice: &Method,
    n: usize,
    make: impl Fn(Method) -> Result<T, Error>,
) -> Result<T, Error> {
    let probed = probe::probe(session, n)?;
    let model = Model::new(probed.network, probed.speed, choice, n)?;
    first_of(session, name, model.rank(choice, session.workers, n)?, make)
}

fn first_of<T>(
    session: &Inner,
    name: &str,
    ranking: Vec<Forecast>,
    make: impl Fn(Method) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut refused = MethodError::Unresolved.into();
    for forecast in ranking {
        match make(forecast.method.clone()) {
            Err(error @ Error::Reduction(_)) => refused = error,
            Err(error) => return Err(error),
            Ok(made) => {
                if session.coordinates() {
                    let expected = milliseconds(forecast.seconds);
                    say(format_args!(
                        "gleaner: auto takes {forecast} for '{name}': {expected} a step expected"
                    ));
                }
                return Ok(made);
            }
        }
    }
    Err(refused)
}

/// What the method `auto` has chosen for a group.
#[derive(Clone, Debug)]
pub struct AutoChoice {
    /// The method that runs now.
    pub taken: Tried,
    /// Whether it stays: nothing else will be tried.
    pub decided: bool,
    /// All that were measured, the fastest first.
    pub tried: Vec<Tried>,
}

/// A method that `auto` may take.
#[derive(Clone, Debug)]
pub struct Tried {
    /// What it is expected to cost.
    pub forecast: Forecast,
    /// The median of its steps that count, each as long as on the slowest rank; none before a try has ended.
    pub measured: Option<Duration>,
}

/// The choices of all groups of one gradient exchange.
pub(crate) struct Auto {
    courses: Vec<Course>,
    probed: Probed,
    /// Says what is chosen: one rank does.
    speaks: bool,
    /// What was said, groups before a regrouping included: what several groups have chosen is said once.
    said: BTreeSet<(bool, String)>,
}

impl Auto {
    /// Measures if that was not done in this session, and chooses for groups of this many entries. All ranks call it together.
    ///
    /// # Errors
    /// A job that has failed, and options that no method takes.
    pub(crate) fn new(session: &Inner, groups: &[(Method, usize)]) -> Result<Self, Error> {
        let longest = groups.iter().map(|(_, n)| *n).max().unwrap_or(0);
        let probed = probe::probe(session, longest)?;
        let (workers, speaks) = (session.workers, session.coordinates());
        let mut courses = Vec::new();
        for (choice, n) in groups {
            let model = Model::new(probed.network, probed.speed, choice, *n)?;
            courses.push(Course::new(model.rank(choice, workers, *n)?));
        }
        Ok(Self { courses, probed, speaks, said: BTreeSet::new() })
    }

    /// The same for one group of n entries whose gradients are sparse already, of which each worker brings this many entries now. The
    /// ranks agree on how many that are.
    ///
    /// # Errors
    /// As for dense gradients.
    pub(crate) fn sparse(
        session: &Inner,
        choice: &Method,
        (n, entries): (usize, usize),
    ) -> Result<Self, Error> {
        let probed = probe::probe(session, entries)?;
        let notes = session.gather(Purpose::Choose, &(entries as u64).to_le_bytes())?;
        let brought = notes.iter().map(|note| <[u8; 8]>::try_from(&note[..]).map_or(0, u64::from_le_bytes));
        let sum = brought.fold(0, u64::saturating_add);
        let entries = (sum / u64::from(session.workers)).min(n as u64) as usize;
        let model = Model::new(probed.network, probed.speed, &choice.clone().k(entries), n)?;
        let course = Course::new(model.rank_sparse(choice, session.workers, n, entries)?);
        Ok(Self { courses: vec![course], probed, speaks: session.coordinates(), said: BTreeSet::new() })
    }

    /// Says what the groups begin with, or what those that have decided have chosen; `before` is what was said of the groups
    /// before a regrouping.
    pub(crate) fn announce(&mut self, decided: bool, before: Option<&mut Self>) {
        if let Some(before) = before {
            self.said.append(&mut before.said);
        }
        for line in self.unsaid(decided) {
            if self.speaks {
                say(format_args!("gleaner: {line}"));
            }
        }
    }

    /// Each method once, however many groups try it or choose it.
    fn unsaid(&mut self, decided: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for course in self.courses.iter().filter(|course| !decided || course.has_chosen()) {
            if self.said.insert((decided, course.present().to_string())) {
                lines.push(if decided { course.summary() } else { course.announce(&self.probed) });
            }
        }
        lines
    }

    /// The method that a group runs.
    pub(crate) fn method(&self, group: usize) -> Method {
        self.courses[group].present().method.clone()
    }

    /// What each group has chosen.
    pub(crate) fn chosen(&self) -> Vec<AutoChoice> {
        self.courses.iter().map(Course::chosen).collect()
    }

    /// A group's step took so long on this rank.
    pub(crate) fn record(&mut self, group: usize, took: Duration) {
        self.courses[group].record(took);
    }

    /// Between two steps: the groups that go over to another method now. All ranks call it after every step and get
    /// the same result.
    ///
    /// # Errors
    /// The job has failed.
    pub(crate) fn revise(&mut self, session: &Inner) -> Result<Vec<usize>, Error> {
        if !self.courses.iter().any(Course::is_due) {
            return Ok(Vec::new());
        }
        let own: Vec<f64> = self.courses.iter().flat_map(Course::counted).collect();
        let ranks = probe::numbers(&session.gather(Purpose::Revise, &probe::bytes(&own))?, own.len());
        let mut changed = Vec::new();
        for (group, course) in self.courses.iter_mut().enumerate().filter(|(_, course)| course.is_due()) {
            let counted: Vec<&[f64]> = ranks.iter().map(|row| &row[group * COUNTED..][..COUNTED]).collect();
            if course.conclude(&counted) {
                changed.push(group);
            }
        }
        self.announce(true, None);
        Ok(changed)
    }

    /// Takes a group's choice over from before a regrouping, with what was measured for it, if it has chosen the same method.
    pub(crate) fn keep(&mut self, group: usize, before: &mut Self, was: usize) {
        if self.method(group).to_string() == before.method(was).to_string() {
            std::mem::swap(&mut self.courses[group], &mut before.courses[was]);
        }
    }

    /// Goes on with the method that a checkpoint names, if it is one of a group's candidates.
    pub(crate) fn resume(&mut self, group: usize, name: &str) -> bool {
        self.courses[group].resume(name)
    }
}

#[cfg(test)]
mod tests {
    use gleaner_algorithms::forecast::Network;

    use super::*;

    #[test]
    fn what_several_groups_come_to_is_said_once() {
        let network = Network { latency: Duration::from_micros(100), bytes_per_second: 1e8 };
        let probed = Probed::alike(network);
        let model = Model::new(probed.network, probed.speed, &Method::auto(), 10_000).unwrap();
        let ranking = model.rank(&Method::auto(), 6, 10_000).unwrap();
        let groups = |firsts: &[usize]| Auto {
            courses: firsts.iter().map(|&first| Course::new(ranking[first..].to_vec())).collect(),
            probed,
            speaks: false,
            said: BTreeSet::new(),
        };
        let begins = |line: &str, verb: &str, first: usize| {
            line.starts_with(&format!("auto {verb} {}: ", ranking[first]))
        };
        let mut one = groups(&[0]);
        assert_eq!(one.unsaid(false).len(), 1);
        // The same in three groups after a regrouping, and another one in the fourth and fifth.
        let mut five = groups(&[0, 0, 0, 1, 1]);
        five.said.append(&mut one.said);
        let lines = five.unsaid(false);
        assert!(lines.len() == 1 && begins(&lines[0], "takes", 1), "{lines:?}");
        // Nothing is left to be chosen: four groups choose, two by two.
        let last = ranking.len() - 1;
        let mut decided = groups(&[last, last, 0, 0]);
        assert_eq!(decided.unsaid(true).len(), 1);
        assert_eq!(decided.unsaid(true), [""; 0]);
        decided.courses.push(Course::new(ranking[last - 1..last].to_vec()));
        assert_eq!(decided.unsaid(true).len(), 1);
    }
}
