//! What a residual was before a step, for steps that may have to leave no trace.

use std::ops::Range;
use std::sync::Arc;

use super::correction::Velocity;
use crate::device::DeviceValues;
use crate::{Accumulator, Element, SparseValues};

/// A residual before a step, as far as the step's gradient has come.
#[derive(Debug, Default)]
pub(super) struct Before<T: Element> {
    pub(super) values: Vec<T>,
    /// What stands in place of `values` on a device.
    pub(super) there: Option<Box<dyn DeviceValues<T>>>,
    /// What stands in place of `values` where only entries are held.
    pub(super) entries: Option<SparseValues<T>>,
    pub(super) velocity: Vec<T>,
    pub(super) zero: bool,
    /// Whether the step's gradient has begun to come to a device, or to entries.
    pub(super) given: bool,
}

impl<T: Element> Before<T> {
    /// How many entries it remembers.
    pub(super) fn len(&self) -> usize {
        match (&self.there, &self.entries) {
            (Some(there), _) => there.len(),
            (None, Some(entries)) => entries.len(),
            (None, None) => self.values.len(),
        }
    }

    /// Gives what the residual was.
    pub(super) fn take(&mut self) -> Accumulator<T> {
        self.given = false;
        match (self.there.take(), self.entries.take()) {
            (Some(there), _) => there.into(),
            (None, Some(entries)) => entries.into(),
            (None, None) => Arc::new(std::mem::take(&mut self.values)).into(),
        }
    }

    /// Remembers what is at some positions. A residual that is zero is known.
    pub(super) fn remember(&mut self, here: Range<usize>, values: &[T], velocity: Option<&Velocity<T>>) {
        if !self.zero {
            self.values[here.clone()].copy_from_slice(&values[here.clone()]);
        }
        if let Some(velocity) = velocity {
            self.velocity[here.clone()].copy_from_slice(&velocity.values[here]);
        }
    }
}
