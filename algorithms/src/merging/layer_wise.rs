//! Every layer by itself: LAGS-SGD (Shi et al., ECAI 2020; OMGS-SGD, §II-D and Fig. 1c). Of dense gradients this is wait-free
//! backpropagation, P-SGD (Zhang et al., Poseidon, USENIX ATC 2017; OMGS-SGD, §II-B and Fig. 1a).

use super::{Grouping, MergingError, Problem, Strategy};

/// No layers are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerWise;

impl Strategy for LayerWise {
    fn name(&self) -> &'static str {
        "layer-wise"
    }

    fn summary(&self) -> &'static str {
        "every layer by itself: LAGS-SGD (ECAI 2020); dense: wait-free backpropagation, P-SGD (ATC 2017)"
    }

    fn needs_times(&self) -> bool {
        false
    }

    fn group(&self, problem: &Problem<'_>) -> Result<Grouping, MergingError> {
        Ok(Grouping::cut(problem.pass.layers().len(), |_| true))
    }
}
