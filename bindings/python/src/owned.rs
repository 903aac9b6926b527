//! What belongs to the process that made it.
//!
//! A process that is forked, such as one that loads data, has a copy of the parent's objects, but none of the threads that
//! answer them: a call there would wait for ever, and so would dropping a session.

use std::mem::ManuallyDrop;
use std::process;

use pyo3::prelude::*;

use crate::errors::exception;

/// A value that is used and dropped only in the process that made it.
pub struct Owned<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> Owned<T> {
    /// Belongs to this process.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: process::id() }
    }

    /// The value.
    ///
    /// # Errors
    /// Another process.
    pub fn get(&self, py: Python<'_>) -> PyResult<&T> {
        match process::id() {
            this if this == self.process => Ok(&self.value),
            this => Err(exception(py, "ForkedError", (self.process, this))),
        }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if process::id() == self.process {
            // SAFETY: it is dropped here only, and never used after that.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
