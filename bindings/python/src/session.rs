//! A worker's membership in a job.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use gleaner::{Config, Error};
use gleaner_transport::Secret;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::Carrier;
use crate::device::Device;
use crate::errors::{exception, raise};
use crate::gradients::{self, Gradients};
use crate::memory;
use crate::method::Method;
use crate::owned::Owned;
use crate::reducer::{self, Reducer, left, look};
use crate::sparse::{self, SparseReducer};
use crate::waiting::call;

/// What lives no longer than its session.
pub trait Member: Send + Sync {
    /// Ends it.
    fn leave(&self);
}

/// A worker's membership in a job.
#[pyclass(frozen, module = "gleaner._native")]
pub struct Session {
    joined: Owned<Mutex<Option<Arc<gleaner::Session>>>>,
    rank: usize,
    world_size: usize,
    members: Mutex<Vec<Weak<dyn Member>>>,
    carrier: Owned<Arc<Mutex<Carrier>>>,
}

/// A socket at which rank 0 will listen.
#[pyclass(frozen, module = "gleaner._native")]
pub struct Listener(Arc<TcpListener>);

#[pymethods]
impl Listener {
    /// Binds a free port at an address of this host.
    #[new]
    fn new(host: &str) -> PyResult<Self> {
        Ok(Self(Arc::new(TcpListener::bind((host, 0))?)))
    }

    /// The port.
    #[getter]
    fn port(&self) -> PyResult<u16> {
        Ok(self.0.local_addr()?.port())
    }
}

impl Session {
    fn new(
        py: Python<'_>,
        join: impl FnOnce() -> Result<gleaner::Session, Error> + Send + 'static,
    ) -> PyResult<Self> {
        let session = call(py, join)?.map_err(|error| raise(py, &error))?;
        Ok(Self {
            rank: session.rank(),
            world_size: session.world_size(),
            joined: Owned::new(Mutex::new(Some(Arc::new(session)))),
            members: Mutex::default(),
            carrier: Owned::new(Arc::default()),
        })
    }

    fn here(&self, py: Python<'_>) -> PyResult<Arc<gleaner::Session>> {
        look(self.joined.get(py)?).clone().ok_or_else(|| left(py))
    }

    fn add(&self, member: &Arc<dyn Member>) {
        let mut members = look(&self.members);
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(member));
    }

    /// Makes a call in which all ranks come together.
    fn together<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&gleaner::Session) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let session = self.here(py)?;
        call(py, move || work(&session))?.map_err(|error| raise(py, &error))
    }
}

#[pymethods]
impl Session {
    /// Joins the job that the environment describes.
    #[staticmethod]
    fn join(py: Python<'_>) -> PyResult<Self> {
        Self::new(py, gleaner::Session::join)
    }

    /// Joins as this rank, of a job whose secret is in a file.
    #[staticmethod]
    #[pyo3(signature = (rank, world_size, rendezvous, secret_file, job, listener = None))]
    fn join_as(
        py: Python<'_>,
        rank: u32,
        world_size: u32,
        rendezvous: String,
        secret_file: PathBuf,
        job: String,
        listener: Option<&Listener>,
    ) -> PyResult<Self> {
        let refused = |error: String| exception(py, "ConfigError", (error,));
        // The timeout, the transport and whether links are encrypted are as the environment says.
        let settings = Config::settings().map_err(|error| refused(error.to_string()))?;
        if world_size == 1 {
            return Self::new(py, move || gleaner::Session::join_as(Config::alone(settings.timeout)));
        }
        let secret = Secret::from_file(secret_file).map_err(|error| refused(error.to_string()))?;
        let config = Config {
            rank,
            world_size,
            rendezvous: Some(rendezvous),
            secret: Some(secret),
            job,
            listener: listener.map(|listener| Arc::clone(&listener.0)),
            ..settings
        };
        Self::new(py, move || gleaner::Session::join_as(config))
    }

    /// This worker's number, from 0.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// The number of workers.
    #[getter]
    fn world_size(&self) -> usize {
        self.world_size
    }

    /// Waits until all ranks are here.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.together(py, gleaner::Session::barrier)
    }

    /// Gives every rank the notes of all ranks, each less than 1 MiB.
    fn all_gather<'py>(&self, py: Python<'py>, note: Vec<u8>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let notes = self.together(py, move |session| session.all_gather(&note))?;
        Ok(notes.iter().map(|note| PyBytes::new(py, note)).collect())
    }

    /// Gives every rank the bytes that rank `root` has at this address.
    fn broadcast(&self, py: Python<'_>, address: usize, count: usize, root: usize) -> PyResult<()> {
        // SAFETY: the Python half keeps the memory alive during the call, and no other code writes to it.
        let bytes = unsafe { memory::bytes(address, count)? };
        let carrier = Arc::clone(self.carrier.get(py)?);
        let bytes = self.together(py, move |session| look(&carrier).broadcast(session, &bytes, root))?;
        if root == self.rank {
            return Ok(());
        }
        // SAFETY: as above, and it is lent to this call alone.
        unsafe { memory::put(&bytes, address) }
    }

    /// Writes the bytes of all ranks, as many of each, to `into`, one after the other.
    fn gather(&self, py: Python<'_>, address: usize, count: usize, into: usize) -> PyResult<()> {
        // SAFETY: the Python half keeps the memory alive during the call, and no other code writes to it.
        let bytes = unsafe { memory::bytes(address, count)? };
        let carrier = Arc::clone(self.carrier.get(py)?);
        let bytes = self.together(py, move |session| look(&carrier).all_gather(session, &bytes))?;
        // SAFETY: the Python half keeps memory for `count` bytes of each rank alive, and lends it to this call alone.
        unsafe { memory::put(&bytes, into) }
    }

    /// Gradients of these groups of parameters, each with its name and number of entries; with a device their residuals stay there.
    #[pyo3(signature = (groups, method, merge = None, steady_after = 0, device = None))]
    fn gradients(
        &self,
        py: Python<'_>,
        groups: Vec<Vec<(String, usize)>>,
        method: &Method,
        merge: Option<&str>,
        steady_after: u64,
        device: Option<&Device>,
    ) -> PyResult<Gradients> {
        let (session, device) = (self.here(py)?, device.map(|device| Arc::clone(&device.0)));
        let (gradients, member) = gradients::make(py, session, groups, method, merge, steady_after, device)?;
        self.add(&member);
        Ok(gradients)
    }

    /// An all-reduce of n values of a type.
    #[pyo3(signature = (name, n, method, dtype = "float32", op = "mean"))]
    fn reducer(
        &self,
        py: Python<'_>,
        name: String,
        n: usize,
        method: &Method,
        dtype: &str,
        op: &str,
    ) -> PyResult<Reducer> {
        let (reducer, member) = reducer::make(py, self.here(py)?, name, n, method.0.clone(), dtype, op)?;
        self.add(&member);
        Ok(reducer)
    }

    /// An all-reduce of vectors of n values of a type that are sparse already, and given as entries.
    #[pyo3(signature = (name, n, method, dtype = "float32"))]
    fn sparse_reducer(
        &self,
        py: Python<'_>,
        name: String,
        n: usize,
        method: &Method,
        dtype: &str,
    ) -> PyResult<SparseReducer> {
        let (reducer, member) = sparse::make(py, self.here(py)?, name, n, method.0.clone(), dtype)?;
        self.add(&member);
        Ok(reducer)
    }

    /// Bytes sent, bytes received, messages sent, messages received, and links that were opened.
    fn traffic(&self, py: Python<'_>) -> PyResult<[u64; 5]> {
        let traffic = self.here(py)?.traffic();
        Ok([
            traffic.bytes_sent,
            traffic.bytes_received,
            traffic.messages_sent,
            traffic.messages_received,
            traffic.links,
        ])
    }

    /// Whether the session was left.
    fn is_left(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(look(self.joined.get(py)?).is_none())
    }

    /// Leaves the job, once the others have what they need of this rank. All that was made of the session ends with it.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let Some(session) = look(self.joined.get(py)?).take() else { return Ok(()) };
        let members: Vec<Weak<dyn Member>> = std::mem::take(&mut *look(&self.members));
        let carrier = Arc::clone(self.carrier.get(py)?);
        call(py, move || {
            members.iter().filter_map(Weak::upgrade).for_each(|member| member.leave());
            drop(std::mem::take(&mut *look(&carrier)));
            drop(session);
        })
    }

    /// Ends the job on all ranks, which name this one and the reason, and leaves.
    fn abort(&self, py: Python<'_>, reason: String) -> PyResult<()> {
        if let Some(session) = look(self.joined.get(py)?).clone() {
            call(py, move || drop(session.give_up(&reason)))?;
        }
        self.leave(py)
    }
}
