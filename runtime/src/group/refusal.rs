//! Why a gradient is not added, or a rank takes no part in a step, in words.

use gleaner_algorithms::Element;
use gleaner_algorithms::device::DeviceError;
use gleaner_algorithms::residual::{AccumulateError, NonFinite, OnNonFinite};

/// Why a gradient was not added.
pub(crate) enum Refused {
    /// Sums that are not finite, in words: a step of such can be left out.
    NonFinite(String),
    /// What cannot be done on a device.
    Device(DeviceError),
}

/// Why a rank takes no part in a step that has begun, so that all leave it out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    /// Sums that are not finite, which a device reports only then.
    #[error(transparent)]
    NonFinite(NonFinite),
    /// A device has not enough memory to select, in words.
    #[error("{0}")]
    Memory(String),
}

impl Refused {
    /// Why the step is to be left out, or else why the job fails.
    pub(crate) fn skipped(self, policy: OnNonFinite) -> Result<String, String> {
        match self {
            Refused::NonFinite(reason) if policy == OnNonFinite::Skip => Ok(reason),
            Refused::NonFinite(reason) => Err(reason),
            Refused::Device(error) => Err(error.to_string()),
        }
    }

    /// What was wrong, if nothing was added and the gradient may be given again: memory was missing, or what was given is not the device's.
    pub(crate) fn added_nothing(&self) -> Option<&DeviceError> {
        match self {
            Refused::Device(error @ (DeviceError::Memory(_) | DeviceError::Refused(_))) => Some(error),
            Refused::Device(DeviceError::Other(_)) | Refused::NonFinite(_) => None,
        }
    }
}

/// Why a part of a gradient, from position `offset` on, was not added.
pub(super) fn refused<T: Element>(
    name: &str,
    offset: usize,
    gradient: &[T],
    error: AccumulateError,
) -> Refused {
    match error {
        AccumulateError::NonFinite(found) => Refused::NonFinite(refusal(name, offset, gradient, found)),
        AccumulateError::Device(error) => Refused::Device(error),
    }
}

/// Sums that are not finite on a device, in words that name the parameter.
pub(crate) fn refusal_there(name: &str, offset: usize, NonFinite { entry, count }: NonFinite) -> String {
    let others = match count {
        1 => "the only one of its group".to_owned(),
        _ => format!("the first of {count} of its group"),
    };
    format!(
        "the gradient of '{name}' has a sum with its residual that is not finite at entry {}, {others}: lower the learning rate, \
         clip the gradients, or look for what makes them so",
        entry - offset
    )
}

/// Sums that are not finite, in words.
fn refusal<T: Element>(name: &str, offset: usize, gradient: &[T], found: NonFinite) -> String {
    let index = found.entry - offset;
    sentence(name, found, index, gradient[index])
}

/// The same, of a gradient that has this value at the first of them.
pub(super) fn sentence<T: Element>(name: &str, found: NonFinite, index: usize, value: T) -> String {
    let count = found.count;
    let found =
        if value.is_finite() { "an infinite sum with its residual".into() } else { value.to_string() };
    let others = match count {
        1 => "the only entry that is not finite".to_owned(),
        _ => format!("the first of {count} entries that are not finite"),
    };
    format!(
        "the gradient of '{name}' has {found} at entry {index}, {others}: lower the learning rate, clip the gradients, \
         or look for what makes them so"
    )
}
