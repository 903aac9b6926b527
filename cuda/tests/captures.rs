//! CUDA graphs that the program captures while Gleaner works: on a device only, in a process of its own, as whatever else a program
//! does meanwhile would break a capture in the strictest mode.

#![allow(clippy::unwrap_used)]

#[macro_use]
mod devices;

use std::ptr;
use std::sync::mpsc;

use cudarc::driver::sys;
use devices::{Program, enter, on_real};
use gleaner_algorithms::device::{Device, Format, Given};

#[test]
fn a_graph_that_another_thread_captures_is_not_broken() {
    on_real(|cuda| {
        let n = 1 << 20;
        let gradient = Program::new(cuda, &vec![3.0; n], Format::Float32);
        let modes = [
            sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        ];
        for mode in modes {
            // A thread that fails drops its end, and so ends the other.
            let ((captures, begun), (stepped, step)) = (mpsc::channel(), mpsc::channel());
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    enter();
                    let mut target = 0;
                    driver!(cuMemAlloc_v2(&mut target, 4));
                    let mut ours = ptr::null_mut();
                    driver!(cuStreamCreate(&mut ours, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32));
                    driver!(cuStreamBeginCapture_v2(ours, mode));
                    driver!(cuMemsetD32Async(target, 1, 1, ours));
                    // The other thread does a whole step, and allocates for it.
                    captures.send(()).unwrap();
                    step.recv().unwrap();
                    driver!(cuMemsetD32Async(target, 2, 1, ours));
                    let mut graph = ptr::null_mut();
                    driver!(cuStreamEndCapture(ours, &mut graph));
                    let mut nodes = 0;
                    driver!(cuGraphGetNodes(graph, ptr::null_mut(), &mut nodes));
                    assert_eq!(nodes, 2, "what this thread captured, and nothing else");
                    driver!(cuGraphDestroy(graph));
                    driver!(cuMemFree_v2(target));
                });
                begun.recv().unwrap();
                let mut values = cuda.zeros(n).unwrap();
                values.cut(std::slice::from_ref(&(0..n)), &[Some(1000)]).unwrap();
                values.accumulate(0, Given::Device(gradient.slice(0..n)), true, &[None]).unwrap();
                values.begin().unwrap();
                assert_eq!(values.largest(0, 1000).unwrap().entries.values, [3.0; 1000]);
                values.clear_at(0, &[5]).unwrap();
                assert_eq!(values.read(4..6).unwrap(), [3.0, 0.0]);
                stepped.send(()).unwrap();
            });
        }
    });
}
