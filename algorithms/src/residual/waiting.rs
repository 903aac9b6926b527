//! What waits, parameter by parameter: how residuals are saved, and carried over to gradients that are put together
//! otherwise.

use std::ops::Range;

use super::Residual;
use crate::Element;
use crate::device::DeviceError;

/// What a worker has not delivered of some entries, wherever in a gradient they lie.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waiting<T: Element = f32> {
    /// The residual.
    pub residual: Vec<T>,
    /// Under momentum correction, the velocity.
    pub velocity: Option<Vec<T>>,
}

impl<T: Element> Waiting<T> {
    /// Adds what waits for the same entries on another worker, which hands it over. Both parts enter the sum over the workers,
    /// so no update is lost by it.
    ///
    /// # Panics
    /// If it is of another number of entries.
    pub fn add(&mut self, other: &Self) {
        let add = |into: &mut [T], other: &[T]| {
            assert_eq!(into.len(), other.len(), "the same entries");
            into.iter_mut().zip(other).for_each(|(into, &other)| *into += other);
        };
        add(&mut self.residual, &other.residual);
        if let (Some(velocity), Some(other)) = (&mut self.velocity, &other.velocity) {
            add(velocity, other);
        }
    }
}

impl<T: Element> Residual<T> {
    /// What waits at some positions, without what open steps hold.
    ///
    /// # Errors
    /// What has failed on a device.
    pub fn waiting(&self, range: Range<usize>) -> Result<Waiting<T>, DeviceError> {
        let velocity = self.velocity(range.clone()).map(<[T]>::to_vec);
        Ok(Waiting { residual: self.read(range)?, velocity })
    }

    /// Lets this wait in place of what is there, from position `offset` on. Without momentum correction there is no velocity.
    ///
    /// # Errors
    /// What has failed on a device.
    pub fn set_waiting(&mut self, offset: usize, waiting: &Waiting<T>) -> Result<(), DeviceError> {
        self.restore(offset, &waiting.residual)?;
        if let (Some(velocity), Some(values)) = (&mut self.velocity, &waiting.velocity) {
            velocity.values[offset..offset + values.len()].copy_from_slice(values);
        }
        Ok(())
    }
}
