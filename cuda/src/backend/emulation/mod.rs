//! The kernels on the CPU, from the same source, so that what stands above them is tested where no device is. What is put into streams is
//! done as late as it may be or a little earlier, in any order that events allow; every address is checked, and fresh memory holds no
//! zeros.

mod device;
mod queue;

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libloading::Library;

use super::{Backend, Belongs, Event, Failure, Kind, Mode, Place, Stream};
use device::{Emulated, Launch};
use queue::{Queue, Task};

pub use device::Streams;

/// What fresh memory holds: neither zeros nor finite floats.
const FRESH: u8 = 0xff;

const ALIGNMENT: usize = 256;

/// A stream of this kind records a graph; the program's, in tests.
const CAPTURING: u64 = 1 << 63;

/// What was allocated by all emulated devices: bytes and the device's number by address.
static ALLOCATED: Mutex<BTreeMap<u64, (usize, u32)>> = Mutex::new(BTreeMap::new());

/// How many devices there were.
static LOADED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread may allocate and wait while another one captures a graph.
    static RELAXED: Cell<bool> = const { Cell::new(false) };
}

/// A device that the CPU emulates; a clone is the same device.
#[derive(Clone)]
pub struct Emulation {
    device: Arc<Emulated>,
    memory: usize,
    waits: bool,
    beside_capture: bool,
}

impl fmt::Debug for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "emulated CUDA device {}", self.device.ordinal)
    }
}

impl Emulation {
    /// The device 0, with a gigabyte of memory, whose kernels are in this library.
    ///
    /// # Safety
    /// The library is one that cuda/kernels/kernels.cu was compiled to, with cuda/kernels/host.hpp.
    ///
    /// # Errors
    /// What the linker says of the library.
    pub unsafe fn load(library: &Path) -> Result<Self, String> {
        // SAFETY: the caller says what it is; it has no initialisers.
        let library = unsafe { Library::new(library) }.map_err(|error| error.to_string())?;
        // SAFETY: the function has this type in host.hpp.
        let launch =
            *unsafe { library.get::<Launch>(b"gleaner_launch") }.map_err(|error| error.to_string())?;
        let device = Emulated {
            ordinal: 0,
            fails_at: None,
            is_late: false,
            failed: Mutex::default(),
            made: AtomicU64::new(0),
            queue: Mutex::new(Queue::new(LOADED.fetch_add(1, Ordering::Relaxed))),
            opened: Condvar::new(),
            launch,
            _library: library,
        };
        Ok(Self { device: Arc::new(device), memory: 1 << 30, waits: false, beside_capture: false })
    }

    /// The same, changed before anything has it.
    fn changed(mut self, change: impl FnOnce(&mut Emulated)) -> Self {
        match Arc::get_mut(&mut self.device) {
            Some(device) => change(device),
            None => panic!("an emulated device is changed before its streams are shared"),
        }
        self
    }

    /// The same with another number.
    #[must_use]
    pub fn ordinal(self, ordinal: u32) -> Self {
        self.changed(|device| device.ordinal = ordinal)
    }

    /// The same with this many bytes of memory.
    #[must_use]
    pub fn memory(self, bytes: usize) -> Self {
        Self { memory: bytes, ..self }
    }

    /// The same, but this kernel makes the device fail: as an asynchronous error does, at whatever comes next.
    #[must_use]
    pub fn failing_at(self, kernel: &str) -> Self {
        self.changed(|device| device.fails_at = Some(kernel.to_owned()))
    }

    /// The same, but nothing is done that is not waited for.
    #[must_use]
    pub fn late(self) -> Self {
        self.changed(|device| device.is_late = true)
    }

    /// The same as with CUDA_LAUNCH_BLOCKING=1: whatever is put into a stream is waited for.
    #[must_use]
    pub fn launch_blocking(self) -> Self {
        Self { waits: true, ..self }
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// The same while another thread captures a graph in the global mode: allocations and waits of threads that are not in the relaxed mode fail.
    #[must_use]
    pub fn beside_a_capture(self) -> Self {
        Self { beside_capture: true, ..self }
    }

    /// Its streams and events.
    pub fn streams(&self) -> Streams {
        Streams(Arc::clone(&self.device))
    }

    fn unsafe_in_captures(&self) -> Result<(), Failure> {
        match self.beside_capture && !RELAXED.get() {
            true => Err(failure("EMULATED_CAPTURE_UNSUPPORTED, another thread captures a graph")),
            false => self.device.state(),
        }
    }

    fn take(&self, bytes: usize, owner: u32) -> *mut u8 {
        let layout = layout(bytes);
        // SAFETY: the layout has at least one byte.
        let at = unsafe { alloc(layout) };
        if at.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: this many bytes were allocated.
        unsafe { ptr::write_bytes(at, FRESH, bytes) };
        allocated().insert(at as u64, (bytes, owner));
        at
    }

    fn release(&self, address: u64) {
        let piece = allocated().get(&address).copied();
        let Some((bytes, _)) = piece else { return };
        // Where the device has failed, nothing more is done.
        if let (Some(user), Ok(())) = (self.device.queue().user(address, bytes), self.device.state()) {
            self.device
                .fail(format!("EMULATED_USE_AFTER_FREE, {bytes} bytes are freed that {user} still uses"));
        }
        if allocated().remove(&address).is_some() {
            // SAFETY: it was allocated with this layout and is freed once, as it was in the map.
            unsafe { dealloc(address as *mut u8, layout(bytes)) };
        }
    }
}

fn failure(said: impl Into<String>) -> Failure {
    Failure { is_memory: false, said: said.into() }
}

/// The number of the device that host memory is of.
const HOST: u32 = u32::MAX;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), ALIGNMENT)
        .unwrap_or_else(|_| handle_alloc_error(Layout::new::<u8>()))
}

fn allocated() -> MutexGuard<'static, BTreeMap<u64, (usize, u32)>> {
    ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backend for Emulation {
    fn name(&self) -> String {
        "emulated".into()
    }

    fn ordinal(&self) -> u32 {
        self.device.ordinal
    }

    fn multiprocessors(&self) -> u32 {
        1
    }

    fn enter(&self) -> Result<Mode, Failure> {
        Ok(Mode(RELAXED.replace(true).into()))
    }

    fn leave(&self, before: Mode) {
        RELAXED.set(before.0 != 0);
    }

    fn allocate(&self, bytes: usize) -> Result<u64, Failure> {
        self.unsafe_in_captures()?;
        if bytes > self.available()?.0 {
            return Err(Failure { is_memory: true, said: "EMULATED_OUT_OF_MEMORY, out of memory".into() });
        }
        Ok(self.take(bytes, self.device.ordinal) as u64)
    }

    unsafe fn free(&self, address: u64) {
        self.release(address);
    }

    fn available(&self) -> Result<(usize, usize), Failure> {
        let used: usize = allocated()
            .values()
            .filter(|(_, owner)| *owner == self.device.ordinal)
            .map(|(bytes, _)| bytes)
            .sum();
        Ok((self.memory.saturating_sub(used), self.memory))
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, Failure> {
        self.unsafe_in_captures()?;
        Ok(self.take(bytes, HOST))
    }

    unsafe fn free_pinned(&self, at: *mut u8) {
        self.release(at as u64);
    }

    fn create_stream(&self) -> Result<Stream, Failure> {
        Ok(Stream(self.device.handle()))
    }

    unsafe fn destroy_stream(&self, stream: Stream) {
        let is_done = self.device.queue().end(stream.0);
        assert!(is_done || self.device.state().is_err(), "a stream is destroyed with work in it");
    }

    fn create_event(&self, _: Kind) -> Result<Event, Failure> {
        let event = self.device.handle();
        self.device.queue().make(event);
        Ok(Event(event))
    }

    unsafe fn destroy_event(&self, event: Event) {
        self.device.queue().destroy(event.0);
    }

    unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), Failure> {
        self.device.state()?;
        self.device.queue().record(event.0, stream.0);
        Ok(())
    }

    unsafe fn await_in(&self, stream: Stream, event: Event) -> Result<(), Failure> {
        self.device.state()?;
        self.device.queue().order(stream.0, event.0);
        Ok(())
    }

    unsafe fn is_done(&self, event: Event) -> Result<bool, Failure> {
        self.unsafe_in_captures()?;
        self.device.state()?;
        Ok(self.device.queue().is_done(event.0))
    }

    unsafe fn wait(&self, event: Event) -> Result<(), Failure> {
        self.unsafe_in_captures()?;
        let latest = self.device.queue().latest(event.0);
        if let Some((stream, version)) = latest {
            self.device.run(stream, Some((event.0, version)));
        }
        self.device.state()
    }

    unsafe fn elapsed(&self, from: Event, to: Event) -> Result<Duration, Failure> {
        let queue = self.device.queue();
        let times = queue.at(to.0).zip(queue.at(from.0));
        Ok(times.map_or(Duration::ZERO, |(to, from)| to.saturating_duration_since(from)))
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Stream) -> Result<(), Failure> {
        self.device.put(stream, Task::Copy { to, from: from as u64, bytes })
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Stream) -> Result<(), Failure> {
        self.device.put(stream, Task::Copy { to: to as u64, from, bytes })
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Stream) -> Result<(), Failure> {
        self.device.put(stream, Task::Copy { to, from, bytes })
    }

    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize, stream: Stream) -> Result<(), Failure> {
        self.device.put(stream, Task::Fill { at, byte, bytes })
    }

    unsafe fn launch(
        &self,
        kernel: &'static CStr,
        grid: u32,
        block: u32,
        arguments: &mut [*mut c_void],
        stream: Stream,
    ) -> Result<(), Failure> {
        // SAFETY: each is the address of a number of 64 bits, see `Argument`.
        let arguments = arguments.iter().map(|&at| unsafe { at.cast::<u64>().read() }).collect();
        self.device.put(stream, Task::Launch { kernel, grid, block, arguments })
    }

    fn place(&self, address: u64) -> Result<Place, Failure> {
        self.device.state()?;
        let allocated = allocated();
        let piece = allocated.range(..=address).next_back();
        Ok(match piece {
            Some((start, (bytes, owner))) if address < start + *bytes as u64 => match *owner {
                HOST => Place::Host,
                owner if owner == self.device.ordinal => Place::Ours,
                owner => Place::OtherDevice(owner),
            },
            _ => Place::Unknown,
        })
    }

    fn belongs(&self, stream: Stream) -> Result<Belongs, Failure> {
        self.device.state()?;
        let owner = (stream.0 & !CAPTURING) >> 32;
        Ok(match owner {
            owner if owner != 0 && owner != u64::from(self.device.ordinal) + 1 => {
                Belongs::OtherDevice(owner as u32 - 1)
            }
            _ if stream.0 & CAPTURING != 0 => Belongs::Capturing,
            _ => Belongs::Ours,
        })
    }

    fn was_recorded(&self, event: Event) -> Result<bool, Failure> {
        self.device.state()?;
        match self.device.queue().knows(event.0) {
            true => Ok(event.0 & CAPTURING == 0),
            false => Err(failure("EMULATED_INVALID_HANDLE, there is no such event")),
        }
    }
}
