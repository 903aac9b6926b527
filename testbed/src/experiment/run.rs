//! Running all jobs of an experiment, in turns, and storing what each of them measured.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::case::order;
use super::chaos;
use super::interrupt::Interrupt;
use super::job::{Ended, Job, Seats};
use super::machine::Processors;
use super::options::plain;
use super::place::Place;
use super::store::Store;
use super::{Case, Experiment, Wanted, machine};
use crate::Error;
use crate::peers::{self, Kit};
use crate::record::{self, Machine, Outcome, Record, Relayed, Traffic};

/// An experiment, and the jobs that measure its cases.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is asked for.
    pub experiment: Experiment,
    /// Jobs; no two of them measure the same case.
    pub jobs: Vec<Job>,
}

/// How a run is done.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where measurements go.
    pub out: PathBuf,
    /// Go on with what is there.
    pub resume: bool,
    /// Take down an emulated network that is in the way.
    pub replace: bool,
    /// What the emulated network is called.
    pub network: String,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Jobs done, those of an earlier run included.
    pub done: usize,
    /// Jobs of all turns.
    pub of: usize,
    /// What runs.
    pub job: String,
    /// Its steps done and to do; both 0 before the first.
    pub steps: (u64, u64),
    /// How long the rest takes, once a job has ended.
    pub rest: Option<Duration>,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Records that were written.
    pub measured: usize,
    /// Records that were there before.
    pub before: usize,
    /// Whether the last line of those was torn and dropped.
    pub torn: bool,
    /// Of those written, jobs that failed though nothing on purpose could end them: method or case, and the reason.
    pub failed: Vec<String>,
    /// Of those written, records of jobs that failed after a worker was killed, cut off or stopped for good.
    pub failed_on_purpose: usize,
    /// Of those written, records of jobs in which something that was planned on purpose did not happen.
    pub missed: usize,
    /// Of those written, records in which the processors were what was measured, and not the links that a relay makes.
    pub bound_by_processors: usize,
    /// The exit code of the signal that ended the run early.
    pub interrupted: Option<u8>,
}

impl Plan {
    /// The jobs of an experiment, run by this program, which is `gleaner`, and by what is there of the peers.
    pub fn of(experiment: Experiment, program: &Path, kit: Option<&Kit>) -> Self {
        let again = ["gleaner", "testbed", "run", &format!("{}.toml", experiment.name)].map(String::from);
        let job = |cases: &Vec<Case>| match cases.first().filter(|case| case.is_of_peer()) {
            Some(case) => kit.and_then(|kit| kit.job(case, again.to_vec())),
            None => Some(Job::ours(program, cases)),
        };
        Self { jobs: experiment.jobs.iter().filter_map(job).collect(), experiment }
    }

    /// What a job runs, as one would type it.
    pub fn typed(&self, job: &Job) -> Vec<String> {
        job.typed(self.experiment.network != Wanted::Loopback)
    }

    /// Every turn and job, in the order in which they are run.
    pub fn sequence(&self) -> impl Iterator<Item = (u32, &Job)> {
        let turns = self.experiment.turns;
        (0..turns).flat_map(move |turn| {
            order(self.jobs.len(), turn, turns).into_iter().map(move |job| (turn, &self.jobs[job]))
        })
    }

    /// Runs what is not measured yet.
    ///
    /// # Errors
    /// A directory or a network that cannot be used. What was measured before stays, and the network is taken down.
    pub fn run(
        &self,
        options: &Options,
        mut on_progress: impl FnMut(&Progress) + Send,
    ) -> Result<Tally, Error> {
        let interrupt =
            Interrupt::listen().map_err(|error| format!("signals cannot be listened to: {error}"))?;
        self.run_until(&interrupt, options, &mut on_progress)
    }

    /// The same, where signals are listened to already.
    pub(super) fn run_until(
        &self,
        interrupt: &Interrupt,
        options: &Options,
        on_progress: &mut (dyn FnMut(&Progress) + Send),
    ) -> Result<Tally, Error> {
        let store = Store::open(&options.out, &self.experiment.texts, options.resume)?;
        let left = |&(turn, job): &(u32, &Job)| job.cases.iter().any(|case| !store.has(case, turn));
        let mut sequence: Vec<(u32, Job)> = self
            .sequence()
            .filter(left)
            .map(|(turn, job)| (turn, job.without(|case| store.has(case, turn))))
            .collect();
        let tally = Tally { before: store.records.len(), torn: store.torn, ..Tally::default() };
        if let Some(search) = &self.experiment.search {
            let found = search.find_numbers(self, &mut sequence, interrupt, options, &mut *on_progress);
            if let Some(code) = interrupt.code() {
                return Ok(Tally { interrupted: Some(code), ..tally });
            }
            found?;
        }
        if sequence.is_empty() {
            return Ok(tally);
        }
        let cases = sequence.iter().filter_map(|(_, job)| job.cases.first());
        let place = Place::up(&self.experiment.network, cases, &options.network, options.replace)?;
        let mut course = Course {
            plan: self,
            store,
            place,
            interrupt,
            on_progress,
            machine: machine::here(),
            commit: machine::commit(),
            tally,
            took: Vec::new(),
        };
        let done = course.all(&sequence);
        let Course { place, tally, .. } = course;
        // Whatever happened: nothing is left behind.
        place.down()?;
        done.map(|()| tally)
    }
}

impl Job {
    /// The job in which this program, which is `gleaner`, measures cases that differ in the method only; or another program one case.
    pub fn ours(program: &Path, cases: &[Case]) -> Self {
        if cases[0].runs_program() {
            // Reading the file has refused placeholders without a value.
            let words = cases[0].program().unwrap_or_default().into_iter().map(OsString::from).collect();
            return Job {
                cases: cases.to_vec(),
                program: words,
                env: Vec::new(),
                seats: Seats::Workers,
                again: None,
            };
        }
        let command = cases[0].0.get("command").map(plain).unwrap_or_default();
        let words = [command, "--json".into(), "--method".into(), methods(cases, ",")].into_iter();
        let words = words.chain(cases[0].words()).map(OsString::from);
        let words = std::iter::once(program.into()).chain(words).collect();
        Job { cases: cases.to_vec(), program: words, env: Vec::new(), seats: Seats::Workers, again: None }
    }

    /// The same for the cases that are not there yet. Methods that run together are named on the command line.
    fn without(&self, is_there: impl Fn(&Case) -> bool) -> Job {
        let cases: Vec<Case> = self.cases.iter().filter(|case| !is_there(case)).cloned().collect();
        let mut job = self.clone();
        if !cases.iter().any(Case::runs_program)
            && let Some(place) = self.program.iter().position(|word| word == "--method")
            && let Some(named) = job.program.get_mut(place + 1)
        {
            *named = methods(&cases, ",").into();
        }
        Job { cases, ..job }
    }

    /// For a bar: the methods, and the number of workers.
    fn label(&self) -> String {
        format!("{}, {} workers", methods(&self.cases, " "), self.workers())
    }
}

fn methods(cases: &[Case], between: &str) -> String {
    cases.iter().map(Case::method).collect::<Vec<_>>().join(between)
}

/// A run under way.
struct Course<'a> {
    plan: &'a Plan,
    store: Store,
    place: Place,
    interrupt: &'a Interrupt,
    on_progress: &'a mut (dyn FnMut(&Progress) + Send),
    machine: Machine,
    commit: Option<String>,
    tally: Tally,
    /// Seconds of each job that was run here.
    took: Vec<f64>,
}

impl Course<'_> {
    fn all(&mut self, sequence: &[(u32, Job)]) -> Result<(), Error> {
        let of = self.plan.jobs.len() * self.plan.experiment.turns as usize;
        for (number, (turn, job)) in sequence.iter().enumerate() {
            let left = sequence.len() - number;
            let mean =
                (!self.took.is_empty()).then(|| self.took.iter().sum::<f64>() / self.took.len() as f64);
            let rest = mean.map(|mean| Duration::from_secs_f64(mean * left as f64));
            let mut progress = Progress { done: of - left, of, job: job.label(), steps: (0, 0), rest };
            (self.on_progress)(&progress);
            // What a job before could not undo is undone now, or nothing more is measured.
            self.place.restore()?;
            self.place.shape(&job.cases[0])?;
            let before = self.place.traffic(job.hosts())?;
            let crossed_before = self.place.crossed()?.unwrap_or_default();
            let processors = Processors::now();
            if self.stops() {
                return Ok(());
            }
            let events = chaos::of_case(&self.plan.experiment.chaos, &job.cases[0]);
            let on_progress = &mut self.on_progress;
            let ended = job.run(&mut self.place, &events, self.plan.experiment.limit, |done, of| {
                progress.steps = (done, of);
                on_progress(&progress);
            });
            // What was interrupted is no measurement.
            if self.stops() {
                return Ok(());
            }
            let traffic = since(&before, self.place.traffic(job.hosts())?);
            let busy = Processors::now().busy_since(processors);
            let relay = self.place.crossed()?.map(|now| Relayed { crossed: now.since(crossed_before), busy });
            self.took.push(ended.seconds);
            self.keep(*turn, job, &ended, (&traffic, relay))?;
        }
        Ok(())
    }

    fn stops(&mut self) -> bool {
        self.tally.interrupted = self.interrupt.code();
        self.tally.interrupted.is_some()
    }

    fn keep(
        &mut self,
        turn: u32,
        job: &Job,
        ended: &Ended,
        (traffic, relay): (&[Traffic], Option<Relayed>),
    ) -> Result<(), Error> {
        let command = self.plan.typed(job);
        let is_deadly = chaos::is_deadly(&ended.applied.acts);
        let mut records = Vec::new();
        for (number, case) in job.cases.iter().enumerate() {
            let outcome = match outcome(&ended.printed, case, number) {
                Outcome::Done(report)
                    if case.is_of_peer()
                        && peers::is_dense(&case.method())
                        && bypassed(&report, case, traffic) =>
                {
                    Outcome::Failed { exit_code: 0, reason: BYPASSED.into() }
                }
                outcome => outcome,
            };
            match &outcome {
                Outcome::Failed { .. } if is_deadly => self.tally.failed_on_purpose += 1,
                Outcome::Failed { reason, .. } => {
                    let (method, workers) = (case.method(), case.workers());
                    self.tally.failed.push(format!("{method}, {workers} workers: {reason}"));
                }
                Outcome::Done(_) => {}
            }
            records.push(Record {
                version: record::VERSION,
                experiment: self.plan.experiment.name.clone(),
                case: case.0.clone(),
                turn,
                started: ended.started,
                seconds: ended.seconds,
                machine: self.machine.clone(),
                commit: self.commit.clone(),
                predicted_commit: None,
                command: command.clone(),
                chaos: ended.applied.lines.clone(),
                missed: ended.applied.missed.clone(),
                failed_on_purpose: is_deadly && matches!(outcome, Outcome::Failed { .. }),
                traffic: traffic.to_vec(),
                relay,
                outcome,
            });
        }
        self.tally.missed += records.iter().filter(|record| !record.missed.is_empty()).count();
        self.tally.bound_by_processors +=
            records.iter().filter(|record| record.processors_bound().is_some()).count();
        self.tally.measured += records.len();
        self.store.append(records)
    }
}

/// The result of one method: a report on several has a list of them in the order in which they were named.
fn outcome(printed: &Result<Value, (i32, String)>, case: &Case, number: usize) -> Outcome {
    match printed {
        Err((exit_code, reason)) => Outcome::Failed { exit_code: *exit_code, reason: reason.clone() },
        Ok(report) if case.runs_program() => Outcome::Done(report.clone()),
        Ok(report) => match report.get("methods").map(|methods| methods.get(number)) {
            None => Outcome::Done(report.clone()),
            Some(Some(one)) => Outcome::Done(one.clone()),
            Some(None) => {
                let reason = format!("its report has no method number {number}; run it by hand to see");
                Outcome::Failed { exit_code: 0, reason }
            }
        },
    }
}

/// What is said of a peer that used something else than the links.
const BYPASSED: &str =
    "its hosts received fewer bytes than a dense all-reduce needs, so it went around the emulated links";

/// Whether a dense all-reduce cannot have crossed the links: in each step some host has to receive as many bytes as the sum has.
fn bypassed(report: &Value, case: &Case, traffic: &[Traffic]) -> bool {
    let number = |value: Option<&Value>| value.and_then(Value::as_f64).unwrap_or(0.0);
    let steps = number(case.0.get("steps")) + number(case.0.get("warmup"));
    let received = traffic.iter().map(|traffic| traffic.received).max().unwrap_or(0);
    (received as f64) < 4.0 * steps * number(report.get("params"))
}

fn since(before: &[Traffic], after: Vec<Traffic>) -> Vec<Traffic> {
    let difference = |(before, after): (&Traffic, Traffic)| Traffic {
        received: after.received.saturating_sub(before.received),
        sent: after.sent.saturating_sub(before.sent),
        ..after
    };
    before.iter().zip(after).map(difference).collect()
}
