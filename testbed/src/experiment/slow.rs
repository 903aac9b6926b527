//! Workers with less processor time than they could use.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use gleaner_processes::Process;
use rustix::process::{Pid, Signal, kill_process};

use crate::ongoing::Ongoing;

/// How control groups are called in which workers are slow.
const NAME: &str = "gleaner-slow-";

/// How long a kernel counts a quota at the least, in microseconds, and the smallest quota that it takes.
const PERIOD: f64 = 10_000.0;
const LEAST: f64 = 1_000.0;

/// How often a worker is stopped where there are no control groups. Shorter stops would be over before a busy machine
/// got round to them.
const BEAT: Duration = Duration::from_millis(50);

/// What keeps a worker slow until it is dropped.
pub type Slowed = Box<dyn Send>;

/// A control group with one worker in it, which leaves it when this is dropped.
struct Group {
    own: PathBuf,
    /// Where the worker was.
    before: PathBuf,
    worker: Pid,
}

/// Gives a worker at most this share of one processor, from now on: by a quota, or, where control groups cannot be made, by being
/// stopped and continued in turns.
pub fn slowed(worker: Pid, share: f64) -> Slowed {
    match Group::make(worker, share) {
        Some(group) => Box::new(group),
        None => Box::new(beat(worker, share)),
    }
}

fn beat(worker: Pid, share: f64) -> Ongoing<()> {
    Ongoing::start(move |over| {
        let running = BEAT.mul_f64(share);
        // It ends with the worker, too.
        while !over.load(Ordering::Relaxed) && kill_process(worker, Signal::STOP).is_ok() {
            thread::sleep(BEAT - running);
            let _ = kill_process(worker, Signal::CONT);
            thread::sleep(running);
        }
    })
}

impl Group {
    /// None where no control group can be made.
    fn make(worker: Pid, share: f64) -> Option<Self> {
        let (mount, old) = controller()?;
        let before = mount.join(of(worker, old)?.trim_start_matches('/'));
        // In the new form, a group with processes has no groups with quotas below it, except for the root.
        let parent = if old { &before } else { &mount };
        sweep(parent);
        let own = parent.join(format!("{NAME}{}", worker.as_raw_nonzero()));
        fs::create_dir(&own).ok()?;
        let group = Self { own, before, worker };
        group.fill(share, old).ok().map(|()| group)
    }

    fn fill(&self, share: f64, old: bool) -> io::Result<()> {
        let period = PERIOD.max(LEAST / share);
        let (period, quota) = (period.round(), (share * period).round());
        if old {
            fs::write(self.own.join("cpu.cfs_period_us"), period.to_string())?;
            fs::write(self.own.join("cpu.cfs_quota_us"), quota.to_string())?;
        } else {
            fs::write(self.own.join("cpu.max"), format!("{quota} {period}"))?;
        }
        enter(&self.own, self.worker)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A worker that has ended is in no group any more.
        let _ = enter(&self.before, self.worker);
        let _ = fs::remove_dir(&self.own);
    }
}

fn enter(group: &Path, worker: Pid) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), worker.as_raw_nonzero().to_string())
}

/// Removes what a run left that was killed: only groups without any process can be removed.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(NAME) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Where groups with quotas of processor time are, and whether they have the old form.
fn controller() -> Option<(PathBuf, bool)> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let find = |old: bool| {
        let wanted = |line: &str| {
            // What is mounted, where, its form, its options.
            let [_, place, form, options, ..] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
            let has_old = form == "cgroup" && options.split(',').any(|option| option == "cpu");
            (if old { has_old } else { form == "cgroup2" }).then(|| (PathBuf::from(place), old))
        };
        mounts.lines().find_map(wanted)
    };
    find(true).or_else(|| find(false))
}

/// The group that a worker is in, below the mount.
fn of(worker: Pid, old: bool) -> Option<String> {
    let text = fs::read_to_string(Process::from(worker).file("cgroup")).ok()?;
    // number:controllers:path, with no controllers in the new form.
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let wanted =
            if old { controllers.split(',').any(|one| one == "cpu") } else { controllers.is_empty() };
        wanted.then(|| path.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Instant;

    use super::*;

    /// How often processes are looked at before one of them is said to have a wrong share: on a busy machine it may be any
    /// for a while, or none.
    const ATTEMPTS: usize = 20;

    /// A loop that never waits, ended when its test is.
    struct Busy(Child);

    impl Busy {
        fn start() -> Self {
            Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
        }

        fn stat(&self) -> Vec<String> {
            let process = Process::from(Pid::from_child(&self.0));
            let stat = fs::read_to_string(process.file("stat")).unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().map(str::to_owned).collect()
        }

        /// Processor time in hundredths of a second.
        fn used(&self) -> u64 {
            let stat = self.stat();
            stat[11].parse::<u64>().unwrap() + stat[12].parse::<u64>().unwrap()
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// The processor time of one as a share of what the other had at the same time, and of all time, until both are as wished. They are looked at
    /// over ever longer times: where there is little for both, one may have none in a short one.
    #[track_caller]
    fn compared(one: &Busy, other: &Busy, is_right: impl Fn(f64, f64) -> bool) {
        let mut seen = Vec::new();
        let (began, before) = (Instant::now(), [one, other].map(Busy::used));
        for _ in 0..ATTEMPTS {
            thread::sleep(Duration::from_millis(800));
            let after = [one, other].map(Busy::used);
            let ratio = (after[0] - before[0]) as f64 / (after[1] - before[1]).max(1) as f64;
            let share = (after[0] - before[0]) as f64 / 100.0 / began.elapsed().as_secs_f64();
            seen.push((ratio, share));
            if is_right(ratio, share) {
                return;
            }
        }
        panic!("none of {seen:.3?} is right: times as much processor time, and the share of all time");
    }

    /// A loop that never waits gets far less than another one beside it, but not nothing, by either means; and as much as it
    /// again afterwards.
    #[test]
    fn a_slow_process_gets_its_share_and_no_more() {
        for by_quota in [true, false] {
            let (slow, control) = (Busy::start(), Busy::start());
            let pid = Pid::from_child(&slow.0);
            let slowed: Slowed = if by_quota { slowed(pid, 0.05) } else { Box::new(beat(pid, 0.05)) };
            let group = controller().and_then(|(_, old)| of(pid, old));
            if by_quota && !group.is_some_and(|group| group.contains(NAME)) {
                gleaner_skips::skip("quotas", "control groups with quotas cannot be made here");
            }
            // Where the other has hardly more than a share for itself, the slow one's is what it was to be.
            let is_slow = |ratio, share| ratio < 0.3 || ratio < 0.6 && share < 0.1;
            compared(&slow, &control, |ratio, share| ratio > 0.0 && is_slow(ratio, share));
            drop(slowed);
            assert_ne!(slow.stat()[0], "T", "still stopped");
            compared(&slow, &control, |ratio, _| ratio > 0.6);
        }
    }
}
