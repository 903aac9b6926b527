//! Entries travel as the host would encode them, whether a device encodes the indices that it has chosen, or those that the host has; and the
//! host does it where that is faster, or the device cannot.

#![allow(clippy::unwrap_used)]

mod devices;

use std::sync::Arc;

use devices::{Random, emulation, encoded, on_each};
use gleaner_algorithms::bag::wire::{Body, Encoded, encode};
use gleaner_algorithms::bag::{Coding, Entries, Rounded};
use gleaner_algorithms::device::{Device, DeviceValues, Given, WORTHWHILE};
use gleaner_algorithms::select::predict_threshold;
use gleaner_cuda::{Cuda, OffloadTimes};

/// Entries of a block, and how many there are in all of it.
const COUNT: usize = 40_000;
const LEN: usize = 400_000;

/// Entries at random places of a block, about so many.
fn entries(random: &mut Random, count: usize) -> Entries {
    (0..LEN as u32).filter(|_| random.below(LEN) < count).map(|index| (index, index as f32 + 0.5)).collect()
}

/// That a device has encoded these entries, as the host does it.
fn assert_encoded(found: Option<Encoded>, entries: &Entries, rounded: Rounded) {
    assert_encoded_of(LEN, found, entries, rounded);
}

/// The same of a block of another length.
fn assert_encoded_of(len: usize, found: Option<Encoded>, entries: &Entries, rounded: Rounded) {
    let found = encode(&[Body::<f32>::Encoded(found.expect("the device encodes them"))]);
    assert!(found == encode(&[Body::Sparse { entries: entries.clone(), len, rounded }]));
}

/// The k largest of a gradient, as a device has chosen them ahead.
fn chosen(cuda: &Cuda, gradient: &[f32], threshold: f32, k: usize) -> (Box<dyn DeviceValues<f32>>, Entries) {
    let mut values = cuda.zeros(gradient.len()).unwrap();
    values.cut(std::slice::from_ref(&(0..gradient.len())), &[Some(k as u32)]).unwrap();
    values.accumulate(0, Given::Host(gradient), true, &[Some(threshold)]).unwrap();
    values.begin().unwrap();
    let entries = values.largest(0, k).unwrap().entries;
    assert_eq!(entries.len(), k);
    (values, entries)
}

fn cubes(seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..LEN).map(|_| random.cube()).collect()
}

#[test]
fn what_was_chosen_is_encoded_where_it_lies() {
    on_each(|cuda| {
        let (few, k) = (100, COUNT);
        let mut random = Random::new(99);
        let mut values = cuda.zeros(few + LEN).unwrap();
        values.cut(&[0..few, few..few + LEN], &[Some(7), Some(k as u32)]).unwrap();
        let (mut threshold, mut before) = (None, Entries::default());
        for step in 0..3 {
            let gradient: Vec<f32> = (0..few + LEN).map(|_| random.cube()).collect();
            values.accumulate(0, Given::Host(&gradient), step == 0, &[threshold; 2]).unwrap();
            values.begin().unwrap();
            if step == 1 {
                // Nothing is chosen yet, and what was chosen in the step before is no longer there.
                assert_encoded(
                    values.encode(1, &before, Rounded::EXACT, true).unwrap(),
                    &before,
                    Rounded::EXACT,
                );
                assert_eq!(encoded(cuda), [0, 2]);
            }
            let small = values.largest(0, 7).unwrap().entries;
            let largest = values.largest(1, k).unwrap();
            threshold = Some(predict_threshold(largest.threshold, largest.reached, largest.smallest, k));
            // Few are left to the host.
            assert_eq!(values.encode(0, &small, Rounded::EXACT, true).unwrap(), None);
            let coding = if step == 2 { Coding::Bf16 } else { Coding::Exact };
            let (rounded, entries, _) = coding.round(&largest.entries, LEN, 1);
            assert_encoded(values.encode(1, &entries, rounded, true).unwrap(), &entries, rounded);
            // The first ones were searched for, without a prediction.
            assert_eq!(encoded(cuda), [[0, 1], [1, 2], [3, 3]][step]);
            values.clear_at(1, &largest.entries.indices).unwrap();
            if step == 1 {
                // Also after the commit. A part of them comes from the host.
                assert_encoded(values.encode(1, &entries, rounded, true).unwrap(), &entries, rounded);
                let part: Entries = entries.iter().skip(1).collect();
                assert_encoded(values.encode(1, &part, rounded, true).unwrap(), &part, rounded);
                assert_eq!(encoded(cuda), [2, 3]);
            }
            before = entries;
        }
    });
}

#[test]
fn so_is_what_rounding_leaves_of_it_in_every_coding() {
    // A third of the values are not zero, and some of these so small that even 8 bits round them to zero.
    let (k, mut random) = (128_000, Random::new(97));
    let value = |_| {
        let uniform = (1 + random.below(1 << 20)) as f32 / (1 << 20) as f32;
        if random.below(3) > 0 {
            0.0
        } else {
            uniform * uniform - 2.0 * uniform * uniform * random.below(2) as f32
        }
    };
    let gradient: Vec<f32> = (0..LEN).map(value).collect();
    on_each(|cuda| {
        let (values, largest) = chosen(cuda, &gradient, 1e-4, k);
        for (number, coding) in (0..).zip(Coding::ALL) {
            let (rounded, entries, _) = coding.round(&largest, LEN, 1);
            assert_eq!(entries.len() < k, number >= 3, "{coding:?}");
            assert_encoded(values.encode(0, &entries, rounded, true).unwrap(), &entries, rounded);
            // What is missing is missing on the host alone.
            assert_eq!(
                encoded(cuda),
                [(number + 1).min(3), (number + 1_u32).saturating_sub(3)],
                "{coding:?}"
            );
        }
    });
}

#[test]
fn so_are_entries_that_no_device_has_chosen() {
    on_each(|cuda| {
        let (mut random, values) = (Random::new(96), cuda.zeros(LEN).unwrap());
        let sums = entries(&mut random, COUNT).merge(&entries(&mut random, 2 * COUNT));
        for (number, coding) in (1..).zip([Coding::Exact, Coding::F16, Coding::Qsgd4]) {
            let (rounded, entries, _) = coding.round(&sums, LEN, 1);
            assert_encoded(values.encode(0, &entries, rounded, false).unwrap(), &entries, rounded);
            assert_eq!(encoded(cuda), [0, number]);
        }
    });
    on_each(|cuda| {
        // More at a time, with larger buffers; and some that somebody takes for chosen, of one of two blocks.
        let (mut random, mut values) = (Random::new(95), cuda.zeros(7 + LEN).unwrap());
        values.cut(&[0..7, 7..7 + LEN], &[None, Some(COUNT as u32)]).unwrap();
        for (number, count) in (1..).zip([COUNT, 3 * COUNT, COUNT]) {
            let entries = entries(&mut random, count);
            let found = values.encode(1, &entries, Rounded::EXACT, number == 3).unwrap();
            assert_encoded(found, &entries, Rounded::EXACT);
            assert_eq!(encoded(cuda), [0, number]);
        }
    });
}

#[test]
fn so_are_more_entries_than_are_summed_at_once() {
    on_each(|cuda| {
        // More blocks of threads than one of them sums up at once.
        let (mut random, len) = (Random::new(89), 12 * LEN);
        let values = cuda.zeros(len).unwrap();
        let is_chosen = |_: &u32| random.below(4) == 0;
        let entries: Entries = (0..len as u32).filter(is_chosen).map(|index| (index, 1.5)).collect();
        assert!(entries.len() > 1 << 20);
        let found = values.encode(0, &entries, Rounded::EXACT, false).unwrap();
        assert_encoded_of(len, found, &entries, Rounded::EXACT);
    });
}

#[test]
fn few_entries_and_other_forms_are_left_to_the_host() {
    on_each(|cuda| {
        let (mut random, exact) = (Random::new(94), Rounded::EXACT);
        let mut few = entries(&mut random, COUNT);
        few.indices.truncate(WORTHWHILE - 1);
        few.values.truncate(WORTHWHILE - 1);
        // Gaps of one width each, and all entries but one.
        let even: Entries = (0..COUNT as u32).map(|i| (8 * i + 7, 1.0)).collect();
        let nearly_all: Entries = (1..LEN as u32).map(|i| (i, 1.0)).collect();
        let values = cuda.zeros(LEN).unwrap();
        for entries in [&few, &even, &nearly_all] {
            assert_eq!(values.encode(0, entries, exact, false).unwrap(), None);
        }
        // The same where a device has chosen them.
        let mut gradient = vec![0.0; LEN];
        even.iter().for_each(|(index, value)| gradient[index as usize] = value);
        let (values, largest) = chosen(cuda, &gradient, 0.5, COUNT);
        assert_eq!(values.encode(0, &largest, exact, true).unwrap(), None);
        assert_eq!(cuda.offload_times(), [], "that was no trial");
    });
}

#[test]
fn indices_that_do_not_ascend_or_are_beyond_the_block_are_refused() {
    on_each(|cuda| {
        let (mut random, values) = (Random::new(93), cuda.zeros(LEN).unwrap());
        let (mut twice, mut beyond) = (entries(&mut random, COUNT), entries(&mut random, COUNT));
        twice.indices[9] = twice.indices[8];
        beyond.push(LEN as u32, 1.0);
        for entries in [twice, beyond] {
            let error = values.encode(0, &entries, Rounded::EXACT, false).unwrap_err();
            assert!(error.to_string().contains("expected ascending indices below 400000"), "{error}");
        }
    });
}

#[test]
fn the_faster_one_does_it_after_three_trials_of_a_size() {
    let Some(emulation) = emulation() else { return };
    let cuda = Cuda::emulated(emulation).unwrap();
    let (values, largest) = chosen(&cuda, &cubes(92), 0.8, COUNT);
    let exact = Rounded::EXACT;
    for (classes, is_chosen) in [(1, true), (2, false)] {
        for trial in 0..5 {
            let found = values.encode(0, &largest, exact, is_chosen).unwrap();
            assert_eq!(found.is_some(), trial < OffloadTimes::TRIALS, "trial {trial}");
        }
        let measured = cuda.offload_times();
        assert_eq!(measured.len(), classes);
        // The emulation is slower than what it runs on.
        assert!(measured.iter().all(|times| times.times == 3 && times.device > times.host), "{measured:?}");
    }
    assert_eq!(encoded(&cuda), [3, 3]);
    // Another accumulator of the device knows it, too; other sizes are measured apart.
    let (mut random, values) = (Random::new(91), cuda.zeros(LEN).unwrap());
    assert_eq!(values.encode(0, &largest, exact, false).unwrap(), None);
    let more = entries(&mut random, 2 * COUNT);
    assert_encoded(values.encode(0, &more, exact, false).unwrap(), &more, exact);
}

#[test]
fn without_memory_for_it_the_host_encodes() {
    let Some(emulation) = emulation() else { return };
    let cuda = Cuda::emulated(emulation.ordinal(11).memory(40_000_000)).unwrap();
    let (values, largest) = chosen(&cuda, &cubes(98), 0.8, COUNT);
    for is_chosen in [true, false] {
        let encode = || values.encode(0, &largest, Rounded::EXACT, is_chosen).unwrap();
        let rest = cuda.memory(cuda.available().unwrap().0).unwrap();
        assert_eq!(encode(), None);
        drop(rest);
        assert_encoded(encode(), &largest, Rounded::EXACT);
    }
}

#[test]
fn several_threads_encode_on_one_device() {
    on_each(|cuda| {
        let (shared, largest) = chosen(cuda, &cubes(90), 0.8, COUNT);
        std::thread::scope(|scope| {
            for seed in 0..OffloadTimes::TRIALS {
                let (cuda, shared, largest): (&Arc<Cuda>, _, _) = (cuda, &shared, &largest);
                scope.spawn(move || {
                    let found = shared.encode(0, largest, Rounded::EXACT, true).unwrap();
                    assert_encoded(found, largest, Rounded::EXACT);
                    let sums = entries(&mut Random::new(80 + u64::from(seed)), COUNT);
                    let own = (seed == 0).then(|| cuda.zeros(LEN).unwrap());
                    let found = own.as_ref().unwrap_or(shared).encode(0, &sums, Rounded::EXACT, false);
                    assert_encoded(found.unwrap(), &sums, Rounded::EXACT);
                });
            }
        });
        assert_eq!(encoded(cuda), [3, 3]);
    });
}
