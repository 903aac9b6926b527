//! Values at some indices, which come from the host.

use std::ffi::CStr;
use std::ops::Range;

use gleaner_algorithms::device::DeviceError;

use super::CudaValues;
use crate::kernels::{self, THREADS, arguments};
use crate::staging::PIECE;
use crate::streams::Readers;

impl CudaValues {
    /// The values at some indices of a block, in the stream of selections. The context is entered.
    pub(super) fn values_at(&self, block: &Range<usize>, indices: &[u32]) -> Result<Vec<f32>, DeviceError> {
        check(block, indices)?;
        let (context, values) = (&self.context, self.at(block.start));
        let Readers { selections, downloads } = context.streams().asked;
        let mut gathered = Vec::with_capacity(indices.len());
        for indices in indices.chunks(PIECE) {
            let mut staged = context.stage(selections, &[bytemuck::cast_slice(indices)])?;
            staged.upload()?;
            let (out, count) = (staged.part(1), indices.len());
            let given = arguments![values, staged.part(0), count as u32, out];
            // SAFETY: the indices are below the block's length, and a buffer has room for as many values behind them.
            unsafe {
                context.launch(
                    selections,
                    kernels::GATHER,
                    (context.grid_of_entries(count), THREADS),
                    given,
                )?;
                // The streams are ours.
                context.order(selections, downloads)?;
            }
            let to = staged.start(1);
            // SAFETY: this many values were written there, in a buffer that nothing else uses.
            unsafe { staged.download(out, to, count * size_of::<f32>())? };
            gathered.extend_from_slice(bytemuck::cast_slice(staged.wait()?));
        }
        Ok(gathered)
    }

    /// Changes a block at some indices, each given once, with a value for each if the kernel wants them, in the stream of
    /// writes. The context is entered.
    pub(super) fn change_at(
        &self,
        kernel: &'static CStr,
        block: &Range<usize>,
        indices: &[u32],
        values: Option<&[f32]>,
    ) -> Result<(), DeviceError> {
        check(block, indices)?;
        assert!(
            values.is_none_or(|values| values.len() == indices.len()),
            "every entry has one index and one value"
        );
        let (context, at) = (&self.context, self.at(block.start));
        let writes = context.streams().writes;
        for (number, indices) in indices.chunks(PIECE).enumerate() {
            let given = values.map_or(&[][..], |values| &values[number * PIECE..][..indices.len()]);
            let staged =
                context.stage(writes, &[bytemuck::cast_slice(indices), bytemuck::cast_slice(given)])?;
            staged.upload()?;
            let (grid, count) = (context.grid_of_entries(indices.len()), indices.len() as u32);
            let with = arguments![at, staged.part(0), staged.part(1), count];
            let without = arguments![at, staged.part(0), count];
            let given: &[_] = if values.is_some() { with } else { without };
            // SAFETY: the indices are below the block's length, and the buffer is not used again before the kernel is done.
            unsafe { context.launch(writes, kernel, (grid, THREADS), given)? };
        }
        Ok(())
    }
}

fn check(block: &Range<usize>, indices: &[u32]) -> Result<(), DeviceError> {
    match indices.iter().find(|&&index| index as usize >= block.len()) {
        None => Ok(()),
        Some(index) => Err(DeviceError::Other(format!(
            "expected an index below {} in a block, found {index}",
            block.len()
        ))),
    }
}
