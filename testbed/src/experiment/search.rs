//! A search for an option's value: a number is bisected until measurements with it have as much of something as another case has.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use super::Experiment;
use super::case::Case;
use super::file::{Keys, Placed, scalar};
use super::interrupt::Interrupt;
use super::job::Job;
use super::run::{Options, Plan, Progress};
use super::store::Store;
use crate::Error;
use crate::record::Outcome;

/// What stands in an option's text for the number that is searched for.
pub const UNKNOWN: &str = "?";

/// Where trials are stored, in the directory of a run.
const TRIALS: &str = "search";

/// Closer than this the ends of the range are not brought.
const NARROW: f64 = 1.02;

/// How a number is searched for. What is measured has to fall as it rises. A file has it with the places of its options.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search<Values = BTreeMap<String, Value>> {
    /// The range.
    pub from: f64,
    /// Its end.
    pub to: f64,
    /// What is compared: a number of the command's JSON object.
    number: String,
    /// How far it may be from the aim, as a share of it.
    within: f64,
    /// What a case has instead, where it is the aim.
    aim: Values,
    /// What all trials have instead.
    #[serde(default)]
    trial: Values,
}

impl Search<Keys> {
    /// The search, for cases with options of these names.
    pub(super) fn checked(
        entry: &Spanned<Self>,
        known: impl Fn(&Spanned<String>) -> Result<(), Placed>,
    ) -> Result<Search, Placed> {
        let Self { from, to, number, within, aim, trial } = entry.get_ref();
        if !(0.0 < *from && from < to && to.is_finite() && 0.0 < *within && *within < 1.0) {
            let problem = "a [search] needs 'from' above 0, 'to' above it, and 'within' above 0 and below 1";
            return Err((entry.span(), problem.to_owned()));
        }
        let values = |keys: &Keys| {
            let one = |(key, value): (&Spanned<String>, &Spanned<toml::Value>)| {
                known(key)?;
                let value =
                    scalar(key.get_ref(), value.get_ref()).map_err(|problem| (value.span(), problem))?;
                Ok((key.get_ref().clone(), value))
            };
            keys.iter().map(one).collect::<Result<BTreeMap<_, _>, Placed>>()
        };
        let (aim, trial) = (values(aim)?, values(trial)?);
        Ok(Search { from: *from, to: *to, number: number.clone(), within: *within, aim, trial })
    }
}

/// Whether a number is to be found for a case.
pub fn is_unknown(case: &Case) -> bool {
    case.0.values().any(|value| value.as_str().is_some_and(|text| text.contains(UNKNOWN)))
}

/// The same case with a number in that place.
fn filled(case: &Case, number: f64) -> Case {
    let fill = |value: &Value| match value.as_str() {
        Some(text) => text.replace(UNKNOWN, &number.to_string()).into(),
        None => value.clone(),
    };
    Case(case.0.iter().map(|(key, value)| (key.clone(), fill(value))).collect())
}

/// What measures a case by this program.
type Trials<'a> = &'a mut dyn FnMut(&OsStr, &Case) -> Result<Outcome, Error>;

impl Search {
    /// Finds the numbers that jobs lack, and puts them into their commands. A signal ends it as an error does.
    pub(super) fn find_numbers(
        &self,
        plan: &Plan,
        sequence: &mut [(u32, Job)],
        interrupt: &Interrupt,
        options: &Options,
        on_progress: &mut (dyn FnMut(&Progress) + Send),
    ) -> Result<(), Error> {
        let options = Options { out: options.out.join(TRIALS), resume: true, ..options.clone() };
        let experiment = Experiment { turns: 1, chaos: Vec::new(), search: None, ..plan.experiment.clone() };
        // A run of its own, whose measurements lie beside those of the plan, unless it was measured before.
        let mut measure = |program: &OsStr, case: &Case| -> Result<Outcome, Error> {
            let jobs = vec![Job::ours(program.as_ref(), std::slice::from_ref(case))];
            let one = Plan { jobs, experiment: experiment.clone() };
            if one.run_until(interrupt, &options, &mut *on_progress)?.interrupted.is_some() {
                return Err("interrupted".into());
            }
            let found = Store::read(&options.out)?.into_iter().find(|record| record.case == case.0);
            let none = Outcome::Failed { exit_code: 1, reason: "it left no measurement".into() };
            Ok(found.map_or(none, |record| record.outcome))
        };
        // Cases that differ in what trials have of their own, such as the seed, share one.
        let mut found: Vec<(Case, f64)> = Vec::new();
        for (_, job) in sequence {
            let Some(case) = job.cases.first().filter(|case| is_unknown(case)) else { continue };
            let trial = case.with(&self.trial);
            let number = match found.iter().find(|(other, _)| *other == trial) {
                Some((_, number)) => *number,
                None => self.bisect(&mut measure, &job.program[0], &trial)?,
            };
            found.push((trial, number));
            let cases: Vec<Case> = job.cases.iter().map(|case| filled(case, number)).collect();
            job.program = Job::ours(job.program[0].as_ref(), &cases).program;
        }
        Ok(())
    }

    /// The number for a trial's case.
    fn bisect(&self, measure: Trials<'_>, program: &OsStr, trial: &Case) -> Result<f64, Error> {
        let number = |outcome: &Outcome| match outcome {
            Outcome::Done(report) => report.get(&self.number)?.as_f64(),
            Outcome::Failed { .. } => None,
        };
        let of_aim = trial.with(&self.aim);
        let outcome = measure(program, &of_aim)?;
        let Some(aim) = number(&outcome) else {
            let reason = match outcome {
                Outcome::Failed { reason, .. } => format!(": {reason}"),
                Outcome::Done(_) => String::new(),
            };
            let (case, number) = (of_aim.method(), &self.number);
            let expected = "expected a measurement that ends well and prints this number";
            return Err(format!("the search has no aim: {case} has no '{number}'{reason}; {expected}").into());
        };
        let (mut low, mut high) = (self.from, self.to);
        loop {
            // Four digits, so that what is tried is what is written.
            let value = rounded((low * high).sqrt());
            // A training that diverged had a value that let too little through.
            let found = number(&measure(program, &filled(trial, value))?).unwrap_or(0.0);
            if (found / aim - 1.0).abs() < self.within {
                return Ok(value);
            }
            if high / low < NARROW {
                let Self { from, to, number, .. } = self;
                let expected = "expected a range that holds one, and a number that falls as the value rises";
                let last = format!("the last tried, {value}, brought {found}");
                return Err(format!(
                    "no value from {from} to {to} brings '{number}' to {aim}; {last}; {expected}"
                )
                .into());
            }
            (low, high) = if found > aim { (value, high) } else { (low, value) };
        }
    }
}

fn rounded(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}
