//! What was timed, kept in a folder, so that it is timed once for many replays and an interrupted timing goes on.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use gleaner_testbed::simulation::Trace;
use serde::{Deserialize, Serialize};

use crate::report::{CommandError, json, save};

#[derive(Serialize, Deserialize)]
struct Kept {
    case: String,
    steps: Vec<Trace>,
}

/// The steps of a case in a turn, read from the folder, or timed now and kept in it.
pub fn kept(
    folder: &Path,
    case: String,
    turn: u32,
    time: impl FnOnce() -> Result<Vec<Trace>, CommandError>,
) -> Result<Vec<Trace>, CommandError> {
    let path = place(folder, &case, turn);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let kept: Kept = serde_json::from_str(&text)
                .map_err(|error| format!("{} has no times: {error}; delete it", path.display()))?;
            if kept.case != case {
                return Err(format!(
                    "{} has the times of '{}'; expected '{case}': choose another folder for --times",
                    path.display(),
                    kept.case
                )
                .into());
            }
            Ok(kept.steps)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::create_dir_all(folder)
                .map_err(|error| format!("the folder {} cannot be made: {error}", folder.display()))?;
            let kept = Kept { case, steps: time()? };
            save(&path, &json(&kept))?;
            Ok(kept.steps)
        }
        Err(error) => Err(format!("{} cannot be read: {error}", path.display()).into()),
    }
}

fn place(folder: &Path, case: &str, turn: u32) -> PathBuf {
    let words: Vec<&str> = case
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '.')
        .filter(|word| !word.is_empty())
        .collect();
    folder.join(format!("{}.{turn}.json", words.join("-")))
}
