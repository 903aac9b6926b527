//! What comes from the network, for types of value other than f32 too: slots come back as they were, and any bytes are
//! survived.

use bytes::Bytes;
use gleaner_algorithms::bag::wire::{Body, Decoder, Expected, PIECE, Part, encode};
use gleaner_algorithms::bag::{Entries, Rounded};
use gleaner_algorithms::{Element, element};
use half::{bf16, f16};
use proptest::prelude::*;

use super::harness::cases;
use super::inputs::Random;

/// One block as it came: its form, its indices, and the bits of its values.
type Came = (bool, Vec<u32>, Vec<u64>);

fn bits<T: Element>(body: &Body<T>) -> Came {
    match body {
        Body::Sparse { entries, .. } => {
            (false, entries.indices.clone(), entries.values.iter().map(|v| v.bits()).collect())
        }
        Body::Dense { values, .. } => (true, Vec::new(), values.iter().map(|v| v.bits()).collect()),
        other => panic!("no bag: {other:?}"),
    }
}

/// Reads payloads; what came, if it was all, with every part within what was declared.
fn read<T: Element>(expected: &[Expected], payloads: &[Bytes]) -> Result<Option<Vec<Came>>, String> {
    let mut came: Vec<Came> = vec![(false, Vec::new(), Vec::new()); expected.len()];
    let mut decoder = Decoder::<T>::new(expected.to_vec());
    for payload in payloads {
        let fed = decoder.feed(payload.clone(), |block, part| match part {
            Part::Sparse { entries, .. } => {
                let Expected { len, bound, .. } = expected[block];
                assert!(entries.len() <= bound as usize && entries.indices.len() == entries.values.len());
                assert!(entries.indices.is_sorted_by(|a, b| a < b));
                assert!(entries.indices.last().is_none_or(|&last| last < len));
                assert!(entries.values.iter().all(|v| v.is_finite() && *v != T::ZERO));
                came[block] = (false, entries.indices, entries.values.iter().map(|v| v.bits()).collect());
            }
            Part::Dense { first, values, .. } => {
                assert_eq!(first, came[block].2.len(), "parts follow each other");
                assert!(values.len().is_multiple_of(T::WIDTH), "no value is torn");
                assert!(element::values::<T>(&values).all(|v| v.is_finite()));
                came[block].0 = true;
                came[block].2.extend(element::values::<T>(&values).map(|v| v.bits()));
                assert!(came[block].2.len() <= expected[block].len as usize);
            }
            part => panic!("only bags were expected: {part:?}"),
        });
        fed.map_err(|error| error.to_string())?;
    }
    Ok(decoder.is_complete().then_some(came))
}

/// A block of a length, dense or with about one entry in so many.
fn body<T: Element>(len: usize, apart: usize, random: &mut Random) -> Body<T> {
    let value = |random: &mut Random| T::from_f64(f64::from(random.unit() * 100.0) + 200.0);
    if apart == 0 {
        let values: Vec<T> = (0..len).map(|_| value(random)).collect();
        return Body::Dense { values: values.into(), rounded: Rounded::EXACT };
    }
    let indices: Vec<u32> = (0..len as u32).filter(|_| random.below(apart) == 0).collect();
    let values = indices.iter().map(|_| value(random)).collect();
    Body::Sparse { entries: Entries { indices, values }, len, rounded: Rounded::EXACT }
}

fn slots_come_back<T: Element>(blocks: &[(usize, usize)], seed: u64) {
    let mut random = Random::new(seed);
    let bodies: Vec<Body<T>> = blocks.iter().map(|&(len, apart)| body(len, apart, &mut random)).collect();
    let expected = |(body, &(len, _)): (&Body<T>, &(usize, usize))| {
        let bound = match body {
            Body::Sparse { entries, .. } => entries.len(),
            Body::Dense { .. } => len,
            other => panic!("no bag: {other:?}"),
        };
        Expected::bag(len as u32, bound as u32)
    };
    let expected: Vec<Expected> = bodies.iter().zip(blocks).map(expected).collect();
    let payloads = encode(&bodies);
    assert!(payloads.iter().all(|payload| payload.len() <= PIECE));
    let found = read::<T>(&expected, &payloads);
    let wanted: Vec<Came> = bodies.iter().map(bits).collect();
    let same = found.as_ref().is_ok_and(|found| found.as_ref() == Some(&wanted));
    assert!(same, "{} of {blocks:?}: {}", T::NAME, found.err().unwrap_or_default());
}

fn survives<T: Element>(stream: &[u8], expected: &[Expected], cut: usize) {
    let payloads: Vec<Bytes> = stream.chunks(cut).map(Bytes::copy_from_slice).collect();
    let _ = read::<T>(expected, &payloads);
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn slots_of_every_type_come_back(
        blocks in proptest::collection::vec((0usize..600, 0usize..30), 0..5),
        seed: u64,
    ) {
        slots_come_back::<f32>(&blocks, seed);
        slots_come_back::<f64>(&blocks, seed);
        slots_come_back::<bf16>(&blocks, seed);
        slots_come_back::<f16>(&blocks, seed);
    }

    /// Small numbers, so that many a stream gets past its headers.
    #[test]
    fn any_bytes_are_survived(
        bytes in proptest::collection::vec(prop_oneof![3 => Just(0u8), 2 => 0u8..8, 1 => any::<u8>()], 0..400),
        expected in proptest::collection::vec((0u32..600, 0u32..600), 0..4),
        cut in 1usize..100,
    ) {
        let expected: Vec<Expected> = expected.into_iter().map(|(len, bound)| Expected::bag(len, bound)).collect();
        survives::<f32>(&bytes, &expected, 4 * cut);
        survives::<f64>(&bytes, &expected, 4 * cut);
        survives::<bf16>(&bytes, &expected, 2 * cut);
        survives::<f16>(&bytes, &expected, 2 * cut);
    }

    /// Some bits of a good stream are turned: it is refused, or something comes that keeps what a bag promises.
    #[test]
    fn changed_streams_are_survived(
        blocks in proptest::collection::vec((1usize..300, 0usize..30), 1..4),
        seed: u64,
        flips in proptest::collection::vec(any::<prop::sample::Index>(), 1..4),
        cut in 1usize..200,
    ) {
        fn changed<T: Element>(blocks: &[(usize, usize)], seed: u64, flips: &[prop::sample::Index], cut: usize) {
            let mut random = Random::new(seed);
            let bodies: Vec<Body<T>> = blocks.iter().map(|&(len, apart)| body(len, apart, &mut random)).collect();
            let mut stream = encode(&bodies).concat();
            for flip in flips {
                let bit = flip.index(8 * stream.len());
                stream[bit / 8] ^= 1 << (bit % 8);
            }
            let expected: Vec<Expected> =
                blocks.iter().map(|&(len, _)| Expected::bag(len as u32, len as u32)).collect();
            survives::<T>(&stream, &expected, 4 * cut);
        }
        changed::<f32>(&blocks, seed, &flips, cut);
        changed::<f64>(&blocks, seed, &flips, cut);
        changed::<bf16>(&blocks, seed, &flips, cut);
        changed::<f16>(&blocks, seed, &flips, cut);
    }
}

/// Slots of several payloads: blocks that are lent, many that are not and lie across the ends of payloads, and sparse ones
/// of odd lengths between them.
#[test]
fn slots_of_many_payloads_come_back() {
    for odd in [0, 1, 3, 7] {
        let many: Vec<(usize, usize)> = (0..40).map(|b| (4001 + b % odd.max(1), 0)).collect();
        let mixed = (0..60).map(|b| if b % 3 == 0 { (3000 + odd, 9) } else { (4000 + odd + b, 0) });
        let large = [(PIECE + odd, 0), (PIECE + 1, 3), (200_000 + odd, 0)];
        for blocks in [many, mixed.collect(), large.to_vec()] {
            slots_come_back::<f32>(&blocks, 1);
            slots_come_back::<f64>(&blocks, 1);
            slots_come_back::<bf16>(&blocks, 1);
            slots_come_back::<f16>(&blocks, 1);
        }
    }
}
