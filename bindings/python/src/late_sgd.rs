//! Momentum that counts how long entries have waited, for arrays.

use gleaner::LateSgd;
use gleaner::algorithms::synchrony::Sgd;
use pyo3::prelude::*;

use crate::errors::refuse_method;
use crate::memory::{values, values_mut};

/// A step of parameters by velocities, steps waited and a gradient: at each of these four addresses are this many float32 values.
///
/// They do not overlap, and no other code uses them during the call.
#[pyfunction]
pub fn late_sgd_step(
    py: Python<'_>,
    addresses: (usize, usize, usize, usize),
    count: usize,
    rate: f32,
    momentum: f32,
    weight_decay: f32,
    nesterov: bool,
) -> PyResult<()> {
    let sgd = Sgd { momentum, weight_decay, nesterov };
    sgd.check(rate).map_err(|error| refuse_method(py, error))?;
    let (parameters, velocities, waited, gradient) = addresses;
    // SAFETY: the Python half keeps the memory alive during the call, lends it to this call alone, and refuses arrays that overlap.
    let (parameters, velocities, waited, gradient) = unsafe {
        (
            values_mut(parameters, count)?,
            values_mut(velocities, count)?,
            values_mut(waited, count)?,
            values(gradient, count)?,
        )
    };
    py.detach(|| LateSgd::new(sgd).step(parameters, velocities, waited, gradient, rate));
    Ok(())
}
