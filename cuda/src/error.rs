//! Why there is no device.

use std::fmt;

use gleaner_algorithms::device::DeviceError;

/// A version of CUDA, a compute capability, or a version of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 12 of 12.8.
    pub major: u32,
    /// 8 of 12.8.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Why a device cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no library of the driver.
    #[error(
        "there is no CUDA device here: expected the library {library} of NVIDIA's driver, found none; install the driver, \
         or compute on the CPU"
    )]
    NoDriver {
        /// The library's name.
        library: &'static str,
    },
    /// There is a driver, which does not start.
    #[error("there is no CUDA device here: the driver's library is there, but it says {said}")]
    Driver {
        /// What the driver says.
        said: String,
    },
    /// There is a device, which cannot be used.
    #[error("CUDA device {ordinal} cannot be used: the driver says {said}")]
    Unusable {
        /// Its number.
        ordinal: u32,
        /// What the driver says.
        said: String,
    },
    /// The driver does not know the kernels' PTX.
    #[error(
        "the CUDA driver is too old: expected one for CUDA {needed} or later, found one for CUDA {found}; update NVIDIA's driver"
    )]
    OldDriver {
        /// The version of CUDA that the driver is for.
        found: Version,
        /// The version that knows the kernels' PTX.
        needed: Version,
    },
    /// The driver does not list the device.
    #[error("there is no CUDA device {ordinal}: {}", listed(*devices))]
    NoDevice {
        /// The number asked for.
        ordinal: u32,
        /// How many the driver lists, CUDA_VISIBLE_DEVICES considered.
        devices: u32,
    },
    /// The device is older than the kernels.
    #[error("expected a CUDA device of compute capability {needed} or later, found {name} of {found}")]
    OldDevice {
        /// Its name.
        name: String,
        /// Its compute capability.
        found: Version,
        /// What the kernels are compiled for.
        needed: Version,
    },
    /// The kernels were to be compiled, and were not.
    #[error("the kernels could not be compiled by NVRTC: {said}")]
    Nvrtc {
        /// What is missing, or what the compiler says.
        said: String,
    },
    /// The device is there and fails.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn listed(devices: u32) -> String {
    match devices {
        0 => "the driver lists none; see CUDA_VISIBLE_DEVICES".to_owned(),
        1 => "the driver lists one, with the number 0".to_owned(),
        _ => format!("the driver lists {devices}, with the numbers 0 to {}", devices - 1),
    }
}

/// What a main that returns it shows is the sentence.
impl fmt::Debug for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
