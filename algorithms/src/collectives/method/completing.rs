//! Methods whose sums are completed.

use super::Method;
use crate::collectives::SparDl;
use crate::residual::CorrectionError;

impl Method {
    /// Once the entries of an update are agreed on, lets every worker add what it has there, also those that did not select it: a second exchange of
    /// at most as many entries, by SparDL without a selection, in the same coding. Then no residual has anything at the entries of an update but what
    /// rounding took away. Methods that add up all workers' values by their nature, and dense ones, are as without it.
    #[must_use]
    pub fn complete_sums(self) -> Self {
        Self { complete: true, ..self }
    }

    /// Whether sums are completed in a second exchange.
    pub fn completes_sums(&self) -> bool {
        self.complete && self.collective.is_sparse()
    }

    /// The second exchange.
    pub(in crate::collectives) fn completion(&self) -> Self {
        Self { collection: self.collection, ..Self::of(SparDl::default()).density(1.0).coding(self.values()) }
    }

    /// Refuses sums of entries that an index cannot count.
    pub(super) fn sums_fit(&self, n: usize) -> Result<(), CorrectionError> {
        match self.completes_sums() && n >= u32::MAX as usize {
            true => Err(CorrectionError::SumsLong(n)),
            false => Ok(()),
        }
    }
}
