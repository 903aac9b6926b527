//! `Debug` of an error is its sentence: a `main` that returns one shows it by that.

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::fs;
    use std::path::{Path, PathBuf};

    use crate::agreement::Disagreement;
    use crate::checksum::ChecksumError;
    use crate::launcher::LaunchError;
    use crate::planner::PlanError;
    use crate::staged::Staged;
    use crate::{Cancelled, CheckpointError, ConfigError, Failure, LayoutError, OutOfMemory, ReplicaError};

    /// One of each type.
    fn errors() -> Vec<Box<dyn Error>> {
        vec![
            Box::new(Failure { rank: 1, step: None, reason: "it was stopped".into() }),
            Box::new(Cancelled { rank: 1, step: 2, reducer: "r".into() }),
            Box::new(OutOfMemory { rank: 1, step: 2, own: None }),
            Box::new(crate::Error::from(LayoutError::Twice("w".into()))),
            Box::new(ConfigError::NoSecret(4)),
            Box::new(LayoutError::Twice("w".into())),
            Box::new(CheckpointError::Damaged { path: "a".into(), what: "it is empty".into() }),
            Box::new(ChecksumError::Missing),
            Box::new(Staged::default().write("/dev/null/file".as_ref(), |_| Ok(())).unwrap_err()),
            Box::new(LaunchError::NoWorkers),
            Box::new(ReplicaError::Missing("w".into())),
            Box::new(PlanError::Times { rank: 1, expected: 16, found: 8 }),
            Box::new(Disagreement::Refused(Failure { rank: 1, step: None, reason: "empty".into() })),
        ]
    }

    #[test]
    fn what_a_main_shows_of_an_error_is_its_sentence() {
        for error in errors() {
            let shown = format!("{error:?}");
            assert_eq!(shown, error.to_string());
            assert!(shown.split(' ').count() > 3, "{shown}");
        }
    }

    /// An error of this crate that others see has its line in the list above, and does not derive `Debug`.
    #[test]
    fn no_error_is_left_out() {
        let (mut said, mut derived) = (0, Vec::new());
        for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
            let text = fs::read_to_string(&path).unwrap();
            said += text.lines().filter(|line| line.contains(concat!("debug_as_", "sentence!("))).count();
            let mut derives = "";
            for line in text.lines() {
                if line.starts_with("#[derive(") {
                    derives = line;
                } else if line.starts_with("pub enum ") || line.starts_with("pub struct ") {
                    if derives.contains("Debug") && derives.contains("thiserror::Error") {
                        derived.push(format!("{}: {line}", path.display()));
                    }
                } else if line == "}" || line.is_empty() {
                    derives = "";
                }
            }
        }
        assert!(derived.is_empty(), "expected debug_as_sentence for {derived:#?}");
        assert_eq!(said, errors().len());
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(files(&path));
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
        found
    }
}
