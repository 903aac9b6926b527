//! A device with its streams and what has failed on it.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use gleaner_algorithms::device::DeviceError;

use crate::backend::{Backend, Event, Failure, Kind, Mode, Stream};
use crate::journal::{Journal, Operation};
use crate::kernels::{Argument, THREADS, TILE, WARP};
use crate::offload::OffloadChoice;
use crate::staging::{Idle, Staging};
use crate::streams::{Readers, Streams};

/// Everything with events around it.
type Trace = Vec<(Operation, Event, Event)>;

/// A device that is in use: shared by all that lies in its memory.
pub(crate) struct Context {
    backend: Box<dyn Backend>,
    name: String,
    streams: Streams,
    /// Whether each operation is waited for, so that an error is of the last.
    waits: bool,
    /// Recorded in one stream and waited for in another, at once: the lock keeps the two together.
    order: Mutex<Event>,
    /// Recorded and waited for by the host, likewise.
    end: Mutex<Event>,
    journal: Mutex<Journal>,
    /// If times are measured.
    trace: Mutex<Option<Trace>>,
    failed: OnceLock<DeviceError>,
    idle: Mutex<Idle>,
    /// A buffer is idle again.
    returned: Condvar,
    /// Which side encodes, decodes and merges faster.
    pub(crate) offloads: OffloadChoice,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The device's context is current for this thread, until this is dropped.
pub(crate) struct Entered<'a>(&'a dyn Backend, Mode);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// A device with streams of its own. `waits` says whether to wait for each operation.
    pub(crate) fn new(backend: Box<dyn Backend>, waits: bool) -> Result<Self, DeviceError> {
        let name = format!("CUDA device {} ({})", backend.ordinal(), backend.name());
        let failed =
            |failure: Failure| DeviceError::Other(format!("{name} cannot be used: {}", failure.said));
        let entered = Entered(&*backend, backend.enter().map_err(failed)?);
        let stream = || backend.create_stream().map_err(failed);
        let readers = || Ok(Readers { selections: stream()?, downloads: stream()? });
        let streams = Streams { writes: stream()?, ahead: readers()?, asked: readers()?, uploads: stream()? };
        let order = backend.create_event(Kind::Order).map_err(failed)?;
        let end = backend.create_event(Kind::Wait).map_err(failed)?;
        drop(entered);
        Ok(Self {
            name,
            streams,
            waits,
            order: Mutex::new(order),
            end: Mutex::new(end),
            journal: Mutex::new(Journal::new(streams.all())),
            trace: Mutex::default(),
            failed: OnceLock::new(),
            idle: Mutex::default(),
            returned: Condvar::new(),
            offloads: OffloadChoice::default(),
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

    /// Its streams.
    pub(crate) fn streams(&self) -> Streams {
        self.streams
    }

    /// Buffers that nothing uses.
    pub(crate) fn idle(&self) -> MutexGuard<'_, Idle> {
        locked(&self.idle)
    }

    /// Says that a buffer is idle again.
    pub(crate) fn say_idle(&self) {
        self.returned.notify_one();
    }

    /// Waits until another thread says so.
    pub(crate) fn wait_for_idle<'a>(&self, idle: MutexGuard<'a, Idle>) -> MutexGuard<'a, Idle> {
        self.returned.wait(idle).unwrap_or_else(PoisonError::into_inner)
    }

    /// For everything that uses the device: makes its context current, unless it has failed.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        let before = self.call("entering its context", self.backend.enter())?;
        Ok(Entered(&*self.backend, before))
    }

    /// The same for what has to be ended, whether or not it has failed.
    pub(crate) fn enter_to_end(&self) -> Option<Entered<'_>> {
        self.backend.enter().ok().map(|before| Entered(&*self.backend, before))
    }

    /// The result of a call, which names the call if it has failed. From then on everything fails with that, unless memory was
    /// missing.
    pub(crate) fn call<T>(&self, what: &'static str, result: Result<T, Failure>) -> Result<T, DeviceError> {
        result.map_err(|failure| self.fail(Operation::Call(what), &failure))
    }

    /// What a question about what is not ours has failed with: of itself, as `sentence` says, or because the device has failed before, as the
    /// driver then reports at whatever is called next. The context is entered.
    pub(crate) fn refusal(&self, sentence: String) -> DeviceError {
        // No other thread may record it meanwhile, which the journal would take for done.
        let event = locked(&self.order);
        // SAFETY: the event is ours.
        match unsafe { self.is_done(*event) } {
            Ok(_) => DeviceError::Refused(sentence),
            Err(failed) => failed,
        }
    }

    fn fail(&self, seen: Operation, failure: &Failure) -> DeviceError {
        if failure.is_memory {
            // Not of an allocation: something may have been begun, so that the same cannot be done again.
            return DeviceError::Other(format!("{} has no memory for {seen}: {}", self.name, failure.said));
        }
        let sentence = || {
            let under_way = locked(&self.journal).under_way();
            let whose = match (self.waits, under_way) {
                (true, _) => {
                    "and each operation was waited for: it is of this one, or of the program's own before it"
                        .to_owned()
                }
                (false, Some(names)) => format!(
                    "and it is of one of these, which were started and are not known to be done: {names}. With the environment \
                     variable CUDA_LAUNCH_BLOCKING=1 each operation is waited for, and the one that fails is named"
                ),
                (false, None) => {
                    "and nothing was under way but what the program itself has started".to_owned()
                }
            };
            DeviceError::Other(format!(
                "{} has failed: {}. It was seen at {seen}, {whose}. This process can use the device no more",
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
                Err(DeviceError::Memory(format!(
                    "{} has not enough memory for {what}: expected {} free, found {} of {}, so that {} are missing or in pieces",
                    self.name,
                    size(bytes),
                    size(free),
                    size(all),
                    size(bytes.saturating_sub(free))
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
        unsafe {
            self.record(*event, before)?;
            self.put_behind(after, *event)
        }
    }

    /// The event is what was put into the stream so far.
    ///
    /// # Safety
    /// Both are of this device, and not destroyed.
    pub(crate) unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: the caller says so.
        self.call("recording an event", unsafe { self.backend.record(event, stream) })?;
        locked(&self.journal).recorded(event, stream);
        Ok(())
    }

    /// What is put into the stream from now on waits for what the event is.
    ///
    /// # Safety
    /// As for [`record`](Self::record).
    pub(crate) unsafe fn put_behind(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        // SAFETY: the caller says so.
        self.call("ordering two streams", unsafe { self.backend.await_in(stream, event) })?;
        locked(&self.journal).awaited(stream, event);
        Ok(())
    }

    /// Whether what the event is has been done.
    ///
    /// # Safety
    /// It is an event of ours, and not destroyed.
    pub(crate) unsafe fn is_done(&self, event: Event) -> Result<bool, DeviceError> {
        // SAFETY: the caller says so.
        let done = self.call("a query of an event", unsafe { self.backend.is_done(event) })?;
        if done {
            locked(&self.journal).is_done(event);
        }
        Ok(done)
    }

    /// Waits for what the event is, for what is said.
    ///
    /// # Safety
    /// As for [`is_done`](Self::is_done).
    pub(crate) unsafe fn wait(&self, event: Event, what: &'static str) -> Result<(), DeviceError> {
        // SAFETY: the caller says so.
        self.call(what, unsafe { self.backend.wait(event) })?;
        locked(&self.journal).is_done(event);
        Ok(())
    }

    /// An event. The context is entered.
    pub(crate) fn create_event(&self, kind: Kind) -> Result<Event, DeviceError> {
        self.call("making an event", self.backend.create_event(kind))
    }

    /// Ends it. The context is entered.
    ///
    /// # Safety
    /// As for [`is_done`](Self::is_done), and nothing uses it any more.
    pub(crate) unsafe fn destroy_event(&self, event: Event) {
        // SAFETY: the caller says so.
        unsafe { self.backend.destroy_event(event) };
        locked(&self.journal).forget(event);
    }

    /// Waits until all that was put into a stream of ours is done. The context is entered.
    pub(crate) fn finish(&self, stream: Stream) -> Result<(), DeviceError> {
        let event = locked(&self.end);
        // SAFETY: the event is ours, and so is the stream.
        unsafe {
            self.record(*event, stream)?;
            self.wait(*event, "waiting for the device")
        }
    }

    /// Waits until nothing is under way, in all that ends memory; a device that has failed does nothing more.
    pub(crate) fn wait_for_all(&self) {
        self.streams.all().into_iter().for_each(|stream| drop(self.finish(stream)));
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

    /// Starts a kernel in a stream of ours.
    ///
    /// # Safety
    /// The arguments are as many as the kernel has and of its types, and the addresses are of memory that stays until it is done.
    pub(crate) unsafe fn launch(
        &self,
        stream: Stream,
        kernel: &'static CStr,
        (grid, block): (u32, u32),
        arguments: &[Argument],
    ) -> Result<(), DeviceError> {
        let mut places = [std::ptr::null_mut::<c_void>(); 16];
        for (place, argument) in places.iter_mut().zip(arguments) {
            *place = (&raw const argument.0).cast_mut().cast();
        }
        let places = &mut places[..arguments.len()];
        self.put(Operation::Kernel(kernel), stream, || {
            // SAFETY: the caller says so; the arguments are copied before this returns.
            unsafe { self.backend.launch(kernel, grid, block, places, stream) }
        })
    }

    /// Puts something into a stream of ours, and remembers it.
    pub(crate) fn put(
        &self,
        operation: Operation,
        stream: Stream,
        enqueue: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), DeviceError> {
        let start = self.mark(stream);
        enqueue().map_err(|failure| self.fail(operation, &failure))?;
        let end = self.mark(stream);
        locked(&self.journal).put(operation, stream);
        if let (Some(trace), Some(start), Some(end)) = (&mut *locked(&self.trace), start, end) {
            trace.push((operation, start, end));
        }
        if !self.waits {
            return Ok(());
        }
        let event = locked(&self.end);
        // SAFETY: the event is ours, and so is the stream.
        let done = unsafe { self.backend.record(*event, stream).and_then(|()| self.backend.wait(*event)) };
        done.map_err(|failure| self.fail(operation, &failure))
    }

    /// An event with a time, if everything is traced.
    fn mark(&self, stream: Stream) -> Option<Event> {
        locked(&self.trace).as_ref()?;
        let event = self.backend.create_event(Kind::Time).ok()?;
        // SAFETY: the event was just made, and the stream is ours.
        unsafe { self.backend.record(event, stream) }.ok()?;
        Some(event)
    }

    /// From now on notes how long everything takes on the device.
    pub(crate) fn start_trace(&self) {
        locked(&self.trace).get_or_insert_default();
    }

    /// Waits for what was noted, and notes no more.
    pub(crate) fn end_trace(&self) -> Result<Vec<(String, Duration)>, DeviceError> {
        let trace = locked(&self.trace).take().unwrap_or_default();
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
        self.wait_for_all();
        let trace = locked(&self.trace).take().unwrap_or_default();
        let idle = std::mem::take(&mut *locked(&self.idle));
        let events = [*locked(&self.order), *locked(&self.end)];
        // SAFETY: all was made here, nothing is under way, and nothing uses it any more: all memory of the device holds this context.
        unsafe {
            for event in trace.iter().flat_map(|(_, start, end)| [*start, *end]).chain(events) {
                self.backend.destroy_event(event);
            }
            let Idle { staging, pinned, .. } = idle;
            for Staging { device, pinned, event, .. } in staging {
                self.backend.free(device);
                self.backend.free_pinned(pinned);
                self.backend.destroy_event(event);
            }
            pinned.iter().for_each(|(_, at)| self.backend.free_pinned(*at));
            self.streams.all().into_iter().for_each(|stream| self.backend.destroy_stream(stream));
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
