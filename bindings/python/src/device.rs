//! GPUs on which gradients stay.

use std::sync::Arc;

use gleaner::algorithms::device::Device as _;
use gleaner::cuda::Cuda;
use pyo3::prelude::*;

use crate::errors::exception;

/// A CUDA device.
#[pyclass(frozen, module = "gleaner._native")]
pub struct Device(pub Arc<Cuda>);

#[pymethods]
impl Device {
    /// The device of this number, as CUDA counts them.
    #[new]
    fn new(py: Python<'_>, ordinal: u32) -> PyResult<Self> {
        let opened = py.detach(|| Cuda::open(ordinal));
        opened.map(Self).map_err(|error| exception(py, "UnsupportedError", (error.to_string(),)))
    }

    /// Its name, with its number.
    #[getter]
    fn name(&self) -> String {
        self.0.name()
    }
}
