//! Buffers between the host and the device, of one size: pinned memory with as much memory of the device beside it. They come from a
//! pool, so that nothing is allocated within a step once there are enough.

use std::ops::Range;

use gleaner_algorithms::device::DeviceError;

use crate::backend::{Event, Kind, Stream};
use crate::context::Context;
use crate::journal::Operation;

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

/// What nothing uses; of buffers, the oldest first.
#[derive(Default)]
pub(crate) struct Idle {
    pub(crate) staging: Vec<Staging>,
    /// Buffers that there are, those in use included.
    made: usize,
    /// Pinned memory by its size.
    pub(crate) pinned: Vec<(usize, *mut u8)>,
}

// SAFETY: nothing else has the memory that the pointers are of.
unsafe impl Send for Idle {}

/// A buffer in use. It goes back to the pool, and is used again once the stream of what uses it has come by.
pub(crate) struct Staged<'a> {
    context: &'a Context,
    stream: Stream,
    staging: Option<Staging>,
    /// Where each part begins.
    starts: Vec<usize>,
    used: usize,
    downloaded: Range<usize>,
}

impl Context {
    /// A buffer with these bytes in its pinned half, each part at a multiple of 16, for something in this stream. The caller holds no
    /// other buffer. The context is entered.
    pub(crate) fn stage(&self, stream: Stream, parts: &[&[u8]]) -> Result<Staged<'_>, DeviceError> {
        let staging = loop {
            if let Some(staging) = self.idle_staging()? {
                break staging;
            }
            let idle = self.idle();
            if idle.staging.is_empty() {
                drop(self.wait_for_idle(idle));
            }
        };
        let (mut starts, mut used) = (Vec::with_capacity(parts.len()), 0);
        for part in parts {
            assert!(used + part.len() <= PIECE_BYTES, "a piece fits into a buffer");
            // SAFETY: there is room, and nothing else uses the buffer.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), staging.pinned.add(used), part.len()) };
            starts.push(used);
            used += part.len().next_multiple_of(16);
        }
        Ok(Staged { context: self, stream, staging: Some(staging), starts, used, downloaded: 0..0 })
    }

    /// A buffer with nothing in it, for a copy to the host. None if the caller holds another one, and has to let go of it first.
    pub(crate) fn stage_another(&self, holds_one: bool) -> Result<Option<Staged<'_>>, DeviceError> {
        let stream = self.streams().asked.downloads;
        if !holds_one {
            return self.stage(stream, &[]).map(Some);
        }
        let staged = |staging| Staged {
            context: self,
            stream,
            staging: Some(staging),
            starts: Vec::new(),
            used: 0,
            downloaded: 0..0,
        };
        Ok(self.idle_staging()?.map(staged))
    }

    /// A buffer that nothing uses. None if there is no memory for another one and all that there are are in use: memory is missing for
    /// the first alone, before anything was begun with it.
    fn idle_staging(&self) -> Result<Option<Staging>, DeviceError> {
        let mut idle = self.idle();
        for place in 0..idle.staging.len() {
            // SAFETY: the event is the buffer's.
            if unsafe { self.is_done(idle.staging[place].event)? } {
                return Ok(Some(idle.staging.remove(place)));
            }
        }
        if idle.staging.len() < MOST {
            match self.new_staging() {
                Ok(staging) => {
                    idle.made += 1;
                    return Ok(Some(staging));
                }
                Err(DeviceError::Memory(_)) if idle.made > 0 => {}
                Err(error) => return Err(error),
            }
        }
        if idle.staging.is_empty() {
            return Ok(None);
        }
        let oldest = idle.staging.remove(0);
        drop(idle);
        // SAFETY: as above.
        unsafe { self.wait(oldest.event, "waiting for a buffer") }.map(|()| Some(oldest))
    }

    fn new_staging(&self) -> Result<Staging, DeviceError> {
        let event = self.create_event(Kind::Wait)?;
        // SAFETY: it was just made, and nothing uses it.
        let without_memory = |_: &DeviceError| unsafe { self.destroy_event(event) };
        let device = self.allocate(PIECE_BYTES, "a buffer for copies").inspect_err(without_memory)?;
        let pinned = self.allocate_pinned(PIECE_BYTES).inspect_err(|error| {
            // SAFETY: as above.
            unsafe { self.backend().free(device) }
            without_memory(error);
        })?;
        Ok(Staging { device, pinned, event })
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

    /// Copies the parts to the device's half. What is put into the stream from now on finds them there.
    pub(crate) fn upload(&self) -> Result<(), DeviceError> {
        let (context, buffer, uploads) = (self.context, self.buffer(), self.context.streams().uploads);
        context.put(Operation::Copy("a copy to the device"), uploads, || {
            // SAFETY: both halves are as long, and nothing else uses them.
            unsafe { context.backend().copy_in(buffer.device, buffer.pinned, self.used, uploads) }
        })?;
        // SAFETY: they are streams of ours.
        unsafe { context.order(uploads, self.stream) }
    }

    /// Copies this many bytes to the pinned half, at byte `to` of it, once what the stream of downloads waits for is done.
    ///
    /// # Safety
    /// There are so many bytes at the address until this is done.
    pub(crate) unsafe fn download(&mut self, from: u64, to: usize, bytes: usize) -> Result<(), DeviceError> {
        assert!(to + bytes <= PIECE_BYTES, "a piece fits into a buffer");
        let (context, buffer) = (self.context, self.buffer());
        let downloads = context.streams().asked.downloads;
        context.put(Operation::Copy("a copy to the host"), downloads, || {
            // SAFETY: there is room, nothing else uses the buffer, and the caller says so of the address.
            unsafe { context.backend().copy_out(buffer.pinned.add(to), from, bytes, downloads) }
        })?;
        // SAFETY: the event is the buffer's.
        unsafe { context.record(buffer.event, downloads)? };
        self.downloaded = to..to + bytes;
        Ok(())
    }

    /// Waits for that, and gives what was copied.
    pub(crate) fn wait(&self) -> Result<&[u8], DeviceError> {
        let (context, buffer) = (self.context, self.buffer());
        // SAFETY: the event is the buffer's.
        unsafe { context.wait(buffer.event, "waiting for a copy to the host")? };
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
            let _ = unsafe { self.context.record(staging.event, self.stream) };
        }
        self.context.idle().staging.push(staging);
        self.context.say_idle();
    }
}
