//! What cannot be done is said in a sentence, and nothing else happens.

#![allow(clippy::unwrap_used)]

mod devices;

use devices::{FORMATS, Program, emulation, on_each, on_real};
use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::device::{Apply, Device, DeviceSlice, Format, Given, Order};
use gleaner_cuda::{Cuda, CudaError};

fn slice(address: u64, len: usize) -> DeviceSlice {
    DeviceSlice { address, len, format: Format::Float32, order: Order::Stream(0) }
}

/// That something is refused, with these words.
fn refused<T>(result: Result<T, impl ToString>, words: &[&str]) {
    let Err(error) = result else { panic!("expected an error with {words:?}") };
    let sentence = error.to_string();
    assert!(words.iter().all(|word| sentence.contains(word)), "expected {words:?} in: {sentence}");
}

#[test]
fn a_machine_without_the_device_says_what_is_missing() {
    // However many there are, there are not so many.
    let error = Cuda::open(4000).unwrap_err();
    println!("{error}");
    match error {
        CudaError::NoDevice { ordinal, .. } => assert_eq!(ordinal, 4000),
        CudaError::NoDriver { .. } | CudaError::OldDriver { .. } | CudaError::Driver { .. } => {}
        other => panic!("{other}"),
    }
    let sentence = CudaError::NoDevice { ordinal: 7, devices: 2 }.to_string();
    assert_eq!(sentence, "there is no CUDA device 7: the driver lists 2, with the numbers 0 to 1");
}

#[test]
fn memory_that_is_not_the_devices_is_refused() {
    on_each(|cuda| {
        let mut values = cuda.zeros(100).unwrap();
        let program = Program::new(cuda, &[1.0; 100], Format::Float32);
        let host = [0.0f32; 100];
        let start = program.slice(0..100).address;
        let name = cuda.name();
        let cases = [
            (slice(host.as_ptr() as u64, 100), ["does not know", &name]),
            (slice(0, 100), ["does not know", &name]),
            // So long that the end is in no memory, or beyond all addresses.
            (slice(start, 1 << 40), ["does not know", &name]),
            (slice(u64::MAX - 3, 100), ["does not know", &name]),
            (slice(start + 2, 10), ["multiple of 4", "found the address"]),
        ];
        for (given, words) in cases {
            let len = given.len.min(100);
            refused(cuda.apply(&given, &Entries::default(), Apply::Add { scale: 1.0 }), &words);
            if len == given.len {
                refused(values.accumulate(0, Given::Device(given), false, &[None]), &words);
            }
        }
        // Of nothing, no address is asked for, and the device goes on.
        values.accumulate(0, Given::Device(slice(0, 0)), false, &[None]).unwrap();
        values.accumulate(0, Given::Device(program.slice(0..100)), false, &[None]).unwrap();
        assert_eq!(values.read(0..100).unwrap(), [1.0; 100]);
    });
}

#[test]
fn an_index_beyond_the_end_is_refused() {
    on_each(|cuda| {
        let mut values = cuda.zeros(100).unwrap();
        let program = Program::new(cuda, &[1.0; 100], Format::Float32);
        let entries = Entries { indices: vec![1, 100], values: vec![1.0, 2.0] };
        refused(
            cuda.apply(&program.slice(0..100), &entries, Apply::Write { divisor: 1 }),
            &["below 100", "found 100"],
        );
        refused(
            cuda.apply_dense(&program.slice(0..100), &[1.0], Apply::Add { scale: 1.0 }),
            &["100 values", "found 1"],
        );
        refused(values.set(0, &entries), &["below 100", "found 100"]);
        refused(values.add(0, &entries), &["below 100", "found 100"]);
        refused(values.clear_at(0, &entries.indices), &["below 100", "found 100"]);
        refused(values.gather(0, &entries.indices), &["below 100", "found 100"]);
        assert_eq!(values.read(0..100).unwrap(), [0.0; 100]);
        assert_eq!(program.bits(), [1.0f32.to_bits(); 100]);
    });
}

#[test]
fn memory_and_streams_of_another_device_are_refused_with_both_names() {
    let (Some(first), Some(second)) = (emulation(), emulation()) else { return };
    let second = second.ordinal(3);
    let streams = [second.streams().stream(false), first.streams().stream(true)];
    let (first, second) = (Cuda::emulated(first).unwrap(), Cuda::emulated(second).unwrap());
    let mut values = first.zeros(10).unwrap();
    let [ours, theirs] = [&first, &second].map(|cuda| Program::new(cuda, &[1.0; 10], Format::Float32));
    let names = ["memory of CUDA device 0 (emulated)", "on CUDA device 3"];
    refused(values.accumulate(0, Given::Device(theirs.slice(0..10)), false, &[None]), &names);
    refused(first.apply_dense(&theirs.slice(0..10), &[1.0; 10], Apply::Add { scale: 1.0 }), &names);
    let on = |stream| Given::Device(DeviceSlice { order: Order::Stream(stream), ..ours.slice(0..10) });
    let names = ["a stream of CUDA device 0 (emulated)", "one of CUDA device 3"];
    refused(values.accumulate(0, on(streams[0]), false, &[None]), &names);
    refused(values.accumulate(0, on(streams[1]), false, &[None]), &["CUDA graph"]);
    refused(
        values.add_all(&*second.zeros(10).unwrap()),
        &["expected 10 values on CUDA device 0", "10 on CUDA device 3"],
    );
    refused(values.copy_from(&*first.zeros(9).unwrap()), &["expected 10 values", "found 9"]);
    assert_eq!(values.read(0..10).unwrap(), [0.0; 10]);
}

#[test]
fn too_little_memory_is_said_with_what_is_missing_and_undoes_nothing() {
    let Some(emulation) = emulation() else { return };
    let cuda = Cuda::emulated(emulation.ordinal(4).memory(20_000_000)).unwrap();
    let mut values = cuda.zeros(1_000_000).unwrap();
    values.cut(&[0..1_000_000, 1_000_000..1_000_000], &[Some(10_000), None]).unwrap();
    values.write(0, &[2.0; 1_000_000]).unwrap();
    let words = ["not enough memory for a residual", "expected 40.0 MB free", "of 20.0 MB", "are missing"];
    refused(cuda.zeros(10_000_000), &words);
    refused(values.duplicate().and_then(|_| cuda.zeros(4_000_000)), &["16.0 MB"]);
    refused(values.cut(&[0..500_000, 500_000..1_000_000], &[Some(500_000); 2]), &["not enough memory for"]);
    // What was there goes on.
    values.accumulate(0, Given::Host(&[1.0; 1_000_000]), false, &[None; 2]).unwrap();
    assert_eq!(values.largest(0, 3).unwrap().entries.values, [3.0; 3]);
}

#[test]
fn an_error_of_the_device_is_named_once_and_stays() {
    let Some(emulation) = emulation() else { return };
    let cuda = Cuda::emulated(emulation.failing_at("emit_dense")).unwrap();
    let mut values = cuda.zeros(1000).unwrap();
    values.accumulate(0, Given::Host(&[1.0; 1000]), true, &[None]).unwrap();
    assert_eq!(values.check().unwrap(), None);
    let error = values.largest(0, 10).unwrap_err();
    refused(
        Err::<(), _>(&error),
        &[
            "CUDA device 0 (emulated) has failed",
            "EMULATED_FAILURE",
            "one of these, which were started and are not known to be done: ",
            "the kernel emit_dense",
            "CUDA_LAUNCH_BLOCKING=1",
        ],
    );
    // What was waited for is done.
    assert!(!error.to_string().contains("accumulate"), "{error}");
    let program = slice(0, 1000);
    assert_eq!(values.accumulate(0, Given::Device(program), true, &[None]).unwrap_err(), error);
    assert_eq!(values.accumulate(0, Given::Host(&[1.0; 1000]), true, &[None]).unwrap_err(), error);
    assert_eq!(values.begin().unwrap_err(), error);
    assert_eq!(values.check().unwrap_err(), error);
    assert_eq!(values.read(0..10).unwrap_err(), error);
    assert_eq!(values.cut(&[], &[]).unwrap_err(), error);
    assert_eq!(values.duplicate().unwrap_err(), error);
    assert_eq!(cuda.zeros(1).unwrap_err(), error);
    assert_eq!(cuda.apply(&program, &Entries::default(), Apply::Add { scale: 1.0 }).unwrap_err(), error);
    drop(values);
}

#[test]
fn an_error_of_the_device_is_not_taken_for_one_of_what_is_given() {
    for order in [Order::Stream(0), Order::Event(1)] {
        let Some(emulation) = emulation() else { return };
        let emulation = emulation.failing_at("accumulate_f32");
        let [program, cuda] = [emulation.clone(), emulation].map(|it| Cuda::emulated(it).unwrap());
        // Something else that the program does on the device fails.
        let mut others = program.zeros(1000).unwrap();
        let accumulated = others.accumulate(0, Given::Host(&[1.0; 1000]), true, &[None]);
        accumulated.and_then(|()| others.check()).unwrap_err();
        let given = DeviceSlice { order, ..slice(0, 1000) };
        let error = cuda.apply(&given, &Entries::default(), Apply::Add { scale: 1.0 }).unwrap_err();
        refused(Err::<(), _>(&error), &["has failed", "EMULATED_FAILURE", "can use the device no more"]);
        assert_eq!(cuda.zeros(1).unwrap_err(), error);
    }
}

#[test]
fn with_launches_that_block_the_kernel_that_fails_is_named() {
    for kernel in ["accumulate_f32", "histogram_dense", "emit_dense"] {
        let Some(emulation) = emulation() else { return };
        let cuda = Cuda::emulated(emulation.failing_at(kernel).launch_blocking()).unwrap();
        let mut values = cuda.zeros(1000).unwrap();
        let accumulated = values.accumulate(0, Given::Host(&[1.0; 1000]), true, &[None]);
        let error = accumulated.and_then(|()| values.largest(0, 10).map(drop)).unwrap_err().to_string();
        let seen = format!("It was seen at the kernel {kernel}, and each operation was waited for");
        assert!(error.contains("EMULATED_FAILURE") && error.contains(&seen), "expected {seen:?} in: {error}");
        assert!(!error.contains("CUDA_LAUNCH_BLOCKING"), "{error}");
    }
}

#[test]
fn buffers_for_copies_are_shared_where_there_is_memory_for_one() {
    let Some(emulation) = emulation() else { return };
    let cuda = Cuda::emulated(emulation.ordinal(7).memory(40_000_000)).unwrap();
    // More than a buffer.
    let n = 2_500_000;
    let ones = vec![1.0f32; n];
    let values: Vec<_> = (0..2).map(|_| cuda.zeros(n).unwrap()).collect();
    let rest = cuda.memory(cuda.available().unwrap().0).unwrap();
    std::thread::scope(|scope| {
        for mut values in values {
            let ones = &ones;
            scope.spawn(move || {
                for _ in 0..2 {
                    values.accumulate(0, Given::Host(ones), false, &[None]).unwrap();
                    assert_eq!(values.read(0..n).unwrap().len(), n);
                }
                assert!(values.read(0..n).unwrap().iter().all(|value| *value == 2.0));
            });
        }
    });
    drop(rest);
}

#[test]
fn a_selection_that_lacks_memory_leaves_everything_and_may_be_repeated() {
    let Some(emulation) = emulation() else { return };
    let cuda = Cuda::emulated(emulation.ordinal(8).memory(20_000_000)).unwrap();
    let n = 100_000;
    let mut values = cuda.zeros(n).unwrap();
    values.cut(std::slice::from_ref(&(0..n)), &[Some(100)]).unwrap();
    let rest = cuda.memory(cuda.available().unwrap().0).unwrap();
    let gradient: Vec<f32> = (0..n).map(|i| i as f32).collect();
    values.accumulate(0, Given::Host(&gradient), true, &[None]).unwrap();
    values.begin().unwrap();
    // A step without a prediction needs no more, and neither does its commit.
    assert_eq!(values.largest(0, 100).unwrap().entries.indices[0] as usize, n - 100);
    refused(values.reaching(0, 1.0, n), &["not enough memory for selected entries", "expected 1.0 MB free"]);
    refused(values.duplicate(), &["not enough memory for a residual"]);
    assert_eq!(values.read(0..n).unwrap(), gradient);
    assert_eq!(values.check().unwrap(), None);
    drop(rest);
    assert_eq!(values.reaching(0, 1.0, n).unwrap().unwrap().len(), n - 1);
    values.clear_at(0, &[5]).unwrap();
    assert_eq!(values.read(4..7).unwrap(), [4.0, 0.0, 6.0]);
}

#[test]
fn every_format_is_aligned_to_its_own_width() {
    on_each(|cuda| {
        for format in FORMATS {
            let program = Program::new(cuda, &[1.0; 100], format);
            let mut values = cuda.zeros(99).unwrap();
            values.accumulate(0, Given::Device(program.slice(1..100)), false, &[None]).unwrap();
            assert_eq!(values.read(0..99).unwrap(), [1.0; 99]);
        }
    });
}

#[test]
fn a_device_says_what_it_is() {
    on_real(|cuda| {
        println!("{}: {:?} bytes free, and all", cuda.name(), cuda.available().unwrap());
        assert!(cuda.name().starts_with("CUDA device 0 ("));
    });
}
