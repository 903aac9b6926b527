//! Adding a gradient.

use gleaner_algorithms::device::{DeviceError, Format};

use super::{CudaValues, State};
use crate::kernels::{self, NOTHING, THREADS, arguments};

impl CudaValues {
    /// Adds values that are on the device, from an address on, to as many from `offset` on: one launch for each block.
    pub(super) fn add_gradient(
        &self,
        state: &mut State,
        offset: usize,
        (address, len, format): (u64, usize, Format),
        replaces: bool,
        thresholds: &[Option<f32>],
    ) -> Result<(), DeviceError> {
        let (start, context) = (self.at(0), &self.context);
        let kernel = match format {
            Format::Float32 => kernels::ACCUMULATE_F32,
            Format::Float16 => kernels::ACCUMULATE_F16,
            Format::BFloat16 => kernels::ACCUMULATE_BF16,
        };
        let (blocks, writes) = (&mut state.blocks, context.streams().writes);
        let (status, end) = (blocks.status(), offset + len);
        for (number, &threshold) in thresholds.iter().enumerate() {
            let reserved = blocks.reserved(number);
            let block = &mut blocks.blocks[number];
            let here = offset.max(block.range.start)..end.min(block.range.end);
            if here.is_empty() {
                continue;
            }
            let (first, count) = ((here.start - block.range.start) as u32, here.len() as u32);
            let threshold = threshold.filter(|_| block.candidates.is_some());
            let (limit, record) = block.collected.call(first, count, threshold);
            let (indices, found, capacity, records) = match &block.candidates {
                Some(c) if limit != NOTHING => (c.indices(), c.values(), c.capacity as u32, c.record(record)),
                _ => (0, 0, 0, 0),
            };
            let gradient = address + ((here.start - offset) * format.width()) as u64;
            let values = start + (here.start * size_of::<f32>()) as u64;
            let given = arguments![
                values,
                gradient,
                count,
                first,
                u32::from(replaces),
                limit,
                indices,
                found,
                capacity,
                reserved,
                records,
                status,
                here.start as u64,
            ];
            // SAFETY: the values from `here` on are ours, the gradient is as long, as the callers check or see to, and so are the
            // candidates and records that there is room for; all is freed only when nothing is under way.
            unsafe { context.launch(writes, kernel, (context.grid_of_tiles(here.len()), THREADS), given)? };
        }
        Ok(())
    }
}
