//! The memory that values need beside themselves, allocated once for all steps, and what a cut into blocks needs.

use std::ops::Range;
use std::sync::Arc;

use gleaner_algorithms::device::DeviceError;

use super::collected::{CALLS, Call, Collected, room};
use super::output::Output;
use crate::backend::{Kind, Stream};
use crate::context::Context;
use crate::fence::Fence;
use crate::journal::Operation;
use crate::kernels::{BINS, CHUNK, RECORDS};
use crate::memory::{Layout, Memory, Pinned};

/// More candidates than this for the k largest of `len` cost more than another look at all entries: as on the host.
fn useful_capacity(k: usize, len: usize) -> usize {
    len.min(8 * k + len / 64)
}

/// Bytes of calls that have memory of their own to come from: they wait for a gradient that is still to come, and buffers that others wait
/// for must not.
const GIVEN: usize = 4096;

/// Candidates of a block, and what is chosen of them.
#[derive(Debug)]
pub(super) struct Candidates {
    /// How many there is room for.
    pub(super) capacity: usize,
    memory: Memory,
    values: usize,
    records: usize,
    table: usize,
    /// The calls that the device has in its table, and how they come there.
    calls: Vec<Call>,
    given: Pinned,
    placed: Fence,
    pub(super) output: Output,
    /// Whether a choice was begun in this step.
    pub(super) begun: bool,
    /// How many entries the output has that were chosen for this step, if their number was reported.
    pub(super) chosen: Option<usize>,
}

impl Candidates {
    fn new(context: &Arc<Context>, len: usize, quota: usize) -> Result<Self, DeviceError> {
        let capacity = useful_capacity(quota, len);
        let mut layout = Layout::default();
        layout.take(4 * capacity);
        let (values, records) = (layout.take(4 * capacity), layout.take(8 * room(len)));
        let table = layout.take(size_of::<Call>() * CALLS.min(len));
        let memory = Memory::new(context, layout.bytes, "candidates")?;
        let output = Output::new(context, context.streams().ahead, quota)?;
        Ok(Self {
            capacity,
            memory,
            values,
            records,
            table,
            calls: Vec::new(),
            given: Pinned::new(context, GIVEN)?,
            placed: Fence::new(context, Kind::Wait)?,
            output,
            begun: false,
            chosen: None,
        })
    }

    /// Where the indices are.
    pub(super) fn indices(&self) -> u64 {
        self.memory.address()
    }

    /// Where the values are.
    pub(super) fn values(&self) -> u64 {
        self.memory.address() + self.values as u64
    }

    /// Where a record is.
    pub(super) fn record(&self, number: u32) -> u64 {
        self.memory.address() + self.records as u64 + 8 * u64::from(number)
    }

    /// Where the calls are.
    pub(super) fn table(&self) -> u64 {
        self.memory.address() + self.table as u64
    }

    /// How many calls are there.
    pub(super) fn calls(&self) -> u32 {
        self.calls.len() as u32
    }

    /// Puts the calls where the kernels read them, unless they are there from a step before. The context is entered.
    pub(super) fn set_calls(&mut self, context: &Context, calls: Vec<Call>) -> Result<(), DeviceError> {
        if calls != self.calls {
            let selections = context.streams().ahead.selections;
            let bytes: &[u8] = bytemuck::cast_slice(&calls);
            if bytes.len() > GIVEN {
                // SAFETY: there is room for as many calls as are collected, in memory that is freed only when nothing is under way.
                unsafe { context.write(self.table(), bytes, selections)? };
            } else {
                self.placed.wait("waiting for the calls of a step before")?;
                // SAFETY: there is room, and nothing else uses it.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.given.at(0), bytes.len()) };
                context.put(Operation::Copy("a copy to the device"), selections, || {
                    // SAFETY: as for what is written, and the pinned memory is not changed before this is done.
                    unsafe {
                        context.backend().copy_in(self.table(), self.given.at(0), bytes.len(), selections)
                    }
                })?;
                self.placed.record(selections)?;
            }
            self.calls = calls;
        }
        Ok(())
    }
}

/// A block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) range: Range<usize>,
    /// How many entries will be asked for.
    pub(super) quota: Option<u32>,
    pub(super) collected: Collected,
    /// None where nothing is asked for.
    pub(super) candidates: Option<Candidates>,
}

impl Block {
    fn new(context: &Arc<Context>, range: Range<usize>, quota: Option<u32>) -> Result<Self, DeviceError> {
        let len = range.len();
        assert!(u32::try_from(len).is_ok(), "an index in a block fits into u32");
        let asked = asked(len, quota);
        let candidates = if asked > 0 { Some(Candidates::new(context, len, asked)?) } else { None };
        Ok(Self { range, quota, collected: Collected::new(len), candidates })
    }

    /// The quota, as far as the block has entries.
    pub(super) fn asked(&self) -> usize {
        asked(self.range.len(), self.quota)
    }
}

/// How many entries of a block will be asked for.
pub(super) fn asked(len: usize, quota: Option<u32>) -> usize {
    len.min(quota.unwrap_or(0) as usize)
}

/// All blocks, and what they share.
#[derive(Debug)]
pub(super) struct Blocks {
    context: Arc<Context>,
    /// How many values they have together.
    len: usize,
    pub(super) blocks: Vec<Block>,
    counters: Counters,
    /// What is noted of sums that are not finite comes to the host by it.
    status: Pinned,
    checked: Fence,
}

/// Where the device counts, whatever the cut: it is as large as the largest block could be.
#[derive(Debug)]
struct Counters {
    memory: Memory,
    /// How many blocks there is room for.
    room: usize,
    bins: usize,
    counts: usize,
    chunks: usize,
}

/// Bytes of what is noted of sums that are not finite: the lowest position, and how many there are.
const STATUS: usize = 16;

/// Blocks that there is room for from the start, so that a cut seldom needs more.
const ROOM: usize = 1024;

impl Counters {
    /// Of so many values in so many blocks. The context is entered.
    fn new(context: &Arc<Context>, len: usize, room_for: usize) -> Result<Self, DeviceError> {
        // By tile, or by record.
        let counted = room(len);
        let mut layout = Layout::default();
        // The status, and behind it how many candidates each block has: both are reset at once.
        layout.take(STATUS + 4 * room_for);
        let (bins, counts) = (layout.take(4 * BINS), layout.take(8 * counted));
        let chunks = layout.take(8 * counted.div_ceil(RECORDS.min(CHUNK) as usize));
        let memory = Memory::new(context, layout.bytes, "counts of candidates")?;
        let made = Self { memory, room: room_for, bins, counts, chunks };
        let (bins, writes) = (made.memory.address() + made.bins as u64, context.streams().writes);
        fill(context, bins, 0, 4 * BINS, writes)?;
        Ok(made)
    }
}

impl Blocks {
    /// Memory for so many values, in no blocks yet. The context is entered.
    pub(super) fn new(context: &Arc<Context>, len: usize) -> Result<Self, DeviceError> {
        let (status, checked) = (Pinned::new(context, STATUS)?, Fence::new(context, Kind::Wait)?);
        let (counters, context) = (Counters::new(context, len, ROOM)?, Arc::clone(context));
        Ok(Self { context, len, blocks: Vec::new(), counters, status, checked })
    }

    /// Cuts into these blocks, in the stream of writes, and forgets what was collected, with the memory for it. Nothing is collected of the new
    /// ones yet. The context is entered.
    pub(super) fn cut(&mut self, ranges: &[Range<usize>]) -> Result<(), DeviceError> {
        let uncollected = |range: &Range<usize>| Block::new(&self.context, range.clone(), None);
        self.blocks = ranges.iter().map(uncollected).collect::<Result<_, _>>()?;
        self.clear()
    }

    /// Has candidates collected from now on, or of no block if memory is missing. The context is entered.
    pub(super) fn collect(&mut self, quotas: &[Option<u32>]) -> Result<(), DeviceError> {
        assert_eq!(self.blocks.len(), quotas.len(), "one quota for each block");
        if self.blocks.len() > self.counters.room && quotas.iter().any(Option::is_some) {
            self.counters = Counters::new(&self.context, self.len, self.blocks.len())?;
            self.clear()?;
        }
        let collected =
            |(block, quota): (&Block, &Option<u32>)| Block::new(&self.context, block.range.clone(), *quota);
        self.blocks = self.blocks.iter().zip(quotas).map(collected).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// The blocks, and the quota of each.
    pub(super) fn shape(&self) -> (Vec<Range<usize>>, Vec<Option<u32>>) {
        self.blocks.iter().map(|block| (block.range.clone(), block.quota)).unzip()
    }

    /// Where sums that are not finite are noted.
    pub(super) fn status(&self) -> u64 {
        self.counters.memory.address()
    }

    /// Where it is counted how many candidates a block has, of one that has any.
    pub(super) fn reserved(&self, block: usize) -> u64 {
        self.status() + (STATUS + 4 * block) as u64
    }

    /// Where a histogram is made.
    pub(super) fn bins(&self) -> u64 {
        self.status() + self.counters.bins as u64
    }

    /// Where entries are counted, by tile or record.
    pub(super) fn counts(&self) -> u64 {
        self.status() + self.counters.counts as u64
    }

    /// Where the counts of chunks of tiles are summed.
    pub(super) fn chunks(&self) -> u64 {
        self.status() + self.counters.chunks as u64
    }

    /// Forgets what was collected, in the stream of writes. The context is entered.
    pub(super) fn clear(&mut self) -> Result<(), DeviceError> {
        for block in &mut self.blocks {
            block.collected.clear();
            block
                .candidates
                .iter_mut()
                .for_each(|candidates| (candidates.begun, candidates.chosen) = (false, None));
        }
        // No position is as high as the first, and there are none.
        let writes = self.context.streams().writes;
        self.checked.before(writes)?;
        fill(&self.context, self.status(), u8::MAX, STATUS / 2, writes)?;
        let counted = self.blocks.len().min(self.counters.room);
        fill(&self.context, self.status() + STATUS as u64 / 2, 0, STATUS / 2 + 4 * counted, writes)
    }

    /// The values of a block have changed otherwise than by a call of a step, or those of all.
    pub(super) fn invalidate(&mut self, block: Option<usize>) {
        match block {
            Some(block) => self.blocks[block].collected.invalidate(),
            None => self.blocks.iter_mut().for_each(|block| block.collected.invalidate()),
        }
    }

    /// Copies to the host what is noted of sums that are not finite, in a stream of downloads. The context is entered.
    pub(super) fn send_status(&self, downloads: Stream) -> Result<(), DeviceError> {
        let context = &self.context;
        context.put(Operation::Copy("the copy of what is not finite to the host"), downloads, || {
            // SAFETY: both have this many bytes, and are freed only when nothing is under way.
            unsafe { context.backend().copy_out(self.status.at(0), self.status(), STATUS, downloads) }
        })?;
        self.checked.record(downloads)
    }

    /// Waits for that: the lowest position, and how many.
    pub(super) fn receive_status(&self) -> Result<(u64, u64), DeviceError> {
        self.checked.wait("waiting for gradients")?;
        // SAFETY: it was copied, and nothing else is sent meanwhile.
        let words: &[u64] = bytemuck::cast_slice(unsafe { self.status.read(0..STATUS) });
        Ok((words[0], words[1]))
    }
}

/// Fills memory that is ours.
fn fill(context: &Context, at: u64, byte: u8, bytes: usize, stream: Stream) -> Result<(), DeviceError> {
    context.put(Operation::Copy("a reset of counts"), stream, || {
        // SAFETY: it is within the memory.
        unsafe { context.backend().fill(at, byte, bytes, stream) }
    })
}
