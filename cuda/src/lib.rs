//! Residuals in the memory of NVIDIA devices.
//!
//! The kernels are CUDA C in `cuda/kernels`, and lie here as PTX for compute capability 7.0. NVIDIA's driver is loaded when a device
//! is opened: this builds and starts where there is none, and says so.
//!
//! What a device chooses, it chooses as the host would, bit by bit: see [`gleaner_algorithms::device`].
//!
//! ```
//! match gleaner_cuda::Cuda::open(0) {
//!     Ok(device) => println!("{device:?}"),
//!     Err(error) => println!("{error}"),
//! }
//! ```

mod backend;
mod context;
mod device;
mod error;
mod fence;
mod journal;
mod kernels;
mod memory;
pub mod nvrtc;
mod offload;
mod program;
mod staging;
mod streams;
mod values;

#[cfg(feature = "emulation")]
pub use backend::{Emulation, Streams};
pub use device::Cuda;
pub use error::{CudaError, Version};
pub use fence::Moment;
pub use memory::Memory;
pub use offload::{Offload, OffloadTimes};
