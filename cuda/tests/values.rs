//! Residuals in a device's memory do what those on the host do, bit by bit.

#![allow(clippy::unwrap_used)]

mod devices;

use std::ops::Range;
use std::sync::Arc;

use devices::{FORMATS, Program, Random, bits, on_each, rounded};
use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::device::{Device, DeviceValues, Format, Given, Largest};
use gleaner_algorithms::residual::NonFinite;
use gleaner_algorithms::select::{predict_threshold, scan, top_k_dense};
use gleaner_cuda::Cuda;

/// A vector on the host beside one on the device, in the same blocks.
struct Pair {
    host: Vec<f32>,
    device: Box<dyn DeviceValues<f32>>,
    blocks: Vec<Range<usize>>,
    thresholds: Vec<Option<f32>>,
}

impl Pair {
    fn new(cuda: &Cuda, lengths: &[usize], quotas: &[Option<u32>]) -> Self {
        let mut end = 0;
        let blocks: Vec<_> = lengths.iter().map(|&len| (end, end += len).0..end).collect();
        let mut device = cuda.zeros(end).unwrap();
        device.cut(&blocks, quotas).unwrap();
        Self { host: vec![0.0; end], device, thresholds: vec![None; blocks.len()], blocks }
    }

    /// Adds a gradient in parts, some from the host and some from the device.
    fn accumulate(&mut self, cuda: &Cuda, gradient: &[f32], format: Format, random: &mut Random) {
        let replaces = self.host.iter().all(|value| value.to_bits() == 0);
        let on_device = Program::new(cuda, gradient, format);
        for part in random.parts(gradient.len(), 7) {
            let given = match format == Format::Float32 && random.below(3) == 0 {
                true => Given::Host(&gradient[part.clone()]),
                false => Given::Device(on_device.slice(part.clone())),
            };
            self.device.accumulate(part.start, given, replaces, &self.thresholds).unwrap();
        }
        for (value, given) in self.host.iter_mut().zip(rounded(gradient, format)) {
            *value = if replaces { given } else { *value + given };
        }
    }

    /// That the values are the same.
    fn check_values(&self) {
        assert_eq!(bits(&self.device.read(0..self.host.len()).unwrap()), bits(&self.host));
    }

    /// That the k largest of a block are, and what is said of a threshold.
    fn check_largest(&self, block: usize, k: usize) -> Largest<f32> {
        let values = &self.host[self.blocks[block].clone()];
        let largest = self.device.largest(block, k).unwrap();
        assert_same(&largest.entries, &top_k_dense(values, k));
        let smallest = largest.entries.values.iter().map(|value| value.abs().to_bits()).min().unwrap_or(0);
        assert_eq!(largest.smallest.to_bits(), smallest);
        if k > 0 && !largest.threshold.is_nan() {
            let mut reaching = Entries::default();
            scan(values, largest.threshold, 0, &mut reaching);
            assert_eq!(largest.reached, reaching.len(), "what reaches {}", largest.threshold);
        }
        largest
    }
}

fn assert_same(found: &Entries<f32>, expected: &Entries<f32>) {
    assert_eq!(found.indices, expected.indices);
    assert_eq!(bits(&found.values), bits(&expected.values));
}

/// Entry i of n of the gradient of a step, made of a random number: as in the benchmark of hostile streams.
type Stream = fn(usize, usize, usize, f32) -> f32;

fn scale(large: bool) -> f32 {
    if large { 1000.0 } else { 1.0 }
}

const STREAMS: [(&str, Stream); 8] = [
    ("drifting", |step, _, _, random| random * (1.0 + 0.1 * (step as f32 * 0.3).sin())),
    ("jumping", |step, _, _, random| random * scale(step / 4 % 2 == 1)),
    ("alternating", |step, _, _, random| random * scale(step % 2 == 1)),
    ("growing", |step, _, _, random| random * 1e-18 * 1e3f32.powi((step / 4) as i32)),
    ("equal", |_, _, _, _| 1.0),
    ("sorted", |_, i, n, _| i as f32 / n as f32),
    ("huge", |_, i, n, random| if i == n / 2 { 1e30 } else { random }),
    ("zeros", |_, i, _, random| if i % 100 == 0 { random } else { -0.0 }),
];

#[test]
fn every_stream_is_selected_from_as_on_the_host() {
    on_each(|cuda| {
        for (name, stream) in STREAMS {
            println!("{name}");
            let mut random = Random::new(7);
            let quotas = [Some(150), None, Some(9), Some(40), Some(1)];
            let mut pair = Pair::new(cuda, &[15_003, 2000, 0, 8192, 1], &quotas);
            for step in 0..7 {
                let n = pair.host.len();
                let gradient: Vec<f32> = (0..n).map(|i| stream(step, i, n, random.cube())).collect();
                let format = if step % 3 == 2 { FORMATS[1 + step / 3 % 2] } else { Format::Float32 };
                let gradient =
                    if format == Format::Float16 && name == "huge" { vec![0.5; n] } else { gradient };
                pair.accumulate(cuda, &gradient, format, &mut random);
                pair.device.begin().unwrap();
                assert_eq!(pair.device.check().unwrap(), None);
                select_all(&mut pair, &quotas);
                pair.check_values();
            }
        }
    });
}

/// Selects what the quotas say, predicts, and commits as a method would: what was selected is zero.
fn select_all(pair: &mut Pair, quotas: &[Option<u32>]) {
    for (b, quota) in quotas.iter().enumerate() {
        let Some(k) = quota.map(|k| k as usize) else { continue };
        let largest = pair.check_largest(b, k);
        let full = largest.entries.len() == k && largest.smallest > 0.0;
        pair.thresholds[b] =
            full.then(|| predict_threshold(largest.threshold, largest.reached, largest.smallest, k));
        let start = pair.blocks[b].start;
        largest.entries.indices.iter().for_each(|&i| pair.host[start + i as usize] = 0.0);
        pair.device.clear_at(b, &largest.entries.indices).unwrap();
    }
}

#[test]
fn a_wrong_threshold_never_changes_the_choice() {
    on_each(|cuda| {
        let tried = [0.0, -1.0, f32::NAN, 1e-30, 0.4, 3.0, 1e30, f32::INFINITY];
        for threshold in tried.map(Some).into_iter().chain([None]) {
            let mut random = Random::new(3);
            let mut pair = Pair::new(cuda, &[9000, 4096], &[Some(90), Some(40)]);
            pair.thresholds = vec![threshold, Some(1.0)];
            let gradient: Vec<f32> = (0..pair.host.len()).map(|_| random.cube()).collect();
            pair.accumulate(cuda, &gradient, Format::Float32, &mut random);
            pair.device.begin().unwrap();
            for (b, k) in [(0, 90), (1, 40), (0, 90), (0, 89), (0, 91), (1, 1), (1, 5000), (0, 0), (0, 90)] {
                pair.check_largest(b, k);
            }
        }
    });
}

#[test]
fn thresholds_that_change_within_a_step_are_no_harm() {
    on_each(|cuda| {
        for second in [Some(0.1), Some(3.0), None] {
            let mut pair = Pair::new(cuda, &[6000], &[Some(60)]);
            let mut random = Random::new(4);
            pair.host = (0..6000).map(|_| random.cube()).collect();
            for (half, threshold) in [(0..3000, Some(1.0)), (3000..6000, second)] {
                let part = Given::Host(&pair.host[half.clone()]);
                pair.device.accumulate(half.start, part, true, &[threshold]).unwrap();
            }
            pair.device.begin().unwrap();
            pair.check_largest(0, 60);
        }
    });
}

#[test]
fn without_begin_and_in_the_middle_of_a_step_the_choice_is_right() {
    on_each(|cuda| {
        let mut random = Random::new(5);
        let mut pair = Pair::new(cuda, &[5000], &[Some(50)]);
        pair.check_largest(0, 50);
        pair.thresholds = vec![Some(1.0)];
        let gradient: Vec<f32> = (0..5000).map(|_| random.cube()).collect();
        for _ in 0..2 {
            pair.accumulate(cuda, &gradient, Format::Float32, &mut random);
            pair.check_largest(0, 50);
        }
        // Twice begun, and with half a gradient.
        pair.device.begin().unwrap();
        pair.check_largest(0, 50);
        pair.device.begin().unwrap();
        pair.check_largest(0, 50);
        pair.device.accumulate(0, Given::Host(&gradient[..2500]), false, &pair.thresholds).unwrap();
        pair.host.iter_mut().zip(&gradient[..2500]).for_each(|(value, given)| *value += given);
        pair.device.begin().unwrap();
        pair.check_largest(0, 50);
        pair.check_values();
    });
}

#[test]
fn a_change_after_the_gradient_is_seen() {
    on_each(|cuda| {
        let changes: [fn(&mut Pair); 6] = [
            |pair| change(pair, |device, entries| device.set(0, entries), |_, given| given),
            |pair| change(pair, |device, entries| device.add(0, entries), |value, given| value + given),
            |pair| change(pair, |device, entries| device.clear_at(0, &entries.indices), |_, _| 0.0),
            |pair| {
                pair.device.clear(0).unwrap();
                pair.host[..5000].fill(0.0);
            },
            |pair| {
                pair.device.write(100, &[9.0; 64]).unwrap();
                pair.host[100..164].fill(9.0);
            },
            |pair| {
                let copy = pair.device.duplicate().unwrap();
                pair.device.add_all(&*copy).unwrap();
                pair.host.iter_mut().for_each(|value| *value += *value);
            },
        ];
        for change in changes {
            let mut random = Random::new(6);
            let mut pair = Pair::new(cuda, &[5000, 300], &[Some(50), Some(3)]);
            pair.thresholds = vec![Some(1.0); 2];
            let gradient: Vec<f32> = (0..5300).map(|_| random.cube()).collect();
            pair.accumulate(cuda, &gradient, Format::Float32, &mut random);
            pair.device.begin().unwrap();
            pair.check_largest(0, 50);
            change(&mut pair);
            pair.check_largest(0, 50);
            pair.check_largest(1, 3);
            pair.check_values();
            check_reaching(&pair, 0, 1.5);
        }
    });
}

type Change =
    fn(&mut dyn DeviceValues<f32>, &Entries<f32>) -> Result<(), gleaner_algorithms::device::DeviceError>;

fn change(pair: &mut Pair, on_device: Change, on_host: fn(f32, f32) -> f32) {
    let entries: Entries<f32> = (0..40).map(|i| (i * 101, i as f32 - 20.0)).collect();
    on_device(&mut *pair.device, &entries).unwrap();
    entries.iter().for_each(|(i, given)| pair.host[i as usize] = on_host(pair.host[i as usize], given));
}

fn check_reaching(pair: &Pair, block: usize, threshold: f32) {
    let mut expected = Entries::default();
    scan(&pair.host[pair.blocks[block].clone()], threshold, 0, &mut expected);
    let n = expected.len();
    for most in [n, n + 1, 100_000] {
        assert_same(&pair.device.reaching(block, threshold, most).unwrap().unwrap(), &expected);
    }
    if n > 0 {
        assert_eq!(pair.device.reaching(block, threshold, n - 1).unwrap(), None);
    }
}

#[test]
fn what_reaches_a_threshold_is_what_a_scan_finds() {
    on_each(|cuda| {
        for collected in [None, Some(0.5), Some(1e-6)] {
            let mut random = Random::new(8);
            let mut pair = Pair::new(cuda, &[7000, 0, 20], &[Some(70), None, None]);
            pair.thresholds[0] = collected;
            let gradient: Vec<f32> =
                (0..7020).map(|i| if i % 7 == 0 { 0.0 } else { random.cube() }).collect();
            pair.accumulate(cuda, &gradient, Format::Float32, &mut random);
            pair.device.begin().unwrap();
            for block in 0..3 {
                for threshold in [0.5, 0.6, 2.0, 1e9, 0.01, 0.0, f32::NAN] {
                    check_reaching(&pair, block, threshold);
                }
            }
            pair.check_largest(0, 70);
        }
    });
}

#[test]
fn sums_that_are_not_finite_are_counted_and_the_first_is_named() {
    on_each(|cuda| {
        let mut random = Random::new(9);
        let mut pair = Pair::new(cuda, &[5000, 5000], &[Some(50), None]);
        pair.thresholds[0] = Some(1.0);
        let finite: Vec<f32> = (0..10_000).map(|_| random.cube()).collect();
        let mut bad = finite.clone();
        (bad[4321], bad[7000], bad[9999]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let expected = [None, Some(NonFinite { entry: 4321, count: 3 }), None];
        for (gradient, expected) in [&finite, &bad, &finite].into_iter().zip(expected) {
            pair.accumulate(cuda, gradient, Format::Float32, &mut random);
            assert_eq!(pair.device.check().unwrap(), expected, "before the gradient is complete");
            pair.device.begin().unwrap();
            assert_eq!(pair.device.check().unwrap(), expected);
            assert_eq!(pair.device.check().unwrap(), expected, "again");
            pair.check_largest(0, 50);
            pair.check_values();
            // The step is undone.
            pair.host.copy_from_slice(&finite);
            pair.device.write(0, &finite).unwrap();
        }
        let mut pair = Pair::new(cuda, &[100], &[None]);
        pair.accumulate(cuda, &[f32::MAX; 100], Format::Float32, &mut random);
        pair.accumulate(cuda, &[f32::MAX; 100], Format::Float32, &mut random);
        assert_eq!(pair.device.check().unwrap(), Some(NonFinite { entry: 0, count: 100 }));
    });
}

#[test]
fn values_are_read_and_written_where_they_are_asked_for() {
    on_each(|cuda| {
        let mut random = Random::new(10);
        let mut pair = Pair::new(cuda, &[3000, 100, 5000], &[None; 3]);
        pair.check_values();
        let values: Vec<f32> = (0..4000).map(|_| random.cube()).collect();
        pair.device.write(2500, &values).unwrap();
        pair.host[2500..6500].copy_from_slice(&values);
        pair.check_values();
        assert_eq!(bits(&pair.device.read(2400..2600).unwrap()), bits(&pair.host[2400..2600]));
        assert!(pair.device.read(8100..8100).unwrap().is_empty());
        let indices = [4999, 0, 17, 17, 1024];
        let expected = indices.map(|i| pair.host[3100 + i as usize]);
        assert_eq!(bits(&pair.device.gather(2, &indices).unwrap()), bits(&expected));
        assert!(pair.device.gather(2, &[]).unwrap().is_empty());
        let other = pair.device.duplicate().unwrap();
        pair.device.clear(1).unwrap();
        pair.host[3000..3100].fill(0.0);
        pair.check_values();
        assert_eq!(other.read(3000..3100).unwrap(), values[500..600]);
        pair.device.copy_from(&*other).unwrap();
        pair.host[3000..3100].copy_from_slice(&values[500..600]);
        pair.check_values();
        // The copy has the same blocks.
        assert_eq!(bits(&other.gather(2, &indices).unwrap()), bits(&expected));
        let nothing = cuda.zeros(0).unwrap();
        assert!(nothing.is_empty() && nothing.read(0..0).unwrap().is_empty());
        assert!(nothing.duplicate().unwrap().is_empty());
    });
}

#[test]
fn other_blocks_may_be_cut_at_any_time() {
    on_each(|cuda| {
        let mut random = Random::new(11);
        let mut pair = Pair::new(cuda, &[6000], &[Some(60)]);
        for lengths in [vec![6000], vec![1000, 5000], vec![2000; 3], vec![0, 6000, 0]] {
            let mut end = 0;
            pair.blocks = lengths.iter().map(|&len| (end, end += len).0..end).collect();
            pair.thresholds = vec![Some(0.8); lengths.len()];
            let quotas: Vec<_> = lengths.iter().map(|&len| Some(len as u32 / 100)).collect();
            pair.device.cut(&pair.blocks, &quotas).unwrap();
            let gradient: Vec<f32> = (0..6000).map(|_| random.cube()).collect();
            pair.accumulate(cuda, &gradient, Format::Float32, &mut random);
            pair.device.begin().unwrap();
            for (b, quota) in quotas.iter().enumerate() {
                pair.check_largest(b, quota.unwrap() as usize);
            }
            pair.check_values();
        }
    });
}

#[test]
fn a_block_is_given_in_more_calls_than_there_is_room_for() {
    on_each(|cuda| {
        let mut random = Random::new(12);
        let n = 2 * 4100;
        let mut pair = Pair::new(cuda, &[n], &[Some(80)]);
        pair.thresholds = vec![Some(1.0)];
        pair.host = (0..n).map(|_| random.cube()).collect();
        let on_device = Program::new(cuda, &pair.host, Format::Float32);
        for i in 0..4100 {
            let part = Given::Device(on_device.slice(2 * i..2 * i + 2));
            pair.device.accumulate(2 * i, part, true, &pair.thresholds).unwrap();
        }
        pair.device.begin().unwrap();
        pair.check_largest(0, 80);
        pair.check_values();
    });
}

#[test]
fn several_threads_use_one_device() {
    on_each(|cuda| {
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let cuda: &Arc<Cuda> = cuda;
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    let mut pair = Pair::new(cuda, &[5000, 1000], &[Some(50), Some(10)]);
                    for _ in 0..4 {
                        let gradient: Vec<f32> = (0..6000).map(|_| random.cube()).collect();
                        pair.accumulate(cuda, &gradient, Format::Float32, &mut random);
                        pair.device.begin().unwrap();
                        select_all(&mut pair, &[Some(50), Some(10)]);
                        pair.check_values();
                    }
                });
            }
        });
    });
}

#[test]
fn a_right_prediction_spares_another_look_at_all_values() {
    on_each(|cuda| {
        let mut random = Random::new(13);
        let quotas = [Some(50), Some(20)];
        let mut pair = Pair::new(cuda, &[5000, 2000], &quotas);
        let (searches, counted) = ("histogram_dense", "histogram_found");
        let mut used = Vec::new();
        for _ in 0..4 {
            let gradient: Vec<f32> = (0..7000).map(|_| random.cube()).collect();
            cuda.start_trace();
            pair.accumulate(cuda, &gradient, Format::Float32, &mut random);
            pair.device.begin().unwrap();
            select_all(&mut pair, &quotas);
            let kernels = cuda.end_trace().unwrap();
            used.push(
                [searches, counted].map(|name| kernels.iter().filter(|(kernel, _)| kernel == name).count()),
            );
        }
        // Three digits for each of two blocks.
        assert_eq!(used, [[6, 0], [0, 6], [0, 6], [0, 6]]);
    });
}

#[test]
fn what_was_chosen_is_cleared_where_it_lies() {
    on_each(|cuda| {
        let mut random = Random::new(17);
        let mut pair = Pair::new(cuda, &[5000, 9000], &[Some(50), Some(90)]);
        pair.thresholds = vec![Some(8.0), None];
        let gradient: Vec<f32> = (0..14_000).map(|_| random.cube()).collect();
        pair.accumulate(cuda, &gradient, Format::Float32, &mut random);
        assert!(!pair.device.clear_chosen(0, 50).unwrap(), "nothing is chosen yet");
        pair.device.begin().unwrap();
        let chosen = [(0, 50), (1, 90)].map(|(block, k)| pair.device.largest(block, k).unwrap().entries);
        assert!(!pair.device.clear_chosen(0, 49).unwrap(), "not all of it");
        assert!(pair.device.clear_chosen(0, 50).unwrap());
        assert!(!pair.device.clear_chosen(1, 90).unwrap(), "searched for without a prediction");
        pair.device.clear_at(1, &chosen[1].indices).unwrap();
        for (start, chosen) in [0, 5000].into_iter().zip(&chosen) {
            chosen.indices.iter().for_each(|&i| pair.host[start + i as usize] = 0.0);
        }
        pair.check_values();
    });
}
