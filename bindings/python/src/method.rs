//! A method as users choose it.

use std::fmt::Display;
use std::str::FromStr;

use gleaner::algorithms::bag::Coding;
use gleaner::algorithms::selectors::Selector;
use gleaner::{Collection, Correction, OnNonFinite, SelectOver, Sparsity};
use pyo3::prelude::*;

use crate::errors::refuse_method;

/// An all-reduce, how many entries it delivers, how they are encoded, and what happens to the rest.
#[pyclass(frozen, module = "gleaner._native")]
pub struct Method(pub gleaner::Method);

/// What stands behind a name.
fn named<T: FromStr<Err: Display>>(py: Python<'_>, name: &str) -> PyResult<T> {
    name.parse().map_err(|error| refuse_method(py, error))
}

/// How many entries are delivered.
fn sparsity(py: Python<'_>, density: Option<f64>, k: Option<usize>) -> PyResult<Option<Sparsity>> {
    match (density, k) {
        (Some(_), Some(_)) => {
            Err(refuse_method(py, "density and k were both given; expected a share or a number of entries"))
        }
        (Some(density), None) if !(density > 0.0 && density <= 1.0) => Err(refuse_method(
            py,
            format!("the density is {density}; expected a number above 0 and at most 1, such as 0.01"),
        )),
        (Some(density), None) => Ok(Some(Sparsity::Density(density))),
        (None, Some(0)) => Err(refuse_method(py, "k is 0; expected at least one entry")),
        (None, Some(k)) => Ok(Some(Sparsity::K(k))),
        (None, None) => Ok(None),
    }
}

#[pymethods]
impl Method {
    #[new]
    #[pyo3(signature = (
        name = "spardl", *, density = None, k = None, values = None, selector = "top", residual = "global",
        select_over = "group", on_nonfinite = "refuse", momentum = 0.0, mask = false, clip = None, warm_up = 0, options = vec![]
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        name: &str,
        density: Option<f64>,
        k: Option<usize>,
        values: Option<&str>,
        selector: &str,
        residual: &str,
        select_over: &str,
        on_nonfinite: &str,
        momentum: f32,
        mask: bool,
        clip: Option<f32>,
        warm_up: u64,
        options: Vec<(String, String)>,
    ) -> PyResult<Self> {
        let mut method = gleaner::Method::named(name).map_err(|error| refuse_method(py, error))?;
        for (option, value) in &options {
            method = method.with(option, value).map_err(|error| refuse_method(py, error))?;
        }
        method = match sparsity(py, density, k)? {
            None => method,
            Some(Sparsity::Density(density)) => method.density(density),
            Some(Sparsity::K(k)) => method.k(k),
        };
        let correction = Correction { momentum, mask, clip, warm_up, ..Correction::default() };
        correction.check().map_err(|error| refuse_method(py, error))?;
        method = match values {
            None => method,
            Some(values) => method.coding(named::<Coding>(py, values)?),
        };
        Ok(Self(
            method
                .selector(named::<Selector>(py, selector)?)
                .residual(named::<Collection>(py, residual)?)
                .select_over(named::<SelectOver>(py, select_over)?)
                .on_nonfinite(named::<OnNonFinite>(py, on_nonfinite)?)
                .corrected(correction),
        ))
    }

    /// The names of all methods.
    #[staticmethod]
    fn names() -> Vec<&'static str> {
        let auto = gleaner::Method::auto();
        gleaner::Method::all().chain([auto]).map(|method| method.collective().name()).collect()
    }

    /// The name of the all-reduce.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.collective().name()
    }

    /// Whether it leaves entries for later steps.
    #[getter]
    fn is_sparse(&self) -> bool {
        self.0.collective().is_sparse()
    }

    /// Whether steps with values that are not finite are left out on all ranks.
    #[getter]
    fn skips(&self) -> bool {
        self.0.nonfinite() == OnNonFinite::Skip
    }

    /// Whether gradients or residuals are changed as they are accumulated, which is done in main memory.
    #[getter]
    fn corrects(&self) -> bool {
        self.0.correction().needs_main_memory()
    }

    /// The same method, with steps left out on all ranks where one has values that are not finite.
    fn skipping(&self) -> Self {
        Self(self.0.clone().on_nonfinite(OnNonFinite::Skip))
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<gleaner.Method {}>", self.0)
    }
}
