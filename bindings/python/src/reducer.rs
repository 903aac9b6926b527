//! All-reduces of arrays, started without waiting for them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use gleaner::Error;
use gleaner::algorithms::{Element, Reduction};
use half::{bf16, f16};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::{exception, raise};
use crate::memory::{values, values_mut};
use crate::owned::Owned;
use crate::session::Member;
use crate::update::Update;
use crate::waiting::{block_on, call};

/// Locks what threads share; a thread that panicked with it has ended the job.
pub fn look<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an array is called that was left with its session.
pub fn left(py: Python<'_>) -> PyErr {
    exception(py, "SessionLeft", ())
}

/// An all-reduce of a fixed number of values, with a residual of its own.
#[pyclass(frozen, module = "gleaner._native")]
pub struct Reducer(Owned<Arc<Mutex<Option<Kind>>>>);

/// A reducer and its last step, by the type of the values.
enum Kind {
    F32(Steps<f32>),
    F64(Steps<f64>),
    Bf16(Steps<bf16>),
    F16(Steps<f16>),
}

struct Steps<T: Element> {
    reducer: gleaner::Reducer<T>,
    /// The step that was started last: the next one begins when it is over.
    last: Option<Arc<Mutex<Step<T>>>>,
}

/// A step that was started.
pub enum Step<T: Element> {
    UnderWay(gleaner::Handle<T>),
    Over(Result<gleaner::Update<T>, Error>),
    /// Its result was taken.
    Taken,
}

macro_rules! each {
    ($of:expr, $steps:ident => $result:expr) => {
        match $of {
            Kind::F32($steps) => $result,
            Kind::F64($steps) => $result,
            Kind::Bf16($steps) => $result,
            Kind::F16($steps) => $result,
        }
    };
}

impl<T: Element> Step<T> {
    /// Looks whether it is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Step::UnderWay(handle) = self {
            let Poll::Ready(result) = Pin::new(handle).poll(context) else { return Poll::Pending };
            *self = Step::Over(result);
        }
        Poll::Ready(())
    }
}

/// Waits until a step is over.
pub fn wait_for<T: Element>(step: &Mutex<Step<T>>) -> PyResult<()> {
    block_on(std::future::poll_fn(|context| look(step).poll(context)))
}

impl<T: Element> Steps<T> {
    /// Starts a step. The one before is over first.
    fn start(&mut self, values: &[T]) -> PyResult<Result<Arc<Mutex<Step<T>>>, Error>> {
        if let Some(last) = self.last.take() {
            wait_for(&last)?;
        }
        let started = self.reducer.start(values);
        Ok(started.map(|handle| {
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

fn reduction<T: Element>(name: &str) -> PyResult<Reduction<T>> {
    match name {
        "sum" | "mean" => Ok(Reduction::Sum),
        "max" => Ok(Reduction::Max),
        "min" => Ok(Reduction::Min),
        "product" => Ok(Reduction::Product),
        other => Err(PyValueError::new_err(format!(
            "there is no reduction '{other}'; expected mean, sum, max, min or product"
        ))),
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
    op: &str,
) -> PyResult<(Reducer, Arc<dyn Member>)> {
    fn of<T: Element>(
        py: Python<'_>,
        session: Arc<gleaner::Session>,
        name: String,
        n: usize,
        method: gleaner::Method,
        op: &str,
    ) -> PyResult<Steps<T>> {
        let reduction = reduction::<T>(op)?;
        let made = call(py, move || session.reducer_of(&name, n, method, reduction))?;
        Ok(Steps { reducer: made.map_err(|error| raise(py, &error))?, last: None })
    }
    let kind = match dtype {
        "float32" => Kind::F32(of(py, session, name, n, method, op)?),
        "float64" => Kind::F64(of(py, session, name, n, method, op)?),
        "bfloat16" => Kind::Bf16(of(py, session, name, n, method, op)?),
        "float16" => Kind::F16(of(py, session, name, n, method, op)?),
        other => {
            let sentence = format!("'{name}' is of {other}; expected float32, float64, bfloat16 or float16");
            return Err(exception(py, "UnsupportedError", (sentence,)));
        }
    };
    let shared = Arc::new(Mutex::new(Some(kind)));
    let member: Arc<dyn Member> = shared.clone();
    Ok((Reducer(Owned::new(shared)), member))
}

#[pymethods]
impl Reducer {
    /// Adds this many values at an address to the residual and starts the all-reduce of what is there.
    ///
    /// The memory is of the reducer's type, and no other code writes to it during the call.
    fn start(&self, py: Python<'_>, address: usize, count: usize) -> PyResult<Handle> {
        let shared = self.0.get(py)?;
        let started = py.detach(|| {
            let mut kind = look(shared);
            let Some(kind) = &mut *kind else { return Ok(None) };
            each!(kind, steps => {
                // SAFETY: the Python half keeps the memory alive during the call, and no other code writes to it.
                let values = unsafe { values(address, count)? };
                Ok::<_, PyErr>(Some(steps.start(values)?.map(Started::from)))
            })
        })?;
        match started {
            None => Err(left(py)),
            Some(Ok(started)) => Ok(Handle(Owned::new(started))),
            Some(Err(error)) => Err(raise(py, &error)),
        }
    }

    /// Writes what waits here for a later step to memory of this many values.
    fn residual(&self, py: Python<'_>, address: usize, count: usize) -> PyResult<()> {
        let shared = self.0.get(py)?;
        let read = py.detach(|| {
            let mut kind = look(shared);
            let Some(kind) = &mut *kind else { return Ok(None) };
            each!(kind, steps => {
                if let Some(last) = steps.last.take() {
                    wait_for(&last)?;
                }
                let residual = match steps.reducer.residual() {
                    Ok(residual) => residual,
                    Err(error) => return Ok(Some(Err(error))),
                };
                // SAFETY: the Python half keeps the memory alive during the call, and lends it to this call alone.
                let into = unsafe { values_mut(address, count)? };
                if into.len() != residual.len() {
                    let (found, expected) = (into.len(), residual.len());
                    let sentence = format!("the residual has {expected} values; there is room for {found}");
                    return Err(PyValueError::new_err(sentence));
                }
                into.copy_from_slice(&residual);
                Ok(Some(Ok(())))
            })
        })?;
        match read {
            None => Err(left(py)),
            Some(read) => read.map_err(|error| raise(py, &error)),
        }
    }

    /// The method that it runs: the one that was chosen, if the method was a choice.
    fn method(&self, py: Python<'_>) -> PyResult<crate::method::Method> {
        let shared = self.0.get(py)?;
        // The thread that has the lock may wait for the interpreter's.
        let method = py.detach(|| {
            let kind = look(shared);
            kind.as_ref().map(|kind| each!(kind, steps => steps.reducer.method()))
        });
        method.map(crate::method::Method).ok_or_else(|| left(py))
    }
}

/// A step that was started, by the type of its values.
pub enum Started {
    F32(Arc<Mutex<Step<f32>>>),
    F64(Arc<Mutex<Step<f64>>>),
    Bf16(Arc<Mutex<Step<bf16>>>),
    F16(Arc<Mutex<Step<f16>>>),
}

macro_rules! started {
    ($($element:ty => $kind:ident),*) => {$(
        impl From<Arc<Mutex<Step<$element>>>> for Started {
            fn from(step: Arc<Mutex<Step<$element>>>) -> Self {
                Self::$kind(step)
            }
        }
    )*};
}

started!(f32 => F32, f64 => F64, bf16 => Bf16, f16 => F16);

macro_rules! each_started {
    ($of:expr, $step:ident => $result:expr) => {
        match $of {
            Started::F32($step) => $result,
            Started::F64($step) => $result,
            Started::Bf16($step) => $result,
            Started::F16($step) => $result,
        }
    };
}

/// An all-reduce that was started.
#[pyclass(frozen, module = "gleaner._native")]
pub struct Handle(Owned<Started>);

impl From<Started> for Handle {
    fn from(started: Started) -> Self {
        Self(Owned::new(started))
    }
}

#[pymethods]
impl Handle {
    /// Whether it is over.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let mut context = Context::from_waker(Waker::noop());
        Ok(each_started!(self.0.get(py)?, step => look(step).poll(&mut context).is_ready()))
    }

    /// Asks all ranks to give the step up.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        each_started!(self.0.get(py)?, step => {
            if let Step::UnderWay(handle) = &*look(step) {
                handle.cancel();
            }
        });
        Ok(())
    }

    /// Waits for the update, once.
    fn wait(&self, py: Python<'_>) -> PyResult<Update> {
        each_started!(self.0.get(py)?, step => {
            py.detach(|| wait_for(step))?;
            match std::mem::replace(&mut *look(step), Step::Taken) {
                Step::Over(Ok(update)) => Ok(update.into()),
                Step::Over(Err(error)) => Err(raise(py, &error)),
                _ => Err(PyValueError::new_err("the result of this step was taken before")),
            }
        })
    }
}
