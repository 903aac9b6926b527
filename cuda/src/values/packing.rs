//! The indices that were chosen, encoded where they are: in Rice's form, which is the smallest for all but odd ones.

use std::sync::Arc;

use gleaner_algorithms::bag::wire::Packed;
use gleaner_algorithms::device::DeviceError;

use super::blocks::Block;
use super::{CudaValues, State};
use crate::backend::Kind;
use crate::context::Context;
use crate::fence::Fence;
use crate::journal::Operation;
use crate::kernels::{CHUNK, PACK_GAPS, SURVEY_GAPS, THREADS, arguments};
use crate::memory::{Memory, Pinned};

/// As many indices as take the host longer than the launches and the copy: cargo bench -p gleaner-cuda --bench device.
const WORTHWHILE: usize = 1 << 15;

/// What the kernels measure, as it lies in memory.
const MEASURED: usize = 32;

/// Memory for the indices of one block at a time.
#[derive(Debug)]
pub(super) struct Packing {
    context: Arc<Context>,
    /// What is measured, the words, and the sums.
    device: Memory,
    pinned: Pinned,
    copied: Fence,
    /// Words and blocks of threads that there is room for.
    words: usize,
    chunks: usize,
}

impl Packing {
    /// The one that is there if it has room for so many indices of a block of `len`, or a larger one in its place. The context is entered.
    pub(super) fn with_room<'a>(
        packing: &'a mut Option<Self>,
        context: &Arc<Context>,
        (count, len): (usize, usize),
    ) -> Result<&'a Self, DeviceError> {
        let (words, chunks) = (Packed::most_words(count, len), count.div_ceil(CHUNK as usize));
        let enough = match packing.take().filter(|packing| packing.words >= words && packing.chunks >= chunks)
        {
            Some(packing) => packing,
            None => Self::new(context, words.next_multiple_of(2), chunks)?,
        };
        Ok(packing.insert(enough))
    }

    fn new(context: &Arc<Context>, words: usize, chunks: usize) -> Result<Self, DeviceError> {
        let device = Memory::new(context, MEASURED + 4 * words + 16 * chunks, "encoded indices")?;
        let pinned = Pinned::new(context, MEASURED + 4 * words)?;
        let selections = context.streams().selections;
        context.put(Operation::Copy("a reset of what is encoded"), selections, || {
            // SAFETY: it is within the memory, which is freed only when nothing is under way.
            unsafe { context.backend().fill(device.address(), 0, MEASURED, selections) }
        })?;
        let copied = Fence::new(context, Kind::Wait)?;
        Ok(Self { context: Arc::clone(context), device, pinned, copied, words, chunks })
    }

    /// Encodes so many indices of a block of `len`, count > 0, that lie at an address, and waits for that. The context is entered.
    ///
    /// # Safety
    /// They are there, ascending and below `len`, once the stream of selections has come so far.
    pub(super) unsafe fn pack(&self, indices: u64, count: usize, len: usize) -> Result<Packed, DeviceError> {
        let (context, selections) = (&self.context, self.context.streams().selections);
        let (room, grid) = (Packed::most_words(count, len), count.div_ceil(CHUNK as usize) as u32);
        let (measured, out) = (self.device.address(), self.device.address() + MEASURED as u64);
        let sums = out + 4 * self.words as u64;
        let given = arguments![indices, count as u32, sums, measured, out, room as u32];
        // SAFETY: the caller says so of the indices, and there is room for words and sums in memory that is freed only when nothing is
        // under way.
        unsafe {
            context.launch(selections, SURVEY_GAPS, (grid, THREADS), given)?;
            context.launch(selections, PACK_GAPS, (grid, THREADS), given)?;
        }
        let downloads = context.streams().downloads;
        // SAFETY: the streams are ours.
        unsafe { context.order(selections, downloads)? };
        let bytes = MEASURED + 4 * room;
        context.put(Operation::Copy("the copy of encoded indices to the host"), downloads, || {
            // SAFETY: both have this many bytes, and are freed only when nothing is under way.
            unsafe { context.backend().copy_out(self.pinned.at(0), measured, bytes, downloads) }
        })?;
        self.copied.record(downloads)?;
        self.copied.wait("waiting for encoded indices")?;
        // SAFETY: it was copied, and nothing else is sent meanwhile.
        let (measured, words) = unsafe { self.pinned.read(0..bytes) }.split_at(MEASURED);
        let numbers: &[u32] = bytemuck::cast_slice(measured);
        let [widest, lowest, highs @ ..] = [0, 1, 2, 3, 4, 5].map(|number: usize| numbers[number]);
        // With room for values of four bytes behind them.
        let mut bytes = Vec::with_capacity(words.len() + 4 * count);
        bytes.extend_from_slice(words);
        Ok(Packed { widest, lowest, highs, bytes })
    }
}

impl CudaValues {
    /// See [`packed`](gleaner_algorithms::device::DeviceValues::packed).
    pub(super) fn packed_indices(&self, block: usize, count: usize) -> Result<Option<Packed>, DeviceError> {
        let State { blocks, packing, .. } = &mut *self.locked();
        let Block { candidates, range, .. } = &blocks.blocks[block];
        let chosen = candidates.as_ref().filter(|candidates| candidates.chosen == Some(count));
        let Some(chosen) = chosen.filter(|_| count >= WORTHWHILE) else { return Ok(None) };
        let _entered = self.context.enter()?;
        let packing = match Packing::with_room(packing, &self.context, (count, range.len())) {
            // The host can do without.
            Err(DeviceError::Memory(_)) => return Ok(None),
            packing => packing?,
        };
        // SAFETY: so many were chosen of the block, ascending, and they stay until the next step begins.
        unsafe { packing.pack(chosen.output.indices(), count, range.len()) }.map(Some)
    }
}
