//! Where a worker computes.

use std::fmt;
use std::str::FromStr;

use candle_core::Device;

use crate::error::TrainerError;

/// The argument of `--device`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// The processor.
    #[default]
    Cpu,
    /// A CUDA device: the one of that number, or each worker of a host its own, as far as there are so many.
    Cuda(Option<usize>),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = match text.split_once(':') {
            None if text == "cpu" => Some(Place::Cpu),
            None if text == "cuda" => Some(Place::Cuda(None)),
            Some(("cuda", number)) => number.parse().ok().map(|number| Place::Cuda(Some(number))),
            _ => None,
        };
        place.ok_or_else(|| {
            format!("expected cpu, cuda, or cuda:N for the device of that number, found {text:?}")
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Cpu => formatter.write_str("cpu"),
            Place::Cuda(None) => formatter.write_str("cuda"),
            Place::Cuda(Some(number)) => write!(formatter, "cuda:{number}"),
        }
    }
}

impl Place {
    /// Refuses a device that this program is not built for.
    pub fn expect_built(self) -> Result<(), TrainerError> {
        match self {
            Place::Cuda(_) if !cfg!(feature = "cuda") => Err(TrainerError::NotBuilt { place: self }),
            _ => Ok(()),
        }
    }

    /// The device, for the worker with this number among those of its host.
    pub fn open(self, local_rank: usize) -> Result<Device, TrainerError> {
        self.expect_built()?;
        match self {
            Place::Cpu => Ok(Device::Cpu),
            Place::Cuda(number) => {
                let refuse = |source| TrainerError::NoDevice { place: self, source };
                cuda::open(number, local_rank).map_err(refuse)
            }
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use candle_core::cuda_backend::WrapErr;
    use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError, sys};
    use candle_core::{Device, Result};

    pub(super) fn open(number: Option<usize>, local_rank: usize) -> Result<Device> {
        let devices = CudaContext::device_count().w()?.max(1) as usize;
        // candle's usual stream is that of the thread which names it, and the threads that select from gradients are others.
        let device = Device::new_cuda_with_stream(number.unwrap_or(local_rank % devices))?;
        // SAFETY: all tensors of this device are used in the one stream that it has, in whose order they are also freed. What reads
        // them elsewhere orders itself by events of its own.
        unsafe { device.as_cuda_device()?.disable_event_tracking() };
        // A device without pools, which refuses this, has nothing that could be kept.
        let _ = keep_memory(device.as_cuda_device()?.cuda_stream().context());
        Ok(device)
    }

    /// Lets the pool that tensors are allocated from keep what is freed, which it otherwise gives back whenever the program waits.
    fn keep_memory(context: &CudaContext) -> std::result::Result<(), DriverError> {
        let (mut pool, mut most) = (std::ptr::null_mut(), u64::MAX);
        let threshold = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool is that of a device in use, and both are written to and read from variables of the types that the driver
        // expects for them, during the calls only.
        unsafe {
            sys::cuDeviceGetDefaultMemPool(&mut pool, context.cu_device()).result()?;
            sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut most).cast()).result()
        }
    }
}

#[cfg(not(feature = "cuda"))]
mod cuda {
    use candle_core::{Device, Result};

    pub(super) fn open(_number: Option<usize>, _local_rank: usize) -> Result<Device> {
        Err(candle_core::Error::NotCompiledWithCudaSupport)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_as_they_are_written() {
        for text in ["cpu", "cuda", "cuda:0", "cuda:3"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        for text in ["", "gpu", "cpu:0", "cuda:", "cuda:-1", "cuda:x"] {
            assert!(text.parse::<Place>().unwrap_err().contains("expected cpu, cuda, or cuda:N"), "{text}");
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn without_the_feature_a_sentence_says_which_build_has_it() {
        let refusal = "cuda:1".parse::<Place>().unwrap().open(0).unwrap_err().to_string();
        assert!(refusal.starts_with("--device cuda:1") && refusal.contains("--features cuda"), "{refusal}");
    }
}
