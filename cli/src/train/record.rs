//! What a worker selects from, in a file for `gleaner simulate --fit`, `gleaner select` and `gleaner reduce`.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::{TrainError, TrainResult};
use crate::reduce::npy;
use crate::report;

pub struct Record {
    path: PathBuf,
    pub entries: Option<Vec<f32>>,
}

impl Record {
    /// Makes the directory if it is missing. Refuses one that holds recorded gradients, since those of another number of
    /// workers would stay among the new ones, and one that cannot be written.
    pub fn open(directory: &Path, rank: usize) -> TrainResult<Self> {
        let refuse = |source| TrainError::Write { path: directory.into(), source };
        fs::create_dir_all(directory).map_err(refuse)?;
        for entry in fs::read_dir(directory).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with("gradient-") && name.ends_with(".npy")) {
                return Err(TrainError::Recorded { path: entry.path() });
            }
        }
        let path = directory.join(format!("gradient-{rank}.npy"));
        report::probe(&path)?;
        Ok(Self { path, entries: None })
    }

    pub fn write(&self) -> TrainResult<()> {
        let Some(entries) = &self.entries else {
            return Err(TrainError::NothingToRecord { path: self.path.clone() });
        };
        let shape = [entries.len() as u64];
        Ok(report::write(&self.path, |file| npy::write(file, &shape, entries.iter().copied()))?)
    }
}
