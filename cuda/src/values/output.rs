//! What a selection writes, and how it comes to the host.

use std::sync::Arc;

use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::device::DeviceError;

use crate::backend::Kind;
use crate::context::Context;
use crate::fence::Fence;
use crate::journal::Operation;
use crate::kernels::Cut;
use crate::memory::{Growing, Memory, Pinned};
use crate::streams::Readers;

/// A cut and entries, on the device and on the host.
#[derive(Debug)]
pub(super) struct Output {
    context: Arc<Context>,
    device: Memory,
    pinned: Pinned,
    copied: Fence,
    /// The streams that write it and copy it.
    readers: Readers,
    /// Entries that there is room for.
    room: usize,
}

impl Output {
    /// Room for this many entries, for selections in these streams. The context is entered.
    pub(super) fn new(context: &Arc<Context>, readers: Readers, room: usize) -> Result<Self, DeviceError> {
        let bytes = Cut::WIDTH + 8 * room;
        let device = Memory::new(context, bytes, "selected entries")?;
        let (pinned, copied) = (Pinned::new(context, bytes)?, Fence::new(context, Kind::Wait)?);
        context.put(Operation::Copy("a reset of a cut"), readers.selections, || {
            // SAFETY: it is within the memory, which is freed only when nothing is under way.
            unsafe { context.backend().fill(device.address(), 0, Cut::WIDTH, readers.selections) }
        })?;
        Ok(Self { context: Arc::clone(context), device, pinned, copied, readers, room })
    }

    /// The one that is there if it has room for this many entries, or a larger one in its place, for selections that the host asks for. The
    /// context is entered.
    pub(super) fn with_room<'a>(
        output: &'a mut Growing<Self>,
        context: &Arc<Context>,
        entries: usize,
    ) -> Result<&'a Self, DeviceError> {
        let larger =
            |_: Option<&Self>| Self::new(context, context.streams().asked, entries.next_power_of_two());
        output.sufficing(|output| output.room >= entries, larger)
    }

    /// Where the cut is, and behind it the indices.
    pub(super) fn cut(&self) -> u64 {
        self.device.address()
    }

    /// Where the indices are.
    pub(super) fn indices(&self) -> u64 {
        self.cut() + Cut::WIDTH as u64
    }

    /// Where the values are, behind this many indices.
    pub(super) fn values(&self, entries: usize) -> u64 {
        self.indices() + 4 * entries as u64
    }

    /// Copies the cut to the host and this many entries, once the selections so far are done.
    pub(super) fn send(&self, entries: usize) -> Result<(), DeviceError> {
        assert!(entries <= self.room, "room for the entries");
        let (context, bytes) = (&self.context, Cut::WIDTH + 8 * entries);
        let Readers { selections, downloads } = self.readers;
        // SAFETY: the streams are ours.
        unsafe { context.order(selections, downloads)? };
        context.put(Operation::Copy("the copy of a selection to the host"), downloads, || {
            // SAFETY: both have this many bytes, and are freed only when nothing is under way.
            unsafe { context.backend().copy_out(self.pinned.at(0), self.cut(), bytes, downloads) }
        })?;
        self.copied.record(downloads)
    }

    /// What is put into the stream of selections from now on waits until that is copied.
    pub(super) fn before_selections(&self) -> Result<(), DeviceError> {
        self.copied.before(self.readers.selections)
    }

    /// Waits for what was sent.
    pub(super) fn receive(&self) -> Result<Cut, DeviceError> {
        self.copied.wait("waiting for a selection")?;
        // SAFETY: it was copied, and nothing else is sent meanwhile.
        Ok(Cut::read(unsafe { self.pinned.read(0..Cut::WIDTH) }))
    }

    /// The first `count` of the entries that were sent, once they were received.
    pub(super) fn entries(&self, sent: usize, count: usize) -> Entries<f32> {
        // SAFETY: as above.
        let bytes = unsafe { self.pinned.read(Cut::WIDTH..Cut::WIDTH + 8 * sent) };
        let (indices, values) = bytes.split_at(4 * sent);
        Entries {
            indices: bytemuck::cast_slice(&indices[..4 * count]).to_vec(),
            values: bytemuck::cast_slice(&values[..4 * count]).to_vec(),
        }
    }
}
