//! A method as users choose it.

use gleaner::{OnNonFinite, Sparsity};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors::refuse_method;

/// An all-reduce, how many entries it delivers, how they are encoded, and what happens to the rest.
#[pyclass(frozen, module = "gleaner._native")]
pub struct Method(pub gleaner::Method);

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

/// A value as text: numbers of any type that is one, a list of steps with commas between them.
fn written(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(steps) = value.cast::<PyList>() {
        let steps = steps.iter().map(|step| written(&step)).collect::<PyResult<Vec<_>>>()?;
        return Ok(steps.join(","));
    }
    Ok(match (value.extract::<i64>(), value.extract::<f64>()) {
        (Ok(number), _) => number.to_string(),
        (_, Ok(number)) => number.to_string(),
        _ => value.str()?.to_string(),
    })
}

#[pymethods]
impl Method {
    #[new]
    #[pyo3(signature = (name = "spardl", *, density = None, k = None, **options))]
    fn new(
        py: Python<'_>,
        name: &str,
        density: Option<f64>,
        k: Option<usize>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut method = gleaner::Method::named(name).map_err(|error| refuse_method(py, error))?;
        for (option, value) in options.into_iter().flatten() {
            let is_empty = value.cast::<PyList>().is_ok_and(|steps| steps.is_empty());
            if !value.is_none() && !is_empty {
                method = method
                    .with(&option.str()?.to_cow()?, &written(&value)?)
                    .map_err(|error| refuse_method(py, error))?;
            }
        }
        method.correction().check().map_err(|error| refuse_method(py, error))?;
        Ok(Self(match sparsity(py, density, k)? {
            None => method,
            Some(Sparsity::Density(density)) => method.density(density),
            Some(Sparsity::K(k)) => method.k(k),
        }))
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

    /// Whether gradients or residuals are changed or looked at as they are accumulated, which is done in main memory.
    #[getter]
    fn corrects(&self) -> bool {
        self.0.correction().needs_main_memory() || self.0.follows_norm_share().is_some()
    }

    /// Whether momentum correction puts the momentum into the update.
    #[getter]
    fn has_momentum(&self) -> bool {
        self.0.correction().momentum > 0.0
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
