//! Jobs in which some ranks have their gradients on a device: the same updates and checkpoints as in main memory.

#![allow(clippy::unwrap_used)]

mod devices;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::device::{DeviceError, DeviceSlice, Format, Order};
use gleaner_algorithms::residual::{Correction, OnNonFinite};
use gleaner_cuda::Cuda;
use gleaner_runtime::{Error, Gradients, Layout, Roles, Session, Update};
use gleaner_statistics::random;
use gleaner_transport::memory;

use devices::{Program, bits as bits_of, emulation, encoded, on_each, rounded};

/// Three groups; the second has two parameters.
const PARAMETERS: [(&str, usize); 4] = [("a", 3000), ("b", 120), ("c", 2801), ("d", 9000)];

fn layout() -> Layout {
    PARAMETERS.iter().fold(Layout::new(), |layout, &(name, len)| {
        let layout = if name == "c" { layout } else { layout.group() };
        layout.parameter(name, len)
    })
}

fn gradient(name: &str, len: usize, rank: usize, step: u64) -> Vec<f32> {
    let seed = u64::from(name.as_bytes()[0]) << 32 ^ (rank as u64) << 48 ^ step << 20;
    (0..len).map(|i| random::symmetric(random::at(seed, i as u64)).powi(3)).collect()
}

/// Runs `worker` on every rank of a job in this process.
fn run<T: Send>(workers: u32, worker: impl Fn(Session) -> T + Sync) -> Vec<T> {
    let worker = &worker;
    std::thread::scope(|scope| {
        let threads: Vec<_> = memory::networks(workers)
            .into_iter()
            .map(|network| {
                let joined = async { Ok(network) };
                scope.spawn(move || {
                    worker(Session::over_as(joined, Duration::from_secs(20), Roles::default()).unwrap())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn bits(update: &Update) -> Vec<u32> {
    let values = PARAMETERS.iter().flat_map(|(name, _)| update.values(name).unwrap());
    values.map(|value| value.to_bits()).collect()
}

/// What a rank has seen: each step's update or who was to blame that it was left out, and its checkpoint.
type Seen = (Vec<Result<Vec<u32>, u32>>, Vec<u8>);

/// Steps of a job whose ranks of odd number have their gradients on this device, in this format; `bad` says which rank has a value that is
/// not finite in which step.
fn job(device: Option<&Arc<Cuda>>, method: &Method, format: Format, bad: Option<(usize, u64)>) -> Vec<Seen> {
    let folder = tempfile::tempdir().unwrap();
    run(3, |session| {
        let rank = session.rank();
        let device = device.filter(|_| rank % 2 == 1);
        let mut gradients = match device {
            None => session.gradients(&layout(), method.clone()).unwrap(),
            Some(device) => session.gradients_on(device.clone(), &layout(), method.clone()).unwrap(),
        };
        let mut steps = Vec::new();
        for step in 0..5 {
            for (position, (name, len)) in PARAMETERS.iter().enumerate().rev() {
                let mut values = rounded(&gradient(name, *len, rank, step), format);
                if bad == Some((rank, step)) && position == 2 {
                    values[7] = f32::NAN;
                }
                give(&mut gradients, device, name, &values, format);
            }
            let update = gradients.wait().unwrap();
            if let Some(device) = device.filter(|_| update.skipped().is_none()) {
                applied(&update, device);
            }
            steps.push(update.skipped().map_or_else(|| Ok(bits(&update)), |skipped| Err(skipped.rank)));
            if bad.is_some_and(|(who, when)| who == rank && when == step) {
                let own = update.skipped().unwrap().own.clone().unwrap();
                assert!(own.contains("'c'") && own.contains("at entry 7"), "{own}");
            }
        }
        let path = folder.path().join(format!("{rank}.safetensors"));
        gradients.save(&path).unwrap();
        (steps, residuals(&std::fs::read(path).unwrap()))
    })
}

/// The residuals of a checkpoint: what was predicted on the way may differ.
fn residuals(file: &[u8]) -> Vec<u8> {
    let tensors = safetensors::SafeTensors::deserialize(file).unwrap();
    let of = |(name, _): &(&str, usize)| tensors.tensor(&format!("residual.{name}")).unwrap().data().to_vec();
    PARAMETERS.iter().flat_map(of).collect()
}

/// Hands a gradient over, where it lies. What is written there afterwards does not matter.
fn give(gradients: &mut Gradients, device: Option<&Arc<Cuda>>, name: &str, values: &[f32], format: Format) {
    let Some(device) = device else { return gradients.ready(name, values).unwrap() };
    let there = Program::new(device, values, format);
    gradients.ready_on_device(name, &there.slice(0..values.len())).unwrap();
    there.memory.write(0, &vec![0x7f; there.memory.len()]).unwrap();
}

/// An update that is written and added on the device is what it is in main memory.
fn applied(update: &Update, device: &Arc<Cuda>) {
    for (name, len) in PARAMETERS {
        let before: Vec<f32> = (0..len).map(|i| i as f32 * 0.37 - 50.0).collect();
        let there = Program::new(device, &before, Format::Float32);
        let mut here = before;
        update.add_to_device(name, &there.slice(0..len), -0.3).unwrap();
        update.add_to(name, &mut here, -0.3).unwrap();
        assert!(there.bits() == bits_of(&here), "added to '{name}'");
        update.copy_to_device(name, &there.slice(0..len)).unwrap();
        update.copy_to(name, &mut here).unwrap();
        assert!(there.bits() == bits_of(&here), "copied to '{name}'");
    }
}

fn methods() -> Vec<Method> {
    let named = |name| Method::named(name).unwrap().density(0.02);
    let mut methods =
        vec![named("spardl"), named("oktopk"), named("exdyna"), named("gtopk"), named("topkdsa")];
    methods.extend([Method::ring(), named("topka").selector("sampled".parse().unwrap())]);
    methods
}

#[test]
fn ranks_on_a_device_and_in_main_memory_come_to_the_same() {
    on_each(|device| {
        for method in methods() {
            let expected = job(None, &method, Format::Float32, None);
            let found = job(Some(device), &method, Format::Float32, None);
            assert!(expected == found, "{} on {device:?}", method.title());
        }
    });
}

/// A program that runs ahead of its device hands over all gradients before the device has computed them. A group whose gradient is there is
/// exchanged, however many others wait for theirs.
#[test]
fn a_group_is_exchanged_while_others_wait_for_their_gradients() {
    let Some(emulation) = emulation() else { return };
    let streams = emulation.streams();
    let device = Cuda::emulated(emulation).unwrap();
    let (n, later, steps) = (3000, ["a", "b", "c", "d", "e", "f", "g", "h"], 4);
    // What rounding takes away would be one more write behind the gradients to come, and all buffers in use.
    let method = || Method::spardl().density(0.02).coding(Coding::Exact);
    // The others begin when all is begun on the device.
    let (begun, all) = (Mutex::new(0), Condvar::new());
    run(4, |session| {
        let (rank, device) = (session.rank(), (session.rank() == 0).then_some(&device));
        let rest = later.iter().fold(Layout::new(), |layout, name| layout.group().parameter(*name, n));
        let [mut first, mut rest] = [Layout::new().parameter("first", n), rest].map(|layout| match device {
            None => session.gradients(&layout, method()).unwrap(),
            Some(device) => session.gradients_on(device.clone(), &layout, method()).unwrap(),
        });
        for step in 0..steps {
            let values = gradient("first", n, rank, step);
            let Some(device) = device else {
                let not_begun = |begun: &mut u64| *begun <= step;
                let long = Duration::from_secs(20);
                drop(all.wait_timeout_while(begun.lock().unwrap(), long, not_begun).unwrap());
                first.ready("first", &values).unwrap();
                later.iter().for_each(|name| rest.ready(name, &values).unwrap());
                first.wait().unwrap();
                rest.wait().unwrap();
                continue;
            };
            let program = Program::new(device, &values, Format::Float32);
            let given = |stream| DeviceSlice { order: Order::Stream(stream), ..program.slice(0..n) };
            first.ready_on_device("first", &given(streams.stream(false))).unwrap();
            let backward = streams.stream(false);
            // In the first steps memory is allocated, which waits for the device.
            let gate = (step + 1 == steps).then(|| streams.gate(backward));
            later.iter().for_each(|name| rest.ready_on_device(name, &given(backward)).unwrap());
            *begun.lock().unwrap() = step + 1;
            all.notify_all();
            std::thread::scope(|scope| {
                let (done, came) = std::sync::mpsc::channel();
                let first = &mut first;
                scope.spawn(move || done.send(first.wait().map(drop)).unwrap());
                let exchanged = came.recv_timeout(Duration::from_secs(15));
                gate.into_iter().for_each(|gate| streams.open(gate));
                exchanged.expect("the first group waits for the gradients of others").unwrap();
            });
            rest.wait().unwrap();
        }
    });
}

#[test]
fn so_do_gradients_of_16_bits() {
    on_each(|device| {
        for format in [Format::BFloat16, Format::Float16] {
            let method = Method::spardl().density(0.02);
            assert!(
                job(None, &method, format, None) == job(Some(device), &method, format, None),
                "{format:?}"
            );
        }
    });
}

/// Steps of a job of two ranks whose gradient is so large that a device encodes the indices; rank 1 has it there, if one is given.
fn large(device: Option<&Arc<Cuda>>, method: &Method) -> Vec<Vec<Vec<u32>>> {
    let (name, len) = ("w", 300_000);
    let layout = Layout::new().parameter(name, len);
    run(2, |session| {
        let rank = session.rank();
        let device = device.filter(|_| rank == 1);
        let mut gradients = match device {
            None => session.gradients(&layout, method.clone()).unwrap(),
            Some(device) => session.gradients_on(device.clone(), &layout, method.clone()).unwrap(),
        };
        let steps = (0..3).map(|step| {
            // Among the largest are some that 4 bits round to zero.
            let values: Vec<f32> =
                gradient(name, len, rank, step).iter().map(|value| value.powi(3)).collect();
            give(&mut gradients, device, name, &values, Format::Float32);
            let update = gradients.wait().unwrap();
            update.values(name).unwrap().into_iter().map(f32::to_bits).collect()
        });
        steps.collect()
    })
}

#[test]
fn bags_whose_indices_a_device_encodes_say_the_same() {
    for (values, density, expected) in [
        // What is chosen of one's own values, in all steps but the first, whose choice has no prediction; and the sums.
        (Coding::Exact, 0.23, [2, 3]),
        (Coding::Bf16, 0.23, [2, 3]),
        // The default rounds some to zero.
        (Coding::Qsgd4, 0.35, [0, 3]),
    ] {
        on_each(|device| {
            let method = Method::spardl().density(density).coding(values);
            device.start_trace();
            let found = large(Some(device), &method);
            let kernels = device.end_trace().unwrap();
            assert!(found == large(None, &method), "{values:?} on {device:?}");
            assert_eq!(encoded(device), expected, "{values:?} on {device:?}");
            let times = |kernel: &str| kernels.iter().filter(|(other, _)| other == kernel).count();
            assert!(
                times("encode_gaps") >= expected.iter().sum::<u32>() as usize,
                "{values:?} on {device:?}"
            );
            // And the bags that come are added to the values there.
            assert!(times("add_block") > 0, "{values:?} on {device:?}");
        });
    }
}

/// Methods that choose from all blocks together use what the device has begun to choose, where there is one block: nothing is searched a second time
/// once there is a prediction.
#[test]
fn a_choice_from_one_block_is_made_once() {
    for name in ["topka", "gtopk", "ssar-recursive-double"] {
        on_each(|device| {
            let method = Method::named(name).unwrap().density(0.13).coding(Coding::Exact);
            device.start_trace();
            let found = large(Some(device), &method);
            let kernels = device.end_trace().unwrap();
            assert!(found == large(None, &method), "{name} on {device:?}");
            let times = |kernel: &str| kernels.iter().filter(|(other, _)| other == kernel).count();
            // The first step has no prediction.
            assert_eq!(["emit_found", "emit_dense"].map(times), [2, 1], "{name} on {device:?}");
            assert_eq!(encoded(device)[0], 2, "{name} on {device:?}");
        });
    }
}

#[test]
fn a_step_that_is_not_finite_on_a_device_is_left_out_on_all_ranks() {
    on_each(|device| {
        let method = Method::spardl().density(0.02).on_nonfinite(OnNonFinite::Skip);
        for bad in [(1, 0), (1, 3), (2, 2)] {
            let expected = job(None, &method, Format::Float32, Some(bad));
            let found = job(Some(device), &method, Format::Float32, Some(bad));
            assert!(expected == found, "rank {} in step {}", bad.0, bad.1);
            assert_eq!(expected[0].0.iter().filter(|step| step.is_err()).count(), 1);
        }
    });
}

#[test]
fn by_default_it_fails_the_job_with_the_rank_and_the_parameter() {
    on_each(|device| {
        let sentences = run(2, |session| {
            let rank = session.rank();
            let device = Some(device).filter(|_| rank == 1);
            let mut gradients = match device {
                None => session.gradients(&layout(), Method::spardl()).unwrap(),
                Some(device) => session.gradients_on(device.clone(), &layout(), Method::spardl()).unwrap(),
            };
            for (name, len) in PARAMETERS {
                let mut values = vec![1.0; len];
                values[len / 2] = if rank == 1 && name == "d" { f32::INFINITY } else { 1.0 };
                match device {
                    // The job may have failed already.
                    None => drop(gradients.ready(name, &values)),
                    Some(_) => give(&mut gradients, device, name, &values, Format::Float32),
                }
            }
            gradients.wait().unwrap_err().to_string()
        });
        for sentence in sentences {
            assert!(sentence.contains("rank 1") && sentence.contains("'d'"), "{sentence}");
            assert!(sentence.contains("not finite at entry 4500"), "{sentence}");
        }
    });
}

/// Two ranks, of which rank 1 has a device with something wrong, in a job that would skip what is not finite: what each says at last.
fn with_a_faulty_device(device: &Arc<Cuda>, stream: u64) -> Vec<String> {
    let method = Method::spardl().density(0.02).on_nonfinite(OnNonFinite::Skip);
    run(2, |session| {
        let rank = session.rank();
        let device = Some(device).filter(|_| rank == 1);
        let made = match device {
            None => session.gradients(&layout(), method.clone()),
            Some(device) => session.gradients_on(device.clone(), &layout(), method.clone()),
        };
        let mut gradients = match made {
            Ok(gradients) => gradients,
            Err(error) => return error.to_string(),
        };
        for step in 0..4 {
            // All of them before the device may fail, which memory that is made or freed then would notice first.
            let gradient = |(name, len): &(&'static str, usize)| {
                let values = gradient(name, *len, rank, step);
                let there = device.map(|device| Program::new(device, &values, Format::Float32));
                (*name, values, there)
            };
            let given: Vec<_> = PARAMETERS.iter().rev().map(gradient).collect();
            for (name, values, there) in &given {
                let given = match there {
                    None => gradients.ready(name, values),
                    Some(there) => gradients.ready_on_device(
                        name,
                        &DeviceSlice { order: Order::Stream(stream), ..there.slice(0..values.len()) },
                    ),
                };
                if let Err(error) = given {
                    return error.to_string();
                }
            }
            match gradients.wait() {
                Ok(update) => assert!(update.skipped().is_none(), "a device that fails is no step to skip"),
                Err(error) => return error.to_string(),
            }
        }
        "nothing went wrong".to_owned()
    })
}

#[test]
fn a_device_that_fails_ends_the_job_in_the_name_of_its_rank() {
    let Some(emulation) = emulation() else { return };
    let failing = Cuda::emulated(emulation.failing_at("emit_found")).unwrap();
    for sentence in with_a_faulty_device(&failing, 0) {
        assert!(sentence.contains("rank 1") && sentence.contains("emit_found"), "{sentence}");
    }
}

#[test]
fn so_do_too_little_memory_and_a_stream_under_capture() {
    let Some(small) = emulation() else { return };
    let small = Cuda::emulated(small.ordinal(9).memory(10_000)).unwrap();
    let sentences = with_a_faulty_device(&small, 0);
    assert!(sentences[0].contains("rank 1"), "{sentences:?}");
    assert!(sentences[1].contains("a residual") && sentences[1].contains("free"), "{sentences:?}");
    let Some(emulation) = emulation() else { return };
    let capturing = emulation.streams().stream(true);
    let device = Cuda::emulated(emulation).unwrap();
    // The program of rank 1 drops its gradients then.
    let sentences = with_a_faulty_device(&device, capturing);
    assert!(sentences.iter().all(|sentence| sentence.contains("CUDA graph")), "{sentences:?}");
    assert!(sentences[0].contains("rank 1"), "{sentences:?}");
}

#[test]
fn what_cannot_be_is_refused_with_a_sentence() {
    on_each(|device| {
        run(1, |session| {
            let corrected = Method::spardl().corrected(Correction { momentum: 0.9, ..Correction::default() });
            let refused = session.gradients_on(device.clone(), &layout(), corrected).err().unwrap();
            assert!(refused.to_string().contains("leave the correction out"), "{refused}");

            let mut here = session.gradients(&layout(), Method::spardl()).unwrap();
            let values = Program::new(device, &vec![1.0; PARAMETERS[0].1], Format::Float32);
            let refused = here.ready_on_device("a", &values.slice(0..PARAMETERS[0].1)).unwrap_err();
            assert!(matches!(refused, Error::Failed(_)), "{refused}");
            assert!(refused.to_string().contains("its residual in main memory"), "{refused}");
        });
        run(1, |session| {
            let mut there = session.gradients_on(device.clone(), &layout(), Method::spardl()).unwrap();
            let short =
                DeviceSlice { address: 4096, len: 5, format: Format::Float32, order: Order::Stream(0) };
            let refused = there.ready_on_device("a", &short).unwrap_err();
            assert!(refused.to_string().contains("3000"), "{refused}");

            // Nothing was added, so that the right gradients may be given in its place.
            for (name, len) in PARAMETERS {
                let (host, values) = (vec![1.0f32; len], vec![2.0; len]);
                let there_is_none = DeviceSlice { address: host.as_ptr() as u64, len, ..short };
                let refused = there.ready_on_device(name, &there_is_none).unwrap_err();
                assert!(matches!(refused, Error::Device(DeviceError::Refused(_))), "{refused}");
                give(&mut there, Some(device), name, &values, Format::Float32);
            }
            let update = there.wait().unwrap();
            let delivered: Vec<f32> =
                PARAMETERS.iter().flat_map(|(name, _)| update.values(name).unwrap()).collect();
            assert!(delivered.iter().all(|value| *value == 0.0 || *value == 2.0) && delivered.contains(&2.0));
        });
    });
}
