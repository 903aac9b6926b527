//! The kernels on the CPU, from the same source, so that what stands above them is tested where no device is. What is enqueued is
//! done at once, every address is checked, and fresh memory holds no zeros.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libloading::Library;

use super::{Backend, Belongs, Event, Failure, Place, Stream};

/// What fresh memory holds: neither zeros nor finite floats.
const FRESH: u8 = 0xff;

const ALIGNMENT: usize = 256;

/// A stream of this kind records a graph; the program's, in tests.
const CAPTURING: u64 = 1 << 63;

type Launch = unsafe extern "C" fn(*const c_char, c_uint, c_uint, c_uint, *mut *mut c_void) -> c_int;

/// What was allocated by all emulated devices: bytes and the device's number by address. The emulation of a thread's
/// neighbours is one at a time, as it keeps the thread's number in a static.
static ALLOCATED: Mutex<BTreeMap<u64, (usize, u32)>> = Mutex::new(BTreeMap::new());
static LAUNCHING: Mutex<()> = Mutex::new(());

/// A device that the CPU emulates.
pub struct Emulation {
    ordinal: u32,
    memory: usize,
    fails_at: Option<String>,
    failed: AtomicBool,
    made: AtomicU64,
    events: Mutex<BTreeMap<u64, Instant>>,
    launch: Launch,
    /// The function lies in it.
    _library: Library,
}

impl fmt::Debug for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "emulated CUDA device {}", self.ordinal)
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
        Ok(Self {
            ordinal: 0,
            memory: 1 << 30,
            fails_at: None,
            failed: AtomicBool::new(false),
            made: AtomicU64::new(0),
            events: Mutex::default(),
            launch,
            _library: library,
        })
    }

    /// The same with another number.
    #[must_use]
    pub fn ordinal(self, ordinal: u32) -> Self {
        Self { ordinal, ..self }
    }

    /// The same with so many bytes of memory.
    #[must_use]
    pub fn memory(self, bytes: usize) -> Self {
        Self { memory: bytes, ..self }
    }

    /// The same, but this kernel makes the device fail: as an asynchronous error does, at whatever comes next.
    #[must_use]
    pub fn failing_at(self, kernel: &str) -> Self {
        Self { fails_at: Some(kernel.to_owned()), ..self }
    }

    /// A stream of the program on this device, which records a graph or executes.
    pub fn program_stream(&self, capturing: bool) -> u64 {
        self.handle() | if capturing { CAPTURING } else { 0 }
    }

    fn handle(&self) -> u64 {
        (u64::from(self.ordinal) + 1) << 32 | self.made.fetch_add(1, Ordering::Relaxed)
    }

    fn state(&self) -> Result<(), Failure> {
        match self.failed.load(Ordering::Relaxed) {
            true => {
                Err(Failure { is_memory: false, said: "EMULATED_FAILURE, a kernel was told to fail".into() })
            }
            false => Ok(()),
        }
    }

    /// That all bytes from an address on are in one piece of memory.
    fn inside(&self, address: u64, bytes: usize) -> Result<(), Failure> {
        let allocated = allocated();
        let piece = allocated.range(..=address).next_back();
        match piece {
            Some((start, (length, _))) if address + bytes as u64 <= start + *length as u64 => Ok(()),
            _ => Err(Failure {
                is_memory: false,
                said: format!(
                    "EMULATED_ILLEGAL_ADDRESS, {bytes} bytes at {address:#x} are not in one piece of memory"
                ),
            }),
        }
    }

    fn take(&self, bytes: usize, owner: u32) -> *mut u8 {
        let layout = layout(bytes);
        // SAFETY: the layout has at least one byte.
        let at = unsafe { alloc(layout) };
        if at.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: so many bytes were allocated.
        unsafe { ptr::write_bytes(at, FRESH, bytes) };
        allocated().insert(at as u64, (bytes, owner));
        at
    }
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

fn release(address: u64) {
    if let Some((bytes, _)) = allocated().remove(&address) {
        // SAFETY: it was allocated with this layout and is freed once, as it was in the map.
        unsafe { dealloc(address as *mut u8, layout(bytes)) };
    }
}

impl Backend for Emulation {
    fn name(&self) -> String {
        "emulated".into()
    }

    fn ordinal(&self) -> u32 {
        self.ordinal
    }

    fn multiprocessors(&self) -> u32 {
        1
    }

    fn enter(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn leave(&self) {}

    fn allocate(&self, bytes: usize) -> Result<u64, Failure> {
        self.state()?;
        if bytes > self.available()?.0 {
            return Err(Failure { is_memory: true, said: "EMULATED_OUT_OF_MEMORY, out of memory".into() });
        }
        Ok(self.take(bytes, self.ordinal) as u64)
    }

    unsafe fn free(&self, address: u64) {
        release(address);
    }

    fn available(&self) -> Result<(usize, usize), Failure> {
        let used: usize =
            allocated().values().filter(|(_, owner)| *owner == self.ordinal).map(|(bytes, _)| bytes).sum();
        Ok((self.memory.saturating_sub(used), self.memory))
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, Failure> {
        Ok(self.take(bytes, HOST))
    }

    unsafe fn free_pinned(&self, at: *mut u8) {
        release(at as u64);
    }

    fn create_stream(&self) -> Result<Stream, Failure> {
        Ok(Stream(self.handle()))
    }

    unsafe fn destroy_stream(&self, _: Stream) {}

    fn create_event(&self, _: bool) -> Result<Event, Failure> {
        Ok(Event(self.handle()))
    }

    unsafe fn destroy_event(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).remove(&event.0);
    }

    unsafe fn record(&self, event: Event, _: Stream) -> Result<(), Failure> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).insert(event.0, Instant::now());
        self.state()
    }

    unsafe fn await_in(&self, _: Stream, _: Event) -> Result<(), Failure> {
        self.state()
    }

    unsafe fn is_done(&self, _: Event) -> Result<bool, Failure> {
        self.state().map(|()| true)
    }

    unsafe fn wait(&self, _: Event) -> Result<(), Failure> {
        self.state()
    }

    unsafe fn elapsed(&self, from: Event, to: Event) -> Result<Duration, Failure> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |event: Event| events.get(&event.0).copied();
        Ok(at(to).zip(at(from)).map_or(Duration::ZERO, |(to, from)| to.duration_since(from)))
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, _: Stream) -> Result<(), Failure> {
        self.inside(from as u64, bytes)?;
        // SAFETY: both are pieces of memory, of different kinds, so that they do not overlap.
        unsafe { self.copy_within(to, from as u64, bytes, Stream(0)) }
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, _: Stream) -> Result<(), Failure> {
        // SAFETY: as above.
        unsafe { self.copy_within(to as u64, from, bytes, Stream(0)) }
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, _: Stream) -> Result<(), Failure> {
        self.state()?;
        self.inside(from, bytes)?;
        self.inside(to, bytes)?;
        // SAFETY: both are inside pieces of memory, whose owners do nothing with it meanwhile.
        unsafe { ptr::copy(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize, _: Stream) -> Result<(), Failure> {
        self.state()?;
        self.inside(at, bytes)?;
        // SAFETY: as above.
        unsafe { ptr::write_bytes(at as *mut u8, byte, bytes) };
        Ok(())
    }

    unsafe fn launch(
        &self,
        kernel: &'static CStr,
        grid: u32,
        block: u32,
        arguments: &mut [*mut c_void],
        _: Stream,
    ) -> Result<(), Failure> {
        self.state()?;
        if self.fails_at.as_deref().is_some_and(|name| name.as_bytes() == kernel.to_bytes()) {
            self.failed.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let one_at_a_time = LAUNCHING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the arguments are those of the kernel, as the caller says.
        let result = unsafe { (self.launch)(kernel.as_ptr(), grid, block, 0, arguments.as_mut_ptr()) };
        drop(one_at_a_time);
        match result {
            0 => Ok(()),
            _ => Err(Failure { is_memory: false, said: format!("EMULATED_NOT_FOUND, no kernel {kernel:?}") }),
        }
    }

    fn place(&self, address: u64) -> Result<Place, Failure> {
        let allocated = allocated();
        let piece = allocated.range(..=address).next_back();
        Ok(match piece {
            Some((start, (bytes, owner))) if address < start + *bytes as u64 => match *owner {
                HOST => Place::Host,
                owner if owner == self.ordinal => Place::Ours,
                owner => Place::OtherDevice(owner),
            },
            _ => Place::Unknown,
        })
    }

    fn belongs(&self, stream: Stream) -> Result<Belongs, Failure> {
        let owner = (stream.0 & !CAPTURING) >> 32;
        Ok(match owner {
            owner if owner != 0 && owner != u64::from(self.ordinal) + 1 => {
                Belongs::OtherDevice(owner as u32 - 1)
            }
            _ if stream.0 & CAPTURING != 0 => Belongs::Capturing,
            _ => Belongs::Ours,
        })
    }
}
