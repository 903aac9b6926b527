//! One job of a campaign: started, disturbed at its moment, and waited for.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::fault::{Fault, Phase, Plan};
use super::flood::Flood;
use super::forgery::{Forged, Forgery};
use super::lane::Lane;
use super::marks::Marks;
use super::must::Struck;
use super::{CampaignError, Course, Settings, worker};
use crate::experiment::worker::{MARK, end_all, find, left};

/// How often a job is looked at, and how often while its moment is waited for: parts of its life are as short as this.
const LOOK: Duration = Duration::from_millis(2);
const CLOSELY: Duration = Duration::from_micros(200);

/// How long the launcher waits for a worker that is stopped when the others have ended well, since it had sent all that they
/// needed: it looks each second, and gives it ten to go on.
const STOPPED: Duration = Duration::from_secs(11);

/// How long what a launcher has started may still be there when it has ended.
const GRACE: Duration = Duration::from_secs(2);

/// What came of a job.
#[derive(Debug)]
pub struct Ended {
    /// From the fault, or the beginning where nothing fails, to the end.
    pub took: Duration,
    /// How long it may take.
    pub bound: Duration,
    /// Whether it ended by itself.
    pub by_itself: bool,
    /// The launcher's exit code.
    pub code: Option<i32>,
    /// What the launcher said on standard output; null if it is no object.
    pub object: Value,
    /// What the launcher and the workers said on standard error, where that could be read.
    pub said: Option<String>,
    /// What each worker has told of itself.
    pub marks: Vec<Marks>,
    /// In which part of the victim's life the fault came, if it came before its end.
    pub struck: Option<Struck>,
    /// What came of bytes that were to be changed.
    pub forged: Forged,
    /// Processes that were left.
    pub orphans: usize,
}

/// Runs one job. Without a course, nothing is known of jobs like it yet, and it is not disturbed.
pub fn run(
    lane: &mut Lane,
    settings: &Settings,
    plan: &Plan,
    course: Option<&Course>,
) -> Result<Ended, CampaignError> {
    let folder = tempfile::tempdir().map_err(CampaignError::Folder)?;
    let mark = format!("campaign-{}-{}-{}", std::process::id(), lane.number, plan.number);
    let disks = Disks::prepare(folder.path(), plan).map_err(CampaignError::Folder)?;
    lane.write_hosts(&folder.path().join("hosts"), plan.workers).map_err(CampaignError::Folder)?;
    if plan.fault == Fault::Unequal {
        worker::shorten(folder.path(), plan.victim, plan.extent).map_err(CampaignError::Folder)?;
    }
    let mut job = Job::start(folder.path(), settings, plan, &mark).map_err(CampaignError::Launcher)?;
    let mut strike =
        Strike { lane, settings, plan, folder: folder.path(), mark: &mark, flood: None, forgery: None };
    let seen = strike.see_through(&mut job, course);
    drop(strike.flood.take());
    let forged = strike.forgery.take().map(Forgery::end).unwrap_or_default();
    let seen = lane.restore().and(seen).inspect_err(|_| job.kill())?;
    let (code, object, said) = job.end();
    let orphans = orphans(&mark);
    let marks: Vec<Marks> = (0..plan.workers).map(|rank| Marks::read(folder.path(), rank)).collect();
    drop(disks);
    let Seen { took, mut bound, by_itself, struck } = seen;
    let others = || marks.iter().enumerate().filter(|(rank, _)| *rank != plan.victim as usize);
    if plan.fault == Fault::Stop && by_itself && others().any(|(_, marks)| !marks.has_left()) {
        bound = bound.saturating_sub(STOPPED);
    }
    Ok(Ended { took, bound, by_itself, code, object, said, marks, struck, forged, orphans })
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
    /// A pipe that nobody reads.
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

/// What is done to a job.
struct Strike<'a> {
    lane: &'a mut Lane,
    settings: &'a Settings,
    plan: &'a Plan,
    folder: &'a Path,
    mark: &'a str,
    flood: Option<Flood>,
    forgery: Option<Forgery>,
}

/// A job that was seen to its end.
struct Seen {
    took: Duration,
    bound: Duration,
    by_itself: bool,
    struck: Option<Struck>,
}

impl Strike<'_> {
    /// Strikes a job at its moment, and waits until it has ended.
    fn see_through(&mut self, job: &mut Job, course: Option<&Course>) -> Result<Seen, CampaignError> {
        let begun = Instant::now();
        let whole = course.map_or(self.settings.timeout * 4, |course| course.whole);
        let struck = match (self.plan.fault, course) {
            (Fault::None, _) | (_, None) => None,
            // It leaves before the others are ready to.
            (Fault::Unequal, Some(_)) => Some((begun, Struck { before: None, after: Phase::Leaving })),
            (_, Some(course)) => self.strike(job, course)?,
        };
        let lasts = self.plan.lasts(self.settings.timeout);
        let mut undo = struck.and_then(|(at, _)| Some(at + lasts?));
        // A silence is noticed after the time-out and judged soon, the news takes at most a second, and the launcher gives all
        // two seconds to say what they know.
        let spare = self.settings.timeout * 5 / 4 + Duration::from_secs(4);
        let spare = if self.plan.fault == Fault::Stop { spare + STOPPED } else { spare };
        let (from, bound) = match struck {
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
        Ok(Seen { took: from.elapsed(), bound, by_itself, struck: struck.map(|(_, struck)| struck) })
    }

    /// Whether the job must end soon after the fault, unless it is about to end.
    fn ends_soon(&self) -> bool {
        let fault = self.plan.fault;
        matches!(fault, Fault::Kill | Fault::Stop | Fault::Cut | Fault::FullDisk | Fault::UnreadStderr)
    }

    /// Waits for the moment and strikes, unless the job has ended before. Says when that was, and in which part of the victim's
    /// life.
    fn strike(&mut self, job: &mut Job, course: &Course) -> Result<Option<(Instant, Struck)>, CampaignError> {
        let Plan { victim, phase, share, .. } = *self.plan;
        let at = Phase::ALL.iter().position(|one| *one == phase).unwrap_or(0);
        let (begun, mut due) = (Instant::now(), None);
        while job.runs() && begun.elapsed() < 3 * course.whole + self.settings.timeout {
            if due.is_none() && Marks::read(self.folder, victim).has_begun(phase) {
                due = Some(Instant::now() + course.phases[at].mul_f64(share));
            }
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let before = Marks::read(self.folder, victim).phase();
                let was_there = self.apply()?;
                let after = Marks::read(self.folder, victim).phase().filter(|_| was_there);
                return Ok(after.map(|after| (Instant::now(), Struck { before, after })));
            }
            thread::sleep(left.unwrap_or(CLOSELY).min(CLOSELY));
        }
        Ok(None)
    }

    /// Whether the victim was there to be struck.
    fn apply(&mut self) -> Result<bool, CampaignError> {
        let victim = self.plan.victim;
        let process = || {
            let told = Marks::read(self.folder, victim).process().and_then(Pid::from_raw);
            told.or_else(|| find(self.mark, victim).ok())
        };
        let signal = |signal| process().is_some_and(|process| kill_process(process, signal).is_ok());
        match self.plan.fault {
            Fault::Kill | Fault::UnreadStderr => Ok(signal(Signal::KILL)),
            Fault::Stop | Fault::Pause => Ok(signal(Signal::STOP)),
            Fault::Cut | Fault::ShortCut | Fault::MendedCut => self.lane.cut(victim).map(|()| true),
            Fault::SlowLink => self.lane.slow(victim).map(|()| true),
            Fault::Flood => {
                self.flood = process().map(|process| self.lane.flood(victim, process));
                Ok(self.flood.is_some())
            }
            Fault::FullDisk => {
                let fill = || {
                    let mut filler = File::create(worker::disk(self.folder, victim).join("filler"))?;
                    while filler.write_all(&[0; 4096]).is_ok() {}
                    Ok(true)
                };
                fill().map_err(CampaignError::Folder)
            }
            Fault::Changed => {
                self.forgery = Some(self.lane.forge(victim)?);
                Ok(true)
            }
            // They are there from the start.
            Fault::None | Fault::FullStderr | Fault::Unequal => Ok(true),
        }
    }

    fn undo(&mut self) -> Result<(), CampaignError> {
        if self.plan.fault == Fault::Pause
            && let Some(process) =
                Marks::read(self.folder, self.plan.victim).process().and_then(Pid::from_raw)
        {
            // It may have been ended meanwhile, which is judged by what the launcher says.
            let _ = kill_process(process, Signal::CONT);
        }
        self.lane.restore()
    }
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
