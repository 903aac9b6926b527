//! Which kernels make a selection, and in which order.
//!
//! Every selection is a cut, found by digits or given by a threshold; then what it keeps is counted, by tile or by record; and from
//! the sums of the counts every warp knows where to write what is kept, in the order of indices.

use gleaner_algorithms::device::DeviceError;

use super::blocks::{Block, Blocks, Candidates};
use crate::backend::Stream;
use crate::context::Context;
use crate::kernels::{
    CHUNK, COUNT_DENSE, COUNT_FOUND, Cut, EMIT_DENSE, EMIT_FOUND, FIXED_CUT, HISTOGRAM_DENSE,
    HISTOGRAM_FOUND, OFFSETS, RECORDS, THREADS, arguments,
};

/// Digits of a magnitude.
const DIGITS: u32 = 3;

/// What is searched.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// All values of a block, from this address on.
    All(&'a Block, u64),
    /// The candidates of the block of this number.
    Found(&'a Block, &'a Candidates, usize),
}

/// Kernels that select from a source, on scratch memory that is used by one selection at a time.
pub(super) struct Selection<'a> {
    pub(super) context: &'a Context,
    pub(super) blocks: &'a Blocks,
    pub(super) source: Source<'a>,
    /// The stream that they are put into.
    pub(super) stream: Stream,
}

/// Where entries are written, and how many there is room for.
#[derive(Clone, Copy)]
pub(super) struct Written {
    pub(super) indices: u64,
    pub(super) values: u64,
    pub(super) most: usize,
}

// SAFETY of the blocks below: the arguments are those that cuda/kernels declares; `values` and the blocks' memory are as long as the
// block is, `cut` is a cut's memory and `Written` has room for `most` entries, as the callers below this file allocate them, and all is freed
// only when nothing is under way.
impl Selection<'_> {
    /// Begins the cut of the k largest, k > 0, and finds it.
    pub(super) fn find_cut(&self, cut: u64, k: usize) -> Result<(), DeviceError> {
        let (context, bins, k) = (self.context, self.blocks.bins(), k as u32);
        let selections = self.stream;
        match self.source {
            Source::All(block, values) => {
                let (grid, len) = (context.grid_of_histogram(block.range.len()), block.range.len() as u32);
                for digit in 0..DIGITS {
                    let given = arguments![values, len, digit, k, cut, bins];
                    // SAFETY: see above.
                    unsafe { context.launch(selections, HISTOGRAM_DENSE, (grid, THREADS), given)? };
                }
            }
            Source::Found(_, candidates, number) => {
                let (reserved, capacity) = (self.blocks.reserved(number), candidates.capacity as u32);
                let (grid, values) = (context.grid_of_histogram(candidates.capacity), candidates.values());
                for digit in 0..DIGITS {
                    let given = arguments![values, reserved, capacity, digit, k, cut, bins];
                    // SAFETY: see above.
                    unsafe { context.launch(selections, HISTOGRAM_FOUND, (grid, THREADS), given)? };
                }
            }
        }
        Ok(())
    }

    /// The cut of what is at least so large; `limit` is not 0.
    pub(super) fn fix_cut(&self, cut: u64, limit: u32) -> Result<(), DeviceError> {
        let selections = self.stream;
        // SAFETY: see above.
        unsafe { self.context.launch(selections, FIXED_CUT, (1, 1), arguments![cut, limit]) }
    }

    /// Counts what the cut keeps.
    pub(super) fn count(&self, cut: u64) -> Result<(), DeviceError> {
        let (context, counts, chunks) = (self.context, self.blocks.counts(), self.blocks.chunks());
        let selections = self.stream;
        match self.source {
            Source::All(block, values) => {
                let len = block.range.len();
                let (grid, given) = (context.grid_of_tiles(len), arguments![values, len as u32, cut, counts]);
                // SAFETY: see above.
                unsafe { context.launch(selections, COUNT_DENSE, (grid, THREADS), given)? };
                let given = arguments![counts, grid, chunks, cut];
                // SAFETY: see above.
                unsafe { context.launch(selections, OFFSETS, (grid.div_ceil(CHUNK), THREADS), given) }
            }
            Source::Found(block, candidates, number) => {
                let (records, reserved) = (block.collected.records(), self.blocks.reserved(number));
                let given = arguments![
                    candidates.values(),
                    candidates.record(0),
                    candidates.table(),
                    candidates.calls(),
                    records,
                    candidates.capacity as u32,
                    reserved,
                    cut,
                    counts,
                    chunks,
                ];
                let grid = records.div_ceil(RECORDS).max(1);
                // SAFETY: see above.
                unsafe { context.launch(selections, COUNT_FOUND, (grid, THREADS), given) }
            }
        }
    }

    /// Writes what was counted.
    pub(super) fn emit(&self, cut: u64, into: Written) -> Result<(), DeviceError> {
        let (context, counts, chunks) = (self.context, self.blocks.counts(), self.blocks.chunks());
        let selections = self.stream;
        let Written { indices, values: kept, most } = into;
        match self.source {
            Source::All(block, values) => {
                let len = block.range.len();
                let given = arguments![values, len as u32, counts, chunks, cut, most as u32, indices, kept];
                // SAFETY: see above.
                unsafe {
                    context.launch(selections, EMIT_DENSE, (context.grid_of_tiles(len), THREADS), given)
                }
            }
            Source::Found(block, candidates, number) => {
                let (records, reserved) = (block.collected.records(), self.blocks.reserved(number));
                let given = arguments![
                    candidates.indices(),
                    candidates.values(),
                    candidates.record(0),
                    candidates.table(),
                    candidates.calls(),
                    records,
                    candidates.capacity as u32,
                    reserved,
                    counts,
                    chunks,
                    cut,
                    most as u32,
                    indices,
                    kept,
                ];
                // SAFETY: see above.
                unsafe {
                    context.launch(selections, EMIT_FOUND, (context.grid_of_records(records), THREADS), given)
                }
            }
        }
    }
}

/// The least magnitude kept, as a value; 0 if nothing was.
pub(super) fn smallest(cut: &Cut) -> f32 {
    if cut.kept == 0 { 0.0 } else { f32::from_bits(cut.smallest) }
}
