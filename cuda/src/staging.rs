//! Buffers between the host and the device, of one size: pinned memory with as much memory of the device beside it. They come from a
//! pool, so that nothing is allocated within a step once there are enough.

use std::ops::Range;

use gleaner_algorithms::device::DeviceError;

use crate::backend::Event;
use crate::context::{Context, Operation};

/// Bytes of a buffer: enough that a copy runs at full speed.
pub(crate) const PIECE_BYTES: usize = 4 << 20;

/// Entries of which indices and values fit into a buffer.
pub(crate) const PIECE: usize = PIECE_BYTES / 8;

/// Buffers that there are at most, unless more are in use at once: one is filled, one copied, one read by a kernel.
const MOST: usize = 4;

/// A buffer.
pub(crate) struct Staging {
    pub(crate) device: u64,
    pub(crate) pinned: *mut u8,
    /// What used it last.
    pub(crate) event: Event,
}

/// What nobody uses; of buffers, the oldest first.
#[derive(Default)]
pub(crate) struct Idle {
    pub(crate) staging: Vec<Staging>,
    /// Pinned memory by its size.
    pub(crate) pinned: Vec<(usize, *mut u8)>,
}

// SAFETY: nobody else has the memory that the pointers are of.
unsafe impl Send for Idle {}

/// A buffer in use. It goes back to the pool, and is used again once the stream of kernels has come by.
pub(crate) struct Staged<'a> {
    context: &'a Context,
    staging: Option<Staging>,
    /// Where each part begins.
    starts: Vec<usize>,
    used: usize,
    downloaded: Range<usize>,
}

impl Context {
    /// A buffer with these bytes in its pinned half, each part at a multiple of 16. The context is entered.
    pub(crate) fn stage(&self, parts: &[&[u8]]) -> Result<Staged<'_>, DeviceError> {
        let staging = self.idle_staging()?;
        let (mut starts, mut used) = (Vec::with_capacity(parts.len()), 0);
        for part in parts {
            assert!(used + part.len() <= PIECE_BYTES, "a piece fits into a buffer");
            // SAFETY: there is room, and nobody else uses the buffer.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), staging.pinned.add(used), part.len()) };
            starts.push(used);
            used += part.len().next_multiple_of(16);
        }
        Ok(Staged { context: self, staging: Some(staging), starts, used, downloaded: 0..0 })
    }

    fn idle_staging(&self) -> Result<Staging, DeviceError> {
        let mut idle = self.idle();
        for place in 0..idle.staging.len() {
            // SAFETY: the event is the buffer's.
            let done = unsafe { self.backend().is_done(idle.staging[place].event) };
            if self.call("a query of an event", done)? {
                return Ok(idle.staging.remove(place));
            }
        }
        if idle.staging.len() < MOST {
            drop(idle);
            let device = self.allocate(PIECE_BYTES, "a buffer for copies")?;
            let pinned = self.allocate_pinned(PIECE_BYTES)?;
            let event = self.call("making an event", self.backend().create_event(false))?;
            return Ok(Staging { device, pinned, event });
        }
        let oldest = idle.staging.remove(0);
        drop(idle);
        // SAFETY: as above.
        let done = unsafe { self.backend().wait(oldest.event) };
        self.call("waiting for a buffer", done).map(|()| oldest)
    }
}

impl Staged<'_> {
    fn buffer(&self) -> &Staging {
        match &self.staging {
            Some(staging) => staging,
            None => unreachable!("it is taken in drop only"),
        }
    }

    /// The pinned half.
    pub(crate) fn pinned(&self) -> *const u8 {
        self.buffer().pinned
    }

    /// Where a part is on the device, or what follows all parts.
    pub(crate) fn part(&self, number: usize) -> u64 {
        self.buffer().device + self.start(number) as u64
    }

    /// The same within the buffer.
    pub(crate) fn start(&self, number: usize) -> usize {
        self.starts.get(number).copied().unwrap_or(self.used)
    }

    /// Copies the parts to the device's half. Kernels that are started from now on find them there.
    pub(crate) fn upload(&self) -> Result<(), DeviceError> {
        let (context, buffer) = (self.context, self.buffer());
        context.put(Operation::Copy("a copy to the device"), context.copies(), || {
            // SAFETY: both halves are as long, and nobody else uses them.
            unsafe { context.backend().copy_in(buffer.device, buffer.pinned, self.used, context.copies()) }
        })?;
        context.kernels_after_copies()
    }

    /// Copies so many bytes to the pinned half, at byte `to` of it, once what the copies' stream waits for is done.
    ///
    /// # Safety
    /// There are so many bytes at the address until this is done.
    pub(crate) unsafe fn download(&mut self, from: u64, to: usize, bytes: usize) -> Result<(), DeviceError> {
        assert!(to + bytes <= PIECE_BYTES, "a piece fits into a buffer");
        let (context, buffer) = (self.context, self.buffer());
        context.put(Operation::Copy("a copy to the host"), context.copies(), || {
            // SAFETY: there is room, nobody else uses the buffer, and the caller says so of the address.
            unsafe { context.backend().copy_out(buffer.pinned.add(to), from, bytes, context.copies()) }
        })?;
        // SAFETY: the event is the buffer's.
        let recorded = unsafe { context.backend().record(buffer.event, context.copies()) };
        context.call("recording an event", recorded)?;
        self.downloaded = to..to + bytes;
        Ok(())
    }

    /// Waits for that, and gives what was copied.
    pub(crate) fn wait(&self) -> Result<&[u8], DeviceError> {
        let (context, buffer) = (self.context, self.buffer());
        // SAFETY: the event is the buffer's.
        let done = unsafe { context.backend().wait(buffer.event) };
        context.call("waiting for a copy to the host", done)?;
        let Range { start, end } = self.downloaded.clone();
        // SAFETY: it is within the pinned half, was written by the copy, and nothing writes it now.
        Ok(unsafe { std::slice::from_raw_parts(buffer.pinned.add(start), end - start) })
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        let Some(staging) = self.staging.take() else { return };
        // Where something was downloaded, the event says when that is done, and it is the last that was done with the buffer.
        if self.downloaded.is_empty() {
            // SAFETY: the event is the buffer's. If this fails, so does all that follows.
            let _ = unsafe { self.context.backend().record(staging.event, self.context.kernels()) };
        }
        self.context.idle().staging.push(staging);
    }
}
