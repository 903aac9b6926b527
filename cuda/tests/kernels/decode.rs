//! Bags that came, against the decoder of the host.

use bytes::Bytes;
use gleaner_algorithms::bag::wire::{Decoder, Encoded, Expected, Part};
use gleaner_algorithms::bag::{Coding, Entries};
use half::{bf16, f16};

use crate::emulation::{CHUNK, Emulation, POISON, Placed, THREADS, emulation, launch};
use crate::random::Random;

/// The codings that a device reads, with their numbers for the kernels.
const CODINGS: [(Coding, u32); 3] = [(Coding::Exact, 0), (Coding::Bf16, 1), (Coding::F16, 2)];

/// The words before the values.
fn section(encoded: &Encoded) -> Option<usize> {
    let bag = encoded.rice()?;
    let values = bag.count.div_ceil(if bag.coding == Coding::Exact { 1 } else { 2 });
    let section = (bag.body.len() / 4).checked_sub(values)?;
    (32 * section >= bag.count * (usize::from(bag.parameter) + 1)).then_some(section)
}

/// What the kernels make of a bag, or None if they note that it is malformed. Nothing beside its entries may be written.
fn decode(emulation: &Emulation, encoded: &Encoded) -> Option<Entries> {
    let (bag, section) = (encoded.rice().unwrap(), section(encoded)?);
    let coding = CODINGS.iter().find(|(coding, _)| *coding == bag.coding).unwrap().1;
    let words: Vec<u32> = bag.body.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let (count, width, section) = (bag.count as u32, u32::from(bag.parameter), section as u32);
    let of_words = (section as usize - bag.count * width as usize / 32).div_ceil(CHUNK) as u32;
    let of_entries = bag.count.div_ceil(CHUNK) as u32;
    let grid = of_words.max(of_entries);
    let poison = u64::from(POISON);
    let mut ones = Placed::new(&vec![poison; grid as usize], 0, poison);
    let mut lows = Placed::new(&vec![poison; grid as usize], 0, poison);
    let mut indices = Placed::new(&vec![POISON; bag.count], 0, POISON);
    let mut values = Placed::new(&vec![POISON; bag.count], 0, POISON);
    let mut noted = Placed::new(&[0; 4], 0, POISON);
    let (ones_at, lows_at, noted_at) = (ones.as_mut_ptr(), lows.as_mut_ptr(), noted.as_mut_ptr());
    let (at, to, into) = (words.as_ptr(), indices.as_mut_ptr(), values.as_mut_ptr());
    launch!(emulation, "survey_bag", grid, THREADS, at, count, width, section, ones_at, lows_at, noted_at);
    launch!(emulation, "read_highs", of_words, THREADS, at, count, width, section, ones_at, to);
    let len = bag.len as u32;
    launch!(
        emulation,
        "read_entries",
        of_entries,
        THREADS,
        at,
        count,
        width,
        section,
        coding,
        len,
        lows_at,
        to,
        into,
        noted_at
    );
    assert_eq!([&ones, &lows].map(|sums| sums.values().len()), [grid as usize; 2]);
    let (indices, values) = (indices.values().to_vec(), values.values().to_vec());
    let [wrong, both, ready, unused] = noted.values() else { panic!("four words") };
    assert_eq!((*both, *ready, *unused), (0, 0, 0), "left as they were found");
    let values = values.into_iter().map(f32::from_bits).collect();
    (*wrong == 0).then_some(Entries { indices, values })
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
}

/// Gaps and values as they travel with a parameter, as the documentation of the forms says.
fn body(gaps: &[u32], values: &[f32], width: u32, coding: Coding) -> Vec<u32> {
    let mut bits = Bits::default();
    gaps.iter().for_each(|&gap| bits.push(gap, width));
    for gap in gaps {
        bits.zeros(u64::from(gap >> width));
        bits.push(1, 1);
    }
    let mut words = bits.0;
    let mut bytes: Vec<u8> = Vec::new();
    for &value in values {
        match coding {
            Coding::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
            Coding::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            _ => bytes.extend(value.to_le_bytes()),
        }
    }
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    words.extend(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)));
    words
}

/// A bag as the decoder hands it on, or None if its header is refused.
fn came(words: &[u32], count: usize, len: u32, width: u32, coding: Coding) -> Option<Encoded> {
    let number = Coding::ALL.iter().position(|other| *other == coding).unwrap() as u8;
    let header = [u32::from_le_bytes([5, width as u8, number, 0]), count as u32, words.len() as u32];
    let bytes: Vec<u8> = header.iter().chain(words).flat_map(|word| word.to_le_bytes()).collect();
    let mut decoder = Decoder::<f32>::new(vec![Expected::bag(len, count as u32)]).with_encoded_from(0);
    let mut came = None;
    let fed = decoder.feed(Bytes::from(bytes), |_, part| match part {
        Part::Encoded { encoded, .. } => came = Some(encoded),
        part => panic!("expected a bag that is left to the device, found {part:?}"),
    });
    fed.ok().and(came)
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
    let mut right = 0;
    for width in 0..32 {
        for count in [1, 2, 31, 1023, 1024, 1025, 2049] {
            let (gaps, values) = given(&mut random, count, width);
            for (coding, _) in CODINGS {
                let words = body(&gaps, &values, width, coding);
                let Some(bag) = came(&words, count, reach(&gaps), width, coding) else { continue };
                right += usize::from(check(emulation, &bag, "as encoded"));
                // One index is then beyond the end.
                let shorter = came(&words, count, (reach(&gaps) - 1).max(2 * count as u32), width, coding);
                if let Some(shorter) = shorter {
                    check(emulation, &shorter, "a shorter block");
                }
            }
        }
    }
    assert!(right > 500, "{right}");
}

#[test]
fn zeros_and_ones_cross_chunks_of_words() {
    let Some(emulation) = emulation() else { return };
    // Clusters far apart: long runs of zeros, and words full of ones.
    for (width, far) in [(0, 40_000), (1, 90_000), (3, 300_000)] {
        let gaps: Vec<u32> = (0..5000).map(|i| if i % 1900 == 700 { far } else { i % 3 / 2 }).collect();
        let values: Vec<f32> = (0..5000).map(|i| i as f32 + 0.5).collect();
        for (coding, _) in CODINGS {
            let bag = came(&body(&gaps, &values, width, coding), 5000, reach(&gaps), width, coding).unwrap();
            assert!(check(emulation, &bag, "clusters"));
        }
    }
}

#[test]
fn what_the_host_refuses_is_noted() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(42);
    let (mut right, mut wrong) = (0, 0);
    for round in 0..900 {
        let (width, count) =
            (random.below(7) as u32, 1 + random.below(if round % 9 == 0 { 2500 } else { 60 }));
        let (gaps, values) = given(&mut random, count, width);
        let (coding, _) = CODINGS[random.below(3)];
        let mut words = body(&gaps, &values, width, coding);
        let len = reach(&gaps) + random.below(3) as u32;
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
        let Some(bag) = came(&words, count, len, width, coding) else { continue };
        match check(emulation, &bag, "changed") {
            true => right += 1,
            false => wrong += 1,
        }
    }
    assert!(right > 50 && wrong > 300, "{right} were right, and {wrong} malformed");
}

#[test]
fn values_that_no_bag_may_hold_are_noted() {
    let Some(emulation) = emulation() else { return };
    for (coding, _) in CODINGS {
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0] {
            for at in [0, 7, 1024] {
                let mut values = vec![1.0; 1025];
                values[at] = bad;
                let bag = came(&body(&[3; 1025], &values, 2, coding), 1025, 9000, 2, coding).unwrap();
                assert!(!check(emulation, &bag, "a value"), "{bad} in {coding:?}");
            }
        }
        // A zero is an entry, and so is the least value.
        let least = match coding {
            Coding::Bf16 => bf16::from_bits(1).to_f32(),
            Coding::F16 => f16::from_bits(1).to_f32(),
            _ => f32::from_bits(1),
        };
        let bag = came(&body(&[3; 2], &[0.0, -least], 2, coding), 2, 90, 2, coding).unwrap();
        assert!(check(emulation, &bag, "small values"));
    }
}
