//! One job of a campaign: started, disturbed, and waited for.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::aim::Target;
use super::fault::{Fault, Plan};
use super::forgery::Forged;
use super::injection::{Injection, STOPPED, Seen};
use super::lane::Lane;
use super::marks::Marks;
use super::{CampaignError, Settings, worker};
use crate::Error;
use crate::experiment::worker::{MARK, end_all, left};

/// How long what a launcher has started may still be there when it has ended.
const GRACE: Duration = Duration::from_secs(2);

/// The outcome of a job.
#[derive(Debug)]
pub struct Ended {
    /// When it ended, and how the fault came.
    pub seen: Seen,
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
    /// Processes that were left.
    pub orphans: usize,
}

/// Runs one job. Without a target, nothing is known of jobs like it yet, and it is not disturbed.
pub fn run(
    lane: &mut Lane,
    settings: &Settings,
    plan: &Plan,
    target: Option<&Target<'_>>,
) -> Result<Ended, Error> {
    let folder = tempfile::tempdir().map_err(CampaignError::Folder)?;
    let mark = format!("campaign-{}-{}-{}", std::process::id(), lane.number, plan.number);
    let disks = Disks::prepare(folder.path(), plan).map_err(CampaignError::Folder)?;
    lane.write_hosts(&folder.path().join("hosts"), plan.workers).map_err(CampaignError::Folder)?;
    if plan.fault == Fault::Unequal {
        worker::shorten(folder.path(), plan.victim, plan.extent).map_err(CampaignError::Folder)?;
    }
    if target.is_some() {
        lane.prepare(plan.fault, plan.victim)?;
    }
    let mut job = Job::start(folder.path(), settings, plan, &mark).map_err(CampaignError::Launcher)?;
    let mut injection = Injection::new(lane, settings, plan, folder.path(), &mark);
    let seen = injection.run(&mut job, target);
    let forged = injection.end();
    let mut seen = lane.restore().and(seen).inspect_err(|_| job.kill())?;
    let (code, object, said) = job.end();
    let orphans = orphans(&mark);
    let marks: Vec<Marks> = (0..plan.workers).map(|rank| Marks::read(folder.path(), rank)).collect();
    drop(disks);
    let others = || marks.iter().enumerate().filter(|(rank, _)| *rank != plan.victim as usize);
    if plan.fault == Fault::Stop && seen.by_itself && others().any(|(_, marks)| !marks.has_left()) {
        seen.bound = seen.bound.saturating_sub(STOPPED);
    }
    Ok(Ended { seen, code, object, said, marks, forged, orphans })
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
pub(super) struct Job {
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

    pub(super) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(super) fn kill(&mut self) {
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
