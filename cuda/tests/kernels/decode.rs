//! Bags that came, against the decoder of the host.

use bytes::Bytes;
use gleaner_algorithms::bag::wire::{Decoder, Encoded, Expected, Part};
use gleaner_algorithms::bag::{Coding, Entries, Rounded};
use half::{bf16, f16};

use crate::emulation::{CHUNK, Emulation, POISON, Placed, THREADS, emulation, launch};
use crate::random::Random;

/// The words before the values or their codes.
fn limit(encoded: &Encoded) -> Option<usize> {
    let bag = encoded.rice()?;
    let values = (bag.count * bag.rounded.coding().bits() as usize).div_ceil(32);
    let limit = (bag.body.len() / 4).checked_sub(values)?;
    (32 * limit >= bag.count * (usize::from(bag.parameter) + 1)).then_some(limit)
}

/// What the kernels make of a bag, or None if they note that it is malformed. Nothing beside its entries may be written.
fn decode(emulation: &Emulation, encoded: &Encoded) -> Option<Entries> {
    let (bag, limit) = (encoded.rice().unwrap(), limit(encoded)?);
    let words: Vec<u32> = bag.body.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let (count, width, limit) = (bag.count as u32, u32::from(bag.parameter), limit as u32);
    let of_words = (limit as usize - bag.count * width as usize / 32).div_ceil(CHUNK) as u32;
    let of_entries = bag.count.div_ceil(CHUNK) as u32;
    let grid = of_words.max(of_entries);
    let poison = u64::from(POISON);
    let mut ones = Placed::new(&vec![poison; grid as usize], 0, poison);
    let mut lows = Placed::new(&vec![poison; grid as usize], 0, poison);
    let mut indices = Placed::new(&vec![POISON; bag.count], 0, POISON);
    let mut values = Placed::new(&vec![POISON; bag.count], 0, POISON);
    let mut noted = Placed::new(&[0; 8], 0, POISON);
    let (ones_at, lows_at, noted_at) = (ones.as_mut_ptr(), lows.as_mut_ptr(), noted.as_mut_ptr());
    let (at, to, into) = (words.as_ptr(), indices.as_mut_ptr(), values.as_mut_ptr());
    launch!(emulation, "survey_bag", grid, THREADS, at, count, width, limit, ones_at, lows_at, noted_at);
    let len = bag.len as u32;
    let coding = match bag.rounded.coding() {
        Coding::Exact => Some(0u32),
        Coding::Bf16 => Some(1),
        Coding::F16 => Some(2),
        _ => None,
    };
    // Until they are read, higher parts are where the indices or the values will be.
    let highs = if coding.is_some() { to } else { into };
    launch!(emulation, "read_highs", of_words, THREADS, at, count, width, limit, ones_at, highs, noted_at);
    if let Some(coding) = coding {
        launch!(
            emulation,
            "read_entries",
            of_entries,
            THREADS,
            at,
            count,
            width,
            limit,
            coding,
            len,
            lows_at,
            to,
            into,
            noted_at
        );
    } else {
        let (shift, bits) = (u32::from(bag.rounded.shift()), bag.rounded.coding().bits());
        let mut fits = Placed::new(&vec![POISON; limit as usize], 0, POISON);
        let fits_at = fits.as_mut_ptr();
        launch!(
            emulation,
            "read_indices",
            of_entries,
            THREADS,
            at,
            count,
            width,
            limit,
            shift,
            len,
            lows_at,
            into,
            to,
            fits_at,
            ones_at,
            noted_at
        );
        launch!(
            emulation,
            "read_codes",
            of_entries,
            THREADS,
            at,
            count,
            bits,
            limit,
            shift,
            to,
            ones_at,
            fits_at,
            into,
            noted_at
        );
        assert!(fits.values().iter().all(|fits| *fits <= 1), "marks alone");
    }
    assert_eq!([&ones, &lows].map(|sums| sums.values().len()), [grid as usize; 2]);
    let (indices, values) = (indices.values().to_vec(), values.values().to_vec());
    let [wrong, both, ready, _, buckets, fitting, wrong_code, unused] = noted.values() else {
        panic!("eight words")
    };
    assert_eq!((*both, *ready, *unused), (0, 0, 0), "left as they were found");
    let values = values.into_iter().map(f32::from_bits).collect();
    (*wrong == 0 && *wrong_code == 0 && buckets == fitting).then_some(Entries { indices, values })
}

/// A stream of bits, the lowest first.
#[derive(Default)]
struct Bits(Vec<u32>, u64);

impl Bits {
    fn push(&mut self, value: u32, width: u32) {
        for bit in 0..width {
            self.zeros(1);
            if value >> bit & 1 == 1 {
                *self.0.last_mut().unwrap() |= 1 << ((self.1 - 1) % 32);
            }
        }
    }

    fn zeros(&mut self, count: u64) {
        self.1 += count;
        self.0.resize(self.1.div_ceil(32) as usize, 0);
    }

    fn end_word(&mut self) {
        self.1 = self.1.next_multiple_of(32);
    }
}

/// What travels: gaps, values that a coding can say, and the coding.
struct Given {
    gaps: Vec<u32>,
    values: Vec<f32>,
    rounded: Rounded,
}

impl Given {
    /// As they are: for the codings that have no buckets.
    fn plain(gaps: &[u32], values: &[f32], coding: Coding) -> Self {
        let rounded = coding.round(&Entries::default(), 1, 0).0;
        Self { gaps: gaps.to_vec(), values: values.to_vec(), rounded }
    }

    /// What rounding leaves.
    fn rounded(gaps: &[u32], values: &[f32], coding: Coding) -> Self {
        if !coding.is_stochastic() {
            return Self::plain(gaps, values, coding);
        }
        let mut next = 0;
        let place = |gap: &u32| {
            next += gap + 1;
            next - 1
        };
        let entries = Entries { indices: gaps.iter().map(place).collect(), values: values.to_vec() };
        let (rounded, left, _) = coding.round(&entries, reach(gaps) as usize, 7);
        let before = [u32::MAX].iter().chain(&left.indices);
        let gaps = left.indices.iter().zip(before).map(|(index, before)| index - before.wrapping_add(1));
        Self { gaps: gaps.collect(), values: left.values, rounded }
    }

    fn count(&self) -> usize {
        self.gaps.len()
    }

    /// The values of each bucket that has entries.
    fn buckets(&self) -> Vec<Vec<f32>> {
        let (mut next, mut last, mut buckets) = (0, None, Vec::<Vec<f32>>::new());
        for (gap, value) in self.gaps.iter().zip(&self.values) {
            next += gap + 1;
            let bucket = Some((next - 1) >> self.rounded.shift());
            match buckets.last_mut().filter(|_| last == bucket) {
                Some(values) => values.push(*value),
                None => buckets.push(vec![*value]),
            }
            last = bucket;
        }
        buckets
    }

    /// As they travel with a parameter, as the documentation of the forms says.
    fn body(&self, width: u32) -> Vec<u32> {
        let mut bits = Bits::default();
        self.gaps.iter().for_each(|&gap| bits.push(gap, width));
        for gap in &self.gaps {
            bits.zeros(u64::from(gap >> width));
            bits.push(1, 1);
        }
        let coding = self.rounded.coding();
        bits.end_word();
        if !coding.is_stochastic() {
            for &value in &self.values {
                match coding {
                    Coding::Bf16 => bits.push(bf16::from_f32(value).to_bits().into(), 16),
                    Coding::F16 => bits.push(f16::from_f32(value).to_bits().into(), 16),
                    _ => bits.push(value.to_bits(), 32),
                }
            }
            return bits.0;
        }
        let buckets = self.buckets();
        let scale = |bucket: &[f32]| bucket.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
        buckets.iter().for_each(|bucket| bits.push(scale(bucket).to_bits(), 32));
        let highest = (1u32 << (coding.bits() - 1)) - 1;
        for bucket in &buckets {
            for value in bucket {
                let part = f64::from(value.abs()) / f64::from(scale(bucket).max(f32::MIN_POSITIVE));
                let level = (part * f64::from(highest)).round() as u32;
                let sign = u32::from(*value < 0.0) * (highest + 1);
                bits.push(level | sign, coding.bits());
            }
        }
        bits.0
    }

    /// The bag as the decoder hands it on, with any body, or None if its header is refused.
    fn came(&self, words: &[u32], len: u32, width: u32) -> Option<Encoded> {
        let number = Coding::ALL.iter().position(|other| *other == self.rounded.coding()).unwrap() as u8;
        let count = self.count() as u32;
        let shift = self.rounded.shift();
        let header = [u32::from_le_bytes([5, width as u8, number, shift]), count, words.len() as u32];
        let bytes: Vec<u8> = header.iter().chain(words).flat_map(|word| word.to_le_bytes()).collect();
        let mut decoder = Decoder::<f32>::new(vec![Expected::bag(len, count)]).with_encoded_from(0);
        let mut came = None;
        let fed = decoder.feed(Bytes::from(bytes), |_, part| match part {
            Part::Encoded { encoded, .. } => came = Some(encoded),
            part => panic!("expected a bag that is left to the device, found {part:?}"),
        });
        fed.ok().and(came)
    }

    /// The same with its own body.
    fn bag(&self, width: u32) -> Option<Encoded> {
        self.came(&self.body(width), reach(&self.gaps), width)
    }
}

/// That the kernels give what the host gives, in both orders. Says whether the bag is right.
fn check(emulation: &Emulation, encoded: &Encoded, what: &str) -> bool {
    let bits = |entries: &Entries| {
        (entries.indices.clone(), entries.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
    };
    let expected = encoded.entries::<f32>(0, false).ok();
    for descending in [false, true] {
        emulation.descend(descending);
        let found = decode(emulation, encoded);
        assert!(found.as_ref().map(bits) == expected.as_ref().map(bits), "{what}: {:?}", encoded.rice());
    }
    emulation.descend(false);
    expected.is_some()
}

/// Gaps of about 2^width, or less where so many would reach too far, and values that are entries in each coding.
fn given(random: &mut Random, count: usize, width: u32) -> (Vec<u32>, Vec<f32>) {
    let most = (1u64 << (width + 1)).min((u64::from(u32::MAX) - 10) / count as u64).max(1);
    let gaps = (0..count).map(|_| random.below(most as usize) as u32).collect();
    let values = (0..count).map(|_| random.unit() * 100.0);
    (gaps, values.map(|value| if value == 0.0 { 1.0 } else { value }).collect())
}

/// One more than the last index, at least twice as many as there are entries.
fn reach(gaps: &[u32]) -> u32 {
    let last: u64 = gaps.iter().map(|gap| u64::from(*gap) + 1).sum();
    u32::try_from(last.max(2 * gaps.len() as u64)).unwrap()
}

#[test]
fn bags_of_every_parameter_are_decoded_as_on_the_host() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(41);
    let mut right = [0; Coding::ALL.len()];
    for width in 0..32 {
        for count in [1, 2, 31, 1023, 1024, 1025, 2049] {
            let (gaps, values) = given(&mut random, count, width);
            for (coding, right) in Coding::ALL.into_iter().zip(&mut right) {
                let given = Given::rounded(&gaps, &values, coding);
                let words = given.body(width);
                let Some(bag) = given.came(&words, reach(&given.gaps), width) else { continue };
                *right += usize::from(check(emulation, &bag, "as encoded"));
                // One index is then beyond the end.
                let shorter = (reach(&given.gaps) - 1).max(2 * given.count() as u32);
                if let Some(shorter) = given.came(&words, shorter, width) {
                    check(emulation, &shorter, "a shorter block");
                }
            }
        }
    }
    assert!(right.iter().all(|right| *right > 170), "{right:?}");
}

#[test]
fn zeros_and_ones_cross_chunks_of_words() {
    let Some(emulation) = emulation() else { return };
    // Clusters far apart: long runs of zeros, and words full of ones.
    for (width, far) in [(0, 40_000), (1, 90_000), (3, 300_000)] {
        let gaps: Vec<u32> = (0..5000).map(|i| if i % 1900 == 700 { far } else { i % 3 / 2 }).collect();
        // None of them is rounded to zero.
        let values: Vec<f32> = (0..5000).map(|i| if i % 3 == 0 { -1.5 } else { 1.5 }).collect();
        for coding in Coding::ALL {
            let bag = Given::rounded(&gaps, &values, coding).bag(width).unwrap();
            assert!(check(emulation, &bag, "clusters"));
        }
    }
}

#[test]
fn what_the_host_refuses_is_noted() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(42);
    let (mut right, mut wrong) = ([0; Coding::ALL.len()], [0; Coding::ALL.len()]);
    for round in 0..1800 {
        let (width, count) =
            (random.below(7) as u32, 1 + random.below(if round % 9 == 0 { 2500 } else { 60 }));
        let (gaps, values) = given(&mut random, count, width);
        let coding = random.below(Coding::ALL.len());
        let given = Given::rounded(&gaps, &values, Coding::ALL[coding]);
        let mut words = given.body(width);
        let len = reach(&given.gaps) + random.below(3) as u32;
        match round % 6 {
            // A bit, anywhere.
            0 | 1 => {
                let at = random.below(words.len());
                words[at] ^= 1 << random.below(32);
            }
            // Among the last bits: padding.
            2 => {
                let at = words.len() - 1 - random.below(2).min(words.len() - 1);
                words[at] ^= 1 << random.below(32);
            }
            // A word too many or too few.
            3 => words.insert(random.below(words.len() + 1), 0),
            4 => drop(words.remove(random.below(words.len()))),
            // Anything.
            _ => words.iter_mut().for_each(|word| *word = random.word() & random.word()),
        }
        let Some(bag) = given.came(&words, len, width) else { continue };
        match check(emulation, &bag, "changed") {
            true => right[coding] += 1,
            false => wrong[coding] += 1,
        }
    }
    assert!(right.iter().sum::<usize>() > 50, "{right:?} were right");
    assert!(wrong.iter().all(|wrong| *wrong > 90), "{wrong:?} were malformed");
}

#[test]
fn values_that_no_bag_may_hold_are_noted() {
    let Some(emulation) = emulation() else { return };
    for coding in [Coding::Exact, Coding::Bf16, Coding::F16] {
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0] {
            for at in [0, 7, 1024] {
                let mut values = vec![1.0; 1025];
                values[at] = bad;
                let given = Given::plain(&[3; 1025], &values, coding);
                let bag = given.came(&given.body(2), 9000, 2).unwrap();
                assert!(!check(emulation, &bag, "a value"), "{bad} in {coding:?}");
            }
        }
        // A zero is an entry, and so is the least value.
        let least = match coding {
            Coding::Bf16 => bf16::from_bits(1).to_f32(),
            Coding::F16 => f16::from_bits(1).to_f32(),
            _ => f32::from_bits(1),
        };
        let bag = Given::plain(&[3; 2], &[0.0, -least], coding);
        assert!(check(emulation, &bag.came(&bag.body(2), 90, 2).unwrap(), "small values"));
    }
}

#[test]
fn scales_and_codes_that_do_not_fit_are_noted() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(43);
    for coding in [Coding::Qsgd2, Coding::Qsgd4, Coding::Qsgd8] {
        // Several buckets in each of three chunks.
        let (gaps, mut values) = given(&mut random, 2600, 3);
        // One of nothing but zeros, whose scale is 0.
        values[700..].iter_mut().take(900).for_each(|value| *value = 0.0);
        let given = Given::rounded(&gaps, &values, coding);
        let (words, buckets, bits) = (given.body(3), given.buckets(), coding.bits() as usize);
        let (codes, highest) = (words.len() - (given.count() * bits).div_ceil(32), (1u32 << (bits - 1)) - 1);
        let scales = codes - buckets.len();
        let refused = |what: &str, change: &dyn Fn(&mut Vec<u32>)| {
            let mut changed = words.clone();
            change(&mut changed);
            let bag = given.came(&changed, reach(&given.gaps), 3).unwrap();
            assert!(!check(emulation, &bag, what), "{coding:?}: {what}");
        };
        let bag = given.came(&words, reach(&given.gaps), 3).unwrap();
        assert!(check(emulation, &bag, "unchanged") && buckets.len() > 5);
        let zero = words[scales..codes].iter().position(|scale| *scale == 0).unwrap();
        for bucket in [0, zero, buckets.len() - 1] {
            let infinite = f32::INFINITY.to_bits();
            for scale in [1, (8 << 23) + 0x7f_ffff, infinite, infinite + 1, 1 << 31, u32::MAX, 0xbf80_0000] {
                refused("a scale", &|words| words[scales + bucket] = scale);
            }
            let other = if bucket == zero { 1.0f32.to_bits() } else { 0 };
            refused("a scale of zeros alone, or none of them", &|words| words[scales + bucket] = other);
            // The least and the largest scale of some values fit.
            for scale in [9 << 23, infinite - 1] {
                let mut changed = words.clone();
                changed[scales + bucket] = scale;
                let bag = given.came(&changed, reach(&given.gaps), 3).unwrap();
                assert_eq!(check(emulation, &bag, "a scale"), bucket != zero, "{coding:?}");
            }
        }
        let set = |words: &mut Vec<u32>, at: usize, code: u32| {
            let (word, bit) = (codes + at * bits / 32, at * bits % 32);
            words[word] = words[word] & !((2 * highest + 1) << bit) | code << bit;
        };
        let starts: Vec<usize> = buckets
            .iter()
            .scan(0, |next, bucket| {
                *next += bucket.len();
                Some(*next - bucket.len())
            })
            .collect();
        for bucket in [0, buckets.len() - 1] {
            refused("-0", &|words| set(words, starts[bucket] + 1, highest + 1));
            refused("no code of the highest level", &|words| {
                (0..buckets[bucket].len()).for_each(|at| set(words, starts[bucket] + at, highest - 1));
            });
        }
        refused("a code that is not zero among zeros", &|words| set(words, starts[zero] + 1, 1));
        refused("a bucket too many", &|words| words.insert(codes, 1.0f32.to_bits()));
        refused("a bucket too few", &|words| {
            words.remove(codes - 1);
        });
        if !(given.count() * bits).is_multiple_of(32) {
            refused("something behind the codes", &|words| *words.last_mut().unwrap() |= 1 << 31);
        }
    }
}
