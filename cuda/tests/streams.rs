//! The order between a program's streams and ours, and what the driver says of memory and streams that are not: on a device only.

#![allow(clippy::unwrap_used)]

#[macro_use]
mod devices;

use std::ptr;

use cudarc::driver::sys;
use devices::{enter, on_real};
use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::device::{
    Apply, Device, DeviceError, DeviceSlice, DeviceValues, Format, Given, Order,
};
use gleaner_cuda::Cuda;

/// Bytes that a copy on the device moves in some tenths of a millisecond.
const LARGE: usize = 256 << 20;

fn stream(kind: sys::CUstream_flags) -> sys::CUstream {
    let mut stream = ptr::null_mut();
    driver!(cuStreamCreate(&mut stream, kind as u32));
    stream
}

fn slice(address: u64, len: usize, stream: sys::CUstream) -> DeviceSlice {
    DeviceSlice { address, len, format: Format::Float32, order: Order::Stream(stream as u64) }
}

fn fill(address: u64, value: f32, len: usize, stream: sys::CUstream) {
    driver!(cuMemsetD32Async(address, value.to_bits(), len, stream));
}

/// Gives a stream something to do for a while.
fn keep_busy(memory: u64, stream: sys::CUstream) {
    (0..16).for_each(|_| driver!(cuMemcpyDtoDAsync_v2(memory, memory + LARGE as u64, LARGE, stream)));
}

#[test]
fn a_gradient_is_read_after_it_was_written_and_before_it_is_overwritten() {
    on_real(|cuda| {
        enter();
        let n = 1 << 24;
        let (mut busy, mut gradient) = (0, 0);
        driver!(cuMemAlloc_v2(&mut busy, 2 * LARGE));
        driver!(cuMemAlloc_v2(&mut gradient, 4 * n));
        let streams = [
            ptr::null_mut(),
            // The default stream of each thread.
            2 as sys::CUstream,
            stream(sys::CUstream_flags::CU_STREAM_DEFAULT),
            stream(sys::CUstream_flags::CU_STREAM_NON_BLOCKING),
        ];
        for stream in streams {
            let mut values = cuda.zeros(n).unwrap();
            for step in 0..4 {
                keep_busy(busy, stream);
                fill(gradient, 1.0, n, stream);
                let given = Given::Device(slice(gradient, n, stream));
                values.accumulate(0, given, step == 0, &[None]).unwrap();
                // A caching allocator gives the memory to other code, which writes at once.
                fill(gradient, 1000.0, n, stream);
            }
            assert_all(&*values, 4.0);
            // The other way round: what is applied is there for the stream.
            keep_busy(busy, stream);
            fill(gradient, 1.0, n, stream);
            cuda.apply_dense(&slice(gradient, n, stream), &vec![2.0; n], Apply::Add { scale: 0.5 }).unwrap();
            let given = Given::Device(slice(gradient, n, stream));
            values.accumulate(0, given, false, &[None]).unwrap();
            assert_all(&*values, 6.0);
        }
        driver!(cuMemFree_v2(busy));
        driver!(cuMemFree_v2(gradient));
    });
}

fn assert_all(values: &dyn DeviceValues<f32>, expected: f32) {
    let found = values.read(0..values.len()).unwrap();
    assert!(found.iter().all(|value| *value == expected), "expected {expected}, found {:?}", &found[..4]);
}

#[test]
fn what_the_driver_says_of_memory_and_streams_is_believed() {
    on_real(|cuda| {
        let primary = enter();
        let n = 1 << 20;
        let ours = stream(sys::CUstream_flags::CU_STREAM_NON_BLOCKING);
        let mut address = 0;
        // From a pool in the order of a stream: of no context, and all of the device may use it.
        driver!(cuMemAllocAsync(&mut address, 4 * n, ours));
        fill(address, 1.0, n, ours);
        let mut values = cuda.zeros(n).unwrap();
        values.accumulate(0, Given::Device(slice(address, n, ours)), true, &[None]).unwrap();
        assert_all(&*values, 1.0);

        let mut pinned = ptr::null_mut();
        driver!(cuMemHostAlloc(&mut pinned, 4 * n, 0));
        refused(cuda, slice(pinned as u64, n, ours), "host's memory");
        let mut freed = 0;
        driver!(cuMemAlloc_v2(&mut freed, LARGE));
        driver!(cuMemFree_v2(freed));
        refused(cuda, slice(freed, n, ours), "does not know");

        driver!(cuStreamBeginCapture_v2(ours, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED));
        refused(cuda, slice(address, n, ours), "CUDA graph");
        let mut graph = ptr::null_mut();
        driver!(cuStreamEndCapture(ours, &mut graph));
        driver!(cuGraphDestroy(graph));

        let (mut context, mut theirs) = (ptr::null_mut(), 0);
        driver!(cuCtxCreate_v2(&mut context, 0, 0));
        driver!(cuMemAlloc_v2(&mut theirs, 4 * n));
        let other = stream(sys::CUstream_flags::CU_STREAM_NON_BLOCKING);
        driver!(cuCtxSetCurrent(primary));
        refused(cuda, slice(theirs, n, ours), "another context");
        refused(cuda, slice(address, n, other), "another context");
        driver!(cuCtxDestroy_v2(context));

        // Nothing of that was done, and the device goes on.
        assert_all(&*values, 1.0);
        driver!(cuMemFreeAsync(address, ours));
        driver!(cuMemFreeHost(pinned));
    });
}

#[test]
fn memory_that_is_missing_on_a_device_is_said_and_what_was_there_goes_on() {
    on_real(|cuda| {
        let n = 1 << 20;
        let mut values = cuda.zeros(n).unwrap();
        values.accumulate(0, Given::Host(&vec![3.0; n]), true, &[None]).unwrap();
        let all = cuda.available().unwrap().1;
        let error = cuda.zeros(all / 4 + 1).unwrap_err();
        assert!(matches!(error, DeviceError::Memory(_)), "{error}");
        let sentence = error.to_string();
        println!("{sentence}");
        for words in ["not enough memory for a residual", "expected", "found", "missing"] {
            assert!(sentence.contains(words), "expected {words:?} in: {sentence}");
        }
        values.accumulate(0, Given::Host(&vec![1.0; n]), false, &[None]).unwrap();
        assert_all(&*values, 4.0);
    });
}

fn refused(cuda: &Cuda, given: DeviceSlice, words: &str) {
    let mut values = cuda.zeros(given.len).unwrap();
    let added = values.accumulate(0, Given::Device(given), false, &[None]).unwrap_err().to_string();
    let applied = cuda.apply(&given, &Entries::default(), Apply::Add { scale: 1.0 }).unwrap_err().to_string();
    println!("{added}\n{applied}");
    assert!(added.contains(words) && added.contains(&cuda.name()), "expected {words:?} in: {added}");
    assert!(applied.contains(words), "expected {words:?} in: {applied}");
}
