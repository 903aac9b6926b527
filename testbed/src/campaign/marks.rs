//! What a worker has reported of itself.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::fault::Phase;

/// Its process.
pub const PROCESS: &str = "process";

/// The digest of all its updates.
pub const DIGEST: &str = "digest";

/// It has left the job, and ends.
pub const LEFT: &str = "left";

/// Where a worker writes it.
pub fn path(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}

/// What one worker has reported so far.
#[derive(Debug, Default)]
pub struct Marks(HashMap<String, String>);

impl Marks {
    /// Reads them; none if it has not begun.
    pub fn read(folder: &Path, rank: u32) -> Self {
        Self::of(&fs::read_to_string(path(folder, rank)).unwrap_or_default())
    }

    /// Those of this file.
    pub fn of(text: &str) -> Self {
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.split_once(' '));
        Self(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Its process.
    pub fn process(&self) -> Option<i32> {
        self.0.get(PROCESS)?.parse().ok()
    }

    /// The digest of its updates, if it has taken all steps.
    pub fn digest(&self) -> Option<&str> {
        self.0.get(DIGEST).map(String::as_str)
    }

    /// Whether it has left.
    pub fn has_left(&self) -> bool {
        self.0.contains_key(LEFT)
    }

    /// Whether a part of its life has begun.
    pub fn has_begun(&self, phase: Phase) -> bool {
        self.0.contains_key(&phase.to_string())
    }

    /// When a part of its life began, since the epoch.
    pub fn began(&self, phase: Phase) -> Option<Duration> {
        self.0.get(&phase.to_string())?.parse().ok().map(Duration::from_micros)
    }

    /// In which part of its life it is; the last lasts until it ends.
    pub fn phase(&self) -> Option<Phase> {
        Phase::ALL.into_iter().rfind(|phase| self.has_begun(*phase))
    }

    /// How long a part of its life was, if it has come to its end.
    pub fn lasted(&self, phase: Phase) -> Option<Duration> {
        let next = Phase::ALL.into_iter().find(|next| *next > phase);
        let end = next.map_or_else(|| LEFT.to_owned(), |next| next.to_string());
        let end = Duration::from_micros(self.0.get(&end)?.parse().ok()?);
        Some(end.saturating_sub(self.began(phase)?))
    }

    /// How long each part of its life was, if it is over.
    pub fn phases(&self) -> Option<Vec<Duration>> {
        Phase::ALL.into_iter().map(|phase| self.lasted(phase)).collect()
    }
}

/// A worker that is looked at often: its file is only read when it has become longer.
pub struct Watch {
    path: PathBuf,
    file: Option<File>,
    length: u64,
    marks: Marks,
}

impl Watch {
    /// One that has reported nothing yet.
    pub fn new(folder: &Path, rank: u32) -> Self {
        Self { path: path(folder, rank), file: None, length: 0, marks: Marks::default() }
    }

    /// What it has reported so far.
    pub fn look(&mut self) -> &Marks {
        self.file = self.file.take().or_else(|| File::open(&self.path).ok());
        let length = self.file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |file| file.len());
        if length > self.length {
            (self.length, self.marks) =
                (length, Marks::of(&fs::read_to_string(&self.path).unwrap_or_default()));
        }
        &self.marks
    }
}
