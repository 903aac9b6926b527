//! A point in a stream that can be waited for.

use std::sync::Arc;
use std::time::Duration;

use gleaner_algorithms::device::DeviceError;

use crate::backend::{Event, Stream};
use crate::context::Context;

/// An event of ours.
#[derive(Debug)]
pub(crate) struct Fence {
    context: Arc<Context>,
    event: Event,
}

impl Fence {
    /// One that is nothing yet, and so is done. The context is entered.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Self::of_kind(context, false)
    }

    fn of_kind(context: &Arc<Context>, timed: bool) -> Result<Self, DeviceError> {
        let event = context.call("making an event", context.backend().create_event(timed))?;
        Ok(Self { context: Arc::clone(context), event })
    }

    /// From now on it is what has been put into the stream so far.
    ///
    /// # Safety
    /// The stream is this device's, and not destroyed.
    pub(crate) unsafe fn record(&self, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: the event is ours, and the caller says so of the stream.
        let recorded = unsafe { self.context.backend().record(self.event, stream) };
        self.context.call("recording an event", recorded)
    }

    /// What is put into the stream of kernels from now on waits for it.
    pub(crate) fn before_kernels(&self) -> Result<(), DeviceError> {
        // SAFETY: the event and the stream are ours.
        let ordered = unsafe { self.context.backend().await_in(self.context.kernels(), self.event) };
        self.context.call("ordering two streams", ordered)
    }

    /// Waits for it.
    pub(crate) fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the event is ours.
        let done = unsafe { self.context.backend().wait(self.event) };
        self.context.call("waiting for the device", done)
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_end() else { return };
        // SAFETY: it was made here, and is used no more; the driver keeps what waits for it.
        unsafe { self.context.backend().destroy_event(self.event) };
    }
}

/// A moment in the order of a device's kernels.
#[derive(Debug)]
pub struct Moment(Fence);

impl Moment {
    /// After all kernels so far. The context is entered.
    pub(crate) fn now(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let fence = Fence::of_kind(context, true)?;
        // SAFETY: the stream is ours.
        unsafe { fence.record(context.kernels()) }?;
        Ok(Self(fence))
    }

    /// Waits for it, and says how long the device has taken since an earlier one of the same device.
    ///
    /// # Errors
    /// What has failed on the device.
    pub fn since(&self, earlier: &Moment) -> Result<Duration, DeviceError> {
        let context = &self.0.context;
        let _entered = context.enter()?;
        self.0.wait()?;
        // SAFETY: both are recorded events with times, and the earlier is done where the later is.
        let elapsed = unsafe { context.backend().elapsed(earlier.0.event, self.0.event) };
        context.call("reading a time", elapsed)
    }
}
