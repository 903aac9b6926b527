//! Bags that came, decoded and added to entries that the host holds.

use std::sync::{Arc, PoisonError};

use gleaner_algorithms::Reduction;
use gleaner_algorithms::bag::wire::{Encoded, RiceBag};
use gleaner_algorithms::bag::{Coding, Entries};
use gleaner_algorithms::device::{DeviceError, DeviceValues, WORTHWHILE};

use super::CudaValues;
use crate::backend::{Kind, Stream};
use crate::context::Context;
use crate::fence::Fence;
use crate::journal::Operation;
use crate::kernels::{
    ADD_BLOCK, CHUNK, FIND_HELD, READ_CODES, READ_ENTRIES, READ_HIGHS, READ_INDICES, SURVEY_BAG, THREADS,
    WRITE_CAME, WRITE_HELD, arguments,
};
use crate::memory::{Growing, Layout, Memory, Pinned};
use crate::offload::{Offload, OffloadSize, unless_memory_is_missing};
use crate::streams::Readers;

/// What the kernels note, as it lies in memory.
const NOTED: usize = 32;

/// Entries that the kernels count to, and words of a bag.
const MOST: usize = 1 << 31;

/// Memory for one bag at a time and what it is added to.
#[derive(Debug)]
pub(super) struct MergeBuffers {
    context: Arc<Context>,
    /// What is noted and the result, what comes from the host, what was decoded and where it belongs, and sums.
    device: Memory,
    given: usize,
    between: usize,
    sums: usize,
    /// For what is noted and the result.
    pinned: Pinned,
    copied: Fence,
    /// Entries of both sides that there is room for.
    room: usize,
}

/// A bag that is as long as its header says, and what the kernels need of it.
struct Shaped<'a> {
    bag: RiceBag<'a>,
    count: u32,
    len: u32,
    values: ReadBy,
    /// Words before the values or their codes.
    limit: u32,
    /// Of them, those that are not of fields alone.
    unary: usize,
}

/// What reads the values of a bag.
#[derive(Clone, Copy)]
enum ReadBy {
    /// `read_entries`, with this number for the coding.
    Entries(u32),
    /// `read_indices` and `read_codes`.
    Codes,
}

impl<'a> Shaped<'a> {
    /// None for a bag of another length, and for one that is too long for the kernels.
    fn of(bag: RiceBag<'a>) -> Option<Self> {
        let coding = bag.rounded.coding();
        let values = match coding {
            Coding::Exact => ReadBy::Entries(0),
            Coding::Bf16 => ReadBy::Entries(1),
            Coding::F16 => ReadBy::Entries(2),
            Coding::Qsgd2 | Coding::Qsgd4 | Coding::Qsgd8 => ReadBy::Codes,
        };
        let words = bag.body.len() / 4;
        let limit = words.checked_sub(bag.count.checked_mul(coding.bits() as usize)?.div_ceil(32))?;
        let fields = bag.count.checked_mul(bag.parameter.into())?;
        let (count, len) = (u32::try_from(bag.count).ok()?, u32::try_from(bag.len).ok()?);
        // Nothing takes more than raw indices and values. Behind codes is room for a word for each bucket.
        let taken = words + if coding.is_stochastic() { limit } else { 0 };
        let fits = bag.body.len().is_multiple_of(4) && taken <= 2 * bag.count && words <= MOST;
        let is_long_enough = bag.count > 0 && bag.parameter < 32 && 32 * limit >= fields + bag.count;
        let unary = limit.checked_sub(fields / 32)?;
        (fits && is_long_enough).then_some(Self { bag, count, len, values, limit: limit as u32, unary })
    }
}

impl MergeBuffers {
    /// What is there if it has room for so many entries of both sides, or larger ones in its place. The context is entered.
    fn with_room<'a>(
        there: &'a mut Growing<Self>,
        context: &Arc<Context>,
        entries: usize,
    ) -> Result<&'a Self, DeviceError> {
        // Bags of a method are about as long: a quarter more is enough for the next ones, and twice as much where it was not.
        let larger = |before: Option<&Self>| {
            let room = before.map_or(0, |before| 2 * before.room);
            Self::new(context, room.max(entries + entries / 4))
        };
        there.sufficing(|there| there.room >= entries, larger)
    }

    fn new(context: &Arc<Context>, room: usize) -> Result<Self, DeviceError> {
        let mut layout = Layout::default();
        layout.take(NOTED + 8 * room);
        // A bag is no longer than raw indices and values; of what comes, and of what is held, there is an index with a value or a place.
        let (given, between) = (layout.take(8 * room), layout.take(8 * room));
        // Two sums for each chunk of the words of a bag, of which each entry has two at most.
        let sums = layout.take(16 * (2 * room).div_ceil(CHUNK as usize));
        let device = Memory::new(context, layout.bytes, "bags that are merged")?;
        let pinned = Pinned::new(context, NOTED + 8 * room)?;
        let copied = Fence::new(context, Kind::Wait)?;
        Ok(Self { context: Arc::clone(context), device, given, between, sums, pinned, copied, room })
    }

    /// The streams for what the host asks for: kernels and copies to the device are in the first, copies to the host in the second.
    fn streams(&self) -> (Stream, Stream) {
        let Readers { selections, downloads } = self.context.streams().asked;
        (selections, downloads)
    }

    /// The sum of both sides, for which there is room, and of the values at an address `beneath`, or None if the bag is malformed. The context
    /// is entered.
    ///
    /// # Safety
    /// As many values are there as the bag's block has.
    unsafe fn merge(
        &self,
        held: &Entries<f32>,
        beneath: Option<u64>,
        came: &Shaped<'_>,
    ) -> Result<Option<Entries<f32>>, DeviceError> {
        let (context, (stream, downloads)) = (&self.context, self.streams());
        let (held_count, all) = (held.len(), held.len() + came.bag.count);
        assert!(all <= self.room && held.values.len() == held_count, "room for all entries");
        let noted = self.device.address();
        let out = noted + NOTED as u64;
        let result = (out, out + 4 * all as u64);
        context.put(Operation::Copy("a reset of what is noted of a bag"), stream, || {
            // SAFETY: it is within the memory, which is freed only when nothing is under way.
            unsafe { context.backend().fill(noted, 0, NOTED, stream) }
        })?;
        let between = noted + self.between as u64;
        let decoded = (between, between + 4 * came.bag.count as u64);
        let (indices, values) = if held_count == 0 { result } else { decoded };
        self.decode(came, (indices, values))?;
        if held_count > 0 {
            self.write_held(held, (decoded, came.count), result)?;
        }
        if let Some(block) = beneath {
            let (given, grid) = (
                arguments![block, indices, values, came.count, noted],
                context.grid_of_entries(came.bag.count),
            );
            // SAFETY: the caller says so of the values, and the indices are below their number where the bag is not malformed.
            unsafe { context.launch(stream, ADD_BLOCK, (grid, THREADS), given)? };
        }
        if held_count > 0 {
            self.write_came(held_count, (decoded, came.count), result)?;
        }
        // SAFETY: the streams are ours.
        unsafe { context.order(stream, downloads)? };
        let bytes = NOTED + 8 * all;
        context.put(Operation::Copy("the copy of a merged bag to the host"), downloads, || {
            // SAFETY: both have this many bytes, and are freed only when nothing is under way.
            unsafe { context.backend().copy_out(self.pinned.at(0), noted, bytes, downloads) }
        })?;
        self.copied.record(downloads)?;
        self.copied.wait("waiting for a merged bag")?;
        // SAFETY: it was copied, and nothing else is sent meanwhile.
        let words: &[u32] = bytemuck::cast_slice(unsafe { self.pinned.read(0..bytes) });
        let (noted, entries) = words.split_at(NOTED / 4);
        let [wrong, both, _, _, buckets, fitting, wrong_code, _] =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|at: usize| noted[at]);
        if wrong != 0 || wrong_code != 0 || buckets != fitting {
            return Ok(None);
        }
        let (indices, values) = entries.split_at(all);
        let count = all - both as usize;
        let values = bytemuck::cast_slice(&values[..count]).to_vec();
        Ok(Some(Entries { indices: indices[..count].to_vec(), values }))
    }

    /// Decodes a bag to indices and values at two addresses.
    fn decode(&self, came: &Shaped<'_>, (indices, values): (u64, u64)) -> Result<(), DeviceError> {
        let (context, (stream, _)) = (&self.context, self.streams());
        let Shaped { bag, count, len, limit, unary, .. } = *came;
        let width = u32::from(bag.parameter);
        let noted = self.device.address();
        let (body, ones) = (noted + self.given as u64, noted + self.sums as u64);
        let [of_entries, of_words] = [bag.count, unary].map(|all| all.div_ceil(CHUNK as usize) as u32);
        let grid = of_entries.max(of_words);
        let lows = ones + 8 * u64::from(grid);
        // Higher parts lie where results will be. `read_indices` reads that of the entry before, too: no index may be written there.
        let highs = if let ReadBy::Codes = came.values { values } else { indices };
        // SAFETY: there is room for the bag, for the sums and for its entries in memory that is freed only when nothing is under way. Whatever
        // is in the bag, the kernels stay within.
        unsafe {
            context.write(body, bag.body, stream)?;
            let given = arguments![body, count, width, limit, ones, lows, noted];
            context.launch(stream, SURVEY_BAG, (grid, THREADS), given)?;
            let given = arguments![body, count, width, limit, ones, highs, noted];
            context.launch(stream, READ_HIGHS, (of_words, THREADS), given)?;
            if let ReadBy::Entries(coding) = came.values {
                let given = arguments![body, count, width, limit, coding, len, lows, indices, values, noted];
                return context.launch(stream, READ_ENTRIES, (of_entries, THREADS), given);
            }
            // The ones were read.
            let (buckets, shift) = (ones, u32::from(bag.rounded.shift()));
            let fits = body + bag.body.len() as u64;
            let given =
                arguments![body, count, width, limit, shift, len, lows, highs, indices, fits, buckets, noted];
            context.launch(stream, READ_INDICES, (of_entries, THREADS), given)?;
            let bits = bag.rounded.coding().bits();
            let given = arguments![body, count, bits, limit, shift, indices, buckets, fits, values, noted];
            context.launch(stream, READ_CODES, (of_entries, THREADS), given)
        }
    }

    /// Writes what is held, with what was decoded where both have an entry.
    fn write_held(
        &self,
        held: &Entries<f32>,
        ((came, came_values), came_count): ((u64, u64), u32),
        (out, out_values): (u64, u64),
    ) -> Result<(), DeviceError> {
        let (context, (stream, _)) = (&self.context, self.streams());
        let (count, bytes) = (held.len() as u32, 4 * held.len() as u64);
        let noted = self.device.address();
        let [indices, both] = [self.given, self.sums].map(|part| noted + part as u64);
        let (values, below) = (indices + bytes, came_values + 4 * u64::from(came_count));
        let grid = count.div_ceil(CHUNK);
        // SAFETY: as above. The bag and its sums are no longer needed when these are written, as that is in the same stream.
        unsafe {
            context.write(indices, bytemuck::cast_slice(&held.indices), stream)?;
            context.write(values, bytemuck::cast_slice(&held.values), stream)?;
            let given = arguments![indices, count, came, came_count, below, both, noted];
            context.launch(stream, FIND_HELD, (grid, THREADS), given)?;
            let given = arguments![
                indices,
                values,
                count,
                came,
                came_values,
                came_count,
                below,
                both,
                out,
                out_values
            ];
            context.launch(stream, WRITE_HELD, (grid, THREADS), given)
        }
    }

    /// Writes what was decoded where nothing is held, behind the same of what is.
    fn write_came(
        &self,
        held: usize,
        ((came, came_values), came_count): ((u64, u64), u32),
        (out, out_values): (u64, u64),
    ) -> Result<(), DeviceError> {
        let (context, (stream, _), noted) = (&self.context, self.streams(), self.device.address());
        let (indices, below) = (noted + self.given as u64, came_values + 4 * u64::from(came_count));
        let grid = context.grid_of_entries(came_count as usize);
        let given =
            arguments![indices, held as u32, came, came_values, came_count, below, noted, out, out_values];
        // SAFETY: as above.
        unsafe { context.launch(stream, WRITE_CAME, (grid, THREADS), given) }
    }
}

impl CudaValues {
    /// See [`merge`](gleaner_algorithms::device::DeviceValues::merge).
    pub(super) fn merged(
        &self,
        held: &Entries<f32>,
        beneath: Option<usize>,
        came: &Encoded,
    ) -> Result<Option<Entries<f32>>, DeviceError> {
        let Some(shaped) = came.rice().and_then(Shaped::of) else { return Ok(None) };
        let entries = held.len() + shaped.bag.count;
        if !(WORTHWHILE..MOST).contains(&entries) {
            return Ok(None);
        }
        let block = beneath.map(|block| self.locked().blocks.blocks[block].range.clone());
        if block.as_ref().is_some_and(|block| block.len() != shaped.bag.len) {
            return Ok(None);
        }
        let kind = match beneath {
            Some(_) => Offload::AddToBlock,
            None if held.is_empty() => Offload::Decode,
            None => Offload::Add,
        };
        let size = OffloadSize { kind, entries };
        if self.context.offloads.is_host(size) {
            return Ok(None);
        }
        let _entered = self.context.enter()?;
        let mut buffers = self.merging.lock().unwrap_or_else(PoisonError::into_inner);
        let buffers = MergeBuffers::with_room(&mut buffers, &self.context, entries);
        let Some(buffers) = unless_memory_is_missing(buffers)? else { return Ok(None) };
        let there = || {
            let beneath = block.as_ref().map(|block| self.at(block.start));
            // SAFETY: the block has so many values.
            let merge = || unsafe { buffers.merge(held, beneath, &shaped) };
            // Values are read behind the last write.
            let merged = if beneath.is_some() { self.ask(merge) } else { merge() };
            unless_memory_is_missing(merged).map(Option::flatten)
        };
        let here = || {
            let came = came.entries(0, false).ok()?;
            Some(match beneath {
                Some(block) => {
                    let values = self.gather(block, &came.indices).ok()?;
                    held.merge_over(values, came, &Reduction::Sum)
                }
                None if held.is_empty() => came,
                None => held.merge(&came),
            })
        };
        self.context.offloads.choose(size, there, here)
    }
}
