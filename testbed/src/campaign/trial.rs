//! One job of a campaign: started, disturbed at its moment, and waited for. Moments are met as closely as may be, since parts of a
//! worker's life are short.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::expected::Injected;
use super::fault::{Fault, Phase, Plan};
use super::forgery::Forged;
use super::lane::Lane;
use super::marks::Marks;
use super::{Course, Settings, worker};
use crate::Error;
use crate::experiment::worker::{MARK, end_all, find, left};
use crate::ongoing::Ongoing;

/// How often a job is looked at, and how often while its moment is waited for.
const LOOK: Duration = Duration::from_millis(2);
const CLOSELY: Duration = Duration::from_micros(100);

/// How long what a launcher has started may still be there when it has ended.
const GRACE: Duration = Duration::from_secs(2);

/// How long the launcher waits for a worker that is stopped when the others have ended well, since it had sent all that they
/// needed: it looks each second, and gives it ten to go on.
const STOPPED: Duration = Duration::from_secs(11);

/// The outcome of a job.
#[derive(Debug, Default)]
pub struct Ended {
    /// From the fault, or the beginning where nothing fails, to the end.
    pub took: Duration,
    /// How long it may take.
    pub bound: Duration,
    pub by_itself: bool,
    /// When the fault was injected, if it was.
    pub injected: Option<Injected>,
    /// Whether that was the part that was meant, from before to after the fault.
    pub met: bool,
    /// How long after its moment the fault was done.
    pub late: Option<Duration>,
    /// The launcher's exit code.
    pub code: Option<i32>,
    /// What the launcher said on standard output; null if it is no object.
    pub object: Value,
    /// What the launcher and the workers said on standard error, where that could be read.
    pub said: Option<String>,
    /// What each worker has reported of itself.
    pub marks: Vec<Marks>,
    /// The outcome for bytes that were to be changed.
    pub forged: Forged,
    pub orphans: usize,
}

/// Runs one job. The target is what is known of jobs of its size, and how long after the victim has begun the part of its life the fault
/// is to come; without one, nothing is known yet, and the job is not disturbed.
pub fn run(
    lane: &mut Lane,
    settings: &Settings,
    plan: &Plan,
    target: Option<(&Course, Duration)>,
) -> Result<Ended, Error> {
    let place = tempfile::tempdir().map_err(unprepared)?;
    let folder = place.path();
    let mark = &format!("campaign-{}-{}-{}", std::process::id(), lane.number, plan.number);
    let disks = Disks::prepare(folder, plan).map_err(unprepared)?;
    lane.write_hosts(&folder.join("hosts"), plan.workers).map_err(unprepared)?;
    if plan.fault == Fault::Unequal {
        worker::shorten(folder, plan.victim, plan.extent).map_err(unprepared)?;
    }
    if target.is_some() {
        lane.prepare(plan.fault, plan.victim)?;
    }
    let job = Job::start(folder, settings, plan, mark);
    let job = job.map_err(|error| format!("gleaner launch cannot be started: {error}"))?;
    let timeout = settings.timeout;
    let ended = Ended { by_itself: true, ..Ended::default() };
    let mut trial = Disturbed { lane, timeout, plan, folder, mark, job, ongoing: None, ended };
    let done = trial.run(target);
    let forged = trial.ongoing.take().map(Ongoing::end).unwrap_or_default();
    trial.lane.restore().and(done).inspect_err(|_| trial.job.kill())?;
    let Disturbed { job, mut ended, .. } = trial;
    let (code, object, said) = job.end();
    let orphans = orphans(mark);
    let marks: Vec<Marks> = (0..plan.workers).map(|rank| Marks::read(folder, rank)).collect();
    drop(disks);
    let mut others = marks.iter().enumerate().filter(|(rank, _)| *rank != plan.victim as usize);
    if plan.fault == Fault::Stop && ended.by_itself && others.any(|(_, marks)| !marks.has_left()) {
        ended.bound = ended.bound.saturating_sub(STOPPED);
    }
    Ok(Ended { code, object, said, marks, forged, orphans, ..ended })
}

/// What is said of a folder that cannot be prepared.
fn unprepared(error: io::Error) -> String {
    let needs = "it is made where temporary files go, and needs root and room";
    format!("a job's folder cannot be prepared: {error}; {needs}")
}

/// A job that runs, and is disturbed.
struct Disturbed<'a> {
    lane: &'a mut Lane,
    timeout: Duration,
    plan: &'a Plan,
    folder: &'a Path,
    mark: &'a str,
    job: Job,
    ongoing: Option<Ongoing<Forged>>,
    ended: Ended,
}

impl Disturbed<'_> {
    /// Injects the fault at its moment, and waits until the job has ended: for how long, and whether it ended by itself.
    fn run(&mut self, target: Option<(&Course, Duration)>) -> Result<(), Error> {
        let begun = Instant::now();
        let whole = target.map_or(self.timeout * 4, |(course, _)| course.whole);
        let at = match (self.plan.fault, target) {
            (Fault::None, _) | (_, None) => None,
            // It leaves before the others are ready to.
            (Fault::Unequal, Some(_)) => {
                self.ended.injected = Some(Injected { before: None, after: Phase::Leaving });
                Some(begun)
            }
            (_, Some((_, into))) => self.inject(whole, into)?,
        };
        let lasts = self.plan.lasts(self.timeout);
        let mut undo = at.and_then(|at| Some(at + lasts?));
        // A silence is noticed after the timeout and diagnosed soon, the news takes at most a second, and the launcher gives all
        // two seconds to say what they know.
        let spare = self.timeout * 5 / 4 + Duration::from_secs(4);
        let spare = if self.plan.fault == Fault::Stop { spare + STOPPED } else { spare };
        let (from, bound) = match at {
            Some(at) if self.ends_soon() => (at, whole + spare),
            _ => (begun, 3 * whole + lasts.unwrap_or_default() + spare),
        };
        self.ended.bound = bound;
        while self.ended.by_itself && self.job.runs() {
            if undo.is_some_and(|undo| undo <= Instant::now()) {
                self.undo()?;
                undo = None;
            }
            if from.elapsed() > bound {
                self.ended.by_itself = false;
                self.job.kill();
            }
            thread::sleep(LOOK);
        }
        self.ended.took = from.elapsed();
        Ok(())
    }

    /// Whether the job must end soon after the fault, unless it is about to end.
    fn ends_soon(&self) -> bool {
        let fault = self.plan.fault;
        matches!(fault, Fault::Kill | Fault::Stop | Fault::Cut | Fault::FullDisk | Fault::UnreadStderr)
    }

    /// Waits for the moment and injects the fault, unless the job has ended before. Says when that was.
    fn inject(&mut self, whole: Duration, into: Duration) -> Result<Option<Instant>, Error> {
        let Plan { victim, phase, .. } = *self.plan;
        let (begun, mut due) = (Instant::now(), None);
        let folder = self.folder;
        let look = || Marks::read(folder, victim);
        while self.job.runs() && begun.elapsed() < 3 * whole + self.timeout {
            if due.is_none()
                && let Some(began) = look().began(phase)
            {
                // What has passed since.
                let late =
                    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + began).unwrap_or_default();
                due = Some(Instant::now() + into.saturating_sub(late));
            }
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let before = look().phase();
                let was_there = self.apply()?;
                let at = Instant::now();
                let after = look();
                let ended = &mut self.ended;
                ended.met =
                    was_there && before == Some(phase) && after.phase() == before && !after.has_left();
                ended.late = due.map(|due| at.saturating_duration_since(due));
                let after = after.phase().filter(|_| was_there);
                ended.injected = after.map(|after| Injected { before, after });
                return Ok(after.map(|_| at));
            }
            thread::sleep(left.unwrap_or(CLOSELY).min(CLOSELY));
        }
        Ok(None)
    }

    /// Whether the victim was still there.
    fn apply(&mut self) -> Result<bool, Error> {
        let victim = self.plan.victim;
        let process = || Marks::read(self.folder, victim).process().or_else(|| find(self.mark, victim).ok());
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
                Ok(fill().map_err(unprepared)?)
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
            && let Some(process) = Marks::read(self.folder, self.plan.victim).process()
        {
            // It may have been ended meanwhile, which shows in what the launcher says.
            let _ = kill_process(process, Signal::CONT);
        }
        self.lane.restore()
    }
}

/// How many processes with this mark are left. None is when this returns.
fn orphans(mark: &str) -> usize {
    let since = Instant::now();
    let mut orphans = left(mark);
    while orphans > 0 && since.elapsed() < GRACE {
        thread::sleep(Duration::from_millis(20));
        orphans = left(mark);
    }
    if orphans > 0 {
        end_all(mark);
    }
    orphans
}

/// A launcher, and what it says.
struct Job {
    child: Child,
    out: JoinHandle<String>,
    err: Option<JoinHandle<String>>,
    /// A pipe that is not read.
    _unread: Option<io::PipeReader>,
}

impl Job {
    fn start(folder: &Path, settings: &Settings, plan: &Plan, mark: &str) -> io::Result<Self> {
        let mut command = Command::new(&settings.program);
        command.args(["launch", "--agent", "ip netns exec", "--json", "--hostfile"]);
        command.arg(folder.join("hosts")).args(["--timeout", &format!("{}ms", settings.timeout.as_millis())]);
        command.args(plan.is_plain.then_some("--plain")).arg("--");
        if plan.fault == Fault::FullStderr {
            let script = format!("[ $GLEANER_RANK = {} ] && exec 2>/dev/full; exec \"$@\"", plan.victim);
            command.args(["sh", "-c", &script, "sh"]);
        }
        command.arg(&settings.program).args(["testbed", "chaos-worker"]).arg(folder);
        command.env(MARK, mark).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut unread = None;
        match plan.fault {
            Fault::FullStderr => drop(command.stderr(File::options().write(true).open("/dev/full")?)),
            Fault::UnreadStderr => {
                let (reader, mut writer) = io::pipe()?;
                // All that fits into a pipe.
                writer.write_all(&[b'\n'; 1 << 16])?;
                command.stderr(writer);
                unread = Some(reader);
            }
            _ => drop(command.stderr(Stdio::piped())),
        }
        let mut child = command.spawn()?;
        // With it the writing end of the pipe is let go.
        drop(command);
        let out = child.stdout.take().map(collect).unwrap_or_else(|| thread::spawn(String::new));
        let err = child.stderr.take().map(collect);
        Ok(Self { child, out, err, _unread: unread })
    }

    fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// The exit code, the object on standard output, and what was said.
    fn end(mut self) -> (Option<i32>, Value, Option<String>) {
        let code = self.child.wait().ok().and_then(|status| status.code());
        let out = self.out.join().unwrap_or_default();
        let object = out.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        (code, object, self.err.map(|err| err.join().unwrap_or_default()))
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The folders of checkpoints, of which the victim's is a small disk of its own where that is to become full.
struct Disks(Option<std::path::PathBuf>);

impl Disks {
    fn prepare(folder: &Path, plan: &Plan) -> io::Result<Self> {
        for rank in 0..plan.workers {
            fs::create_dir(worker::disk(folder, rank))?;
        }
        if plan.fault != Fault::FullDisk {
            return Ok(Self(None));
        }
        let disk = worker::disk(folder, plan.victim);
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(&disk).output()?;
        if !mount.status.success() {
            let said = String::from_utf8_lossy(&mount.stderr).trim().to_owned();
            return Err(io::Error::other(format!("a small disk cannot be mounted: {said}")));
        }
        Ok(Self(Some(disk)))
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        if let Some(disk) = &self.0 {
            let _ = Command::new("umount").arg("--lazy").arg(disk).output();
        }
    }
}
