//! All layers at once, after the backward pass: TopK-SGD (OMGS-SGD, §II-C, equation 4 and Fig. 1b).

use super::{Grouping, MergingError, Problem, Strategy};

/// All layers are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Single;

impl Strategy for Single {
    fn name(&self) -> &'static str {
        "single"
    }

    fn summary(&self) -> &'static str {
        "all layers at once, nothing overlaps: TopK-SGD"
    }

    fn needs_times(&self) -> bool {
        false
    }

    fn group(&self, problem: &Problem<'_>) -> Result<Grouping, MergingError> {
        Ok(Grouping::cut(problem.pass.layers().len(), |_| false))
    }
}
