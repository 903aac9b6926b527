//! What the rest asks of a driver: memory, streams, events, copies and launches. The driver answers, or the emulation, where
//! the same kernels run on the CPU.
//!
//! Nothing here remembers what failed and nothing sets a context but [`enter`](Backend::enter): the
//! [`Context`](crate::context::Context) does that once for each call from outside.

mod driver;
#[cfg(feature = "emulation")]
mod emulation;

use std::ffi::{CStr, c_void};
use std::fmt::Debug;
use std::time::Duration;

pub(crate) use driver::Driver;
#[cfg(feature = "emulation")]
pub use emulation::{Emulation, Streams};

/// A stream, as the driver names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream(pub(crate) u64);

/// An event, as the driver names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Event(pub(crate) u64);

/// What an event is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To order streams.
    Order,
    /// To be waited for by a thread of the host, which sleeps meanwhile.
    Wait,
    /// As `Wait`, and it has a time.
    Time,
}

/// How a thread was before it [entered](Backend::enter), as the driver numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode(pub(crate) u32);

/// How a driver's call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Whether only memory was missing: then nothing was done, and the device goes on.
    pub(crate) is_memory: bool,
    /// The driver's name for it, and its words.
    pub(crate) said: String,
}

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory of this device, which its kernels can use in this context.
    Ours,
    /// Memory of another context on this device.
    OtherContext,
    /// Memory of another device, with its number.
    OtherDevice(u32),
    /// The host's, allocated by the driver.
    Host,
    /// Nothing: memory that the driver did not allocate, or that was freed.
    Unknown,
}

/// What the driver knows of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belongs {
    /// It is of this context, and executes what is given to it.
    Ours,
    /// It is of this context, and records a graph.
    Capturing,
    /// It is of another context on this device.
    OtherContext,
    /// It is of another device, with its number.
    OtherDevice(u32),
}

/// A device, as its driver presents it.
///
/// # Safety
/// Of all unsafe functions: addresses are of memory of this device that is as long as is said and not freed before what was
/// enqueued is done; host memory is pinned and untouched until then; streams and events were created here and not destroyed,
/// or are streams for which [`belongs`](Self::belongs) says `Ours`, or events that [`was_recorded`](Self::was_recorded) knows.
pub(crate) trait Backend: Debug + Send + Sync {
    /// The name that the driver gives, without a number.
    fn name(&self) -> String;

    /// Its number among those that the driver lists.
    fn ordinal(&self) -> u32;

    /// How many blocks of threads run at once, in units of multiprocessors.
    fn multiprocessors(&self) -> u32;

    /// Makes the device's context current for this thread, until [`leave`](Self::leave). Until then the thread may also allocate and
    /// wait while another one captures a graph: nothing here is part of that.
    fn enter(&self) -> Result<Mode, Failure>;

    /// Ends what `enter` began, which gave this.
    fn leave(&self, before: Mode);

    /// This many bytes of the device's memory, aligned to 256, with anything in them.
    fn allocate(&self, bytes: usize) -> Result<u64, Failure>;

    /// Ends it.
    unsafe fn free(&self, address: u64);

    /// Free bytes of the device's memory, and all.
    fn available(&self) -> Result<(usize, usize), Failure>;

    /// This many bytes of the host's memory that the device copies from and to by itself.
    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, Failure>;

    /// Ends it.
    unsafe fn free_pinned(&self, at: *mut u8);

    /// A stream that waits for no other.
    fn create_stream(&self) -> Result<Stream, Failure>;

    /// Ends it, once what is in it is done.
    unsafe fn destroy_stream(&self, stream: Stream);

    /// An event.
    fn create_event(&self, kind: Kind) -> Result<Event, Failure>;

    /// Ends it.
    unsafe fn destroy_event(&self, event: Event);

    /// The event is what has been enqueued so far.
    unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), Failure>;

    /// What is enqueued from now on waits for what the event is now.
    unsafe fn await_in(&self, stream: Stream, event: Event) -> Result<(), Failure>;

    /// Whether what the event is has been done.
    unsafe fn is_done(&self, event: Event) -> Result<bool, Failure>;

    /// Waits for it.
    unsafe fn wait(&self, event: Event) -> Result<(), Failure>;

    /// The time from one timed event to another, both done.
    unsafe fn elapsed(&self, from: Event, to: Event) -> Result<Duration, Failure>;

    /// Copies from pinned memory.
    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Stream) -> Result<(), Failure>;

    /// Copies to pinned memory.
    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Stream) -> Result<(), Failure>;

    /// Copies on the device.
    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Stream) -> Result<(), Failure>;

    /// Writes the same byte many times.
    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize, stream: Stream) -> Result<(), Failure>;

    /// Starts a kernel, which reads what it gets through `arguments`, one pointer to each, before this returns.
    unsafe fn launch(
        &self,
        kernel: &'static CStr,
        grid: u32,
        block: u32,
        arguments: &mut [*mut c_void],
        stream: Stream,
    ) -> Result<(), Failure>;

    /// What is known of an address of the program.
    fn place(&self, address: u64) -> Result<Place, Failure>;

    /// What is known of a stream of the program; 0 is the default stream of the context.
    fn belongs(&self, stream: Stream) -> Result<Belongs, Failure>;

    /// Whether an event of the program is of what executes: not of what a stream records for a graph. Fails for what is no event, as
    /// far as the driver sees that.
    fn was_recorded(&self, event: Event) -> Result<bool, Failure>;
}
