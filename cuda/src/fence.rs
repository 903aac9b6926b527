//! A point in a stream that can be waited for.

use std::sync::Arc;
use std::time::Duration;

use gleaner_algorithms::device::DeviceError;

use crate::backend::{Event, Kind, Stream};
use crate::context::Context;

/// An event of ours.
#[derive(Debug)]
pub(crate) struct Fence {
    context: Arc<Context>,
    event: Event,
}

impl Fence {
    /// One that is nothing yet, and so is done. The context is entered.
    pub(crate) fn new(context: &Arc<Context>, kind: Kind) -> Result<Self, DeviceError> {
        Ok(Self { event: context.create_event(kind)?, context: Arc::clone(context) })
    }

    /// From now on it is what has been put into a stream of ours so far.
    pub(crate) fn record(&self, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: the event is ours, and so is the stream.
        unsafe { self.context.record(self.event, stream) }
    }

    /// What is put into a stream of ours from now on waits for it.
    pub(crate) fn before(&self, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.context.put_behind(stream, self.event) }
    }

    /// Waits for it.
    pub(crate) fn wait(&self, what: &'static str) -> Result<(), DeviceError> {
        // SAFETY: the event is ours.
        unsafe { self.context.wait(self.event, what) }
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_end() else { return };
        // SAFETY: it was made here, and is used no more; the driver keeps what waits for it.
        unsafe { self.context.destroy_event(self.event) };
    }
}

/// A moment in the order in which a device adds gradients and applies updates.
#[derive(Debug)]
pub struct Moment(Fence);

impl Moment {
    /// After all writes so far. The context is entered.
    pub(crate) fn now(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let fence = Fence::new(context, Kind::Time)?;
        fence.record(context.streams().writes)?;
        Ok(Self(fence))
    }

    /// Waits for it, and says how long the device has taken since an earlier one of the same device.
    ///
    /// # Errors
    /// What has failed on the device.
    pub fn since(&self, earlier: &Moment) -> Result<Duration, DeviceError> {
        let context = &self.0.context;
        let _entered = context.enter()?;
        self.0.wait("waiting for a moment")?;
        // SAFETY: both are recorded events with times, and the earlier is done where the later is.
        let elapsed = unsafe { context.backend().elapsed(earlier.0.event, self.0.event) };
        context.call("reading a time", elapsed)
    }
}
