//! What sentences of errors have in common. `Debug` of an error is its sentence: a `main` that returns one shows it by that.

macro_rules! debug_as_sentence {
    ($error:ty) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

pub(crate) use debug_as_sentence;

/// ` (did you mean NAME?)` for the name that is nearest to what was written, if one is near and another; else nothing. The names have commas between
/// them.
pub fn did_you_mean(written: &str, known: &str) -> String {
    let given = written.split('/').next().unwrap_or_default();
    let written = given.to_lowercase();
    let edits = |name: &&str| strsim::osa_distance(&written, name);
    let nearest = known.split(", ").filter(|name| edits(name) <= 1 + name.len() / 5).min_by_key(edits);
    let other = nearest.filter(|name| *name != given);
    other.map_or(String::new(), |name| format!(" (did you mean {name}?)"))
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::did_you_mean;
    use crate::bag::{Coding, wire};
    use crate::collectives::{MethodError, RoutineError};
    use crate::density::NormShareError;
    use crate::device::DeviceError;
    use crate::invariants::InvariantError;
    use crate::merging::MergingError;
    use crate::residual::{self, CorrectionError, VersionError};
    use crate::schedule::{CheckError, ExecutionError, Fault};
    use crate::select;
    use crate::selectors::SelectorError;
    use crate::synchrony::shards::Shards;
    use crate::synchrony::{self, PolicyError};
    use crate::{Rank, SparsityError};

    /// One of each type.
    fn errors() -> Vec<Box<dyn Error>> {
        vec![
            Box::new(SparsityError::Density(2.0)),
            Box::new(InvariantError::Update { step: 3, rank: 1 }),
            Box::new("exactly".parse::<Coding>().unwrap_err()),
            Box::new(wire::DecodeError::Torn(7)),
            Box::new(RoutineError::Disagree { rank: Rank(2) }),
            Box::new(MethodError::NoWorkers),
            Box::new(CorrectionError::Momentum(2.0)),
            Box::new(NormShareError::Share(2.0)),
            Box::new(residual::NonFinite { entry: 3, count: 1 }),
            Box::new(residual::AccumulateError::from(residual::NonFinite { entry: 3, count: 2 })),
            Box::new(DeviceError::Other("the device was taken away".into())),
            Box::new(VersionError::Ended(4)),
            Box::new(MergingError::NoLayers),
            Box::new(select::NonFiniteSum { index: 4 }),
            Box::new(select::UnknownSimd("sse".into())),
            Box::new(Fault::Elsewhere),
            Box::new(ExecutionError::Unexpected { from: Rank(1) }),
            Box::new(CheckError::NoWorkers),
            Box::new(SelectorError::Unknown { name: "most".into() }),
            Box::new(synchrony::named("spp").unwrap_err()),
            Box::new(PolicyError::Unknown { worker: 3, workers: 2 }),
            Box::new(Shards::new(1, 2).unwrap_err()),
            Box::new(synchrony::Sgd::default().check(-1.0).unwrap_err()),
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

    #[test]
    fn the_nearest_name_is_proposed() {
        let known = "spardl, topka, topkdsa, gtopk, ring";
        for (written, expected) in [
            ("spradl", " (did you mean spardl?)"),
            ("SparDL", " (did you mean spardl?)"),
            ("topk", " (did you mean topka?)"),
            ("rin/2", " (did you mean ring?)"),
            ("allreduce", ""),
            ("", ""),
        ] {
            assert_eq!(did_you_mean(written, known), expected, "{written}");
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
