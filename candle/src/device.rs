//! Gradients and parameters in the memory of a CUDA device.

use std::sync::Arc;

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::{DeviceLocation, Error, Result, Storage, Tensor, Var};
use gleaner_algorithms::device::{Device, DeviceSlice, Format, Order};
use gleaner_cuda::Cuda;
use gleaner_runtime::Update;

use crate::OverlapError;

/// The same device as candle's, for residuals.
pub(crate) fn open(device: &candle_core::Device) -> std::result::Result<Arc<dyn Device>, OverlapError> {
    match device.location() {
        DeviceLocation::Cuda { gpu_id } => Ok(Cuda::open(gpu_id as u32)?),
        _ => Err(Error::Msg("expected a CUDA device".into()).into()),
    }
}

/// The mean of a parameter's gradients, where the parameter lies.
pub(crate) fn mean(
    update: &Update,
    name: &str,
    parameter: &Var,
) -> std::result::Result<Tensor, OverlapError> {
    let mean = parameter.zeros_like()?;
    update.copy_to_device(name, &device_slice(&mean)?)?;
    Ok(mean)
}

/// Where the values of a contiguous tensor of f32, f16 or bf16 lie on a CUDA device. They are written and read in the order of
/// candle's stream; the tensor has to live until what uses the slice is enqueued there, and no longer.
///
/// # Errors
/// A tensor of another type, in main memory, or not contiguous.
pub fn device_slice(tensor: &Tensor) -> Result<DeviceSlice> {
    let (storage, layout) = tensor.storage_and_layout();
    let Some((start, end)) = layout.contiguous_offsets() else {
        return Err(Error::RequiresContiguous { op: "device slice" }.bt());
    };
    let Storage::Cuda(storage) = &*storage else {
        candle_core::bail!("expected a tensor on a CUDA device, found one in main memory");
    };
    let stream = storage.device.cuda_stream();
    let (address, format) = match &storage.slice {
        CudaStorageSlice::F32(values) => (values.device_ptr(&stream).0, Format::Float32),
        CudaStorageSlice::F16(values) => (values.device_ptr(&stream).0, Format::Float16),
        CudaStorageSlice::BF16(values) => (values.device_ptr(&stream).0, Format::BFloat16),
        _ => candle_core::bail!("expected values of f32, f16 or bf16, found {:?}", tensor.dtype()),
    };
    let address = address + (start * format.width()) as u64;
    let order = Order::Stream(stream.cu_stream() as u64);
    Ok(DeviceSlice { address, len: end - start, format, order })
}
