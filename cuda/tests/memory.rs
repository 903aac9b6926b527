//! Steps of a job in which a device lacks memory: they are undone, on all ranks, and nothing is lost.

#![allow(clippy::unwrap_used)]

mod devices;

use std::sync::Arc;
use std::time::Duration;

use devices::{Program, bits, emulation};
use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::{Collective, Shape, Structure};
use gleaner_algorithms::device::{Device, DeviceError, Format, Given};
use gleaner_algorithms::residual::{OnNonFinite, Residual};
use gleaner_algorithms::schedule::{After, How, Receive, Rule, Send, Slots, Step};
use gleaner_algorithms::select::top_k_dense;
use gleaner_algorithms::{Block, Method, Partition, Rank, SelectOver};
use gleaner_cuda::{Cuda, Memory};
use gleaner_runtime::{Error, Gradients, Layout, Roles, Session};
use gleaner_transport::memory;

/// Two groups, of which each has a parameter.
const PARAMETERS: [(&str, usize); 2] = [("a", 3200), ("b", 6400)];
const STEPS: usize = 5;
/// The rank whose gradients are on a device.
const DEVICE: usize = 1;

fn gradient(len: usize, rank: usize, step: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 31 + step * 17 + rank * 7) % 101) as f32 / 50.0 - 1.0).collect()
}

fn layout() -> Layout {
    PARAMETERS.iter().fold(Layout::new(), |layout, &(name, len)| layout.group().parameter(name, len))
}

/// A job of two ranks.
fn run<T: std::marker::Send>(
    device: &Arc<Cuda>,
    method: &Method,
    worker: impl Fn(usize, &mut Gradients) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let worker = &worker;
        let threads: Vec<_> = memory::networks(2)
            .into_iter()
            .map(|network| {
                let joined = async { Ok(network) };
                scope.spawn(move || {
                    let session =
                        Session::over_as(joined, Duration::from_secs(20), Roles::default()).unwrap();
                    let rank = session.rank();
                    let mut gradients = match rank == DEVICE {
                        true => session.gradients_on(device.clone(), &layout(), method.clone()).unwrap(),
                        false => session.gradients(&layout(), method.clone()).unwrap(),
                    };
                    worker(rank, &mut gradients)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// All that is free.
fn rest(device: &Cuda) -> Memory {
    device.memory(device.available().unwrap().0).unwrap()
}

/// What a rank has not delivered.
fn residual(gradients: &Gradients) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    gradients.save(&path).unwrap();
    let file = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let of = |(name, _): &(&str, usize)| tensors.tensor(&format!("residual.{name}")).unwrap().data().to_vec();
    let bytes: Vec<u8> = PARAMETERS.iter().flat_map(of).collect();
    bytes.as_chunks::<4>().0.iter().map(|word| f64::from(f32::from_le_bytes(*word))).collect()
}

#[test]
fn a_selection_without_memory_undoes_the_step_on_all_ranks_and_loses_nothing() {
    let Some(emulation) = emulation() else { return };
    let device = Cuda::emulated(emulation.ordinal(11).memory(30_000_000)).unwrap();
    // With a threshold of the step before, larger gradients select more than memory was taken for.
    let method = Method::named("oktopk").unwrap().density(0.02);
    let undone = 1;
    let found = run(&device, &method, |rank, gradients| {
        let entries: usize = PARAMETERS.iter().map(|(_, len)| len).sum();
        let (mut given, mut delivered) = (vec![0.0; entries], vec![0.0; entries]);
        let mut sentence = None;
        for step in 0..STEPS {
            let mut all = Vec::new();
            let programs: Vec<_> = PARAMETERS
                .iter()
                .map(|(_, len)| {
                    let values = gradient(*len, rank, step);
                    let values =
                        if step == undone { values.iter().map(|v| v * 9.0).collect() } else { values };
                    all.extend_from_slice(&values);
                    (rank == DEVICE).then(|| Program::new(&device, &values, Format::Float32))
                })
                .collect();
            let hog = (rank == DEVICE && step == undone).then(|| rest(&device));
            let mut start = 0;
            for ((name, len), program) in PARAMETERS.iter().zip(&programs) {
                match program {
                    None => gradients.ready(name, &all[start..start + len]).unwrap(),
                    Some(program) => gradients.ready_on_device(name, &program.slice(0..*len)).unwrap(),
                }
                start += len;
            }
            given.iter_mut().zip(&all).for_each(|(sum, value)| *sum += f64::from(*value));
            match gradients.wait() {
                Ok(update) => {
                    assert_ne!(step, undone, "memory was missing");
                    let values = PARAMETERS.iter().flat_map(|(name, _)| update.values(name).unwrap());
                    // Of two ranks.
                    delivered.iter_mut().zip(values).for_each(|(sum, mean)| *sum += f64::from(mean) * 2.0);
                }
                Err(Error::OutOfMemory(error)) => {
                    assert_eq!((step, error.rank as usize, error.step as usize), (undone, DEVICE, undone));
                    sentence = Some(error.to_string());
                }
                Err(error) => panic!("{error}"),
            }
            drop(hog);
        }
        (given, delivered, residual(gradients), sentence.unwrap())
    });
    for (rank, (.., sentence)) in found.iter().enumerate() {
        let own = ["not enough memory for selected entries", "missing"];
        assert!(sentence.contains("step 1 is undone on all ranks, as rank 1 lacked memory"), "{sentence}");
        assert_eq!(own.iter().all(|word| sentence.contains(word)), rank == DEVICE, "{sentence}");
    }
    for i in 0..found[0].0.len() {
        let [given, kept] = [found[0].0[i] + found[1].0[i], found[0].2[i] + found[1].2[i]];
        let delivered = found[0].1[i];
        assert!((given - delivered - kept).abs() < 1e-4, "entry {i}: {given} is not {delivered} and {kept}");
        assert_eq!(found[0].1[i].to_bits(), found[1].1[i].to_bits());
    }
}

#[test]
fn a_gradient_without_memory_may_be_given_again() {
    let run_with = |lacks: bool| {
        let emulation = emulation()?;
        let device = Cuda::emulated(emulation.ordinal(12).memory(30_000_000)).unwrap();
        let method = Method::spardl().density(0.02).on_nonfinite(OnNonFinite::Skip);
        Some(run(&device, &method, |rank, gradients| {
            let mut seen = Vec::new();
            for step in 0..STEPS {
                for (name, len) in PARAMETERS {
                    let mut values = gradient(len, rank, step);
                    if step == 1 {
                        values[3] = f32::NAN;
                    }
                    if rank != DEVICE {
                        gradients.ready(name, &values).unwrap();
                        continue;
                    }
                    let program = Program::new(&device, &values, Format::Float32);
                    // After a step that was left out, the next needs memory for what the residual is before it.
                    let hog = (lacks && step == 2).then(|| rest(&device));
                    if hog.is_some() {
                        // Meanwhile the group before is exchanged, without memory.
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    let given = gradients.ready_on_device(name, &program.slice(0..len));
                    if hog.is_some() {
                        let error = given.unwrap_err();
                        assert!(matches!(error, Error::Device(DeviceError::Memory(_))), "{error}");
                        assert!(error.to_string().contains("not enough memory for a residual"), "{error}");
                        drop(hog);
                        gradients.ready_on_device(name, &program.slice(0..len)).unwrap();
                    } else {
                        given.unwrap();
                    }
                }
                let update = gradients.wait().unwrap();
                assert_eq!(update.skipped().is_some(), step == 1);
                let values = PARAMETERS.iter().flat_map(|(name, _)| update.values(name).unwrap());
                seen.push(values.map(f32::to_bits).collect::<Vec<_>>());
            }
            (seen, residual(gradients))
        }))
    };
    assert!(run_with(true) == run_with(false));
}

/// Rank 0 sends all that it has to rank 1, which chooses from the sums of two blocks together and sends them back.
#[derive(Clone, Debug)]
struct Pair;

impl Collective for Pair {
    type State = ();

    fn name(&self) -> &'static str {
        "pair"
    }

    fn summary(&self) -> &'static str {
        "rank 1 chooses from the sums of two ranks"
    }

    fn blocks(&self, _: &Shape) -> u32 {
        2
    }

    fn steps(&self, Rank(rank): Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
        let slots = Slots::range(0, 2);
        let keep = |rule| Step::Keep { slots, rule, coding: Coding::Exact };
        let to = |rank, after| Step::Exchange {
            sends: vec![Send { to: Rank(rank), slots, after }],
            receives: vec![],
        };
        let from = |rank, how| Step::Exchange {
            sends: vec![],
            receives: vec![Receive { from: Rank(rank), slots, how }],
        };
        match rank {
            0 => vec![keep(Rule::Every), to(1, After::Drop), from(1, How::Place)],
            _ => vec![from(0, How::Add), keep(Rule::Jointly(shape.k)), to(0, After::Retain)],
        }
    }
}

#[test]
fn a_step_without_more_memory_than_was_taken_is_undone_or_gives_the_same() {
    // The bits of all updates and the residual; None if a step is undone.
    let run_with = |method: &Method, lacks_from: usize, only_rank: Option<usize>| {
        let emulation = emulation().unwrap();
        let device = Cuda::emulated(emulation.ordinal(15).memory(30_000_000)).unwrap();
        let ranks = run(&device, method, |rank, gradients| {
            let mut seen = Vec::new();
            for step in 0..STEPS {
                let brings = only_rank.is_none_or(|only| only == rank);
                let scaled = |value: f32| if brings { value } else { 0.0 };
                let values = PARAMETERS
                    .map(|(_, len)| gradient(len, rank, step).into_iter().map(scaled).collect::<Vec<_>>());
                let on_device = |values: &Vec<f32>| {
                    (rank == DEVICE).then(|| Program::new(&device, values, Format::Float32))
                };
                let programs = values.each_ref().map(on_device);
                let _hog = (rank == DEVICE && step >= lacks_from).then(|| rest(&device));
                for (((name, len), values), program) in PARAMETERS.iter().zip(&values).zip(&programs) {
                    match program {
                        Some(program) => gradients.ready_on_device(name, &program.slice(0..*len)).unwrap(),
                        None => gradients.ready(name, values).unwrap(),
                    }
                }
                let update = match gradients.wait() {
                    Err(Error::OutOfMemory(_)) => return None,
                    update => update.unwrap(),
                };
                let values = PARAMETERS.iter().flat_map(|(name, _)| update.values(name).unwrap());
                seen.push(values.map(f32::to_bits).collect::<Vec<_>>());
            }
            Some((seen, residual(gradients)))
        });
        ranks.into_iter().collect::<Option<Vec<_>>>()
    };
    if emulation().is_none() {
        return;
    }
    let named = |name: &str| (Method::named(name).unwrap().density(0.02), None);
    let names = ["spardl", "ssar-recursive-double", "oktopk", "topka", "topkdsa", "gtopk", "exdyna"];
    let methods = names.map(named).into_iter().chain([
        // What was selected from is kept in main memory, to be counted.
        (Method::spardl().density(0.02).select_over(SelectOver::Gradient), None),
        // After a message without entries.
        (Method::of(Pair).density(0.02), Some(DEVICE)),
    ]);
    for (method, only_rank) in methods {
        let whole = run_with(&method, STEPS, only_rank);
        assert!(whole.is_some(), "{method} has memory");
        for lacks_from in 0..3 {
            let found = run_with(&method, lacks_from, only_rank);
            // Where received sums are laid over entries, more of these are looked for than memory was taken for: the host does it.
            let must_go_on = ["spardl", "topka", "gtopk", "pair"].contains(&method.collective().name());
            assert!(
                found == whole || (found.is_none() && !must_go_on),
                "{method} without memory from step {lacks_from} on"
            );
        }
    }
}

#[test]
fn blocks_are_cut_anew_where_memory_is_missing() {
    let Some(emulation) = emulation() else { return };
    let device = Cuda::emulated(emulation.ordinal(16).memory(30_000_000)).unwrap();
    let n = 60_000;
    let mut there = device.zeros(n).unwrap();
    // Whether there is memory for what is collected, that of the blocks before included. All can be chosen in any case.
    let cuts = [
        (2, 12_000, false, true),
        (3, 50, true, true),
        (3, 12_000, true, false),
        (3, 40, false, true),
        (1100, 3, true, false),
        (1100, 3, false, true),
    ];
    let mut free = Vec::new();
    for (step, (blocks, k, lacks, collects)) in cuts.into_iter().enumerate() {
        let partition = Partition::even(n, blocks);
        let ranges: Vec<_> = (0..blocks as u32).map(|block| partition.range(Block(block))).collect();
        let mut hogs: Vec<_> = lacks.then(|| rest(&device)).into_iter().collect();
        match there.cut(&ranges, &vec![Some(k); blocks]) {
            Ok(()) => assert!(collects, "step {step}"),
            Err(DeviceError::Memory(_)) => assert!(!collects, "step {step}"),
            Err(error) => panic!("{error}"),
        }
        if lacks {
            hogs.push(rest(&device));
        }
        let gradient = gradient(n, 0, step);
        there.accumulate(0, Given::Host(&gradient), true, &vec![Some(0.5); blocks]).unwrap();
        there.begin().unwrap();
        for (block, range) in ranges.into_iter().enumerate() {
            let found = there.largest(block, k as usize).unwrap().entries;
            let expected = top_k_dense(&gradient[range], k as usize);
            assert_eq!(found.indices, expected.indices);
            assert_eq!(bits(&found.values), bits(&expected.values));
        }
        drop(hogs);
        free.push(device.available().unwrap().0);
    }
    assert!(free[5] < free[4], "the last cut has memory for what the same one before it lacked: {free:?}");
    let all = 0..n;
    let whole = std::slice::from_ref(&all);
    there.cut(whole, &[Some(5)]).unwrap();
    let hog = rest(&device);
    let cut = there.cut(whole, &[Some(n as u32)]);
    for lacking in [cut, there.largest(0, n).map(drop)] {
        assert!(matches!(lacking, Err(DeviceError::Memory(_))), "{lacking:?}");
    }
    drop(hog);
    // In a job, nothing is collected for a while; at its beginning that is an error.
    let cut = |blocks, k| (Partition::even(n, blocks), vec![Some(k); blocks]);
    let (partition, quotas) = cut(2, 50);
    let mut residual = Residual::<f32>::on(device.clone(), partition, quotas).unwrap();
    let hog = rest(&device);
    let (partition, quotas) = cut(4, 12_000);
    residual.recut(partition, quotas).unwrap();
    let (partition, quotas) = cut(4, 12_000);
    drop(hog);
    let _hog = device.memory(device.available().unwrap().0 - 400_000).unwrap();
    let refused = Residual::<f32>::on(device.clone(), partition, quotas);
    assert!(matches!(refused, Err(DeviceError::Memory(_))), "{refused:?}");
}

#[test]
fn a_gradient_that_is_not_given_again_ends_the_job_with_what_was_missing() {
    let Some(emulation) = emulation() else { return };
    let device = Cuda::emulated(emulation.ordinal(13).memory(30_000_000)).unwrap();
    let method = Method::spardl().density(0.02).on_nonfinite(OnNonFinite::Skip);
    let sentences = run(&device, &method, |rank, gradients| {
        for step in 0..2 {
            for (name, len) in PARAMETERS {
                let value = if step == 0 { f32::INFINITY } else { 1.0 };
                if rank != DEVICE {
                    // The job may have failed already.
                    drop(gradients.ready(name, &vec![value; len]));
                    continue;
                }
                let program = Program::new(&device, &vec![value; len], Format::Float32);
                let _hog = (step == 1).then(|| rest(&device));
                if let Err(error) = gradients.ready_on_device(name, &program.slice(0..len)) {
                    return error.to_string();
                }
            }
            if let Err(error) = gradients.wait() {
                return error.to_string();
            }
        }
        "nothing was missing".to_owned()
    });
    assert!(sentences[0].contains("rank 1 failed"), "{sentences:?}");
    assert!(
        sentences.iter().all(|sentence| sentence.contains("not enough memory for a residual")),
        "{sentences:?}"
    );
}
