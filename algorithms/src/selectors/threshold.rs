//! Everything of at least a magnitude that the user names (hard threshold: Strom: Scalable Distributed DNN Training Using
//! Commodity GPU Cloud Computing, 2015; Sahu et al.: Rethinking gradient sparsification as total error
//! minimization, NeurIPS 2021).
//!
//! The threshold has the unit of the gradient. The count is whatever reaches it: none, for any number of steps, while the
//! residual grows; or all n. The pass that accumulates finds them, so that selection takes no other pass; the more there are,
//! the longer it takes.

use super::source::Source;
use super::{Chosen, DeviceError, Element};

pub(super) fn choose<T: Element>(source: &Source<'_, T>, at: f64) -> Result<Chosen<T>, DeviceError> {
    let threshold = T::from_f64(at);
    let entries = source.reaching(threshold)?.entries;
    Ok(Chosen { entries, threshold: Some(threshold), collect: (threshold > T::ZERO).then_some(threshold) })
}
