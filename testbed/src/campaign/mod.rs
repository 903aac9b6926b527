//! Jobs on emulated hosts that are disturbed at random moments, and checked against what was done to them.
//!
//! A campaign first runs a job that nothing happens to, several times, and measures the parts of its life. Then faults take
//! turns, each at a moment that is sampled uniformly from these parts. The expected outcome follows from the fault and the
//! moment; every job is checked for that outcome and its time, whether the rank with the fault was named, whether the updates
//! were those of the job that nothing happened to, and whether any process was left.

mod aim;
mod check;
mod expected;
mod fault;
mod forgery;
mod lane;
mod marks;
mod trial;
pub mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use gleaner_statistics::median;

use crate::Error;

pub use check::{Checked, Row, tally};
pub use expected::Expected;
pub use fault::{Fault, Phase, Plan};

use aim::Aim;
use lane::Lane;
use trial::Ended;

/// Jobs of each number of workers that are measured before any is disturbed, at least.
const MEASURED: usize = 3;

/// How often a job is run at most where its moment is missed: the parts of a worker's life differ from job to job, and some are as
/// short as it takes to look at them. Each is checked, and the first with anything wrong is the last.
const TRIES: u32 = 8;

/// What jobs are like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This program.
    pub program: PathBuf,
    /// How many workers a job has; by default sampled for each.
    pub workers: Option<u32>,
    /// After which a silent worker counts as dead.
    pub timeout: Duration,
    /// How many jobs run at once.
    pub at_once: usize,
    /// What follows from it.
    pub seed: u64,
}

/// The course of a job that nothing happens to.
#[derive(Clone, Debug)]
pub struct Course {
    /// How long each part of each worker's life is.
    pub phases: Vec<Vec<Duration>>,
    /// From the start of the launcher to its end.
    pub whole: Duration,
    /// The digest of all updates.
    pub digest: String,
}

impl Course {
    /// How long a part of a worker's life is.
    fn of(&self, rank: u32, phase: Phase) -> Duration {
        self.phases.get(rank as usize).map_or(Duration::ZERO, |phases| phases[phase as usize])
    }

    /// How long it is at the worker in the middle.
    pub fn typical(&self, phase: Phase) -> Duration {
        middle((0..self.phases.len() as u32).map(|rank| self.of(rank, phase)))
    }
}

/// The courses of jobs that nothing happens to, by their numbers of workers.
pub type Courses = BTreeMap<u32, Course>;

/// Runs these jobs. `on_end` gets each; `wants_end` is called before each.
///
/// # Errors
/// A network that cannot be emulated, or a job that fails although nothing is done to it.
pub fn run(
    settings: &Settings,
    numbers: std::ops::Range<u64>,
    on_end: impl Fn(&Checked) + Sync,
    wants_end: impl Fn() -> bool + Sync,
) -> Result<(Courses, Vec<Checked>), Error> {
    let mut lanes = Vec::new();
    let plans = numbers.map(|number| Plan::of(settings.seed, number, settings.workers));
    let plans: Vec<Plan> = plans.collect();
    let hosts = plans.iter().map(|plan| plan.workers).max().unwrap_or(1);
    let result = (0..settings.at_once.max(1))
        .try_for_each(|number| Lane::up(number, hosts).map(|lane| lanes.push(lane)))
        .and_then(|()| disturb(settings, &plans, &mut lanes, &on_end, &wants_end));
    let down: Result<Vec<()>, Error> = lanes.into_iter().map(Lane::down).collect();
    let result = result?;
    down.map(|_| result)
}

fn disturb(
    settings: &Settings,
    plans: &[Plan],
    lanes: &mut [Lane],
    on_end: &(impl Fn(&Checked) + Sync),
    wants_end: &(impl Fn() -> bool + Sync),
) -> Result<(Courses, Vec<Checked>), Error> {
    let sizes: BTreeSet<u32> = plans.iter().map(|plan| plan.workers).collect();
    let courses = sizes.into_iter().map(|workers| Ok((workers, measure(settings, workers, lanes)?)));
    let courses = courses.collect::<Result<Courses, Error>>()?;
    let next = AtomicUsize::new(0);
    let checked = Mutex::new(Vec::new());
    let aim = Mutex::new(Aim::default());
    on_all(lanes, |lane| {
        loop {
            let Some(&plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) else { return Ok(()) };
            if wants_end() {
                return Ok(());
            }
            let Some(one) = meet(lane, settings, plan, &courses[&plan.workers], &aim, wants_end)? else {
                return Ok(());
            };
            on_end(&one);
            checked.lock().unwrap_or_else(PoisonError::into_inner).push(one);
        }
    })?;
    let mut checked = checked.into_inner().unwrap_or_else(PoisonError::into_inner);
    checked.sort_by_key(|checked| checked.plan.number);
    Ok((courses, checked))
}

/// Does the same on all lanes at once.
fn on_all<T: Send>(
    lanes: &mut [Lane],
    work: impl Fn(&mut Lane) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = lanes.iter_mut().map(|lane| scope.spawn(move || work(lane))).collect();
        let done = threads.into_iter().map(|thread| thread.join());
        done.map(|done| done.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))).collect()
    })
}

/// Runs a job, and again where its moment is missed. None if it is interrupted.
fn meet(
    lane: &mut Lane,
    settings: &Settings,
    plan: Plan,
    course: &Course,
    aim: &Mutex<Aim>,
    wants_end: &impl Fn() -> bool,
) -> Result<Option<Checked>, Error> {
    let aim = || aim.lock().unwrap_or_else(PoisonError::into_inner);
    let mut lasts = aim().expected(&plan, course);
    let mut tries = 0;
    loop {
        tries += 1;
        let into = aim().moment(&plan, lasts);
        let ended = trial::run(lane, settings, &plan, Some((course, into)))?;
        // Ctrl-C interrupts the jobs, too.
        if wants_end() {
            return Ok(None);
        }
        if plan.fault.has_moment() {
            aim().learn(&plan, &ended.marks, ended.injected.and_then(|injected| injected.before));
            ended.late.into_iter().for_each(|late| aim().learn_late(plan.fault, late));
            // It is only ever missed where it is over before.
            lasts = lasts.min(ended.marks[plan.victim as usize].lasted(plan.phase).unwrap_or(lasts));
        }
        let one = Checked { tries, ..check::check(plan, settings.timeout, ended, &course.digest) };
        if one.met || !plan.fault.has_moment() || !one.wrong.is_empty() || tries == TRIES {
            return Ok(Some(one));
        }
    }
}

/// The course of jobs of so many workers that nothing happens to, as many at once as later.
fn measure(settings: &Settings, workers: u32, lanes: &mut [Lane]) -> Result<Course, Error> {
    let plan = Plan { fault: Fault::None, ..Plan::of(settings.seed, 0, Some(workers)) };
    let each = MEASURED.div_ceil(lanes.len());
    let ended = on_all(lanes, |lane| {
        (0..each).map(|_| trial::run(lane, settings, &plan, None)).collect::<Result<Vec<Ended>, _>>()
    })?;
    let mut lives = vec![vec![Vec::new(); Phase::ALL.len()]; workers as usize];
    let (mut whole, mut digest) = (Vec::new(), None);
    for job in ended.into_iter().flatten() {
        whole.push(job.took);
        for (phases, marks) in lives.iter_mut().zip(&job.marks) {
            let first = digest.get_or_insert_with(|| marks.digest().unwrap_or_default().to_owned());
            let (Some(lasted), true) = (marks.phases(), marks.digest() == Some(first) && job.code == Some(0))
            else {
                let said = job.said.unwrap_or_default();
                let problem = "a job that nothing was done to did not end well, so nothing can be measured";
                return Err(format!("{problem}: {said}").into());
            };
            phases.iter_mut().zip(lasted).for_each(|(all, one)| all.push(one));
        }
    }
    let phases = lives.into_iter().map(|phases| phases.into_iter().map(middle).collect()).collect();
    Ok(Course { phases, whole: middle(whole), digest: digest.unwrap_or_default() })
}

/// The median of durations.
fn middle(times: impl IntoIterator<Item = Duration>) -> Duration {
    Duration::from_secs_f64(median(times.into_iter().map(|time| time.as_secs_f64())))
}
