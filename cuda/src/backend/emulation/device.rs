//! The streams of an emulated device, and what is done in them.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use libloading::Library;

use super::queue::{Next, Queue, Task};
use super::{CAPTURING, Failure, Stream, allocated, failure};

/// The function of the library that starts a kernel.
pub(super) type Launch =
    unsafe extern "C" fn(*const c_char, c_uint, c_uint, c_uint, *mut *mut c_void) -> c_int;

/// The emulation of a thread's neighbours is one at a time, as it keeps the thread's number in a static.
static LAUNCHING: Mutex<()> = Mutex::new(());

/// The streams of an emulated device, for tests that put something into one of the program's, or look at what was done.
#[derive(Clone)]
pub struct Streams(pub(super) Arc<Emulated>);

/// What tests and the backend share.
pub(super) struct Emulated {
    pub(super) ordinal: u32,
    pub(super) fails_at: Option<String>,
    pub(super) is_late: bool,
    pub(super) failed: Mutex<Option<String>>,
    pub(super) made: AtomicU64,
    pub(super) queue: Mutex<Queue>,
    /// A gate was opened.
    pub(super) opened: Condvar,
    pub(super) launch: Launch,
    /// The function lies in it.
    pub(super) _library: Library,
}

impl Streams {
    /// A stream of the program on this device, which records a graph or executes.
    pub fn stream(&self, capturing: bool) -> u64 {
        self.0.handle() | if capturing { CAPTURING } else { 0 }
    }

    /// An event of the program, which a stream records or has recorded; of one that records a graph, too.
    pub fn event(&self, stream: u64) -> u64 {
        let event = self.0.handle() | stream & CAPTURING;
        self.0.queue().record(event, stream);
        event
    }

    /// The program makes memory of this device hold these bytes, in the order of a stream.
    pub fn fill(&self, stream: u64, at: u64, byte: u8, bytes: usize) {
        self.0.queue().put(stream, Task::Fill { at, byte, bytes });
    }

    /// What the program puts into a stream from now on waits until the gate that this gives is [opened](Self::open).
    pub fn gate(&self, stream: u64) -> u64 {
        let gate = self.0.handle();
        self.0.queue().gate(gate, stream);
        gate
    }

    /// See [`gate`](Self::gate).
    pub fn open(&self, gate: u64) {
        self.0.queue().open(gate);
        self.0.opened.notify_all();
    }

    /// Waits for all that was put into a stream and for what that waits for, and for nothing else.
    pub fn finish(&self, stream: u64) {
        self.0.run(stream, None);
    }

    /// What was done on the device so far: names of kernels, `copy` and `fill`.
    pub fn executed(&self) -> Vec<String> {
        self.0.queue().executed.clone()
    }
}

impl Emulated {
    pub(super) fn handle(&self) -> u64 {
        (u64::from(self.ordinal) + 1) << 32 | self.made.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail(&self, said: String) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(said);
    }

    pub(super) fn state(&self) -> Result<(), Failure> {
        match &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(said) => Err(failure(said)),
            None => Ok(()),
        }
    }

    /// Puts something into a stream.
    pub(super) fn put(&self, stream: Stream, task: Task) -> Result<(), Failure> {
        self.state()?;
        let mut queue = self.queue();
        queue.put(stream.0, task);
        while !self.is_late
            && let Some(task) = queue.early()
        {
            self.execute(&task);
        }
        Ok(())
    }

    /// Does what is in the way of an event, or all that was put into a stream; waits until gates are opened.
    pub(super) fn run(&self, stream: u64, event: Option<(u64, u64)>) {
        let mut queue = self.queue();
        loop {
            match queue.next_for(stream, event) {
                Next::Task(task) => self.execute(&task),
                Next::Gate => queue = self.opened.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Next::Nothing => return,
            }
        }
    }

    /// Does something, unless the device has failed.
    fn execute(&self, task: &Task) {
        let done = match task {
            _ if self.state().is_err() => return,
            Task::Copy { to, from, bytes } => {
                self.inside(*from, *bytes).and_then(|()| self.inside(*to, *bytes)).map(|()| {
                    // SAFETY: both are inside pieces of memory, whose owners do nothing with it meanwhile.
                    unsafe { ptr::copy(*from as *const u8, *to as *mut u8, *bytes) }
                })
            }
            Task::Fill { at, byte, bytes } => self.inside(*at, *bytes).map(|()| {
                // SAFETY: as above.
                unsafe { ptr::write_bytes(*at as *mut u8, *byte, *bytes) }
            }),
            Task::Launch { kernel, .. }
                if self.fails_at.as_ref().is_some_and(|name| name.as_bytes() == kernel.to_bytes()) =>
            {
                Err("EMULATED_FAILURE, a kernel was set to fail".to_owned())
            }
            Task::Launch { kernel, grid, block, arguments } => {
                let mut arguments = arguments.clone();
                let mut places: Vec<*mut c_void> =
                    arguments.iter_mut().map(|argument| ptr::from_mut(argument).cast()).collect();
                let _one_at_a_time = LAUNCHING.lock().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: the arguments are those of the kernel, as who launched it says, and memory is not freed before.
                match unsafe { (self.launch)(kernel.as_ptr(), *grid, *block, 0, places.as_mut_ptr()) } {
                    0 => Ok(()),
                    _ => Err(format!("EMULATED_NOT_FOUND, no kernel {kernel:?}")),
                }
            }
            Task::Record { .. } | Task::Await { .. } => Ok(()),
        };
        if let Err(said) = done {
            self.fail(said);
        }
    }

    /// That all bytes from an address on are in one piece of memory.
    fn inside(&self, address: u64, bytes: usize) -> Result<(), String> {
        let allocated = allocated();
        let piece = allocated.range(..=address).next_back();
        match piece {
            Some((start, (length, _))) if address + bytes as u64 <= start + *length as u64 => Ok(()),
            _ => Err(format!(
                "EMULATED_ILLEGAL_ADDRESS, {bytes} bytes at {address:#x} are not in one piece of memory"
            )),
        }
    }
}
