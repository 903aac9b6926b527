//! Indices as they travel, against the encoder of the host.

use gleaner_algorithms::bag::wire::{Body, Encoded, Packed, encode};
use gleaner_algorithms::bag::{Coding, Entries, Rounded};

use crate::emulation::{CHUNK, Emulation, POISON, THREADS, emulation, launch};
use crate::random::Random;

/// What the kernels make of ascending indices below `len`.
fn packed(emulation: &Emulation, indices: &[u32], len: usize) -> Packed {
    let (from, count) = (indices.as_ptr(), indices.len() as u32);
    let (grid, room) = (indices.len().div_ceil(CHUNK) as u32, Packed::most_words(indices.len(), len));
    let (mut measured, mut sums) = ([0u32; 8], vec![u64::from(POISON); 2 * grid as usize]);
    let mut out = vec![POISON; room + 1];
    let (to, into, sums) = (out.as_mut_ptr(), measured.as_mut_ptr(), sums.as_mut_ptr());
    launch!(emulation, "survey_gaps", grid, THREADS, from, count, sums, into, to, room as u32);
    launch!(emulation, "pack_gaps", grid, THREADS, from, count, sums, into, to, room as u32);
    assert_eq!((measured[6], measured[7], out.pop()), (0, 0, Some(POISON)), "left as they were found");
    let [widest, lowest, highs @ ..] = [0, 1, 2, 3, 4, 5].map(|number: usize| measured[number]);
    Packed { widest, lowest, highs, bytes: out.iter().flat_map(|word| word.to_le_bytes()).collect() }
}

/// That the bag is the host's; gives whether there was one.
fn check(emulation: &Emulation, indices: Vec<u32>, len: usize) -> bool {
    let values: Vec<f32> = indices.iter().map(|&index| index as f32 - 0.5).collect();
    let entries = Entries { indices, values };
    let found = [Coding::Exact, Coding::Bf16, Coding::Qsgd4].map(|coding| {
        let (rounded, entries, _) = match coding {
            Coding::Exact => (Rounded::EXACT, entries.clone(), Entries::default()),
            _ => coding.round(&entries, len, 1),
        };
        if entries.is_empty() {
            return true;
        }
        let packed = packed(emulation, &entries.indices, len);
        let Some(bag) = Encoded::of_packed(&entries, len, rounded, packed) else { return false };
        let expected = encode(&[Body::Sparse { entries, len, rounded }]);
        assert_eq!(encode(&[Body::<f32>::Encoded(bag)]), expected);
        true
    });
    found[0]
}

#[test]
fn indices_at_random_places_are_encoded_as_on_the_host() {
    let Some(emulation) = emulation() else { return };
    let mut random = Random::new(31);
    for (len, count) in [(100_000, 1000), (100_000, 1024), (100_000, 1025), (300_000, 3000), (5000, 900)] {
        let mut indices = random.indices(len, count);
        indices.sort_unstable();
        assert!(check(emulation, indices, len as usize), "{count} of {len}");
    }
    let mut far: Vec<u32> = (0..2100).map(|_| random.below(u32::MAX as usize) as u32).collect();
    far.sort_unstable();
    far.dedup();
    assert!(check(emulation, far, u32::MAX as usize));
}

#[test]
fn odd_indices_are_encoded_as_on_the_host_or_left_to_it() {
    let Some(emulation) = emulation() else { return };
    // One, the last one, a range, two ranges far apart, and gaps that double.
    check(emulation, vec![0], 1);
    check(emulation, vec![u32::MAX - 1], u32::MAX as usize);
    check(emulation, (0..40).map(|i| 100 * i + i * i % 89).collect(), 4000);
    check(emulation, (7..3007).collect(), 100_000);
    check(emulation, (0..1500).chain(4_000_000_000..4_000_001_500).collect(), u32::MAX as usize);
    check(emulation, (0..31).map(|bit| (1 << bit) - 1).collect(), 1 << 31);
    check(emulation, (0..2500).map(|i| 64 * i + i / 3).collect(), 200_000);
}
