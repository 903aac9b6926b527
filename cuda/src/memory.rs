//! Memory of a device, and memory of the host that a device copies from and to by itself.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use gleaner_algorithms::device::DeviceError;

use crate::backend::Stream;
use crate::context::Context;
use crate::journal::Operation;
use crate::staging::{PIECE_BYTES, Staged};

/// Where each part of a piece of memory begins is a multiple of this, as it is of the piece.
const ALIGNMENT: usize = 256;

/// Memory of a device, of the program's own: for gradients and parameters where no framework has them.
pub struct Memory {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.bytes, self.context.name())
    }
}

impl Memory {
    /// This many bytes, with anything in them, for what a sentence says if there are not so many.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize, what: &str) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let address = context.allocate(bytes, what)?;
        Ok(Self { context: Arc::clone(context), address, bytes })
    }

    /// The address of the first byte, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies bytes to the device, from byte `offset` on. What is asked of the device afterwards finds them there.
    ///
    /// # Errors
    /// What has failed on the device.
    ///
    /// # Panics
    /// If they are beyond the end.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        assert!(offset + bytes.len() <= self.bytes, "within the memory");
        let _entered = self.context.enter()?;
        // SAFETY: it is within this memory, which is freed only when nothing is under way.
        unsafe { self.context.write(self.address + offset as u64, bytes, self.context.streams().writes) }
    }

    /// Copies bytes to the host, after all that was asked of the device to write there.
    ///
    /// # Errors
    /// What has failed on the device.
    ///
    /// # Panics
    /// If they are beyond the end.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<u8>, DeviceError> {
        assert!(range.end <= self.bytes, "within the memory");
        let _entered = self.context.enter()?;
        let (mut bytes, streams) = (Vec::with_capacity(range.len()), self.context.streams());
        // SAFETY: the streams are ours. Of the memory: as above.
        unsafe {
            self.context.order(streams.writes, streams.asked.downloads)?;
            self.context
                .read(self.address + range.start as u64, range.len(), |part| bytes.extend_from_slice(part))?;
        }
        Ok(bytes)
    }

    /// Copies all of another piece of memory on the device, from byte `offset` on.
    ///
    /// # Errors
    /// What has failed on the device.
    ///
    /// # Panics
    /// If it is beyond the end.
    pub fn copy(&self, offset: usize, from: &Memory) -> Result<(), DeviceError> {
        assert!(offset + from.bytes <= self.bytes, "within the memory");
        let _entered = self.context.enter()?;
        let (context, to, stream) =
            (&self.context, self.address + offset as u64, self.context.streams().writes);
        context.put(Operation::Copy("a copy on the device"), stream, || {
            // SAFETY: both are memory of as many bytes, which is freed only when nothing is under way.
            unsafe { context.backend().copy_within(to, from.address, from.bytes, stream) }
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_end() else { return };
        self.context.wait_for_all();
        // SAFETY: it was allocated here, is freed once, and nothing is under way.
        unsafe { self.context.backend().free(self.address) };
    }
}

/// Memory of the host that the device copies from and to by itself, from a pool and back to it.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Arc<Context>,
    at: *mut u8,
    bytes: usize,
}

// SAFETY: nothing has this memory but the device, which does nothing to it but what is enqueued.
unsafe impl Send for Pinned {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// At least this many bytes, with anything in them.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        let bytes = bytes.next_power_of_two().max(4096);
        let _entered = context.enter()?;
        let mut idle = context.idle();
        let at = match idle.pinned.iter().position(|&(size, _)| size == bytes) {
            Some(place) => idle.pinned.swap_remove(place).1,
            None => context.allocate_pinned(bytes)?,
        };
        drop(idle);
        Ok(Self { context: Arc::clone(context), at, bytes })
    }

    /// Its first byte.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes, "within the memory");
        // SAFETY: it is within.
        unsafe { self.at.add(offset) }
    }

    /// What stands there.
    ///
    /// # Safety
    /// Nothing is under way that writes it, and it has been written.
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "within the memory");
        // SAFETY: it is within, and the caller says that nothing writes it.
        unsafe { std::slice::from_raw_parts(self.at.add(range.start), range.len()) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The pool frees it, or it is used at once: until then everything must be done.
        let _entered = self.context.enter_to_end();
        self.context.wait_for_all();
        self.context.idle().pinned.push((self.bytes, self.at));
    }
}

/// Memory that is replaced where it does not suffice. What was replaced is freed at the end, together with the last: freeing waits for all
/// streams, and so for gradients that are still to come.
#[derive(Debug)]
pub(crate) struct Growing<B>(Vec<B>);

impl<B> Growing<B> {
    /// Nothing.
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// What is there, if it suffices, or larger memory in its place; what is there is given to make it.
    pub(crate) fn sufficing(
        &mut self,
        suffices: impl FnOnce(&B) -> bool,
        larger: impl FnOnce(Option<&B>) -> Result<B, DeviceError>,
    ) -> Result<&B, DeviceError> {
        if !self.0.last().is_some_and(suffices) {
            let larger = larger(self.0.last())?;
            self.0.push(larger);
        }
        match self.0.last() {
            Some(enough) => Ok(enough),
            None => unreachable!("it was put there"),
        }
    }
}

/// Parts of one piece of memory, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// How many bytes all have.
    pub(crate) bytes: usize,
}

impl Layout {
    /// Where a part of this many bytes begins.
    pub(crate) fn take(&mut self, bytes: usize) -> usize {
        let start = self.bytes;
        self.bytes += bytes.next_multiple_of(ALIGNMENT);
        start
    }
}

impl Context {
    /// Pinned memory, not from a pool.
    pub(crate) fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        match self.backend().allocate_pinned(bytes) {
            Err(failure) if failure.is_memory => Err(DeviceError::Memory(format!(
                "{} could not pin {bytes} bytes of the host's memory: {}",
                self.name(),
                failure.said
            ))),
            result => self.call("an allocation of pinned memory", result),
        }
    }

    /// Copies bytes to the device, in the order of a stream of ours.
    ///
    /// # Safety
    /// There are so many bytes at the address until nothing is under way. The context is entered.
    pub(crate) unsafe fn write(&self, to: u64, bytes: &[u8], stream: Stream) -> Result<(), DeviceError> {
        for (number, part) in bytes.chunks(PIECE_BYTES).enumerate() {
            let staged = self.stage(stream, &[part])?;
            let to = to + (number * PIECE_BYTES) as u64;
            self.put(Operation::Copy("a copy to the device"), stream, || {
                // SAFETY: the caller says so of the address; the pinned memory is not used again before the stream has come by.
                unsafe { self.backend().copy_in(to, staged.pinned(), part.len(), stream) }
            })?;
        }
        Ok(())
    }

    /// Copies bytes to the host, in the order of downloads, part by part; the next is under way while `take` has one.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    pub(crate) unsafe fn read(
        &self,
        from: u64,
        bytes: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        let mut before: Option<Staged<'_>> = None;
        for start in (0..bytes).step_by(PIECE_BYTES) {
            let mut staged = match self.stage_another(before.is_some())? {
                Some(staged) => staged,
                None => {
                    if let Some(before) = before.take() {
                        take(before.wait()?);
                    }
                    self.stage(self.streams().asked.downloads, &[])?
                }
            };
            // SAFETY: the caller says so of the address.
            unsafe { staged.download(from + start as u64, 0, PIECE_BYTES.min(bytes - start))? };
            if let Some(before) = before.replace(staged) {
                take(before.wait()?);
            }
        }
        if let Some(last) = before {
            take(last.wait()?);
        }
        Ok(())
    }
}
