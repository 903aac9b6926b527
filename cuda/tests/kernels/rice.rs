//! Indices as they travel, against the encoder of the host.

use gleaner_algorithms::bag::wire::{Body, Encoded, RiceIndices, encode};
use gleaner_algorithms::bag::{Coding, Entries};

use crate::emulation::{CHUNK, Emulation, POISON, THREADS, emulation, launch};
use crate::random::Random;

/// What the kernels make of ascending indices below `len`.
fn rice(emulation: &Emulation, indices: &[u32], len: usize) -> RiceIndices {
    let (from, count) = (indices.as_ptr(), indices.len() as u32);
    let (grid, room) = (indices.len().div_ceil(CHUNK) as u32, RiceIndices::most_words(indices.len(), len));
    let (mut measured, mut sums) = ([0u32; 8], vec![u64::from(POISON); 2 * grid as usize]);
    let mut out = vec![POISON; room + 1];
    let (to, into, sums) = (out.as_mut_ptr(), measured.as_mut_ptr(), sums.as_mut_ptr());
    launch!(emulation, "survey_gaps", grid, THREADS, from, count, sums, into, to, room as u32);
    launch!(emulation, "encode_gaps", grid, THREADS, from, count, sums, into, to, room as u32);
    assert_eq!((measured[6], measured[7], out.pop()), (0, 0, Some(POISON)), "left as they were found");
    let [widest, lowest, highs @ ..] = [0, 1, 2, 3, 4, 5].map(|number: usize| measured[number]);
    RiceIndices { widest, lowest, highs, bytes: out.iter().flat_map(|word| word.to_le_bytes()).collect() }
}

/// That the sums are those of the gaps, and that the bag is the host's wherever that is in Rice's form with a parameter that was tried. Gives
/// whether it is.
fn check(emulation: &Emulation, indices: Vec<u32>, len: usize) -> bool {
    let before = std::iter::once(0).chain(indices.iter().map(|index| index + 1));
    let gaps: Vec<u32> = indices.iter().zip(before).map(|(index, before)| index - before).collect();
    let values: Vec<f32> = indices.iter().map(|&index| index as f32 - 0.5).collect();
    let entries = Entries { indices, values };
    let [forwards, backwards] = [false, true].map(|descending| {
        emulation.descend(descending);
        rice(emulation, &entries.indices, len)
    });
    emulation.descend(false);
    assert_eq!(forwards, backwards);
    assert_eq!(forwards.widest, gaps.iter().fold(0, |all, gap| all | gap));
    let high = |tried: u32| gaps.iter().map(|gap| gap >> (forwards.lowest + tried)).sum::<u32>();
    assert_eq!(forwards.highs, [0, 1, 2, 3].map(high));
    let found = [Coding::Exact, Coding::Bf16].map(|coding| {
        let (rounded, entries, _) = coding.round(&entries, len, 1);
        let bag = Encoded::of_rice(&entries, len, rounded, forwards.clone());
        let expected = encode(&[Body::Sparse { entries, len, rounded }]);
        // The header begins with the form and its parameter.
        let (form, parameter) = (expected[0][0], u32::from(expected[0][1]));
        let is_rice = form == 5 && (parameter > forwards.lowest || forwards.lowest == 0);
        assert_eq!(bag.is_some(), is_rice, "form {form} with {parameter}, tried from {}", forwards.lowest);
        if let Some(bag) = bag {
            assert_eq!(encode(&[Body::<f32>::Encoded(bag)]), expected);
        }
        is_rice
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
    let odd: [(Vec<u32>, usize); 7] = [
        (vec![0], 1),
        (vec![u32::MAX - 1], u32::MAX as usize),
        ((0..40).map(|i| 100 * i + i * i % 89).collect(), 4000),
        ((7..3007).collect(), 100_000),
        ((0..1500).chain(4_000_000_000..4_000_001_500).collect(), u32::MAX as usize),
        ((0..31).map(|bit| (1 << bit) - 1).collect(), 1 << 31),
        ((0..2500).map(|i| 64 * i + i / 3).collect(), 200_000),
    ];
    for (indices, len) in odd {
        check(emulation, indices, len);
    }
}
