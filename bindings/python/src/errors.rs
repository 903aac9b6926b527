//! Errors of the runtime as exceptions of the package, with the same sentences.

use gleaner::algorithms::device::DeviceError;
use gleaner::runtime::planner::PlanError;
use gleaner::{Cancelled, Error, Failure};
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;

/// An exception of the class of this name in `gleaner.errors`, made with these arguments.
pub fn exception<'py>(py: Python<'py>, class: &str, arguments: impl PyCallArgs<'py>) -> PyErr {
    let class = py.import("gleaner.errors").and_then(|errors| errors.getattr(class));
    class.and_then(|class| class.call1(arguments)).map_or_else(|error| error, PyErr::from_value)
}

/// The exception for an error.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let sentence = error.to_string();
    let class = match error {
        Error::Failed(Failure { rank, step, reason }) => {
            return exception(py, "JobFailed", (sentence, *rank, *step, reason.as_str()));
        }
        Error::Cancelled(Cancelled { rank, step, .. }) => {
            return exception(py, "Cancelled", (sentence, *rank, *step));
        }
        Error::Config(_) => "ConfigError",
        Error::Join(_) => "JoinError",
        Error::OutOfMemory(_) | Error::Device(DeviceError::Memory(_)) => "OutOfMemory",
        Error::Layout(_) => "LayoutError",
        Error::Method(_) | Error::Schedule(_) | Error::Routine(_) | Error::Reduction(_) => "MethodError",
        Error::Checkpoint(_) => "CheckpointError",
        _ => "Error",
    };
    exception(py, class, (sentence,))
}

/// The exception for a plan that cannot be made.
pub fn raise_plan(py: Python<'_>, error: &PlanError) -> PyErr {
    match error {
        PlanError::Runtime(error) => raise(py, error),
        PlanError::Merging(error) => exception(py, "MethodError", (error.to_string(),)),
        PlanError::Times { .. } => exception(py, "Error", (error.to_string(),)),
    }
}

/// The exception for what cannot be a method.
pub fn refuse_method(py: Python<'_>, sentence: impl ToString) -> PyErr {
    exception(py, "MethodError", (sentence.to_string(),))
}
