//! What a step delivers, of any of the four types.

use gleaner::Skipped;
use gleaner::algorithms::device::Order;
use gleaner::algorithms::{Element, bag};
use half::{bf16, f16};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::memory::{device_slice, values_mut};
use crate::sparse::{self, Entries};

/// The same update on every rank.
#[pyclass(frozen, module = "gleaner._native")]
pub struct Update(Values);

/// By the type of its values.
enum Values {
    F32(gleaner::Update<f32>),
    F64(gleaner::Update<f64>),
    Bf16(gleaner::Update<bf16>),
    F16(gleaner::Update<f16>),
}

macro_rules! each {
    ($of:expr, $update:ident => $result:expr) => {
        match &$of.0 {
            Values::F32($update) => $result,
            Values::F64($update) => $result,
            Values::Bf16($update) => $result,
            Values::F16($update) => $result,
        }
    };
}

macro_rules! made {
    ($($element:ty => $kind:ident),*) => {$(
        impl From<gleaner::Update<$element>> for Update {
            fn from(update: gleaner::Update<$element>) -> Self {
                Self(Values::$kind(update))
            }
        }
    )*};
}

made!(f32 => F32, f64 => F64, bf16 => Bf16, f16 => F16);

/// Writes a parameter's mean, or its sum over this many workers.
fn write<T: Element>(
    py: Python<'_>,
    update: &gleaner::Update<T>,
    parameter: &str,
    into: &mut [T],
    workers: Option<u32>,
) -> PyResult<()> {
    let written = py.detach(|| match workers {
        None => update.copy_to(parameter, into),
        Some(workers) => {
            into.fill(T::ZERO);
            // The mean times the number of workers, without a division: the sum, bit by bit.
            update.add_to(parameter, into, T::from_f64(workers.into()))
        }
    });
    written.map_err(|error| raise(py, &error.into()))
}

#[pymethods]
impl Update {
    /// The step that it belongs to, counted from 0.
    #[getter]
    fn step(&self) -> u64 {
        each!(self, update => update.step())
    }

    /// The number of entries over all parameters that are not zero.
    #[getter]
    fn entries(&self) -> usize {
        each!(self, update => update.entries())
    }

    /// The rank for whose values the step was left out, and what was wrong here; nothing if it was not.
    #[getter]
    fn skipped(&self) -> Option<(u32, Option<String>)> {
        let skipped = |skipped: &Skipped| (skipped.rank, skipped.own.clone());
        each!(self, update => update.skipped().map(skipped))
    }

    /// Writes the mean of a parameter to memory of this many values; with a number of workers the sum.
    ///
    /// The memory is of the update's type, and no other code uses it during the call.
    #[pyo3(signature = (parameter, address, count, workers = None))]
    fn copy_to(
        &self,
        py: Python<'_>,
        parameter: &str,
        address: usize,
        count: usize,
        workers: Option<u32>,
    ) -> PyResult<()> {
        each!(self, update => {
            // SAFETY: the Python half keeps the memory alive during the call, and lends it to this call alone.
            let into = unsafe { values_mut(address, count)? };
            write(py, update, parameter, into, workers)
        })
    }

    /// The mean of a parameter, or the sum, as entries that are not zero.
    #[pyo3(signature = (parameter, sums = false))]
    fn sparse(&self, py: Python<'_>, parameter: &str, sums: bool) -> PyResult<Entries> {
        fn of<T: Element>(
            update: &gleaner::Update<T>,
            parameter: &str,
            sums: bool,
        ) -> Result<bag::Entries<T>, gleaner::LayoutError> {
            if sums { update.sparse_sums(parameter) } else { update.sparse(parameter) }
        }
        let entries = py.detach(|| match &self.0 {
            Values::F32(update) => of(update, parameter, sums).map(sparse::Values::F32),
            Values::F64(update) => of(update, parameter, sums).map(sparse::Values::F64),
            Values::Bf16(update) => of(update, parameter, sums).map(sparse::Values::Bf16),
            Values::F16(update) => of(update, parameter, sums).map(sparse::Values::F16),
        });
        Ok(entries.map_err(|error| raise(py, &error.into()))?.into())
    }

    /// Writes the mean of a parameter to this many values of a type at an address of the gradients' device, in the order of a stream.
    fn copy_to_device(
        &self,
        py: Python<'_>,
        parameter: &str,
        address: u64,
        count: usize,
        dtype: &str,
        stream: u64,
    ) -> PyResult<()> {
        let into = device_slice(py, address, count, dtype, Order::Stream(stream))?;
        let written = py.detach(|| each!(self, update => update.copy_to_device(parameter, &into)));
        written.map_err(|error| raise(py, &error))
    }

    /// A number that is the same on all ranks if and only if the update is, as nearly as 64 bits show.
    fn digest(&self) -> u64 {
        // FNV-1a.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut feed = |bytes: &[u8]| {
            for &byte in bytes {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        each!(self, update => update.digest(&mut feed));
        hash
    }
}
