//! Where samples come from, and what of them all workers have to know.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use super::{Part, Samples, Shape, file};
use crate::error::RegressError;

/// Where samples come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A LIBSVM file that all workers share, or with `{rank}` in its path, one for each worker.
    File(PathBuf),
    /// Synthetic.
    Generated {
        /// In the shape of which data.
        shape: Shape,
        /// How many.
        samples: u64,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => path.display().fmt(f),
            Source::Generated { shape, .. } => shape.name().fmt(f),
        }
    }
}

/// What stands in a path for a worker's rank.
const RANK: &str = "{rank}";

/// Samples of one worker.
pub(crate) struct Held {
    pub(crate) samples: Samples,
    /// The highest index, counted from 1.
    pub(crate) highest: u32,
}

impl Source {
    /// Whether every worker has a file of its own.
    pub(crate) fn is_by_rank(&self) -> bool {
        matches!(self, Source::File(path) if is_by_rank(path))
    }

    /// What must be the same on all workers: of a file that they share, its length and a digest of its beginning and its end.
    pub(crate) fn identity(&self) -> Result<String, RegressError> {
        match self {
            Source::Generated { shape, samples } => Ok(format!("{samples} samples like {}", shape.name())),
            Source::File(_) if self.is_by_rank() => Ok("a file of each rank".into()),
            Source::File(path) => {
                identity(path).map_err(|source| RegressError::Read { path: path.clone(), source })
            }
        }
    }

    /// Reads or makes a worker's samples, of so many features at most.
    pub(crate) fn load(&self, part: Part, features: usize, seed: u64) -> Result<Held, RegressError> {
        match self {
            Source::File(path) => {
                let (path, part) = of_rank(path, part);
                let (samples, highest, _) = file::read(&path, part, features as u32)?;
                Ok(Held { samples, highest })
            }
            Source::Generated { shape, samples: count } => {
                let mut samples = Samples::default();
                let numbers = (part.rank as u64..*count).step_by(part.of);
                numbers.for_each(|number| shape.sample(seed, number, features, &mut samples));
                Ok(Held { samples, highest: features as u32 })
            }
        }
    }
}

fn is_by_rank(path: &Path) -> bool {
    path.to_string_lossy().contains(RANK)
}

/// The file that a worker reads, and its part of it.
pub(crate) fn of_rank(path: &Path, part: Part) -> (PathBuf, Part) {
    if !is_by_rank(path) {
        return (path.to_owned(), part);
    }
    (path.to_string_lossy().replace(RANK, &part.rank.to_string()).into(), Part::WHOLE)
}

/// Bytes of a file's beginning and end that are compared.
const ENDS: u64 = 1 << 16;

fn identity(path: &Path) -> io::Result<String> {
    // Not opened to see: what writes into a pipe would end when it is closed.
    let about = fs::metadata(path)?;
    if !about.is_file() {
        return Ok("no regular file".into());
    }
    let mut file = File::open(path)?;
    let length = about.len();
    let mut bytes = Vec::new();
    (&mut file).take(ENDS).read_to_end(&mut bytes)?;
    file.seek(SeekFrom::Start(length.saturating_sub(ENDS)))?;
    file.take(ENDS).read_to_end(&mut bytes)?;
    Ok(format!("{length} bytes with digest {:016x}", XxHash3_64::oneshot(&bytes)))
}
