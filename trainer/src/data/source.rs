//! Where data come from, as a command line names it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::fresh::FRESH;
use super::{Dataset, Input, cifar, clicks, fresh_digits, mnist, synthetic, text};
use crate::error::TrainerError;

/// Where the data come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A fixed copy of the project's documentation, which is inside the program.
    Documentation,
    /// A text file, as characters.
    Text(PathBuf),
    /// A directory with the four MNIST files.
    Mnist(PathBuf),
    /// A directory with the binary version of CIFAR-10.
    Cifar10(PathBuf),
    /// A directory with the binary version of CIFAR-100.
    Cifar100(PathBuf),
    /// Images of ten classes made from the seed.
    Synthetic,
    /// Handwritten digits that are inside the program.
    Digits,
    /// Text with the statistics of the built-in one, new in every step.
    FreshText,
    /// Images of digits, new in every step.
    FreshDigits,
    /// Categories, and whether a user clicks: new in every step.
    FreshClicks,
}

impl Source {
    /// Reads or makes the data.
    pub fn load(&self, seed: u64) -> Result<Dataset, TrainerError> {
        match self {
            Source::Documentation => text::documentation(),
            Source::Text(path) => text::load(path),
            Source::Mnist(directory) => mnist::load(directory),
            Source::Cifar10(directory) => cifar::load_10(directory),
            Source::Cifar100(directory) => cifar::load_100(directory),
            Source::Synthetic => Ok(synthetic::make(seed)),
            Source::Digits => mnist::digits(),
            Source::FreshText => text::sampled(seed),
            Source::FreshDigits => Ok(fresh_digits::make(seed)),
            Source::FreshClicks => Ok(clicks::make(seed)),
        }
    }

    /// What the model gets to see, and how many examples there are to train on. Made data are not made for it where that takes long.
    ///
    /// # Errors
    /// Files that cannot be read, or hold something else.
    pub fn outline(&self, seed: u64) -> Result<(Input, usize), TrainerError> {
        match self {
            Source::Synthetic => Ok((Input::Images(synthetic::SHAPE), synthetic::TRAIN)),
            Source::FreshText => Ok((Input::Characters, FRESH)),
            _ => self.load(seed).map(|dataset| (dataset.input, dataset.train.len())),
        }
    }

    /// Whether it is text, of which each next character is predicted.
    pub fn is_text(&self) -> bool {
        matches!(self, Source::Documentation | Source::Text(_) | Source::FreshText)
    }

    /// The name of data that need no path.
    fn name(&self) -> Option<&'static str> {
        Some(match self {
            Source::Documentation => "text",
            Source::Synthetic => "synthetic",
            Source::Digits => "digits",
            Source::FreshText => "fresh-text",
            Source::FreshDigits => "fresh-digits",
            Source::FreshClicks => "fresh-clicks",
            _ => return None,
        })
    }
}

/// Data that need no path.
const BUILT_IN: [Source; 6] = [
    Source::Documentation,
    Source::Synthetic,
    Source::Digits,
    Source::FreshText,
    Source::FreshDigits,
    Source::FreshClicks,
];

impl FromStr for Source {
    type Err = TrainerError;

    fn from_str(argument: &str) -> Result<Self, TrainerError> {
        if let Some(source) = BUILT_IN.into_iter().find(|source| source.name() == Some(argument)) {
            return Ok(source);
        }
        match argument.split_once(':').filter(|(_, path)| !path.is_empty()) {
            Some(("text", path)) => Ok(Source::Text(path.into())),
            Some(("mnist", path)) => Ok(Source::Mnist(path.into())),
            Some(("cifar10", path)) => Ok(Source::Cifar10(path.into())),
            Some(("cifar100", path)) => Ok(Source::Cifar100(path.into())),
            _ => Err(TrainerError::UnknownData { found: argument.to_string() }),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Text(path) => write!(formatter, "text:{}", path.display()),
            Source::Mnist(path) => write!(formatter, "mnist:{}", path.display()),
            Source::Cifar10(path) => write!(formatter, "cifar10:{}", path.display()),
            Source::Cifar100(path) => write!(formatter, "cifar100:{}", path.display()),
            built_in => formatter.write_str(built_in.name().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_written_as_they_are_read() {
        for argument in ["text", "text:a/b.txt", "mnist:x", "cifar10:x", "cifar100:x"] {
            assert_eq!(argument.parse::<Source>().unwrap().to_string(), argument);
        }
        for source in BUILT_IN {
            assert_eq!(source.to_string().parse::<Source>().unwrap(), source);
        }
        for source in BUILT_IN {
            let dataset = source.load(1).unwrap();
            assert_eq!(source.outline(1).unwrap(), (dataset.input, dataset.train.len()), "{source}");
        }
        for argument in ["", "texts", "mnist", "mnist:", "text:", "synthetic:3", "fresh-text:", "imagenet:x"]
        {
            let refusal = argument.parse::<Source>().unwrap_err().to_string();
            assert!(refusal.contains("expected text, text:FILE"), "{refusal}");
        }
        let refusal = "imagenet:x".parse::<Source>().unwrap_err().to_string();
        assert!(!refusal.contains("did you mean"), "{refusal}");
        let refusal = "cifra10:x".parse::<Source>().unwrap_err().to_string();
        assert!(
            refusal.contains("found \"cifra10:x\" (did you mean cifar10?); use one of these"),
            "{refusal}"
        );
    }
}
