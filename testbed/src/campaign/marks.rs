//! What a worker has told of itself.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::fault::Phase;

/// Its process.
pub const PROCESS: &str = "process";

/// The digest of all its updates.
pub const DIGEST: &str = "digest";

/// It has left the job, and ends.
pub const LEFT: &str = "left";

/// Where a worker tells it.
pub fn path(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}

/// What one worker has told so far.
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

    /// In which part of its life it is; the last lasts until it ends.
    pub fn phase(&self) -> Option<Phase> {
        Phase::ALL.into_iter().rfind(|phase| self.has_begun(*phase))
    }

    /// How long each part of its life was, if it is over.
    pub fn phases(&self) -> Option<Vec<Duration>> {
        let names = Phase::ALL.iter().map(ToString::to_string).chain([LEFT.to_owned()]);
        let times: Option<Vec<u64>> = names.map(|name| self.0.get(&name)?.parse().ok()).collect();
        let times = times?;
        Some(times.windows(2).map(|pair| Duration::from_micros(pair[1].saturating_sub(pair[0]))).collect())
    }
}
