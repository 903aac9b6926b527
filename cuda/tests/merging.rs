//! Bags that came, decoded and added to entries as on the host; and by the host where that is faster, or the device cannot.

#![allow(clippy::unwrap_used)]

mod devices;

use std::sync::Arc;

use bytes::Bytes;
use devices::{Random, bits, emulation, on_each};
use gleaner_algorithms::bag::wire::{Body, Decoder, Encoded, Expected, Part, encode};
use gleaner_algorithms::bag::{Bag, Coding, Entries};
use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::device::{Device, DeviceValues, Given, WORTHWHILE};
use gleaner_algorithms::residual::{Collection, Residual};
use gleaner_algorithms::schedule::{Happening, watched};
use gleaner_algorithms::{Layers, Method, Reduction};
use gleaner_cuda::{Cuda, Offload};

/// Entries of each side, together enough for a device, and how many positions there are.
const COUNT: usize = 20_000;
const LEN: u32 = 100_000;

/// Entries at random places, whose gaps are half of `apart` in the mean: Rice's form is the smallest for them.
fn entries(random: &mut Random, count: usize, apart: usize) -> Entries {
    let mut next = 0;
    let entry = |_| {
        let uniform = (1 + random.below(1 << 20)) as f32 / (1 << 20) as f32;
        next += 1 + (-uniform.ln() * apart as f32 / 2.0) as u32;
        (next - 1, random.cube() + 0.5)
    };
    (0..count).map(entry).collect()
}

/// The same places with magnitudes from 1 to 2, of which QSGD rounds few to zero.
fn alike(entries: &Entries) -> Entries {
    entries.iter().map(|(index, value)| (index, (1.0 + value.abs().fract()).copysign(value))).collect()
}

/// A bag as it comes, of a stream of bytes that may be anything behind its header.
fn decoded(bytes: Vec<u8>, len: u32, count: usize) -> Option<Encoded> {
    let mut decoder = Decoder::<f32>::new(vec![Expected::bag(len, count as u32)]).with_encoded_from(1);
    let mut came = None;
    let fed = decoder.feed(Bytes::from(bytes), |_, part| match part {
        Part::Encoded { encoded, .. } | Part::Sparse { encoded, .. } => came = Some(encoded),
        part => panic!("expected a sparse bag, found {part:?}"),
    });
    fed.ok().and(came)
}

fn stream(entries: &Entries, len: u32, coding: Coding) -> Vec<u8> {
    let (rounded, entries, _) = coding.round(entries, len as usize, 1);
    encode(&[Body::Sparse { entries, len: len as usize, rounded }]).concat()
}

/// Entries as they come, and what the host decodes.
fn came(entries: &Entries, len: u32, coding: Coding) -> (Encoded, Entries) {
    let encoded = decoded(stream(entries, len, coding), len, entries.len()).unwrap();
    let entries = encoded.entries(0, false).unwrap();
    (encoded, entries)
}

fn values(cuda: &Cuda) -> Box<dyn DeviceValues<f32>> {
    cuda.zeros(1).unwrap()
}

fn assert_same(found: &Entries, expected: &Entries) {
    assert!(found.indices == expected.indices && bits(&found.values) == bits(&expected.values));
}

#[test]
fn a_bag_is_decoded_and_added_as_on_the_host() {
    for coding in Coding::ALL {
        on_each(|cuda| {
            let (mut random, values) = (Random::new(61), values(cuda));
            let held = entries(&mut random, COUNT, 8);
            let (encoded, came) = came(&alike(&entries(&mut random, COUNT, 8)), LEN * 2, coding);
            assert_same(&values.merge(&held, None, &encoded).unwrap().unwrap(), &held.merge(&came));
            // Few that are held, and many that come; with larger buffers.
            let (encoded, came) = self::came(&alike(&entries(&mut random, 3 * COUNT, 4)), LEN * 4, coding);
            let few = entries(&mut random, 10, 4000);
            assert_same(&values.merge(&few, None, &encoded).unwrap().unwrap(), &few.merge(&came));
            // Nothing that is held: decoded alone.
            assert_same(&values.merge(&Entries::default(), None, &encoded).unwrap().unwrap(), &came);
        });
    }
}

#[test]
fn so_is_a_bag_that_is_added_to_values_and_to_sums_laid_over_them() {
    on_each(|cuda| {
        let (mut random, len) = (Random::new(67), 2 * LEN as usize);
        let mut values = cuda.zeros(7 + len).unwrap();
        values.cut(&[0..7, 7..7 + len], &[None; 2]).unwrap();
        let own: Vec<f32> = (0..7 + len).map(|_| random.cube()).collect();
        values.accumulate(0, Given::Host(&own), true, &[None; 2]).unwrap();
        let beneath =
            |came: &Entries| came.indices.iter().map(|&index| own[7 + index as usize]).collect::<Vec<_>>();
        let (encoded, came) = came(&entries(&mut random, 2 * COUNT, 4), 2 * LEN, Coding::Exact);
        for held in [Entries::default(), entries(&mut random, COUNT, 8), entries(&mut random, 100, 900)] {
            let expected = held.merge_over(beneath(&came), came.clone(), &Reduction::Sum);
            let found = values.merge(&held, Some(1), &encoded).unwrap().unwrap();
            assert_same(&found, &expected);
            let both = came.indices.iter().filter(|index| held.indices.contains(index)).count();
            assert_eq!(found.len(), held.len() + came.len() - both);
            for (index, sum) in found.iter().take(500) {
                let value = |entries: &Entries| entries.iter().find(|(at, _)| *at == index).map(|(_, v)| v);
                let below = value(&held).unwrap_or(own[7 + index as usize]);
                assert_eq!(sum, value(&came).map_or(below, |came| below + came));
            }
        }
        // Another block has other values, and another length.
        assert_eq!(values.merge(&Entries::default(), Some(0), &encoded).unwrap(), None);
    });
}

#[test]
fn so_are_more_entries_than_are_summed_at_once() {
    on_each(|cuda| {
        let (mut random, values) = (Random::new(72), values(cuda));
        // More blocks of threads than one of them sums up at once.
        let held = entries(&mut random, 1_100_000, 8);
        let (encoded, came) = came(&entries(&mut random, 1_200_000, 8), 12_000_000, Coding::Bf16);
        assert_same(&values.merge(&held, None, &encoded).unwrap().unwrap(), &held.merge(&came));
    });
}

#[test]
fn so_are_the_same_indices_none_of_them_and_sums_that_cancel() {
    on_each(|cuda| {
        let (mut random, values) = (Random::new(62), values(cuda));
        let held = entries(&mut random, COUNT, 8);
        let opposite: Entries = held.iter().map(|(index, value)| (index, -value)).collect();
        let (encoded, came) = came(&opposite, LEN * 2, Coding::Exact);
        let sums = values.merge(&held, None, &encoded).unwrap().unwrap();
        assert_same(&sums, &held.merge(&came));
        assert_eq!((sums.len(), bits(&sums.values)), (COUNT, vec![0; COUNT]), "zeros are entries");
        // Between those that are held, and behind all of them.
        let odd: Entries = held.iter().map(|(index, value)| (2 * index + 1, value)).collect();
        let even: Entries = held.iter().map(|(index, value)| (2 * index, value)).collect();
        let (encoded, came) = self::came(&odd, LEN * 4, Coding::Exact);
        assert_same(&values.merge(&even, None, &encoded).unwrap().unwrap(), &even.merge(&came));
    });
    on_each(|cuda| {
        let (mut random, values) = (Random::new(63), values(cuda));
        let held = entries(&mut random, COUNT, 4);
        let behind: Entries = held.iter().map(|(index, value)| (index + LEN, value)).collect();
        for (held, came) in [(&held, &behind), (&behind, &held)] {
            let (encoded, came) = self::came(came, LEN * 2, Coding::Exact);
            assert_same(&values.merge(held, None, &encoded).unwrap().unwrap(), &held.merge(&came));
        }
    });
}

#[test]
fn malformed_bags_are_left_to_the_host() {
    on_each(|cuda| {
        let (mut random, values) = (Random::new(64), values(cuda));
        let held = entries(&mut random, COUNT, 8);
        let mut sent = |coding| came(&alike(&entries(&mut random, COUNT, 8)), LEN * 2, coding).0;
        let (coded, sent) = (sent(Coding::Qsgd4), sent(Coding::Bf16));
        let (bag, bytes) = (sent.rice().unwrap(), encode(&[Body::<f32>::Encoded(sent.clone())]).concat());
        let (fields, values_at) = (bag.count * usize::from(bag.parameter) / 8, bytes.len() - 2 * bag.count);
        // Among zeros and ones, and a value that is infinite.
        let mut places: Vec<_> =
            (0..20).map(|_| 13 + fields + random.below(values_at - 14 - fields)).collect();
        places.push(values_at);
        for at in places {
            let mut bytes = bytes.clone();
            match at == values_at {
                true => bytes[at..at + 2].copy_from_slice(&0x7f80_u16.to_le_bytes()),
                false => bytes[at] ^= 1 << random.below(8),
            }
            let encoded = decoded(bytes, LEN * 2, COUNT).unwrap();
            assert!(encoded.entries::<f32>(0, false).is_err());
            assert_eq!(values.merge(&held, None, &encoded).unwrap(), None, "byte {at}");
        }
        // A code for -0.
        let mut bytes = encode(&[Body::<f32>::Encoded(coded.clone())]).concat();
        let at = bytes.len() - 8;
        bytes[at] = 0x88;
        let encoded = decoded(bytes, LEN * 2, COUNT).unwrap();
        assert!(encoded.entries::<f32>(0, false).is_err());
        assert_eq!(values.merge(&held, None, &encoded).unwrap(), None);
        assert_eq!(cuda.offload_times(), [], "that was no trial");
        assert!(values.merge(&held, None, &coded).unwrap().is_some());
        assert!(values.merge(&held, None, &sent).unwrap().is_some());
    });
}

#[test]
fn few_entries_and_other_forms_are_left_to_the_host() {
    on_each(|cuda| {
        let (mut random, values) = (Random::new(65), values(cuda));
        let held = entries(&mut random, COUNT, 8);
        let (few, _) = came(&entries(&mut random, WORTHWHILE - 1 - COUNT, 8), LEN * 2, Coding::Exact);
        assert_eq!(values.merge(&held, None, &few).unwrap(), None);
        // Gaps of one width each.
        let even: Entries = (0..COUNT as u32).map(|i| (8 * i + 7, 1.0)).collect();
        let (packed, _) = came(&even, LEN * 2, Coding::Exact);
        assert!(packed.rice().is_none());
        assert_eq!(values.merge(&held, None, &packed).unwrap(), None);
        assert_eq!(cuda.offload_times(), []);
    });
}

#[test]
fn the_faster_one_does_it_after_three_trials_of_a_size() {
    let Some(emulation) = emulation() else { return };
    let cuda = Cuda::emulated(emulation).unwrap();
    let (mut random, values) = (Random::new(66), values(&cuda));
    let held = entries(&mut random, COUNT, 8);
    for (count, classes) in [(COUNT, 1), (3 * COUNT, 2)] {
        let (encoded, _) = came(&entries(&mut random, count, 8), LEN * 6, Coding::Exact);
        for trial in 0..5 {
            assert_eq!(values.merge(&held, None, &encoded).unwrap().is_some(), trial < 3, "trial {trial}");
        }
        let measured = cuda.offload_times();
        assert_eq!(measured.len(), classes);
        // The emulation is slower than what it runs on.
        assert!(
            measured.iter().all(|merged| merged.times == 3 && merged.device > merged.host),
            "{measured:?}"
        );
        assert!(measured.iter().all(|merged| merged.kind == Offload::Add));
    }
    // Another accumulator of the device knows it, too; decoding alone is measured apart.
    let (encoded, _) = came(&entries(&mut random, 2 * COUNT, 8), LEN * 4, Coding::Exact);
    let few = entries(&mut random, COUNT, 8);
    assert_eq!(self::values(&cuda).merge(&few, None, &encoded).unwrap(), None);
    assert!(values.merge(&Entries::default(), None, &encoded).unwrap().is_some());
}

#[test]
fn without_memory_the_host_does_it() {
    let Some(emulation) = emulation() else { return };
    let cuda = Cuda::emulated(emulation.ordinal(14).memory(40_000_000)).unwrap();
    let (mut random, values) = (Random::new(67), values(&cuda));
    let held = entries(&mut random, COUNT, 8);
    let (encoded, came) = came(&entries(&mut random, COUNT, 8), LEN * 2, Coding::F16);
    let rest = cuda.memory(cuda.available().unwrap().0).unwrap();
    assert_eq!(values.merge(&held, None, &encoded).unwrap(), None);
    drop(rest);
    assert_same(&values.merge(&held, None, &encoded).unwrap().unwrap(), &held.merge(&came));
}

#[test]
fn several_threads_merge_on_one_device() {
    on_each(|cuda| {
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let cuda: &Arc<Cuda> = cuda;
                scope.spawn(move || {
                    let (mut random, values) = (Random::new(70 + seed), values(cuda));
                    let held = entries(&mut random, COUNT, 8);
                    let (encoded, came) = came(&entries(&mut random, COUNT, 8), LEN * 2, Coding::Exact);
                    let found = values.merge(&held, None, &encoded).unwrap();
                    assert_same(&found.unwrap(), &held.merge(&came));
                });
            }
        });
    });
}

const WORKERS: u32 = 4;
const N: usize = 500_000;

fn gradient(rank: usize, step: u64) -> Vec<f32> {
    let mut random = Random::new(step << 8 | rank as u64);
    (0..N).map(|_| random.cube()).collect()
}

/// All of a job's workers, of which those of odd rank are on a device if there is one.
fn workers(method: &Method, device: Option<&Arc<Cuda>>, workers: u32) -> Ensemble {
    let mut ensemble = Ensemble::new(method.clone(), workers, Layers::of([N])).unwrap();
    for rank in (1..workers as usize).step_by(2) {
        let Some(device) = device else { break };
        let schedule = ensemble.prepared().nth(rank).unwrap().program.schedule().clone();
        let device: Arc<dyn Device> = device.clone();
        ensemble.residuals[rank] =
            Residual::on(device, schedule.partition.clone(), schedule.quotas()).unwrap();
    }
    ensemble
}

/// Of each rank: the bits of the update and of the residual, entries and words that came, and entries that were merged.
type Seen = Vec<(Vec<(u32, u32)>, Vec<u32>, [u64; 2], f64)>;

fn step(ensemble: &mut Ensemble, number: u64) -> Seen {
    let mut executions = Vec::new();
    for rank in 0..WORKERS as usize {
        ensemble.residuals[rank].accumulate(0, &gradient(rank, number)).unwrap();
        executions.push(ensemble.begin(rank).unwrap());
    }
    let mut merged = [0.0; WORKERS as usize];
    let run = watched(executions, |rank, happening| match happening {
        Happening::Advanced(tally, _) | Happening::Received(_, _, tally, _) => {
            merged[rank.0 as usize] = tally.merged;
        }
        Happening::Finished(_) => {}
    });
    let run = run.unwrap();
    let counts: Vec<_> =
        run.runs.iter().map(|run| [run.finished.entries_received, run.words_received]).collect();
    let committed = ensemble.commit(run, Collection::Global).unwrap();
    let of = |rank: usize| {
        let bag = |bag: &Bag| bag.iter().map(|(i, v)| (i, v.to_bits())).collect::<Vec<_>>();
        let residual = ensemble.residuals[rank].read(0..N).unwrap();
        (committed[rank].update.iter().flat_map(bag).collect(), bits(&residual), counts[rank], merged[rank])
    };
    (0..WORKERS as usize).map(of).collect()
}

#[test]
fn steps_whose_bags_a_device_merges_are_those_of_the_host() {
    for (name, density, coding, kernel) in [
        ("spardl", 0.25, Coding::Exact, "write_held"),
        ("topka", 0.08, Coding::Bf16, "read_entries"),
        ("topka", 0.1, Coding::Qsgd4, "read_codes"),
    ] {
        let method = Method::named(name).unwrap().density(density).coding(coding);
        // The sums of two teams are added; all others are placed, or added to what a worker has of its own.
        let method = if name == "spardl" { method.with("teams", "2").unwrap() } else { method };
        on_each(|device| {
            let (mut here, mut there) =
                (workers(&method, None, WORKERS), workers(&method, Some(device), WORKERS));
            device.start_trace();
            for number in 0..3 {
                let (expected, found) = (step(&mut here, number), step(&mut there, number));
                assert!(expected == found, "{} on {}, step {number}", method.title(), device.name());
            }
            let trace = device.end_trace().unwrap();
            let done = trace.iter().any(|(name, _)| name == kernel);
            assert!(done, "{}", method.title());
        });
    }
}

/// What rank 1 of two says of a message that has a bit changed.
fn refused(ensemble: &mut Ensemble, at: usize) -> Option<String> {
    let mut executions = Vec::new();
    for rank in 0..2 {
        ensemble.residuals[rank].accumulate(0, &gradient(rank, 0)).unwrap();
        executions.push(ensemble.begin(rank).unwrap());
    }
    let (mut outbox, mut own) = (Vec::new(), Vec::new());
    let from = executions[1].go_on(&mut own).unwrap().unwrap();
    executions[0].go_on(&mut outbox).unwrap();
    let mut start = 0;
    for message in outbox {
        let (mut payload, len) = (message.payload.to_vec(), message.payload.len());
        if (start..start + len).contains(&at) {
            payload[at - start] ^= 0x10;
        }
        start += len;
        if let Err(error) = executions[1].receive(from, payload.into(), &mut own) {
            return Some(error.to_string());
        }
    }
    None
}

#[test]
fn a_malformed_message_is_refused_with_the_words_of_the_host() {
    // The coding, the width of buckets, the count, the words, fields, ones, scales, and values.
    let header = [2, 3, 5, 8, 9, 12];
    for (coding, bag) in [
        (Coding::Exact, [4000, 20_000, 21_500, 22_001, 24_000, 60_003, 150_003]),
        (Coding::Qsgd4, [4000, 20_000, 24_000, 26_001, 29_500, 29_503, 40_000]),
    ] {
        let method = Method::named("topka").unwrap().density(0.1).coding(coding);
        on_each(|device| {
            let mut sentences = 0;
            for at in header.into_iter().chain(bag) {
                let [here, there] =
                    [None, Some(device)].map(|device| refused(&mut workers(&method, device, 2), at));
                assert_eq!(here, there, "byte {at}");
                sentences += usize::from(here.is_some());
            }
            assert!(sentences > 4, "{sentences} in {coding}");
        });
    }
}
