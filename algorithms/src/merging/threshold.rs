//! Groups of at least this many entries: MGS-SGD with a threshold by hand (OMGS-SGD, §V-D and its note 10), as Horovod's and
//! PyTorch's buckets do for dense gradients.

use gleaner_units as units;

use super::{Grouping, MergingError, Problem, Strategy};

/// Layers are merged until they have this many entries together; the last group may have fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// How many entries end a group; at least 1.
    pub entries: usize,
}

impl Threshold {
    /// The threshold of OMGS-SGD's Tables V and VI.
    pub const PUBLISHED: Self = Self { entries: 8192 };
}

impl Strategy for Threshold {
    fn name(&self) -> &'static str {
        "threshold"
    }

    fn summary(&self) -> &'static str {
        "merged up to at least 8192 entries, or as many as stand behind a slash: MGS-SGD (INFOCOM 2020)"
    }

    fn with(&self, value: &str) -> Option<Box<dyn Strategy>> {
        let entries = units::count(value).ok().filter(|&entries| entries > 0)?;
        Some(Box::new(Self { entries }))
    }

    fn needs_times(&self) -> bool {
        false
    }

    fn group(&self, problem: &Problem<'_>) -> Result<Grouping, MergingError> {
        let (layers, mut ends, mut merged) = (problem.pass.layers(), Vec::new(), 0);
        for (i, layer) in layers.iter().enumerate() {
            merged += layer.entries;
            if merged >= self.entries || i + 1 == layers.len() {
                ends.push(i + 1);
                merged = 0;
            }
        }
        Grouping::new(ends, layers.len())
    }
}
