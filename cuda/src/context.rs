//! A device with two streams, one for kernels and one for copies, and what has failed on it.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use gleaner_algorithms::device::DeviceError;

use crate::backend::{Backend, Event, Failure, Stream};
use crate::kernels::{Argument, THREADS, TILE, WARP};
use crate::staging::{Idle, Staging};

/// Something that was asked of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Nothing yet.
    Nothing,
    /// A kernel.
    Kernel(&'static CStr),
    /// A copy, or a fill, and what it is of.
    Copy(&'static str),
    /// A call that puts nothing into a stream.
    Call(&'static str),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Nothing => write!(f, "nothing"),
            Operation::Kernel(name) => write!(f, "the kernel {}", name.to_string_lossy()),
            Operation::Copy(what) | Operation::Call(what) => write!(f, "{what}"),
        }
    }
}

/// What was put into the streams.
struct Journal {
    last: Operation,
    /// Everything with events around it, if somebody measures.
    trace: Option<Vec<(Operation, Event, Event)>>,
}

/// A device that is in use: shared by all that lies in its memory.
pub(crate) struct Context {
    backend: Box<dyn Backend>,
    name: String,
    kernels: Stream,
    copies: Stream,
    /// Recorded in one stream and waited for in another, at once: the lock keeps the two together.
    order: Mutex<Event>,
    journal: Mutex<Journal>,
    failed: OnceLock<DeviceError>,
    idle: Mutex<Idle>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The device's context is current for this thread, until this is dropped.
pub(crate) struct Entered<'a>(&'a dyn Backend);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// A device with streams of its own.
    pub(crate) fn new(backend: Box<dyn Backend>) -> Result<Self, DeviceError> {
        let name = format!("CUDA device {} ({})", backend.ordinal(), backend.name());
        let failed = |failure: Failure| DeviceError(format!("{name} cannot be used: {}", failure.said));
        backend.enter().map_err(failed)?;
        let entered = Entered(&*backend);
        let kernels = backend.create_stream().map_err(failed)?;
        let copies = backend.create_stream().map_err(failed)?;
        let order = backend.create_event(false).map_err(failed)?;
        drop(entered);
        Ok(Self {
            name,
            kernels,
            copies,
            order: Mutex::new(order),
            journal: Mutex::new(Journal { last: Operation::Nothing, trace: None }),
            failed: OnceLock::new(),
            idle: Mutex::default(),
            backend,
        })
    }

    /// The device with its number, as sentences name it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What the driver, or the emulation, says.
    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The stream of kernels, in whose order everything that lies in the device's memory is read and written.
    pub(crate) fn kernels(&self) -> Stream {
        self.kernels
    }

    /// The stream of copies between the host and the device.
    pub(crate) fn copies(&self) -> Stream {
        self.copies
    }

    /// Buffers that nobody uses.
    pub(crate) fn idle(&self) -> MutexGuard<'_, Idle> {
        locked(&self.idle)
    }

    /// For everything that uses the device: makes its context current, unless it has failed.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        self.call("entering its context", self.backend.enter())?;
        Ok(Entered(&*self.backend))
    }

    /// The same for what has to be ended, whether or not it has failed.
    pub(crate) fn enter_to_end(&self) -> Option<Entered<'_>> {
        self.backend.enter().ok().map(|()| Entered(&*self.backend))
    }

    /// The result of a call, which names the call if it has failed. From then on everything fails with that.
    pub(crate) fn call<T>(&self, what: &'static str, result: Result<T, Failure>) -> Result<T, DeviceError> {
        result.map_err(|failure| self.fail(Operation::Call(what), &failure))
    }

    /// The result of a question about what is not ours, or of a call that may lack memory: it has no consequences.
    pub(crate) fn ask<T>(&self, what: &str, result: Result<T, Failure>) -> Result<T, DeviceError> {
        result.map_err(|failure| DeviceError(format!("{}: {what} failed: {}", self.name, failure.said)))
    }

    fn fail(&self, seen: Operation, failure: &Failure) -> DeviceError {
        if failure.is_memory {
            return DeviceError(format!("{} has no memory for {seen}: {}", self.name, failure.said));
        }
        let last = locked(&self.journal).last;
        let sentence = || {
            DeviceError(format!(
                "{} has failed: {}; seen at {seen}, after {last} was started. The environment variable CUDA_LAUNCH_BLOCKING=1 \
                 shows where an error begins. This process can use the device no more",
                self.name, failure.said
            ))
        };
        self.failed.get_or_init(sentence).clone()
    }

    /// Memory of the device, for what is said.
    pub(crate) fn allocate(&self, bytes: usize, what: &str) -> Result<u64, DeviceError> {
        match self.backend.allocate(bytes.max(1)) {
            Err(failure) if failure.is_memory => {
                let (free, all) = self.backend.available().unwrap_or_default();
                Err(DeviceError(format!(
                    "{} has not enough memory for {what}: expected {} free, found {} of {}",
                    self.name,
                    size(bytes),
                    size(free),
                    size(all)
                )))
            }
            result => self.call("an allocation", result),
        }
    }

    /// What is put into `after` from now on waits for what is in `before`.
    ///
    /// # Safety
    /// Both are streams of this device, not destroyed.
    pub(crate) unsafe fn order(&self, before: Stream, after: Stream) -> Result<(), DeviceError> {
        let event = locked(&self.order);
        // SAFETY: the caller says so of the streams, and the event is ours.
        let ordered = unsafe {
            self.backend.record(*event, before).and_then(|()| self.backend.await_in(after, *event))
        };
        self.call("ordering two streams", ordered)
    }

    /// What is copied from now on waits for the kernels so far, and the other way round.
    pub(crate) fn copies_after_kernels(&self) -> Result<(), DeviceError> {
        // SAFETY: they are ours.
        unsafe { self.order(self.kernels, self.copies) }
    }

    /// See above.
    pub(crate) fn kernels_after_copies(&self) -> Result<(), DeviceError> {
        // SAFETY: they are ours.
        unsafe { self.order(self.copies, self.kernels) }
    }

    /// Waits until nothing is under way, in all that ends memory; a device that has failed does nothing more.
    pub(crate) fn settle(&self) {
        let event = locked(&self.order);
        for stream in [self.kernels, self.copies] {
            // SAFETY: the event and the streams are ours.
            let _ = unsafe { self.backend.record(*event, stream).and_then(|()| self.backend.wait(*event)) };
        }
    }

    /// Blocks of threads for a kernel of which each takes a tile. All kernels go on where they have fewer, and have one at least.
    pub(crate) fn grid_of_tiles(&self, entries: usize) -> u32 {
        entries.div_ceil(TILE).max(1) as u32
    }

    /// The same for a histogram: each block has one of its own, which it adds to that of all.
    pub(crate) fn grid_of_histogram(&self, entries: usize) -> u32 {
        self.at_most(2, entries.div_ceil(TILE))
    }

    /// The same for a kernel of which each warp takes a record.
    pub(crate) fn grid_of_records(&self, records: u32) -> u32 {
        records.div_ceil(THREADS / WARP).max(1)
    }

    /// The same where each thread takes an entry.
    pub(crate) fn grid_of_entries(&self, entries: usize) -> u32 {
        self.at_most(16, entries.div_ceil(THREADS as usize))
    }

    /// The same where each thread takes four that are not far from each other.
    pub(crate) fn grid_of_values(&self, entries: usize) -> u32 {
        self.at_most(16, entries.div_ceil(4 * THREADS as usize))
    }

    fn at_most(&self, each: u32, blocks: usize) -> u32 {
        let most = self.backend.multiprocessors().saturating_mul(each);
        u32::try_from(blocks).unwrap_or(u32::MAX).min(most).max(1)
    }

    /// Starts a kernel, in the stream of kernels.
    ///
    /// # Safety
    /// The arguments are as many as the kernel has and of its types, and the addresses are of memory that stays until it is done.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &'static CStr,
        (grid, block): (u32, u32),
        arguments: &[Argument],
    ) -> Result<(), DeviceError> {
        let mut places = [std::ptr::null_mut::<c_void>(); 16];
        for (place, argument) in places.iter_mut().zip(arguments) {
            *place = (&raw const argument.0).cast_mut().cast();
        }
        let places = &mut places[..arguments.len()];
        self.put(Operation::Kernel(kernel), self.kernels, || {
            // SAFETY: the caller says so; the arguments are copied before this returns.
            unsafe { self.backend.launch(kernel, grid, block, places, self.kernels) }
        })
    }

    /// Puts something into a stream, and remembers it.
    pub(crate) fn put(
        &self,
        operation: Operation,
        stream: Stream,
        enqueue: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), DeviceError> {
        let start = self.mark(stream);
        enqueue().map_err(|failure| self.fail(operation, &failure))?;
        let end = self.mark(stream);
        let mut journal = locked(&self.journal);
        journal.last = operation;
        if let (Some(trace), Some(start), Some(end)) = (&mut journal.trace, start, end) {
            trace.push((operation, start, end));
        }
        Ok(())
    }

    /// An event with a time, if everything is traced.
    fn mark(&self, stream: Stream) -> Option<Event> {
        locked(&self.journal).trace.as_ref()?;
        let event = self.backend.create_event(true).ok()?;
        // SAFETY: the event was just made, and the stream is ours.
        unsafe { self.backend.record(event, stream) }.ok()?;
        Some(event)
    }

    /// From now on notes how long everything takes on the device.
    pub(crate) fn start_trace(&self) {
        locked(&self.journal).trace.get_or_insert_default();
    }

    /// Waits for what was noted, and notes no more.
    pub(crate) fn end_trace(&self) -> Result<Vec<(String, Duration)>, DeviceError> {
        let trace = locked(&self.journal).trace.take().unwrap_or_default();
        let took = |(operation, start, end): (Operation, Event, Event)| {
            // SAFETY: the events were made and recorded by `mark`, and are used no more.
            let elapsed = unsafe {
                let elapsed = self.backend.wait(end).and_then(|()| self.backend.elapsed(start, end));
                self.backend.destroy_event(start);
                self.backend.destroy_event(end);
                elapsed
            };
            let name = match operation {
                Operation::Kernel(name) => name.to_string_lossy().into_owned(),
                other => other.to_string(),
            };
            Ok((name, self.call("waiting for what is traced", elapsed)?))
        };
        trace.into_iter().map(took).collect()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let Some(entered) = self.enter_to_end() else { return };
        self.settle();
        let trace = locked(&self.journal).trace.take().unwrap_or_default();
        let idle = std::mem::take(&mut *locked(&self.idle));
        let order = *locked(&self.order);
        // SAFETY: all was made here, nothing is under way, and nothing uses it any more: all memory of the device holds this context.
        unsafe {
            for event in trace.iter().flat_map(|(_, start, end)| [*start, *end]).chain([order]) {
                self.backend.destroy_event(event);
            }
            let Idle { staging, pinned } = idle;
            for Staging { device, pinned, event, .. } in staging {
                self.backend.free(device);
                self.backend.free_pinned(pinned);
                self.backend.destroy_event(event);
            }
            pinned.iter().for_each(|(_, at)| self.backend.free_pinned(*at));
            self.backend.destroy_stream(self.kernels);
            self.backend.destroy_stream(self.copies);
        }
        drop(entered);
    }
}

/// Bytes for people.
fn size(bytes: usize) -> String {
    let megabytes = bytes as f64 / 1e6;
    match bytes {
        0..100_000 => format!("{bytes} bytes"),
        100_000..1_000_000_000 => format!("{megabytes:.1} MB"),
        _ => format!("{:.2} GB", megabytes / 1e3),
    }
}
