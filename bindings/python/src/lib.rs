//! The native half of the Python package `gleaner`. What users call is in `python/gleaner`; the classes here do what cannot be
//! done there, and trust it: memory is given by its address and length, and the Python half keeps it alive during a call.
//!
//! Every call that waits for other ranks lets other Python threads run meanwhile, and looks for Ctrl-C ten times a second.

mod bytes;
mod device;
mod errors;
mod gradients;
mod late_sgd;
mod memory;
mod method;
mod owned;
mod plan;
mod reducer;
mod session;
mod sparse;
mod update;
mod waiting;

use pyo3::prelude::*;

/// The module `gleaner._native`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::device::Device;
    #[pymodule_export]
    use crate::gradients::Gradients;
    #[pymodule_export]
    use crate::late_sgd::late_sgd_step;
    #[pymodule_export]
    use crate::method::Method;
    #[pymodule_export]
    use crate::reducer::{Handle, Reducer};
    #[pymodule_export]
    use crate::session::{Listener, Session};
    #[pymodule_export]
    use crate::sparse::{Entries, SparseReducer};
    #[pymodule_export]
    use crate::update::Update;

    /// The version of the package.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
