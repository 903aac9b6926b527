//! Methods whose residuals decay.

use super::Method;
use crate::residual::CorrectionError;

impl Method {
    /// Whether what waits can decay as this method is set to.
    ///
    /// # Errors
    /// Methods of which nothing waits, or which may become such a one.
    pub fn decay_fits(&self) -> Result<(), CorrectionError> {
        let beside = match self.correction.decay {
            Some(_) if self.is_auto() => {
                "the method auto, which may choose one of which nothing waits; name a method, or leave the decay out"
            }
            Some(_) if !self.collective.is_sparse() => {
                "a dense method, which delivers every entry, so that nothing waits; choose a sparse method, or leave the decay out"
            }
            _ => return Ok(()),
        };
        Err(CorrectionError::DecayBeside(beside))
    }
}
