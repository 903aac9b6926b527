//! What a worker has reported of itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

use super::fault::Phase;

/// What it reports besides the parts of its life: its process, the digest of all its updates, and that it has left the job.
pub const PROCESS: &str = "process";
pub const DIGEST: &str = "digest";
pub const LEFT: &str = "left";

/// Where a worker writes it.
pub fn path(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}

/// What one worker has reported so far: lines of a name and a value.
#[derive(Debug, Default)]
pub struct Marks(String);

impl Marks {
    /// Reads them; none if it has not begun.
    pub fn read(folder: &Path, rank: u32) -> Self {
        Self::of(&fs::read_to_string(path(folder, rank)).unwrap_or_default())
    }

    /// Those of this file.
    pub fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The value of a line that is there whole.
    fn value(&self, name: &str) -> Option<&str> {
        let mut lines =
            self.0.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.split_once(' '));
        lines.find(|(one, _)| *one == name).map(|(_, value)| value)
    }

    fn time(&self, name: &str) -> Option<Duration> {
        self.value(name)?.parse().ok().map(Duration::from_micros)
    }

    pub fn process(&self) -> Option<Pid> {
        Pid::from_raw(self.value(PROCESS)?.parse().ok()?)
    }

    /// The digest of its updates, if it has taken all steps.
    pub fn digest(&self) -> Option<&str> {
        self.value(DIGEST)
    }

    pub fn has_left(&self) -> bool {
        self.value(LEFT).is_some()
    }

    /// When a part of its life began, since the epoch.
    pub fn began(&self, phase: Phase) -> Option<Duration> {
        self.time(&phase.to_string())
    }

    /// In which part of its life it is; the last lasts until it ends.
    pub fn phase(&self) -> Option<Phase> {
        Phase::ALL.into_iter().rfind(|phase| self.value(&phase.to_string()).is_some())
    }

    /// How long a part of its life was, if it has come to its end.
    pub fn lasted(&self, phase: Phase) -> Option<Duration> {
        let next = Phase::ALL.into_iter().find(|next| *next > phase);
        let end = next.map_or_else(|| LEFT.to_owned(), |next| next.to_string());
        Some(self.time(&end)?.saturating_sub(self.began(phase)?))
    }

    /// How long each part of its life was, if it is over.
    pub fn phases(&self) -> Option<Vec<Duration>> {
        Phase::ALL.into_iter().map(|phase| self.lasted(phase)).collect()
    }
}
