//! What a worker selects from, in a file for `gleaner simulate --fit`, `gleaner select` and `gleaner reduce`.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::{TrainResult, unwritten};
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
        let refuse = unwritten(directory);
        fs::create_dir_all(directory).map_err(&refuse)?;
        for entry in fs::read_dir(directory).map_err(&refuse)? {
            let entry = entry.map_err(&refuse)?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with("gradient-") && name.ends_with(".npy")) {
                return Err(format!(
                    "--record: expected a directory without recorded gradients, found {}; remove what was recorded there, or choose another \
                     directory",
                    entry.path().display()
                )
                .into());
            }
        }
        let path = directory.join(format!("gradient-{rank}.npy"));
        report::probe(&path)?;
        Ok(Self { path, entries: None })
    }

    pub fn write(&self) -> TrainResult<()> {
        let Some(entries) = &self.entries else {
            return Err(format!(
                "--record: expected a gradient of the last step for {}, found none, since the step was skipped or had been taken before; \
                 train with another number of --steps",
                self.path.display()
            )
            .into());
        };
        let shape = [entries.len() as u64];
        Ok(report::write(&self.path, |file| npy::write(file, &shape, entries.iter().copied()))?)
    }
}
