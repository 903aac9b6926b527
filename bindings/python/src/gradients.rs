//! Gradients that go in parameter by parameter.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use gleaner::Error;
use gleaner::algorithms::device::Order;
use gleaner::algorithms::merging::{self, Strategy};
use gleaner::cuda::Cuda;
use gleaner::runtime::planner::PlanError;
use pyo3::prelude::*;

use crate::errors::{raise, raise_plan, refuse_method};
use crate::memory::{device_slice, values};
use crate::method::Method;
use crate::owned::Owned;
use crate::plan::Planned;
use crate::reducer::{left, look};
use crate::session::Member;
use crate::update::Update;
use crate::waiting::{block_on, call};

/// Gradients of named parameters: they go in one by one, and the same update comes out on every rank.
#[pyclass(frozen, module = "gleaner._native")]
pub struct Gradients(Owned<Arc<Mutex<Option<Planned>>>>);

impl Member for Mutex<Option<Planned>> {
    fn leave(&self) {
        let planned = look(self).take();
        drop(planned);
    }
}

/// What is reported of gradients that are sent late.
type Looked = (u64, (f64, f64, f64, f64), Vec<(&'static str, String)>);

/// A merging strategy by its name; none for the groups that were given.
///
/// # Errors
/// A name that no strategy has; groups where local clipping lets nothing begin before all is there.
fn strategy(py: Python<'_>, name: Option<&str>, method: &Method) -> PyResult<Option<Arc<dyn Strategy>>> {
    let Some(name) = name else { return Ok(None) };
    let strategy = merging::named(name).map_err(|error| refuse_method(py, error))?;
    if method.0.correction().clip.is_some() && name != merging::Single.name() {
        return Err(refuse_method(
            py,
            format!(
                "local clipping needs the norm of the whole gradient before any of it is exchanged, and '{name}' would exchange groups \
                 of it; expected merge='single', or a method without clip_local"
            ),
        ));
    }
    Ok(Some(strategy.into()))
}

/// Gradients of a session, and the part of them that the session closes when it is left.
pub fn make(
    py: Python<'_>,
    session: Arc<gleaner::Session>,
    groups: Vec<Vec<(String, usize)>>,
    method: &Method,
    merge: Option<&str>,
    steady_after: u64,
    device: Option<Arc<Cuda>>,
) -> PyResult<(Gradients, Arc<dyn Member>)> {
    let strategy = strategy(py, merge, method)?;
    let method = method.0.clone();
    let made = call(py, move || Planned::new(session, &groups, method, strategy, steady_after, device))?;
    let shared = Arc::new(Mutex::new(Some(made.map_err(|error| raise(py, &error))?)));
    let member: Arc<dyn Member> = shared.clone();
    Ok((Gradients(Owned::new(shared)), member))
}

impl Gradients {
    /// Does something with the gradients, without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Planned) -> PyResult<Result<T, Error>> + Send,
    ) -> PyResult<T> {
        let shared = self.0.get(py)?;
        match py.detach(|| look(shared).as_mut().map(work)) {
            None => Err(left(py)),
            Some(done) => done?.map_err(|error| raise(py, &error)),
        }
    }

    /// The same on a thread of its own, since all ranks have to come.
    fn together<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Planned) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let shared = Arc::clone(self.0.get(py)?);
        match call(py, move || look(&shared).as_mut().map(work))? {
            None => Err(left(py)),
            Some(done) => done.map_err(|error| raise(py, &error)),
        }
    }
}

#[pymethods]
impl Gradients {
    /// The gradient of a parameter is ready: this many float32 values at an address, which are free when this returns.
    ///
    /// No other code writes to the memory during the call.
    fn ready(&self, py: Python<'_>, parameter: &str, address: usize, count: usize) -> PyResult<()> {
        self.with(py, |planned| {
            // SAFETY: the Python half keeps the memory alive during the call, and no other code writes to it.
            let values = unsafe { values(address, count)? };
            Ok(planned.ready(parameter, values))
        })
    }

    /// The same of this many values of a type at an address of the device, in the order of a stream. What is enqueued there afterwards may
    /// overwrite them.
    fn ready_on_device(
        &self,
        py: Python<'_>,
        parameter: &str,
        address: u64,
        count: usize,
        dtype: &str,
        stream: u64,
    ) -> PyResult<()> {
        let slice = device_slice(py, address, count, dtype, Order::Stream(stream))?;
        self.with(py, |planned| Ok(planned.ready_on_device(parameter, &slice)))
    }

    /// The same after an event that was recorded. Nothing overwrites them before `wait` has returned.
    fn ready_after_event(
        &self,
        py: Python<'_>,
        parameter: &str,
        address: u64,
        count: usize,
        dtype: &str,
        event: u64,
    ) -> PyResult<()> {
        let slice = device_slice(py, address, count, dtype, Order::Event(event))?;
        self.with(py, |planned| Ok(planned.ready_on_device(parameter, &slice)))
    }

    /// Waits for the update of this step and commits it.
    fn wait(&self, py: Python<'_>) -> PyResult<Update> {
        let update = self.with(py, |planned| block_on(planned.gradients.updated()))?;
        let shared = self.0.get(py)?;
        let concluded = py.detach(|| look(shared).as_mut().map(|planned| planned.conclude(&update)));
        match concluded {
            Some(Err(error)) => Err(self.end(py, &error)),
            _ => Ok(update.into()),
        }
    }

    /// Writes residuals, what the method has learnt and the step to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |planned| Ok(planned.gradients.save(&path)))
    }

    /// Goes on from such a file, together with all ranks.
    fn load(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.together(py, move |planned| planned.gradients.load(&path))
    }

    /// Goes on from the files of all ranks, of which there may have been more or fewer.
    fn load_from(&self, py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<()> {
        self.together(py, move |planned| planned.gradients.load_from(&paths))
    }

    /// The names of the parameters in the order in which they become ready, once a plan has begun.
    fn order(&self, py: Python<'_>) -> PyResult<Option<Vec<String>>> {
        self.with(py, |planned| Ok(Ok(planned.order())))
    }

    /// Takes the order of a run that goes on here, together with all ranks.
    fn adopt(&self, py: Python<'_>, order: Vec<String>) -> PyResult<()> {
        match self.together(py, move |planned| Ok(planned.adopt(&order)))? {
            Ok(()) => Ok(()),
            Err(error) => Err(self.end(py, &error)),
        }
    }

    /// The number of the present step, from 0.
    fn step(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |planned| Ok(Ok(planned.gradients.step())))
    }

    /// How many steps were left out.
    fn skipped(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |planned| Ok(Ok(planned.gradients.skipped())))
    }

    /// The present groups, each with the names of its parameters; nothing before they were planned.
    fn groups(&self, py: Python<'_>) -> PyResult<Option<Vec<Vec<String>>>> {
        self.with(py, |planned| Ok(Ok(planned.groups())))
    }

    /// What a step is expected to take by the plan, in seconds, and the share of its exchange that is hidden.
    fn expected(&self, py: Python<'_>) -> PyResult<Option<(f64, f64)>> {
        self.with(py, |planned| Ok(Ok(planned.expected())))
    }

    /// Where the time of the last step went, in seconds: select, exchange, merge, under_way, blocked, waiting.
    fn times(&self, py: Python<'_>) -> PyResult<[f64; 6]> {
        let times = self.with(py, |planned| Ok(Ok(planned.gradients.times())))?;
        let parts =
            [times.select, times.exchange, times.merge, times.under_way, times.blocked, times.waiting];
        Ok(parts.map(|part| part.as_secs_f64()))
    }

    /// What waits on this rank: how often it was looked at; for how many steps, how much, what of it a step delivers, and the density; and what is
    /// found with an optimiser of this momentum, a word and a sentence each.
    fn health(&self, py: Python<'_>, momentum: f32) -> PyResult<Looked> {
        if !(0.0..1.0).contains(&momentum) {
            let expected = "expected a number from 0 to below 1, such as 0.9";
            return Err(refuse_method(
                py,
                format!("the momentum of the optimiser is {momentum}; {expected}"),
            ));
        }
        let health = self.with(py, |planned| Ok(Ok(planned.gradients.health())))?;
        let findings = health.findings(momentum).iter().map(|f| (f.name(), f.to_string())).collect();
        let numbers = [health.waits(), health.waiting, health.delivered, health.density];
        Ok((health.looks, numbers.into(), findings))
    }

    /// Ends the job on all ranks, with this reason.
    fn abort(&self, py: Python<'_>, reason: String) -> PyResult<()> {
        self.with(py, move |planned| {
            planned.gradients.abort(&reason);
            Ok(Ok(()))
        })
    }
}

impl Gradients {
    /// A plan that one rank cannot follow ends the job.
    fn end(&self, py: Python<'_>, error: &PlanError) -> PyErr {
        if !matches!(error, PlanError::Runtime(Error::Failed(_))) {
            // What it says is said by the exception.
            let _ = self.abort(py, error.to_string());
        }
        raise_plan(py, error)
    }
}
