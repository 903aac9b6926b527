//! The indices that were chosen, encoded where they are: in Rice's form, which is the smallest for all but odd ones.

use std::sync::Arc;

use gleaner_algorithms::bag::wire::RiceIndices;
use gleaner_algorithms::device::{DeviceError, WORTHWHILE};

use super::blocks::Block;
use super::{CudaValues, State};
use crate::backend::Kind;
use crate::context::Context;
use crate::fence::Fence;
use crate::journal::Operation;
use crate::kernels::{CHUNK, ENCODE_GAPS, SURVEY_GAPS, THREADS, arguments};
use crate::memory::{Growing, Memory, Pinned};
use crate::streams::Readers;

/// What the kernels measure, as it lies in memory.
const MEASURED: usize = 32;

/// Memory for the indices of one block at a time.
#[derive(Debug)]
pub(super) struct RiceBuffers {
    context: Arc<Context>,
    /// What is measured, the words, and the sums.
    device: Memory,
    pinned: Pinned,
    copied: Fence,
    /// Words and blocks of threads that there is room for.
    words: usize,
    chunks: usize,
}

impl RiceBuffers {
    /// What is there if it has room for so many indices of a block of `len`, or larger ones in its place. The context is entered.
    fn with_room<'a>(
        there: &'a mut Growing<Self>,
        context: &Arc<Context>,
        (count, len): (usize, usize),
    ) -> Result<&'a Self, DeviceError> {
        let (words, chunks) = (RiceIndices::most_words(count, len), count.div_ceil(CHUNK as usize));
        let larger = |before: Option<&Self>| {
            let (held, blocks) = before.map_or((0, 0), |before| (before.words, before.chunks));
            Self::new(context, words.max(held).next_multiple_of(2), chunks.max(blocks))
        };
        there.sufficing(|there| there.words >= words && there.chunks >= chunks, larger)
    }

    fn new(context: &Arc<Context>, words: usize, chunks: usize) -> Result<Self, DeviceError> {
        let device = Memory::new(context, MEASURED + 4 * words + 16 * chunks, "encoded indices")?;
        let pinned = Pinned::new(context, MEASURED + 4 * words)?;
        let selections = context.streams().asked.selections;
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
    /// They are there, ascending and below `len`.
    unsafe fn encode(&self, indices: u64, count: usize, len: usize) -> Result<RiceIndices, DeviceError> {
        let (context, Readers { selections, downloads }) = (&self.context, self.context.streams().asked);
        let (room, grid) = (RiceIndices::most_words(count, len), count.div_ceil(CHUNK as usize) as u32);
        let (measured, out) = (self.device.address(), self.device.address() + MEASURED as u64);
        let sums = out + 4 * self.words as u64;
        let given = arguments![indices, count as u32, sums, measured, out, room as u32];
        // SAFETY: the caller says so of the indices, and there is room for words and sums in memory that is freed only when nothing is
        // under way.
        unsafe {
            context.launch(selections, SURVEY_GAPS, (grid, THREADS), given)?;
            context.launch(selections, ENCODE_GAPS, (grid, THREADS), given)?;
        }
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
        Ok(RiceIndices { widest, lowest, highs, bytes })
    }
}

impl CudaValues {
    /// See [`rice_indices`](gleaner_algorithms::device::DeviceValues::rice_indices).
    pub(super) fn rice_of_chosen(
        &self,
        block: usize,
        count: usize,
    ) -> Result<Option<RiceIndices>, DeviceError> {
        let State { blocks, rice, .. } = &mut *self.locked();
        let Block { candidates, range, .. } = &blocks.blocks[block];
        let chosen = candidates.as_ref().filter(|candidates| candidates.chosen == Some(count));
        let Some(chosen) = chosen.filter(|_| count >= WORTHWHILE) else { return Ok(None) };
        let _entered = self.context.enter()?;
        let buffers = RiceBuffers::with_room(rice, &self.context, (count, range.len()));
        // SAFETY: so many were chosen of the block, ascending, and they stay until the next step begins.
        let encode =
            |buffers: &RiceBuffers| unsafe { buffers.encode(chosen.output.indices(), count, range.len()) };
        match buffers.and_then(encode) {
            // The host can do without.
            Err(DeviceError::Memory(_)) => Ok(None),
            encoded => encoded.map(Some),
        }
    }
}
