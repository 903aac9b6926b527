//! `Debug` of an error is its sentence: a `main` that returns one shows it by that.

/// Implements `Debug` for an error by its `Display`.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_sentence {
    ($error:ty) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::fs;
    use std::path::{Path, PathBuf};

    use crate::tcp::{JoinError, wire};
    use crate::{ChoiceError, LinkError, OpenError, Peer, SecretError, seal};

    /// One of each type.
    fn errors() -> Vec<Box<dyn Error>> {
        vec![
            Box::new(LinkError::Closed { peer: Peer(1) }),
            Box::new(OpenError::Itself { peer: Peer(1) }),
            Box::new(ChoiceError { name: "A", value: "b".into(), expected: "c" }),
            Box::new(SecretError::NotAFile { path: "/".into() }),
            Box::new(seal::SealError::Broken),
            Box::new(wire::WireError::TooLong(1 << 21)),
            Box::new(JoinError::Address { address: "here".into() }),
            #[cfg(all(feature = "verbs", target_os = "linux"))]
            Box::new(crate::verbs::VerbsError::Sealed),
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
                // What this build does not have is not in the list.
                if cfg!(all(feature = "verbs", target_os = "linux")) || !path.ends_with("verbs") {
                    found.extend(files(&path));
                }
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
        found
    }
}
