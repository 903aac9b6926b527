//! Indices, encoded on the device: in Rice's form, which is the smallest for all but odd ones. Those that were chosen there are encoded where
//! they are; others come from the host.

use std::sync::{Arc, PoisonError};

use gleaner_algorithms::bag::wire::{Encoded, RiceIndices};
use gleaner_algorithms::bag::{Entries, Rounded};
use gleaner_algorithms::device::{DeviceError, WORTHWHILE};

use super::CudaValues;
use super::blocks::Block;
use crate::backend::Kind;
use crate::context::Context;
use crate::fence::Fence;
use crate::journal::Operation;
use crate::kernels::{CHUNK, ENCODE_GAPS, SURVEY_GAPS, THREADS, arguments};
use crate::memory::{Growing, Layout, Memory, Pinned};
use crate::offload::{Offload, OffloadSize, unless_memory_is_missing};
use crate::streams::Readers;

/// What the kernels measure, as it lies in memory.
const MEASURED: usize = 32;

/// Memory for the indices of one block at a time.
#[derive(Debug)]
pub(super) struct RiceBuffers {
    context: Arc<Context>,
    /// What is measured, the words, the sums, and indices that come from the host.
    device: Memory,
    sums: usize,
    given: usize,
    /// For what is measured and the words.
    pinned: Pinned,
    copied: Fence,
    room: RiceRoom,
}

/// What there is room for.
#[derive(Clone, Copy, Debug, Default)]
struct RiceRoom {
    words: usize,
    /// Blocks of threads.
    chunks: usize,
    /// Indices that come from the host.
    given: usize,
}

impl RiceRoom {
    /// For so many indices of a block of `len`, that come from the host or are on the device.
    fn of(count: usize, len: usize, from_host: bool) -> Self {
        let (words, chunks) = (RiceIndices::most_words(count, len), count.div_ceil(CHUNK as usize));
        Self { words, chunks, given: if from_host { count } else { 0 } }
    }

    /// For either of two.
    fn or(self, other: Self) -> Self {
        let [words, chunks] = [self.words.max(other.words), self.chunks.max(other.chunks)];
        Self { words, chunks, given: self.given.max(other.given) }
    }

    fn suffices(self, other: Self) -> bool {
        self.words >= other.words && self.chunks >= other.chunks && self.given >= other.given
    }
}

impl RiceBuffers {
    /// What is there if it has room for so many indices of a block of `len`, or larger ones in its place. The context is entered.
    fn with_room<'a>(
        there: &'a mut Growing<Self>,
        context: &Arc<Context>,
        (count, len): (usize, usize),
        from_host: bool,
    ) -> Result<&'a Self, DeviceError> {
        let needed = RiceRoom::of(count, len, from_host);
        let larger = |before: Option<&Self>| {
            let held = before.map_or_else(RiceRoom::default, |before| before.room);
            // A device chooses as many in each step. How many come from the host differs: a quarter more is enough for the next ones, and twice as
            // much where it was not.
            let more = if from_host { (count + count / 4).max(2 * held.given).min(len) } else { count };
            Self::new(context, RiceRoom::of(more, len, from_host).or(needed).or(held))
        };
        there.sufficing(|there| there.room.suffices(needed), larger)
    }

    fn new(context: &Arc<Context>, room: RiceRoom) -> Result<Self, DeviceError> {
        let (mut layout, copied) = (Layout::default(), MEASURED + 4 * room.words);
        layout.take(copied);
        let (sums, given) = (layout.take(16 * room.chunks), layout.take(4 * room.given));
        let device = Memory::new(context, layout.bytes, "encoded indices")?;
        let pinned = Pinned::new(context, copied)?;
        let selections = context.streams().asked.selections;
        context.put(Operation::Copy("a reset of what is encoded"), selections, || {
            // SAFETY: it is within the memory, which is freed only when nothing is under way.
            unsafe { context.backend().fill(device.address(), 0, MEASURED, selections) }
        })?;
        let copied = Fence::new(context, Kind::Wait)?;
        Ok(Self { context: Arc::clone(context), device, sums, given, pinned, copied, room })
    }

    /// Encodes indices of a block of `len`, at least one, that come from the host, and waits for that. The context is entered.
    fn encode_given(&self, indices: &[u32], len: usize) -> Result<RiceIndices, DeviceError> {
        let is_below = indices.last().is_some_and(|&last| (last as usize) < len);
        if !is_below || !indices.is_sorted_by(|before, index| before < index) {
            return Err(DeviceError::Other(format!("expected ascending indices below {len} to encode")));
        }
        assert!(indices.len() <= self.room.given, "room for the indices");
        let (stream, given) =
            (self.context.streams().asked.selections, self.device.address() + self.given as u64);
        // SAFETY: there is room for them in memory that is freed only when nothing is under way, and they are as they have to be.
        unsafe {
            self.context.write(given, bytemuck::cast_slice(indices), stream)?;
            self.encode(given, indices.len(), len)
        }
    }

    /// Encodes so many indices of a block of `len`, count > 0, that lie at an address, and waits for that. The context is entered.
    ///
    /// # Safety
    /// They are there, ascending and below `len`.
    unsafe fn encode(&self, indices: u64, count: usize, len: usize) -> Result<RiceIndices, DeviceError> {
        let (context, Readers { selections, downloads }) = (&self.context, self.context.streams().asked);
        let (room, grid) = (RiceIndices::most_words(count, len), count.div_ceil(CHUNK as usize) as u32);
        let (measured, out) = (self.device.address(), self.device.address() + MEASURED as u64);
        let sums = measured + self.sums as u64;
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
    /// See [`encode`](gleaner_algorithms::device::DeviceValues::encode).
    pub(super) fn encoded(
        &self,
        block: usize,
        entries: &Entries<f32>,
        rounded: Rounded,
        chosen: bool,
    ) -> Result<Option<Encoded>, DeviceError> {
        let count = entries.len();
        if count < WORTHWHILE {
            return Ok(None);
        }
        let (chosen, len) = {
            let state = self.locked();
            let Block { candidates, range, .. } = &state.blocks.blocks[block];
            // As many as were chosen are all of them.
            let all = candidates.as_ref().filter(|candidates| chosen && candidates.chosen == Some(count));
            (all.map(|candidates| candidates.output.indices()), range.len())
        };
        let kind = if chosen.is_some() { Offload::EncodeChosen } else { Offload::Encode };
        let size = OffloadSize { kind, entries: count };
        if self.context.offloads.is_host(size) {
            return Ok(None);
        }
        let _entered = self.context.enter()?;
        let mut buffers = self.encoding.lock().unwrap_or_else(PoisonError::into_inner);
        let buffers = RiceBuffers::with_room(&mut buffers, &self.context, (count, len), chosen.is_none());
        let Some(buffers) = unless_memory_is_missing(buffers)? else { return Ok(None) };
        let there = || {
            let indices = match chosen {
                // SAFETY: so many were chosen of the block, ascending, and they stay until the next step begins.
                Some(at) => unsafe { buffers.encode(at, count, len) },
                None => buffers.encode_given(&entries.indices, len),
            };
            let indices = unless_memory_is_missing(indices)?;
            Ok(indices.and_then(|indices| Encoded::of_rice(entries, len, rounded, indices)))
        };
        self.context.offloads.choose(size, there, || Some(Encoded::of(entries, len, rounded)))
    }
}
