//! The moment of a fault: waited for, and met as closely as may be, since parts of a worker's life are short.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use super::aim::Target;
use super::expected::Injected;
use super::fault::{Fault, Phase, Plan};
use super::forgery::{Forged, Ongoing};
use super::lane::Lane;
use super::marks::{Marks, Watch};
use super::trial::Job;
use super::{CampaignError, Settings, worker};
use crate::Error;
use crate::experiment::worker::find;

/// How often a job is looked at, and how often while its moment is waited for.
const LOOK: Duration = Duration::from_millis(2);
const CLOSELY: Duration = Duration::from_micros(100);

/// How long the launcher waits for a worker that is stopped when the others have ended well, since it had sent all that they
/// needed: it looks each second, and gives it ten to go on.
pub const STOPPED: Duration = Duration::from_secs(11);

/// A fault that is injected into a job.
pub struct Injection<'a> {
    lane: &'a mut Lane,
    settings: &'a Settings,
    plan: &'a Plan,
    folder: &'a Path,
    mark: &'a str,
    ongoing: Option<Ongoing>,
    met: bool,
    late: Option<Duration>,
}

/// A job that was seen to its end.
#[derive(Debug)]
pub struct Seen {
    /// From the fault, or the beginning where nothing fails, to the end.
    pub took: Duration,
    /// How long it may take.
    pub bound: Duration,
    /// Whether it ended by itself.
    pub by_itself: bool,
    /// When the fault was injected, if it was.
    pub injected: Option<Injected>,
    /// Whether that was the part that was meant, from before to after the fault.
    pub met: bool,
    /// How long after its moment the fault was done.
    pub late: Option<Duration>,
}

impl<'a> Injection<'a> {
    /// What is to be done to a job.
    pub fn new(
        lane: &'a mut Lane,
        settings: &'a Settings,
        plan: &'a Plan,
        folder: &'a Path,
        mark: &'a str,
    ) -> Self {
        Self { lane, settings, plan, folder, mark, ongoing: None, met: false, late: None }
    }

    /// Ends it. Gives the outcome for bytes that were to be changed.
    pub fn end(self) -> Forged {
        self.ongoing.map(Ongoing::end).unwrap_or_default()
    }

    /// Injects the fault at its moment, and waits until it has ended.
    pub fn run(&mut self, job: &mut Job, target: Option<&Target<'_>>) -> Result<Seen, Error> {
        let begun = Instant::now();
        let whole = target.map_or(self.settings.timeout * 4, |target| target.course.whole);
        let injected = match (self.plan.fault, target) {
            (Fault::None, _) | (_, None) => None,
            // It leaves before the others are ready to.
            (Fault::Unequal, Some(_)) => Some((begun, Injected { before: None, after: Phase::Leaving })),
            (_, Some(target)) => self.inject(job, target)?,
        };
        let lasts = self.plan.lasts(self.settings.timeout);
        let mut undo = injected.and_then(|(at, _)| Some(at + lasts?));
        // A silence is noticed after the time-out and diagnosed soon, the news takes at most a second, and the launcher gives all
        // two seconds to say what they know.
        let spare = self.settings.timeout * 5 / 4 + Duration::from_secs(4);
        let spare = if self.plan.fault == Fault::Stop { spare + STOPPED } else { spare };
        let (from, bound) = match injected {
            Some((at, _)) if self.ends_soon() => (at, whole + spare),
            _ => (begun, 3 * whole + lasts.unwrap_or_default() + spare),
        };
        let mut by_itself = true;
        while by_itself && job.runs() {
            if undo.is_some_and(|undo| undo <= Instant::now()) {
                self.undo()?;
                undo = None;
            }
            if from.elapsed() > bound {
                by_itself = false;
                job.kill();
            }
            thread::sleep(LOOK);
        }
        Ok(Seen {
            took: from.elapsed(),
            bound,
            by_itself,
            injected: injected.map(|(_, injected)| injected),
            met: self.met,
            late: self.late,
        })
    }

    /// Whether the job must end soon after the fault, unless it is about to end.
    fn ends_soon(&self) -> bool {
        let fault = self.plan.fault;
        matches!(fault, Fault::Kill | Fault::Stop | Fault::Cut | Fault::FullDisk | Fault::UnreadStderr)
    }

    /// Waits for the moment and injects the fault, unless the job has ended before. Says when that was, and in which part of the victim's
    /// life.
    fn inject(&mut self, job: &mut Job, target: &Target<'_>) -> Result<Option<(Instant, Injected)>, Error> {
        let Plan { victim, phase, .. } = *self.plan;
        let (begun, mut due) = (Instant::now(), None);
        let mut victim = Watch::new(self.folder, victim);
        while job.runs() && begun.elapsed() < 3 * target.course.whole + self.settings.timeout {
            if due.is_none()
                && let Some(began) = victim.look().began(phase)
            {
                // What has passed since.
                let late =
                    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + began).unwrap_or_default();
                due = Some(Instant::now() + target.into.saturating_sub(late));
            }
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let before = victim.look().phase();
                let was_there = self.apply()?;
                let at = Instant::now();
                let after = victim.look();
                self.met = was_there && before == Some(phase) && after.phase() == before && !after.has_left();
                self.late = due.map(|due| at.saturating_duration_since(due));
                let after = after.phase().filter(|_| was_there);
                return Ok(after.map(|after| (at, Injected { before, after })));
            }
            thread::sleep(left.unwrap_or(CLOSELY).min(CLOSELY));
        }
        Ok(None)
    }

    /// Whether the victim was still there.
    fn apply(&mut self) -> Result<bool, Error> {
        let victim = self.plan.victim;
        let process = || {
            let reported = Marks::read(self.folder, victim).process().and_then(Pid::from_raw);
            reported.or_else(|| find(self.mark, victim).ok())
        };
        let signal = |signal| process().is_some_and(|process| kill_process(process, signal).is_ok());
        match self.plan.fault {
            Fault::Kill | Fault::UnreadStderr => Ok(signal(Signal::KILL)),
            Fault::Stop | Fault::Pause => Ok(signal(Signal::STOP)),
            Fault::Cut | Fault::ShortCut | Fault::MendedCut | Fault::SlowLink => {
                self.lane.inject().map(|()| true)
            }
            Fault::Flood => {
                self.ongoing = process().map(|process| self.lane.flood(victim, process));
                Ok(self.ongoing.is_some())
            }
            Fault::FullDisk => {
                let fill = || {
                    let mut filler = File::create(worker::disk(self.folder, victim).join("filler"))?;
                    while filler.write_all(&[0; 4096]).is_ok() {}
                    Ok(true)
                };
                Ok(fill().map_err(CampaignError::Folder)?)
            }
            Fault::Changed => {
                self.ongoing = Some(self.lane.forge(victim)?);
                Ok(true)
            }
            // They are there from the start.
            Fault::None | Fault::FullStderr | Fault::Unequal => Ok(true),
        }
    }

    fn undo(&mut self) -> Result<(), Error> {
        if self.plan.fault == Fault::Pause
            && let Some(process) =
                Marks::read(self.folder, self.plan.victim).process().and_then(Pid::from_raw)
        {
            // It may have been ended meanwhile, which shows in what the launcher says.
            let _ = kill_process(process, Signal::CONT);
        }
        self.lane.restore()
    }
}
