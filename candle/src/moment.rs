//! When a backward pass did what, where it ran.

use std::time::{Duration, Instant};

use candle_core::{Device, Result};

/// A point in the order of what a thread, or a device's stream, does.
pub(crate) enum Moment {
    Host(Instant),
    /// Behind what was enqueued: the program is ahead of the device, and its clock says little of what takes how long there.
    #[cfg(feature = "cuda")]
    Device(stream::Mark),
}

impl Moment {
    /// The present one. What was enqueued on a device before is over then.
    pub(crate) fn begin(device: &Device) -> Result<Self> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => Ok(Self::Device(stream::Mark::begin(device)?)),
            _ => Ok(Self::Host(Instant::now())),
        }
    }

    /// A later one at the same place.
    pub(crate) fn later(&self) -> Result<Self> {
        match self {
            Self::Host(_) => Ok(Self::Host(Instant::now())),
            #[cfg(feature = "cuda")]
            Self::Device(mark) => Ok(Self::Device(mark.later()?)),
        }
    }

    /// How long after one at the same place this one is. Waits for a device until it is there.
    pub(crate) fn since(&self, earlier: &Self) -> Result<Duration> {
        match (self, earlier) {
            (Self::Host(at), Self::Host(before)) => Ok(at.saturating_duration_since(*before)),
            #[cfg(feature = "cuda")]
            (Self::Device(at), Self::Device(before)) => at.since(before),
            #[cfg(feature = "cuda")]
            _ => candle_core::bail!("a pass began at another place than it went on"),
        }
    }
}

#[cfg(feature = "cuda")]
mod stream {
    use std::sync::Arc;
    use std::time::Duration;

    use candle_core::cuda_backend::WrapErr;
    use candle_core::cuda_backend::cudarc::driver::sys::CUevent_flags;
    use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream};
    use candle_core::{CudaDevice, Result};

    /// A place in the order of a stream.
    pub(crate) struct Mark(CudaEvent, Arc<CudaStream>);

    impl Mark {
        pub(super) fn begin(device: &CudaDevice) -> Result<Self> {
            let stream = device.cuda_stream();
            stream.synchronize().w()?;
            Self::new(stream)
        }

        pub(super) fn later(&self) -> Result<Self> {
            Self::new(self.1.clone())
        }

        /// An event that notes the time, which is not what cudarc makes by itself.
        fn new(stream: Arc<CudaStream>) -> Result<Self> {
            Ok(Self(stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).w()?, stream))
        }

        pub(super) fn since(&self, earlier: &Self) -> Result<Duration> {
            let milliseconds = earlier.0.elapsed_ms(&self.0).w()?;
            Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
        }
    }
}
