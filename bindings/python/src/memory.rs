//! Memory that the Python half lends for a call.

use gleaner::algorithms::Element;
use gleaner::algorithms::device::{DeviceSlice, Format, Order};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::exception;

/// Refuses what cannot be memory with that many values.
fn check<T>(address: usize, count: usize) -> PyResult<()> {
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    if !fits || (count > 0 && (address == 0 || !address.is_multiple_of(align_of::<T>()))) {
        return Err(PyValueError::new_err(format!(
            "expected {count} values of {} bytes at an address that is a multiple of {}, found the address {address:#x}",
            size_of::<T>(),
            align_of::<T>(),
        )));
    }
    Ok(())
}

/// This many values at an address.
///
/// # Errors
/// An address that no such value can have.
///
/// # Safety
/// The values are there, and no other code writes to them, for as long as the slice is used.
pub unsafe fn values<'a, T: Element>(address: usize, count: usize) -> PyResult<&'a [T]> {
    check::<T>(address, count)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: aligned and not null; the caller promises the rest. Every pattern of bits is a value.
    Ok(unsafe { std::slice::from_raw_parts(address as *const T, count) })
}

/// The same, to be written to.
///
/// # Errors
/// An address that no such value can have.
///
/// # Safety
/// The values are there, and no other code reads them or writes to them, for as long as the slice is used.
pub unsafe fn values_mut<'a, T: Element>(address: usize, count: usize) -> PyResult<&'a mut [T]> {
    check::<T>(address, count)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: aligned and not null; the caller promises the rest. Every pattern of bits is a value.
    Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut T, count) })
}

/// This many indices of 64 bits at an address, as PyTorch has them.
///
/// # Errors
/// An address that no index can have, and indices that are not below 2³².
///
/// # Safety
/// The indices are there, and no other code writes to them during the call.
pub unsafe fn indices(address: usize, count: usize) -> PyResult<Vec<u32>> {
    check::<i64>(address, count)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: aligned and not null; the caller promises the rest.
    let indices = unsafe { std::slice::from_raw_parts(address as *const i64, count) };
    let narrow = |&index: &i64| {
        u32::try_from(index)
            .map_err(|_| PyValueError::new_err(format!("index {index} has more than 32 bits")))
    };
    indices.iter().map(narrow).collect()
}

/// Writes indices to memory for as many of 64 bits.
///
/// # Errors
/// An address that no index can have.
///
/// # Safety
/// The memory is there, and no other code uses it during the call.
pub unsafe fn put_indices(indices: &[u32], address: usize) -> PyResult<()> {
    check::<i64>(address, indices.len())?;
    if indices.is_empty() {
        return Ok(());
    }
    // SAFETY: aligned and not null; the caller promises the rest.
    let into = unsafe { std::slice::from_raw_parts_mut(address as *mut i64, indices.len()) };
    into.iter_mut().zip(indices).for_each(|(into, &index)| *into = i64::from(index));
    Ok(())
}

/// This many values of a type at an address of a device, to be used in some order. The driver says whose memory it is.
///
/// # Errors
/// Another type than float32, float16 and bfloat16.
pub fn device_slice(
    py: Python<'_>,
    address: u64,
    len: usize,
    dtype: &str,
    order: Order,
) -> PyResult<DeviceSlice> {
    let format = match dtype {
        "float32" => Format::Float32,
        "float16" => Format::Float16,
        "bfloat16" => Format::BFloat16,
        other => {
            let sentence = format!("values on a device are {other}; expected float32, float16 or bfloat16");
            return Err(exception(py, "UnsupportedError", (sentence,)));
        }
    };
    Ok(DeviceSlice { address, len, format, order })
}

/// Bytes at an address, copied.
///
/// # Errors
/// No address.
///
/// # Safety
/// The bytes are there, and no other code writes to them during the call.
pub unsafe fn bytes(address: usize, count: usize) -> PyResult<Vec<u8>> {
    check::<u8>(address, count)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: not null; the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(address as *const u8, count) }.to_vec())
}

/// Copies bytes to an address.
///
/// # Errors
/// No address.
///
/// # Safety
/// There is room for the bytes, which no other code uses during the call.
pub unsafe fn put(bytes: &[u8], address: usize) -> PyResult<()> {
    check::<u8>(address, bytes.len())?;
    if !bytes.is_empty() {
        // SAFETY: not null; the caller promises the rest, and what was just received overlaps with nothing of theirs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }
    Ok(())
}
