//! Measurements with their predictions, stored as a run: `gleaner testbed pages` shows both.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use gleaner_runtime::staged::Staged;
use gleaner_testbed::record::{FILE, Record};
use gleaner_testbed::simulation::measured::Measured;

use crate::report::CommandError;

/// The copy of an experiment's file, beside its measurements.
const EXPERIMENT: &str = "experiment.toml";

/// Makes the folder for the measurements of one experiment.
///
/// # Errors
/// Several experiments, cases that none stored, and a folder that has a run already.
pub fn make_room<'a>(folder: &Path, cases: impl Iterator<Item = &'a Measured>) -> Result<(), CommandError> {
    let mut experiments = BTreeSet::new();
    for Measured { label, workers, records, .. } in cases {
        if records.is_empty() {
            return Err(format!(
                "{label} among {workers} workers is of no experiment; expected with --predicted what gleaner testbed run stored: leave out \
                 what gleaner bench printed"
            )
            .into());
        }
        experiments.extend(records.iter().map(|record| record.experiment.as_str()));
    }
    if experiments.len() > 1 {
        return Err(format!(
            "--predicted is for one experiment, and --against has {}; give each experiment a command and a folder of its own",
            Vec::from_iter(experiments).join(" and ")
        )
        .into());
    }
    let taken = [FILE, EXPERIMENT].map(|name| folder.join(name)).into_iter().find(|path| path.exists());
    if let Some(path) = taken {
        return Err(format!(
            "{} is there already; expected a folder without a run: name another one with --predicted",
            path.display()
        )
        .into());
    }
    Ok(fs::create_dir_all(folder).map_err(|e| format!("{} cannot be made: {e}", folder.display()))?)
}

/// Writes the records, and the experiment's file if one lies beside the measurements.
pub fn write(
    folder: &Path,
    records: impl Iterator<Item = Record>,
    against: &[PathBuf],
) -> Result<(), CommandError> {
    let mut staged = Staged::default();
    let lines = records.map(|record| serde_json::to_string(&record)).collect::<Result<Vec<_>, _>>()?;
    staged.write(&folder.join(FILE), |out| out.write_all((lines.join("\n") + "\n").as_bytes()))?;
    let mut beside = against.iter().map(|file| file.with_file_name(EXPERIMENT));
    if let Some(file) = beside.find(|file| file.is_file()) {
        let text = fs::read(&file).map_err(|e| format!("{} cannot be read: {e}", file.display()))?;
        staged.write(&folder.join(EXPERIMENT), |out| out.write_all(&text))?;
    }
    Ok(staged.publish()?)
}
