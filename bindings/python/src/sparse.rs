//! All-reduces of vectors that are sparse already, given and taken as entries.

use std::sync::{Arc, Mutex};

use gleaner::Error;
use gleaner::algorithms::{Element, bag};
use half::{bf16, f16};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::{exception, raise};
use crate::memory::{indices, put_indices, values, values_mut};
use crate::owned::Owned;
use crate::reducer::{Handle, Started, Step, left, look, wait_for};
use crate::session::Member;
use crate::waiting::call;

/// An all-reduce of entries of a vector.
#[pyclass(frozen, module = "gleaner._native")]
pub struct SparseReducer(Owned<Arc<Mutex<Option<Kind>>>>);

/// A reducer and its last step, by the type of the values.
enum Kind {
    F32(Steps<f32>),
    F64(Steps<f64>),
    Bf16(Steps<bf16>),
    F16(Steps<f16>),
}

struct Steps<T: Element> {
    reducer: gleaner::SparseReducer<T>,
    /// The step that was started last: the next one begins when it is over.
    last: Option<Arc<Mutex<Step<T>>>>,
}

impl<T: Element> Steps<T> {
    /// Starts a step. The one before is over first.
    fn start(&mut self, entries: &bag::Entries<T>) -> PyResult<Result<Arc<Mutex<Step<T>>>, Error>> {
        if let Some(last) = self.last.take() {
            wait_for(&last)?;
        }
        Ok(self.reducer.start(entries).map(|handle| {
            let step = Arc::new(Mutex::new(Step::UnderWay(handle)));
            self.last = Some(Arc::clone(&step));
            step
        }))
    }
}

impl Member for Mutex<Option<Kind>> {
    fn leave(&self) {
        let kind = look(self).take();
        drop(kind);
    }
}

/// A reducer of a session, and the part of it that the session closes when it is left.
pub fn make(
    py: Python<'_>,
    session: Arc<gleaner::Session>,
    name: String,
    n: usize,
    method: gleaner::Method,
    dtype: &str,
) -> PyResult<(SparseReducer, Arc<dyn Member>)> {
    fn of<T: Element>(
        py: Python<'_>,
        session: Arc<gleaner::Session>,
        name: String,
        n: usize,
        method: gleaner::Method,
    ) -> PyResult<Steps<T>> {
        let made = call(py, move || session.sparse_reducer_of(&name, n, method))?;
        Ok(Steps { reducer: made.map_err(|error| raise(py, &error))?, last: None })
    }
    let kind = match dtype {
        "float32" => Kind::F32(of(py, session, name, n, method)?),
        "float64" => Kind::F64(of(py, session, name, n, method)?),
        "bfloat16" => Kind::Bf16(of(py, session, name, n, method)?),
        "float16" => Kind::F16(of(py, session, name, n, method)?),
        other => {
            let sentence = format!("'{name}' is of {other}; expected float32, float64, bfloat16 or float16");
            return Err(exception(py, "UnsupportedError", (sentence,)));
        }
    };
    let shared = Arc::new(Mutex::new(Some(kind)));
    let member: Arc<dyn Member> = shared.clone();
    Ok((SparseReducer(Owned::new(shared)), member))
}

#[pymethods]
impl SparseReducer {
    /// Starts the all-reduce of this many entries: indices of 64 bits at one address, which ascend, and values at another.
    ///
    /// The values are of the reducer's type, and no other code writes to either during the call.
    fn start(&self, py: Python<'_>, at: usize, address: usize, count: usize) -> PyResult<Handle> {
        fn started<T: Element>(
            steps: &mut Steps<T>,
            (at, address, count): (usize, usize, usize),
        ) -> PyResult<Result<Started, Error>>
        where
            Started: From<Arc<Mutex<Step<T>>>>,
        {
            // SAFETY: the Python half keeps the memory alive during the call, and no other code writes to it.
            let (indices, values) = unsafe { (indices(at, count)?, values(address, count)?) };
            let entries = bag::Entries { indices, values: values.to_vec() };
            Ok(steps.start(&entries)?.map(Started::from))
        }
        let (shared, memory) = (self.0.get(py)?, (at, address, count));
        let started = py.detach(|| match &mut *look(shared) {
            None => Ok(None),
            Some(Kind::F32(steps)) => started(steps, memory).map(Some),
            Some(Kind::F64(steps)) => started(steps, memory).map(Some),
            Some(Kind::Bf16(steps)) => started(steps, memory).map(Some),
            Some(Kind::F16(steps)) => started(steps, memory).map(Some),
        })?;
        match started {
            None => Err(left(py)),
            Some(Ok(started)) => Ok(started.into()),
            Some(Err(error)) => Err(raise(py, &error)),
        }
    }
}

/// What a step delivers of a parameter, as entries.
#[pyclass(frozen, module = "gleaner._native")]
pub struct Entries(Values);

/// By the type of the values.
pub enum Values {
    F32(bag::Entries<f32>),
    F64(bag::Entries<f64>),
    Bf16(bag::Entries<bf16>),
    F16(bag::Entries<f16>),
}

impl From<Values> for Entries {
    fn from(values: Values) -> Self {
        Self(values)
    }
}

/// Writes indices of 64 bits to one address, and values to another.
fn write<T: Element>(entries: &bag::Entries<T>, at: usize, address: usize, count: usize) -> PyResult<()> {
    if count != entries.len() {
        let sentence = format!("there are {} entries, and room for {count}", entries.len());
        return Err(PyValueError::new_err(sentence));
    }
    // SAFETY: the Python half keeps the memory alive during the call, and lends it to this call alone.
    unsafe {
        put_indices(&entries.indices, at)?;
        values_mut(address, count)?.copy_from_slice(&entries.values);
    }
    Ok(())
}

#[pymethods]
impl Entries {
    /// How many they are.
    #[getter]
    fn count(&self) -> usize {
        match &self.0 {
            Values::F32(entries) => entries.len(),
            Values::F64(entries) => entries.len(),
            Values::Bf16(entries) => entries.len(),
            Values::F16(entries) => entries.len(),
        }
    }

    /// Writes this many indices of 64 bits, in ascending order, to one address, and as many values of the update's type to another.
    fn copy_to(&self, at: usize, address: usize, count: usize) -> PyResult<()> {
        match &self.0 {
            Values::F32(entries) => write(entries, at, address, count),
            Values::F64(entries) => write(entries, at, address, count),
            Values::Bf16(entries) => write(entries, at, address, count),
            Values::F16(entries) => write(entries, at, address, count),
        }
    }
}
