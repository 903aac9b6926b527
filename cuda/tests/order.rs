//! The order between streams, on an emulated device whose streams run late and in any order that events allow.

#![allow(clippy::unwrap_used)]

mod devices;

use std::sync::Arc;

use devices::{Program, emulation};
use gleaner_algorithms::bag::{Entries, Rounded};
use gleaner_algorithms::device::{Apply, Device, DeviceSlice, DeviceValues, Format, Given, Order};
use gleaner_cuda::{Cuda, Streams};

/// Emulated devices one after the other: what is done early is another for each step, and so for each device.
const DEVICES: usize = 20;

fn on_emulations(test: impl Fn(&Arc<Cuda>, &Streams)) {
    for _ in 0..DEVICES {
        let Some(emulation) = emulation() else { return };
        let streams = emulation.streams();
        test(&Cuda::emulated(emulation).unwrap(), &streams);
    }
}

/// Values of which the k largest will be asked for, with a prediction for the next step.
fn values(cuda: &Cuda, n: usize, k: u32) -> Box<dyn DeviceValues<f32>> {
    let mut values = cuda.zeros(n).unwrap();
    values.cut(std::slice::from_ref(&(0..n)), &[Some(k)]).unwrap();
    values
}

fn slice(program: &Program, order: Order) -> DeviceSlice {
    DeviceSlice { order, ..program.slice(0..program.len) }
}

/// The kernels of a selection.
fn selects(kernel: &str) -> bool {
    ["histogram", "count", "offsets", "emit"].iter().any(|part| kernel.contains(part))
}

#[test]
fn a_gradient_waits_for_no_selection_of_other_values() {
    on_emulations(|cuda, streams| {
        let (n, backward) = (9000, streams.stream(false));
        let gradients = [1.0, 2.0].map(|value| Program::new(cuda, &vec![value; n], Format::Float32));
        let mut groups = [values(cuda, n, 90), values(cuda, n, 90)];
        let thresholds = [Some(0.5)];
        for step in 0..3 {
            // The first group is ready, and its selection begins.
            let given = Given::Device(slice(&gradients[0], Order::Stream(backward)));
            groups[0].accumulate(0, given, step == 0, &thresholds).unwrap();
            groups[0].begin().unwrap();
            // The second is ready; the backward pass goes on when its gradient was read.
            let given = Given::Device(slice(&gradients[1], Order::Stream(backward)));
            let before = streams.executed().len();
            groups[1].accumulate(0, given, step == 0, &thresholds).unwrap();
            streams.finish(backward);
            // What was done so far may have begun early, and the stream of the backward pass has not waited for it.
            let done = streams.executed()[before..].to_vec();
            assert!(streams.executed().iter().any(|kernel| kernel == "accumulate_f32"), "{done:?}");
            groups[1].begin().unwrap();
            for (number, group) in groups.iter_mut().enumerate() {
                let chosen = group.largest(0, 90).unwrap().entries;
                assert_eq!(chosen.values, [(number + 1) as f32 * (step + 1) as f32; 90]);
            }
        }
    });
}

#[test]
fn what_a_backward_pass_waits_for_holds_no_selection() {
    let Some(emulation) = emulation() else { return };
    // Nothing is done early: what is done is what was waited for.
    let emulation = emulation.late();
    let streams = emulation.streams();
    let cuda = Cuda::emulated(emulation).unwrap();
    let (n, backward) = (9000, streams.stream(false));
    let gradient = Program::new(&cuda, &vec![1.0; n], Format::Float32);
    let host = vec![1.0; n];
    let mut groups = [values(&cuda, n, 90), values(&cuda, n, 90)];
    for step in 0..3 {
        let before = streams.executed().len();
        let done = |what: &str| {
            let executed = streams.executed();
            executed[before..].iter().filter(|kernel| kernel.contains(what)).count()
        };
        let given = || Given::Device(slice(&gradient, Order::Stream(backward)));
        groups[0].accumulate(0, given(), step == 0, &[Some(0.5)]).unwrap();
        groups[0].begin().unwrap();
        groups[1].accumulate(0, given(), step == 0, &[Some(0.5)]).unwrap();
        // Neither does a gradient from main memory, which is copied, nor an update.
        groups[1].accumulate(0, Given::Host(&host), false, &[Some(0.5)]).unwrap();
        cuda.apply(
            &slice(&gradient, Order::Stream(backward)),
            &Entries::default(),
            Apply::Add { scale: 1.0 },
        )
        .unwrap();
        streams.finish(backward);
        assert_eq!(done("accumulate"), 3);
        let selections = streams.executed()[before..].iter().filter(|kernel| selects(kernel)).count();
        assert_eq!(selections, 0, "step {step}");
        // And the first group's selection waits for no gradient of the second that is still to come.
        let late = streams.stream(false);
        streams.fill(late, gradient.memory.address(), 0, 0);
        groups[1]
            .accumulate(0, Given::Device(slice(&gradient, Order::Stream(late))), false, &[None])
            .unwrap();
        assert_eq!(groups[0].largest(0, 90).unwrap().entries.len(), 90);
        assert!(done("emit") > 0);
        assert_eq!(done("accumulate"), 3, "the fourth is not waited for");
        groups.iter_mut().for_each(|group| {
            group.begin().unwrap();
            group.largest(0, 90).unwrap();
            assert!(group.clear_chosen(0, 90).unwrap() || group.clear(0).is_ok());
        });
    }
}

#[test]
fn what_the_host_asks_for_waits_for_no_gradient_of_other_values() {
    let Some(emulation) = emulation() else { return };
    // Nothing is done early: what is done is what was waited for.
    let emulation = emulation.late();
    let streams = emulation.streams();
    let cuda = Cuda::emulated(emulation).unwrap();
    let (n, k, backward) = (400_000, 40_000, streams.stream(false));
    let gradient: Vec<f32> = (0..n).map(|i| (i % 97) as f32 - 48.5).collect();
    let later = Program::new(&cuda, &[1.0; 9000], Format::Float32);
    // More groups than there are buffers for copies.
    let mut groups: Vec<_> = (0..7).map(|_| values(&cuda, later.len, 90)).collect();
    groups[0] = values(&cuda, n, k as u32);
    groups[0].accumulate(0, Given::Host(&gradient), true, &[Some(40.0)]).unwrap();
    groups[0].begin().unwrap();
    let accumulated = || streams.executed().iter().filter(|kernel| kernel.contains("accumulate")).count();
    let before = accumulated();
    // The program runs ahead of the device: the gradients of the other groups are still to come, and their selections are begun.
    streams.fill(backward, later.memory.address(), 0x3f, 4 * later.len);
    for group in &mut groups[1..] {
        let given = Given::Device(slice(&later, Order::Stream(backward)));
        group.accumulate(0, given, true, &[Some(0.5)]).unwrap();
        group.begin().unwrap();
    }
    let asked = |what: &str| assert!(accumulated() <= before + 1, "{what} waits for another group");
    asked("the program");
    assert_eq!(groups[0].check().unwrap(), None);
    asked("the check");
    let chosen = groups[0].largest(0, k).unwrap().entries;
    assert_eq!(chosen.len(), k);
    asked("what was begun");
    let bag = groups[0].encode(0, &chosen, Rounded::EXACT, true).unwrap().unwrap();
    asked("encoding");
    assert_eq!(groups[0].encode(0, &chosen, Rounded::EXACT, false).unwrap().as_ref(), Some(&bag));
    asked("encoding of what the host has");
    assert_eq!(groups[0].merge(&Entries::default(), None, &bag).unwrap(), Some(chosen));
    asked("decoding");
    assert!(groups[0].merge(&Entries::default(), Some(0), &bag).unwrap().is_some());
    asked("a sum with a bag");
    let many: Entries = (0..n as u32).step_by(4).map(|index| (index, 1.0)).collect();
    assert!(groups[0].merge(&many, None, &bag).unwrap().is_some());
    asked("a sum that needs more memory");
    assert_eq!(groups[0].gather(0, &[96, 1]).unwrap(), [47.5, -47.5]);
    asked("a gather");
    assert!(groups[0].read(0..n).unwrap() == gradient);
    asked("a copy");
    assert!(groups[0].reaching(0, 48.0, n).unwrap().is_some());
    asked("another threshold");
    assert!(groups[0].reaching(0, 20.0, n).unwrap().unwrap().len() > 2 * k);
    asked("a choice that needs more memory");
    assert_eq!(groups[0].largest(0, 7).unwrap().entries.len(), 7);
    asked("a search");
    assert_eq!(groups[6].largest(0, 90).unwrap().entries.len(), 90);
    assert_eq!(accumulated(), before + 7);
}

#[test]
fn a_gradient_is_read_after_it_was_written_and_before_it_is_overwritten() {
    on_emulations(|cuda, streams| {
        let n = 5000;
        let program = Program::new(cuda, &vec![0.0; n], Format::Float32);
        let (at, bytes) = (program.memory.address(), 4 * n);
        // Bytes of which a float is made: 0x3f3f3f3f.
        let value = f32::from_bits(0x3f3f_3f3f);
        for stream in [0, streams.stream(false)] {
            let mut values = values(cuda, n, 10);
            for step in 0..4 {
                streams.fill(stream, at, 0x3f, bytes);
                let given = Given::Device(slice(&program, Order::Stream(stream)));
                values.accumulate(0, given, step == 0, &[None]).unwrap();
                streams.fill(stream, at, 0x7f, bytes);
            }
            let sum = (0..4).fold(0.0, |sum, _| sum + value);
            assert!(values.read(0..n).unwrap().iter().all(|read| *read == sum));
        }
    });
}

#[test]
fn after_an_event_a_gradient_is_read_and_an_update_is_there() {
    on_emulations(|cuda, streams| {
        let (n, stream) = (5000, streams.stream(false));
        let program = Program::new(cuda, &vec![0.0; n], Format::Float32);
        let (at, bytes) = (program.memory.address(), 4 * n);
        let value = f32::from_bits(0x3f3f_3f3f);
        let mut values = values(cuda, n, 10);
        streams.fill(stream, at, 0x3f, bytes);
        let event = streams.event(stream);
        let given = slice(&program, Order::Event(event));
        values.accumulate(0, Given::Device(given), true, &[None]).unwrap();
        // From then on it may be overwritten.
        assert_eq!(values.check().unwrap(), None);
        streams.fill(stream, at, 0x40, bytes);
        let event = streams.event(stream);
        let given = slice(&program, Order::Event(event));
        assert!(values.read(0..n).unwrap().iter().all(|read| *read == value));
        // Without a stream the update is there when the call returns.
        let before = f32::from_bits(0x4040_4040);
        cuda.apply_dense(&given, &vec![1.0; n], Apply::Add { scale: 2.0 }).unwrap();
        let words = program.memory.read(0..4).unwrap();
        assert_eq!(words, (before + 2.0).to_le_bytes());
        cuda.apply(&given, &Entries { indices: vec![3], values: vec![6.0] }, Apply::Write { divisor: 2 })
            .unwrap();
        assert_eq!(program.bits()[2..4], [0, 3.0f32.to_bits()]);
    });
}

#[test]
fn what_is_no_event_is_refused() {
    let Some(emulation) = emulation() else { return };
    let streams = emulation.streams();
    let cuda = Cuda::emulated(emulation).unwrap();
    let program = Program::new(&cuda, &[1.0; 10], Format::Float32);
    let mut values = cuda.zeros(10).unwrap();
    let captured = streams.event(streams.stream(true));
    for (event, words) in [(0, "found none"), (captured, "CUDA graph"), (12345, "no such event")] {
        let given = slice(&program, Order::Event(event));
        let error = values.accumulate(0, Given::Device(given), false, &[None]).unwrap_err().to_string();
        let names = ["expected for the gradient an event", "CUDA device 0 (emulated)", words];
        assert!(names.iter().all(|word| error.contains(word)), "expected {names:?} in: {error}");
        let error = cuda.apply_dense(&given, &[1.0; 10], Apply::Add { scale: 1.0 }).unwrap_err().to_string();
        assert!(error.contains("the values that the update is applied to"), "{error}");
    }
    assert_eq!(values.read(0..10).unwrap(), [0.0; 10]);
}

#[test]
fn while_another_thread_captures_a_graph_everything_goes_on() {
    let Some(emulation) = emulation() else { return };
    let cuda = Cuda::emulated(emulation.beside_a_capture()).unwrap();
    let n = 5000;
    let program = Program::new(&cuda, &vec![1.0; n], Format::BFloat16);
    let mut values = values(&cuda, n, 50);
    for step in 0..3 {
        values.accumulate(0, Given::Device(program.slice(0..n)), step == 0, &[Some(0.5)]).unwrap();
        values.begin().unwrap();
        assert_eq!(values.check().unwrap(), None);
        assert_eq!(values.largest(0, 50).unwrap().entries.len(), 50);
        values.reaching(0, 0.1, n).unwrap().unwrap();
        let copy = values.duplicate().unwrap();
        values.add_all(&*copy).unwrap();
        values.cut(&[0..1000, 1000..n], &[None, Some(7)]).unwrap();
        values.cut(std::slice::from_ref(&(0..n)), &[Some(50)]).unwrap();
    }
    cuda.apply(&program.slice(0..n), &Entries::default(), Apply::Write { divisor: 1 }).unwrap();
    assert_eq!(program.bits(), vec![0; n]);
}
