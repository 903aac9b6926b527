use std::sync::Arc;

use super::super::{Coding, Dense, Entries, Rounded};
use super::*;
use bytes::Bytes;
use proptest::prelude::*;

/// What came of each block, in the form in which it was sent.
fn decode(expected: Vec<Expected>, payloads: &[Bytes]) -> Result<Vec<Body>, DecodeError> {
    let mut bodies: Vec<Option<Body>> = vec![None; expected.len()];
    let mut decoder = Decoder::<f32>::new(expected.clone());
    for payload in payloads {
        decoder.feed(payload.clone(), |block, part| match (part, &mut bodies[block]) {
            (Part::Sparse { entries, rounded }, body @ None) => {
                *body = Some(Body::Sparse { entries, len: expected[block].len as usize, rounded });
            }
            (Part::Dense { first, values: piece, rounded }, body) => {
                let body = body.get_or_insert(Body::Dense { values: Dense::default(), rounded });
                let Body::Dense { values, rounded: before } = body else { panic!("one form for a block") };
                assert_eq!((values.len(), *before), (first, rounded));
                values.push(piece);
            }
            (part, _) => panic!("{part:?} after the block was complete"),
        })?;
        assert!(decoder.gathered() <= expected.iter().map(most_gathered).max().unwrap_or(0));
    }
    assert!(decoder.is_complete());
    Ok(bodies.into_iter().map(|body| body.expect("complete")).collect())
}

/// What the decoder may gather for a block, in bytes.
fn most_gathered(expected: &Expected) -> usize {
    12 * expected.bound.min(expected.len).max(1) as usize + 5 * expected.len as usize
}

/// The bits of what is sent of a block: indices and values, zeros too if it is dense.
fn bits(body: &Body) -> (Vec<(u32, u32)>, Rounded, bool) {
    match body {
        Body::Sparse { entries, rounded, .. } => {
            (entries.iter().map(|(i, v)| (i, v.to_bits())).collect(), *rounded, false)
        }
        Body::Dense { values, rounded } => {
            ((0..).zip(values.iter().map(f32::to_bits)).collect(), *rounded, true)
        }
    }
}

fn expected(body: &Body) -> Expected {
    match body {
        Body::Sparse { entries, len, .. } => Expected { len: *len as u32, bound: entries.len() as u32 },
        Body::Dense { values, .. } => Expected { len: values.len() as u32, bound: values.len() as u32 },
    }
}

/// A rounded body of few or many values, dense or sparse, with as many zeros as it takes for each form.
fn body() -> impl Strategy<Value = Body> {
    let value = prop_oneof![
        8 => -1.0f32..1.0,
        1 => Just(-0.0f32),
        1 => any::<f32>().prop_filter("finite", |v| v.is_finite()),
    ];
    let len = prop_oneof![4 => 0usize..40, 2 => 400usize..1200, 1 => 5000usize..6000];
    let share = prop_oneof![Just(0u32), Just(1), 0u32..100, 85u32..100, Just(100)];
    let values = (len, share).prop_flat_map(move |(len, share)| {
        let here = (0u32..100, value.clone()).prop_map(move |(place, v)| if place < share { v } else { 0.0 });
        proptest::collection::vec(here, len)
    });
    (values, any::<bool>(), proptest::sample::select(&Coding::ALL), any::<u64>()).prop_map(
        |(mut values, dense, coding, seed)| {
            let len = values.len();
            if dense {
                let rounded = coding.round_dense(&mut values, &mut vec![0.0; len], seed);
                return Body::Dense { values: values.into(), rounded };
            }
            let (rounded, entries, _) = coding.round(&Entries::from_dense(&values), len, seed);
            Body::Sparse { entries, len, rounded }
        },
    )
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(bodies in proptest::collection::vec(body(), 0..5), cut in 1usize..50) {
        let expected: Vec<Expected> = bodies.iter().map(expected).collect();
        let wanted: Vec<_> = bodies.iter().map(bits).collect();
        let payloads = encode(&bodies);
        prop_assert!(payloads.iter().all(|p| p.len() <= PIECE && p.len().is_multiple_of(4) && !p.is_empty()));
        let decoded = decode(expected.clone(), &payloads).unwrap();
        prop_assert_eq!(&decoded.iter().map(bits).collect::<Vec<_>>(), &wanted);
        // Whoever passes it on sends the same bytes.
        let stream = payloads.concat();
        prop_assert_eq!(&encode(&decoded).concat(), &stream);
        // Wherever the stream is cut, the same slot comes out.
        let cuts: Vec<Bytes> = stream.chunks(4 * cut).map(Bytes::copy_from_slice).collect();
        let decoded = decode(expected, &cuts).unwrap();
        prop_assert_eq!(&decoded.iter().map(bits).collect::<Vec<_>>(), &wanted);
    }

    #[test]
    fn a_changed_stream_is_refused_or_says_something(
        bodies in proptest::collection::vec(body(), 1..4),
        flips in proptest::collection::vec(any::<prop::sample::Index>(), 1..4),
        cut in 1usize..400,
    ) {
        let stream = encode(&bodies).concat();
        let mut changed = stream.clone();
        for flip in flips {
            let bit = flip.index(8 * changed.len());
            changed[bit / 8] ^= 1 << (bit % 8);
        }
        let cuts: Vec<Bytes> = changed.chunks(4 * cut).map(Bytes::copy_from_slice).collect();
        let expected: Vec<Expected> = bodies.iter().map(expected).collect();
        if let Some(decoded) = survive(&expected, &cuts) {
            // It is then a bag like any other, which can be passed on.
            let again = decode(expected, &encode(&decoded)).unwrap();
            prop_assert!(again.iter().map(bits).eq(decoded.iter().map(bits)));
        }
    }

    #[test]
    fn a_stream_that_ends_early_is_not_complete(bodies in proptest::collection::vec(body(), 1..4), end: prop::sample::Index) {
        let stream = encode(&bodies).concat();
        let end = end.index(stream.len()) & !3;
        let mut decoder = Decoder::<f32>::new(bodies.iter().map(expected).collect());
        decoder.feed(Bytes::copy_from_slice(&stream[..end]), |_, _| {}).unwrap();
        prop_assert!(!decoder.is_complete());
    }

    #[test]
    fn any_bytes_are_survived(
        bytes in proptest::collection::vec(prop_oneof![3 => Just(0u8), 2 => 0u8..8, 1 => any::<u8>()], 0..400),
        expected in proptest::collection::vec((0u32..600, 0u32..600), 0..4),
        cut in 1usize..100,
    ) {
        let expected: Vec<Expected> = expected.into_iter().map(|(len, bound)| Expected { len, bound }).collect();
        let cuts: Vec<Bytes> = bytes.chunks(4 * cut).map(Bytes::copy_from_slice).collect();
        survive(&expected, &cuts);
    }
}

/// Feeds any bytes and checks that what comes of them is within its bounds.
fn survive(expected: &[Expected], payloads: &[Bytes]) -> Option<Vec<Body>> {
    let mut decoder = Decoder::<f32>::new(expected.to_vec());
    for payload in payloads {
        let fed = decoder.feed(payload.clone(), |block, part| match part {
            Part::Sparse { entries, .. } => {
                let Expected { len, bound } = expected[block];
                assert!(entries.len() <= bound as usize);
                assert!(entries.indices.is_sorted_by(|a, b| a < b));
                assert!(entries.indices.last().is_none_or(|&last| last < len));
                assert!(entries.values.iter().all(|v| v.is_finite() && *v != 0.0));
            }
            Part::Dense { values, .. } => assert!(super::super::floats(&values).all(f32::is_finite)),
        });
        assert!(decoder.gathered() <= expected.iter().map(most_gathered).max().unwrap_or(0));
        fed.ok()?;
    }
    decoder.is_complete().then(|| decode(expected.to_vec(), payloads).expect("it was read before"))
}

#[test]
fn large_dense_blocks_are_lent_not_copied() {
    let values = Arc::new(vec![1.0f32; PIECE]);
    let body = Body::Dense { values: Dense::lent(values.clone(), 0..PIECE), rounded: Rounded::EXACT };
    let payloads = encode(&[body]);
    assert_eq!(payloads.len(), 1 + 4);
    assert_eq!(payloads[1].as_ptr(), values.as_ptr().cast());
    assert_eq!(Arc::strong_count(&values), 2);
}

/// Large bodies, whose pieces come apart, in every coding.
#[test]
fn large_bodies_are_put_together() {
    for coding in Coding::ALL {
        let mut values: Vec<f32> = (0..1_000_003u32).map(|i| (i as f32 * 0.37).sin()).collect();
        let few = (0..).zip(&values).step_by(7).map(|(i, v)| (i, *v)).filter(|(_, v)| *v != 0.0).collect();
        let (rounded, entries, _) = coding.round(&few, values.len(), 5);
        let sparse = Body::Sparse { entries, len: values.len(), rounded };
        let mut errors = vec![0.0; values.len()];
        let rounded = coding.round_dense(&mut values, &mut errors, 5);
        let bodies = [sparse, Body::Dense { values: values.into(), rounded }];
        let payloads = encode(&bodies);
        assert!(payloads.iter().all(|payload| payload.len() <= PIECE));
        let mut largest = 0;
        let expected: Vec<Expected> = bodies.iter().map(expected).collect();
        let mut decoder = Decoder::<f32>::new(expected.clone());
        for payload in &payloads {
            let note = |_, part| {
                if let Part::Dense { values, .. } = part {
                    largest = largest.max(values.len());
                }
            };
            decoder.feed(payload.clone(), note).unwrap();
        }
        assert!(largest <= PIECE, "{coding}: a part of {largest} bytes");
        let decoded = decode(expected, &payloads).unwrap();
        assert!(decoded.iter().map(bits).eq(bodies.iter().map(bits)), "{coding}");
    }
}

/// Bytes of a header and a body, as the tables of the documentation say.
fn lie(expected: (u32, u32), header: [u8; 4], words: &[u32]) -> DecodeError {
    let (len, bound) = expected;
    let bytes = header.into_iter().chain(words.iter().flat_map(|w| w.to_le_bytes()));
    decode(vec![Expected { len, bound }], &[bytes.collect()]).expect_err("a lie")
}

#[test]
fn lies_about_forms_are_named() {
    let block = 0;
    assert_eq!(lie((9, 3), [7, 0, 0, 0], &[0]), DecodeError::Form { block, form: 7, parameter: 0 });
    assert_eq!(lie((9, 3), [1, 2, 0, 0], &[0]), DecodeError::Form { block, form: 1, parameter: 2 });
    assert_eq!(lie((9, 3), [5, 32, 0, 0], &[0]), DecodeError::Form { block, form: 5, parameter: 32 });
    assert_eq!(lie((9, 3), [1, 0, 6, 0], &[0]), DecodeError::Coding { block, coding: 6, shift: 0 });
    assert_eq!(lie((9, 3), [1, 0, 1, 1], &[0]), DecodeError::Coding { block, coding: 1, shift: 1 });
    assert_eq!(lie((9, 3), [1, 0, 4, 32], &[0]), DecodeError::Coding { block, coding: 4, shift: 32 });
    assert_eq!(lie((9, 3), [1, 0, 0, 0], &[4]), DecodeError::Count { block, count: 4, allowed: 3 });
    assert_eq!(lie((2, 3), [1, 0, 0, 0], &[3]), DecodeError::Count { block, count: 3, allowed: 2 });
    assert_eq!(lie((9, 3), [0, 0, 0, 0], &[8]), DecodeError::Count { block, count: 8, allowed: 9 });
    assert_eq!(lie((9, 3), [3, 0, 0, 0], &[0]), DecodeError::Form { block, form: 3, parameter: 0 });
    // Two entries take four words at most.
    assert_eq!(lie((9, 3), [5, 1, 0, 0], &[2, 5]), DecodeError::Length { block, words: 5, allowed: 4 });
    assert_eq!(lie((999, 3), [3, 0, 0, 0], &[2]), DecodeError::Length { block, words: 34, allowed: 4 });
    let torn = Decoder::<f32>::new(vec![Expected { len: 1, bound: 1 }]);
    let fed = { torn }.feed(Bytes::from_static(&[1, 2, 3]), |_, _| {});
    assert_eq!(fed, Err(DecodeError::Torn(3)));
}

#[test]
fn lies_about_entries_are_named() {
    let block = 0;
    let (one, nan) = (1.0f32.to_bits(), f32::NAN.to_bits());
    let raw = [1, 0, 0, 0];
    assert_eq!(lie((9, 3), raw, &[2, 4, 4, one, one]), DecodeError::Index { block, index: 4, len: 9 });
    assert_eq!(lie((9, 3), raw, &[1, 9, one]), DecodeError::Index { block, index: 9, len: 9 });
    let value = |value: &str| DecodeError::Value { block, value: value.into() };
    assert_eq!(lie((9, 3), raw, &[1, 8, 0]), value("0"));
    assert_eq!(lie((9, 3), raw, &[1, 8, 1 << 31]), value("-0"));
    assert_eq!(lie((9, 3), raw, &[1, 8, nan]), value("NaN"));
    assert_eq!(lie((1, 1), [0; 4], &[1, nan]), value("NaN"));
    assert_eq!(lie((9, 3), raw, &[0, 1]), DecodeError::Trailing(4));
    assert_eq!(
        lie((9, 9), [6, 0, 0, 0], &[9, one, one, one, one, one, one, one, one, 0]),
        DecodeError::Nonzeros { block, count: 9, found: 8 }
    );
    // One value of 16 bits in a word, and something beside it.
    assert_eq!(lie((9, 3), [1, 0, 1, 0], &[1, 8, 0x0001_3f80]), DecodeError::Padding { block });
    assert_eq!(lie((9, 3), [1, 0, 1, 0], &[1, 8, 0x7f80]), value("inf"));
    // A bitmap with a bit beyond the block, one with too few, and one with too many.
    let bitmap = |bits| lie((32, 9), [3, 0, 0, 0], &[2, bits, one, one]);
    assert_eq!(bitmap(1), DecodeError::End { block, count: 2 });
    assert_eq!(bitmap(7), DecodeError::Padding { block });
    assert_eq!(
        lie((9, 9), [3, 0, 0, 0], &[2, 0x201, one, one]),
        DecodeError::Index { block, index: 9, len: 9 }
    );
    // Four bits each: 7 is the highest level, and 8 is a zero with a sign.
    let quantised = |scale: f32, codes| lie((9, 9), [1, 0, 4, 9], &[2, 4, 1, 2, scale.to_bits(), codes]);
    let scale = |scale: &str| DecodeError::Scale { block, scale: scale.into() };
    assert_eq!(quantised(1.0, 0x16), scale("1"));
    assert_eq!(quantised(f32::INFINITY, 0x17), scale("inf"));
    assert_eq!(quantised(-1.0, 0x17), scale("-1"));
    assert_eq!(quantised(1e-38, 0x17), scale("0.00000000000000000000000000000000000001"));
    assert_eq!(quantised(1.0, 0x87), value("-0"));
    assert_eq!(quantised(1.0, 0x07), value("0"));
    assert_eq!(quantised(1.0, 0x117), DecodeError::Padding { block });
    assert_eq!(lie((9, 9), [1, 0, 4, 9], &[2, 3, 1, 2, one]), DecodeError::End { block, count: 2 });
    // A dense bucket of zeros has the scale 0.
    assert_eq!(lie((2, 2), [0, 0, 4, 9], &[2, one, 0]), scale("1"));
    assert_eq!(lie((2, 2), [0, 0, 4, 9], &[2, 0, 7]), scale("0"));
}
