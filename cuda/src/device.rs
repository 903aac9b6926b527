//! A device as the rest of Gleaner sees it.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::device::{Apply, Device, DeviceError, DeviceSlice, DeviceValues, Format, Order};

use crate::backend::Driver;
#[cfg(feature = "emulation")]
use crate::backend::Emulation;
use crate::context::Context;
use crate::error::CudaError;
use crate::fence::Moment;
use crate::journal::Operation;
use crate::kernels::{self, Argument, THREADS, arguments};
use crate::memory::Memory;
use crate::offload::OffloadTimes;
use crate::staging::{PIECE, PIECE_BYTES};
use crate::values::CudaValues;

/// An NVIDIA device that is in use, with the kernels loaded and streams of its own.
#[derive(Debug)]
pub struct Cuda {
    context: Arc<Context>,
}

impl Cuda {
    /// How many devices the driver lists: those that `CUDA_VISIBLE_DEVICES` names, if it is set.
    ///
    /// # Errors
    /// No driver, or one that is too old for the kernels.
    pub fn count() -> Result<u32, CudaError> {
        Driver::count()
    }

    /// The device of this number among those that the driver lists. With the environment variable CUDA_LAUNCH_BLOCKING=1, everything
    /// that is started on it is waited for, so that an error is said of what has failed.
    ///
    /// # Errors
    /// Why there is none, or why it cannot be used.
    pub fn open(ordinal: u32) -> Result<Arc<Self>, CudaError> {
        let waits = std::env::var_os("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value == "1");
        let context = Context::new(Box::new(Driver::open(ordinal)?), waits)?;
        Ok(Arc::new(Self { context: Arc::new(context) }))
    }

    /// A device that the CPU emulates.
    ///
    /// # Errors
    /// What the emulation was set to fail at.
    #[cfg(feature = "emulation")]
    pub fn emulated(emulation: Emulation) -> Result<Arc<Self>, DeviceError> {
        let waits = emulation.waits();
        let context = Context::new(Box::new(emulation), waits)?;
        Ok(Arc::new(Self { context: Arc::new(context) }))
    }

    /// This many bytes of the device's memory, with anything in them, for the program itself.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn memory(&self, bytes: usize) -> Result<Memory, DeviceError> {
        Memory::new(&self.context, bytes, "the program")
    }

    /// Free bytes of the device's memory, and all.
    ///
    /// # Errors
    /// What has failed on the device.
    pub fn available(&self) -> Result<(usize, usize), DeviceError> {
        let _entered = self.context.enter()?;
        self.context.call("asking for free memory", self.context.backend().available())
    }

    /// After all gradients and updates so far.
    ///
    /// # Errors
    /// What has failed on the device.
    pub fn now(&self) -> Result<Moment, DeviceError> {
        let _entered = self.context.enter()?;
        Moment::now(&self.context)
    }

    /// Lets all that is started from now on wait for all kernels so far: selections, which are in streams of their own, are measured
    /// between two moments by that.
    ///
    /// # Errors
    /// What has failed on the device.
    pub fn join_streams(&self) -> Result<(), DeviceError> {
        let (context, streams) = (&self.context, self.context.streams());
        let _entered = context.enter()?;
        let selections = [streams.ahead, streams.asked].map(|readers| readers.selections);
        // SAFETY: the streams are ours.
        unsafe {
            selections.iter().try_for_each(|&stream| context.order(stream, streams.writes))?;
            selections.iter().try_for_each(|&stream| context.order(streams.writes, stream))
        }
    }

    /// From now on notes how long each kernel and each copy takes, which makes them a little slower.
    pub fn start_trace(&self) {
        self.context.start_trace();
    }

    /// Waits for all that was noted, and notes no more. By name of the kernel or copy, in the order in which they were started.
    ///
    /// # Errors
    /// What has failed on the device.
    pub fn end_trace(&self) -> Result<Vec<(String, Duration)>, DeviceError> {
        let _entered = self.context.enter()?;
        self.context.end_trace()
    }

    /// How long encoding, decoding and merging have taken on the device and on the host, for each class of sizes that came.
    pub fn offload_times(&self) -> Vec<OffloadTimes> {
        self.context.offloads.measured()
    }

    /// What the device takes for a launch of a kernel that does next to nothing, when so many follow each other.
    ///
    /// # Errors
    /// What has failed on the device.
    pub fn launch_time(&self, times: u32) -> Result<Duration, DeviceError> {
        let (cut, stream) = (self.memory(kernels::Cut::WIDTH)?, self.context.streams().writes);
        let _entered = self.context.enter()?;
        let start = Moment::now(&self.context)?;
        for _ in 0..times {
            // SAFETY: the kernel writes one cut, which is freed when nothing is under way.
            unsafe {
                self.context.launch(stream, kernels::FIXED_CUT, (1, 1), arguments![cut.address(), 1_u32])?
            };
        }
        Ok(Moment::now(&self.context)?.since(&start)? / times.max(1))
    }
}

impl Cuda {
    /// Applies an update to the program's values. Where nothing of the program's waits for it by itself, this does.
    fn applying(
        &self,
        into: &DeviceSlice,
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let context = &self.context;
        let _entered = context.enter()?;
        context.in_order_of(into, "the values that the update is applied to", work)?;
        match into.order {
            Order::Stream(_) => Ok(()),
            Order::Event(_) => context.finish(context.streams().writes),
        }
    }
}

/// How a kernel applies an update.
struct Applied {
    sparse: &'static CStr,
    dense: &'static CStr,
    argument: Argument,
}

fn applied(format: Format, how: Apply) -> Applied {
    use kernels::*;
    let (sparse, dense) = match (how, format) {
        (Apply::Write { .. }, Format::Float32) => (WRITE_AT_F32, WRITE_ALL_F32),
        (Apply::Write { .. }, Format::Float16) => (WRITE_AT_F16, WRITE_ALL_F16),
        (Apply::Write { .. }, Format::BFloat16) => (WRITE_AT_BF16, WRITE_ALL_BF16),
        (Apply::Add { .. }, Format::Float32) => (ADD_AT_F32, ADD_ALL_SCALED_F32),
        (Apply::Add { .. }, Format::Float16) => (ADD_AT_F16, ADD_ALL_SCALED_F16),
        (Apply::Add { .. }, Format::BFloat16) => (ADD_AT_BF16, ADD_ALL_SCALED_BF16),
    };
    let argument = match how {
        Apply::Write { divisor } => divisor.into(),
        Apply::Add { scale } => scale.into(),
    };
    Applied { sparse, dense, argument }
}

impl Device for Cuda {
    fn name(&self) -> String {
        self.context.name().to_owned()
    }

    fn zeros(&self, len: usize) -> Result<Box<dyn DeviceValues<f32>>, DeviceError> {
        Ok(Box::new(CudaValues::zeros(&self.context, len)?))
    }

    fn apply(&self, into: &DeviceSlice, entries: &Entries<f32>, how: Apply) -> Result<(), DeviceError> {
        if let Some(index) = entries.indices.iter().find(|&&index| index as usize >= into.len) {
            return Err(DeviceError::Other(format!(
                "expected an index below {}, found {index} in an update",
                into.len
            )));
        }
        let (context, kernel) = (&self.context, applied(into.format, how));
        let writes = context.streams().writes;
        self.applying(into, || {
            if let (Apply::Write { .. }, 1..) = (how, into.len) {
                let bytes = into.len * into.format.width();
                context.put(Operation::Copy("making the values zero"), writes, || {
                    // SAFETY: this many bytes are the device's: they were checked, and the program keeps them for its stream.
                    unsafe { context.backend().fill(into.address, 0, bytes, writes) }
                })?;
            }
            let pieces = entries.indices.chunks(PIECE).zip(entries.values.chunks(PIECE));
            for (indices, values) in pieces {
                let staged =
                    context.stage(writes, &[bytemuck::cast_slice(indices), bytemuck::cast_slice(values)])?;
                staged.upload()?;
                let (count, grid) = (indices.len() as u32, context.grid_of_entries(indices.len()));
                let given = arguments![into.address, staged.part(0), staged.part(1), count, kernel.argument];
                // SAFETY: as above, with all indices below the length, and the buffer is not used before the kernel is done.
                unsafe { context.launch(writes, kernel.sparse, (grid, THREADS), given)? };
            }
            Ok(())
        })
    }

    fn apply_dense(&self, into: &DeviceSlice, values: &[f32], how: Apply) -> Result<(), DeviceError> {
        if values.len() != into.len {
            return Err(DeviceError::Other(format!(
                "expected {} values in an update, found {}",
                into.len,
                values.len()
            )));
        }
        let (context, kernel) = (&self.context, applied(into.format, how));
        let writes = context.streams().writes;
        self.applying(into, || {
            let most = PIECE_BYTES / size_of::<f32>();
            for (number, part) in values.chunks(most).enumerate() {
                let staged = context.stage(writes, &[bytemuck::cast_slice(part)])?;
                staged.upload()?;
                let to = into.address + (number * most * into.format.width()) as u64;
                let given = arguments![to, staged.part(0), part.len() as u64, kernel.argument];
                // SAFETY: as in `apply`.
                unsafe {
                    context.launch(
                        writes,
                        kernel.dense,
                        (context.grid_of_values(part.len()), THREADS),
                        given,
                    )?
                };
            }
            Ok(())
        })
    }
}
