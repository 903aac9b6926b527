//! The stored measurements of one or more runs, read back.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::Error;
use crate::record::{FILE, Line, Record, Unread, lines};

/// The measurements in one directory.
#[derive(Debug, Serialize)]
pub struct Run {
    /// The directory's last name, or its whole path where another run has that name too.
    pub name: String,
    /// The title of the experiment's file, if a copy of it is in the directory.
    pub title: Option<String>,
    /// What that file says that it is for.
    pub description: Option<String>,
    /// The directory as it was given.
    #[serde(serialize_with = "shown")]
    pub directory: PathBuf,
    /// In the order of the file.
    #[serde(skip)]
    pub records: Vec<Record>,
    /// A sentence for each line that was left out, or that no figure has.
    pub notes: Vec<String>,
}

/// Reads the measurements in these directories.
///
/// A line that is none is left out and noted: the last one is torn where a run was interrupted while writing it, and
/// stays in the middle where the run was resumed. So is one in which the processors, which carry emulated packets as well, were what
/// was measured. One of which something was planned that did not happen is noted, and no figure has it.
///
/// # Errors
/// A directory that is missing, is given twice, or holds no measurement, and measurements of a newer format.
pub fn read(directories: &[PathBuf]) -> Result<Vec<Run>, Error> {
    let mut known = BTreeSet::new();
    let mut runs = Vec::new();
    for directory in directories {
        let real = fs::canonicalize(directory).ok().filter(|d| d.is_dir());
        let shown = directory.display();
        let Some(real) = real else {
            let expected = format!("expected one that `gleaner testbed run` wrote, with a file {FILE} in it");
            return Err(format!("'{shown}' is no directory; {expected}").into());
        };
        if !known.insert(real.clone()) {
            let advice = "give each directory once, or its measurements would count twice";
            return Err(format!("'{shown}' is given twice; {advice}").into());
        }
        runs.push(one(directory, &real)?);
    }
    let names: Vec<String> = runs.iter().map(|run: &Run| run.name.clone()).collect();
    for run in &mut runs {
        if names.iter().filter(|name| **name == run.name).count() > 1 {
            run.name = run.directory.display().to_string();
        }
    }
    Ok(runs)
}

fn one(directory: &Path, real: &Path) -> Result<Run, Error> {
    let path = directory.join(FILE);
    // Bytes, since a torn line may end within a character.
    let shown = path.display();
    let expected = "expected the measurements that `gleaner testbed run` wrote";
    let bytes =
        fs::read(&path).map_err(|source| format!("'{shown}' cannot be read: {source}; {expected}"))?;
    let (mut records, mut notes) = (Vec::new(), Vec::new());
    for Line { number, record, .. } in lines(&bytes) {
        match record {
            Ok(record) => {
                if let Some(reason) = record.processors_bound() {
                    notes.push(format!(
                        "line {number} measures the processors and not the links, and was left out: {reason}"
                    ));
                    continue;
                }
                if let Some(reason) = record.unlike_its_case() {
                    notes.push(format!(
                        "line {number} is in no figure, since what was planned did not happen: {reason}"
                    ));
                }
                records.push(record);
            }
            Err(newer @ Unread::Newer(_)) => {
                return Err(format!("'{shown}', line {number}: {newer}").into());
            }
            Err(torn @ Unread::Torn) => notes.push(format!("the last line, {number}: {torn}")),
            Err(Unread::Other(reason)) => {
                notes.push(format!("line {number} is no measurement and was left out: {reason}"));
            }
        }
    }
    if records.is_empty() {
        let found = notes.first().map_or("the file is empty", String::as_str);
        return Err(format!("'{shown}' holds no measurement; expected one in each line, but {found}").into());
    }
    let name = real.file_name().unwrap_or(real.as_os_str()).to_string_lossy().into_owned();
    let (title, description) = described(&directory.join("experiment.toml"));
    Ok(Run { name, title, description, directory: directory.into(), records, notes })
}

/// A path that may be no text in Unicode.
fn shown<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// What an experiment's file is called and is for; a file that is not there, or cannot be read, says nothing.
fn described(file: &Path) -> (Option<String>, Option<String>) {
    let table: toml::Table =
        fs::read_to_string(file).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
    let text =
        |key: &str| table.get(key)?.as_str().map(|text| text.trim().to_owned()).filter(|t| !t.is_empty());
    (text("title"), text("description"))
}
