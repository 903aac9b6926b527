use std::sync::Arc;

use super::super::{Coding, Dense, Entries, Rounded, is_entry};
use super::*;
use bytes::Bytes;
use proptest::prelude::*;

/// Indices that the receiver has, by block.
type Sets = Vec<Option<Arc<[u32]>>>;

fn sets(bodies: &[Body]) -> Sets {
    let set = |body: &Body| match body {
        Body::Aligned { indices, .. } => Some(indices.clone()),
        _ => None,
    };
    bodies.iter().map(set).collect()
}

/// Each decoded block, in the form in which it was sent.
fn decode(expected: Vec<Expected>, sets: &Sets, payloads: &[Bytes]) -> Result<Vec<Body>, DecodeError> {
    let mut bodies: Vec<Option<Body>> = vec![None; expected.len()];
    let mut decoder = Decoder::<f32>::new(expected.clone()).with_sets(sets.clone());
    for payload in payloads {
        decoder.feed(payload.clone(), |block, part| match (part, &mut bodies[block]) {
            (Part::Sparse { entries, rounded, .. }, body @ None) => {
                *body = Some(Body::Sparse { entries, len: expected[block].len as usize, rounded });
            }
            (Part::Proposal { indices, .. }, body @ None) => {
                *body = Some(Body::Proposal { indices: indices.into(), len: expected[block].len as usize });
            }
            (Part::Aligned { values, rounded, .. }, body @ None) => {
                let (indices, len) = (sets[block].clone().expect("a set"), expected[block].len as usize);
                *body = Some(Body::Aligned { indices, values, len, rounded });
            }
            (Part::Dense { first, values: piece, rounded, .. }, body) => {
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

/// What is sent on of a slot that came in these payloads.
fn passed_on(expected: &[Expected], sets: &Sets, payloads: &[Bytes]) -> Vec<Bytes> {
    let mut bodies: Vec<Option<Body>> = vec![None; expected.len()];
    let mut decoder = Decoder::<f32>::new(expected.to_vec()).with_sets(sets.clone());
    for payload in payloads {
        let fed = decoder.feed(payload.clone(), |block, part| match (part.encoded().cloned(), part) {
            (Some(encoded), _) => bodies[block] = Some(Body::Encoded(encoded)),
            (None, Part::Dense { values: piece, rounded, .. }) => {
                let body = bodies[block].get_or_insert(Body::Dense { values: Dense::default(), rounded });
                let Body::Dense { values, .. } = body else { panic!("one form for a block") };
                values.push(piece);
            }
            (None, part) => panic!("{part:?} without its bytes"),
        });
        fed.unwrap();
    }
    encode(&bodies.into_iter().map(|body| body.expect("complete")).collect::<Vec<Body>>())
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
        Body::Proposal { indices, .. } => (indices.iter().map(|&i| (i, 0)).collect(), Rounded::EXACT, false),
        Body::Aligned { indices, values, rounded, .. } => {
            let bits = values.iter().map(|v| v.to_bits());
            (indices.iter().copied().zip(bits).collect(), *rounded, false)
        }
        Body::Encoded(_) => panic!("what is compared was decoded"),
    }
}

fn expected(body: &Body) -> Expected {
    match body {
        Body::Sparse { entries, len, .. } => Expected::bag(*len as u32, entries.len() as u32),
        Body::Dense { values, .. } => Expected::bag(values.len() as u32, values.len() as u32),
        Body::Proposal { indices, len } => {
            let content = Content::Proposal;
            Expected { len: *len as u32, bound: indices.len() as u32, content }
        }
        Body::Aligned { indices, len, .. } => {
            let content = Content::Aligned;
            Expected { len: *len as u32, bound: indices.len() as u32, content }
        }
        Body::Encoded(_) => panic!("what is expected is not encoded yet"),
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
    (values, 0..5, proptest::sample::select(&Coding::ALL), any::<u64>()).prop_map(
        |(mut values, form, coding, seed)| {
            let len = values.len();
            let indices = (0u32..).zip(&values).filter(|(_, v)| **v != 0.0).map(|(i, _)| i);
            let indices: Arc<[u32]> = indices.collect();
            if form == 0 {
                return Body::Proposal { indices, len };
            }
            if form == 1 {
                // Some of the values are zeros, whatever the coding.
                let value = |&i: &u32| if i % 5 == 0 { 0.0 } else { values[i as usize] };
                let mut values: Vec<f32> = indices.iter().map(value).collect();
                let mut errors = vec![0.0; values.len()];
                let rounded = coding.round_at(&indices, &mut values, &mut errors, len, seed);
                return Body::Aligned { indices, values, len, rounded };
            }
            if form == 2 {
                let rounded = coding.round_dense(&mut values, &mut vec![0.0; len], seed);
                return Body::Dense { values: values.into(), rounded };
            }
            // Some are sums that are zero.
            let sum = |i: u32| (i, if i % 7 == 3 { 0.0 } else { values[i as usize] });
            let sums: Entries = indices.iter().map(|&i| sum(i)).collect();
            if form == 3 {
                let (rounded, entries, _) = coding.round_among_all(&sums, len, seed);
                return Body::Dense { values: entries.to_dense_with(len, -0.0).into(), rounded };
            }
            let (rounded, entries, _) = coding.round(&sums, len, seed);
            Body::Sparse { entries, len, rounded }
        },
    )
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(bodies in proptest::collection::vec(body(), 0..5), cut in 1usize..50) {
        let expected: Vec<Expected> = bodies.iter().map(expected).collect();
        let (wanted, sets): (Vec<_>, Sets) = (bodies.iter().map(bits).collect(), sets(&bodies));
        let (payloads, encoded) = encode_keeping(&bodies);
        let most: u64 = expected.iter().map(|e| e.most_bytes::<f32>()).sum();
        prop_assert!(payloads.iter().map(|p| p.len() as u64).sum::<u64>() <= most);
        prop_assert!(payloads.iter().all(|p| p.len() <= PIECE && p.len().is_multiple_of(4) && !p.is_empty()));
        let decoded = decode(expected.clone(), &sets, &payloads).unwrap();
        prop_assert_eq!(&decoded.iter().map(bits).collect::<Vec<_>>(), &wanted);
        for (body, encoded) in bodies.iter().zip(&encoded) {
            if let Body::Sparse { entries, len, rounded } = body {
                prop_assert_eq!(encoded.as_ref(), Some(&Encoded::of(entries, *len, *rounded)));
            }
        }
        // Encoded again, sent again, or passed on as they came: the same bytes.
        let stream = payloads.concat();
        prop_assert_eq!(&encode(&decoded).concat(), &stream);
        prop_assert_eq!(&passed_on(&expected, &sets, &payloads).concat(), &stream);
        let again = bodies.iter().zip(encoded).map(|(body, e)| e.map_or_else(|| body.clone(), Body::Encoded));
        prop_assert_eq!(&encode(&again.collect::<Vec<Body>>()).concat(), &stream);
        // Wherever the stream is cut, the same slot comes out.
        let cuts: Vec<Bytes> = stream.chunks(4 * cut).map(Bytes::copy_from_slice).collect();
        prop_assert_eq!(&passed_on(&expected, &sets, &cuts).concat(), &stream);
        let decoded = decode(expected, &sets, &cuts).unwrap();
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
        if let Some(decoded) = survive(&expected, &sets(&bodies), &cuts) {
            // It is then a bag like any other, which can be passed on, as it came or encoded again.
            prop_assert_eq!(passed_on(&expected, &sets(&bodies), &cuts).concat(), changed);
            let again = decode(expected, &sets(&bodies), &encode(&decoded)).unwrap();
            prop_assert!(again.iter().map(bits).eq(decoded.iter().map(bits)));
        }
    }

    #[test]
    fn a_stream_that_ends_early_is_not_complete(bodies in proptest::collection::vec(body(), 1..4), end: prop::sample::Index) {
        let stream = encode(&bodies).concat();
        let end = end.index(stream.len()) & !3;
        let decoder = Decoder::<f32>::new(bodies.iter().map(expected).collect());
        let mut decoder = decoder.with_sets(sets(&bodies));
        decoder.feed(Bytes::copy_from_slice(&stream[..end]), |_, _| {}).unwrap();
        prop_assert!(!decoder.is_complete());
    }

    #[test]
    fn any_bytes_are_survived(
        bytes in proptest::collection::vec(prop_oneof![3 => Just(0u8), 2 => 0u8..8, 1 => any::<u8>()], 0..400),
        expected in proptest::collection::vec((0u32..600, 0u32..600, proptest::sample::select(&CONTENTS)), 0..4),
        cut in 1usize..100,
    ) {
        let expected = expected.into_iter().map(|(len, bound, content)| Expected { len, bound, content });
        let expected: Vec<Expected> = expected.collect();
        let set = |e: &Expected| Some((0..e.bound.min(e.len)).step_by(3).collect());
        let cuts: Vec<Bytes> = bytes.chunks(4 * cut).map(Bytes::copy_from_slice).collect();
        survive(&expected, &expected.iter().map(set).collect(), &cuts);
    }
}

const CONTENTS: [Content; 3] = [Content::Bag, Content::Proposal, Content::Aligned];

/// Feeds any bytes and checks that what they decode to is within its bounds.
fn survive(expected: &[Expected], sets: &Sets, payloads: &[Bytes]) -> Option<Vec<Body>> {
    let mut decoder = Decoder::<f32>::new(expected.to_vec()).with_sets(sets.clone());
    for payload in payloads {
        let fed = decoder.feed(payload.clone(), |block, part| match part {
            Part::Sparse { entries, .. } => {
                let Expected { len, bound, content } = expected[block];
                assert!(content == Content::Bag && entries.len() <= bound as usize);
                assert!(entries.indices.is_sorted_by(|a, b| a < b));
                assert!(entries.indices.last().is_none_or(|&last| last < len));
                assert!(entries.values.iter().all(|&v| v.is_finite() && is_entry(v)));
            }
            Part::Dense { values, .. } => {
                assert_eq!(expected[block].content, Content::Bag);
                assert!(super::super::floats(&values).all(f32::is_finite));
            }
            Part::Proposal { indices, .. } => {
                let Expected { len, bound, content } = expected[block];
                assert!(content == Content::Proposal && indices.len() <= bound as usize);
                assert!(indices.is_sorted_by(|a, b| a < b) && indices.last().is_none_or(|&last| last < len));
            }
            Part::Aligned { values, .. } => {
                assert_eq!(expected[block].content, Content::Aligned);
                assert_eq!(values.len(), sets[block].as_ref().map_or(0, |set| set.len()));
                assert!(values.iter().all(|v| v.is_finite()));
            }
            Part::Encoded { .. } => panic!("nothing is left to a device"),
        });
        assert!(decoder.gathered() <= expected.iter().map(most_gathered).max().unwrap_or(0));
        fed.ok()?;
    }
    decoder.is_complete().then(|| decode(expected.to_vec(), sets, payloads).expect("it was read before"))
}

#[test]
fn large_dense_blocks_are_lent_not_copied() {
    let values = Arc::new(vec![1.0f32; PIECE]);
    let body = Body::Dense { values: Dense::lent(values.clone(), 0..PIECE), rounded: Rounded::EXACT };
    let payloads = encode(&[body]);
    assert_eq!(payloads.len(), 1 + PIECES);
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
        let decoded = decode(expected, &sets(&bodies), &payloads).unwrap();
        assert!(decoded.iter().map(bits).eq(bodies.iter().map(bits)), "{coding}");
    }
}

/// Bytes of a header and a body, as the tables of the documentation say.
fn lie(expected: (u32, u32), header: [u8; 4], words: &[u32]) -> DecodeError {
    let (len, bound) = expected;
    let bytes = header.into_iter().chain(words.iter().flat_map(|w| w.to_le_bytes()));
    decode(vec![Expected::bag(len, bound)], &vec![None], &[bytes.collect()]).expect_err("a lie")
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
    assert_eq!(lie((9, 3), [0, 0, 0, 0], &[8]), DecodeError::Count { block, count: 8, allowed: 3 });
    assert_eq!(lie((9, 5), [0, 0, 0, 0], &[8]), DecodeError::Count { block, count: 8, allowed: 9 });
    assert_eq!(lie((9, 3), [3, 0, 0, 0], &[0]), DecodeError::Form { block, form: 3, parameter: 0 });
    // Two entries take four words at most.
    assert_eq!(lie((9, 3), [5, 1, 0, 0], &[2, 5]), DecodeError::Length { block, words: 5, allowed: 4 });
    assert_eq!(lie((999, 3), [3, 0, 0, 0], &[2]), DecodeError::Length { block, words: 34, allowed: 4 });
    // All values of a block that is sparse within its bound: half of it or less.
    assert_eq!(lie((9, 4), [0, 0, 0, 0], &[9]), DecodeError::Count { block, count: 9, allowed: 4 });
    assert_eq!(lie((9, 9), [6, 0, 0, 0], &[4]), DecodeError::Length { block, words: 9, allowed: 7 });
    let one = 1.0f32.to_bits();
    // And more entries than the bound, among them a sum that is zero.
    let none = 1 << 31;
    assert_eq!(
        lie((9, 5), [0, 0, 0, 0], &[9, one, one, none, one, one, none, one, 0, none]),
        DecodeError::Count { block, count: 6, allowed: 5 }
    );
    let torn = Decoder::<f32>::new(vec![Expected::bag(1, 1)]);
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
    assert_eq!(lie((9, 3), raw, &[1, 8, 1 << 31]), value("-0"));
    assert_eq!(lie((9, 3), raw, &[1, 8, nan]), value("NaN"));
    assert_eq!(lie((1, 1), [0; 4], &[1, nan]), value("NaN"));
    assert_eq!(lie((9, 3), raw, &[0, 1]), DecodeError::Trailing(4));
    assert_eq!(
        lie((9, 9), [6, 0, 0, 0], &[9, one, one, one, one, one, one, one, one, 1 << 31]),
        DecodeError::Entries { block, count: 9, found: 8 }
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
    assert_eq!(quantised(1.0, 0x117), DecodeError::Padding { block });
    assert_eq!(lie((9, 9), [1, 0, 4, 9], &[2, 3, 1, 2, one]), DecodeError::End { block, count: 2 });
    // A dense bucket of zeros has the scale 0.
    assert_eq!(lie((2, 2), [0, 0, 4, 9], &[2, one, 0]), scale("1"));
    assert_eq!(lie((2, 2), [0, 0, 4, 9], &[2, 0, 7]), scale("0"));
}

#[test]
fn lies_about_proposals_and_aligned_bags_are_named() {
    let block = 0;
    let one = 1.0f32.to_bits();
    let lie = |content, header: [u8; 4], words: &[u32]| {
        let expected = Expected { len: 9, bound: 3, content };
        let set = (content == Content::Aligned).then(|| Arc::from([2, 5]));
        let bytes = header.into_iter().chain(words.iter().flat_map(|w| w.to_le_bytes()));
        decode(vec![expected], &vec![set], &[bytes.collect()]).expect_err("a lie")
    };
    // Values with a proposal, indices with an aligned bag, all values of either; more indices than allowed.
    let proposal = |header, words: &[u32]| lie(Content::Proposal, header, words);
    let coding = |coding| DecodeError::Coding { block, coding, shift: 0 };
    let form = |form| DecodeError::Form { block, form, parameter: 0 };
    assert_eq!(proposal([1, 0, 0, 0], &[1, 4, one]), coding(0));
    assert_eq!(proposal([7, 0, 6, 0], &[1, one]), form(7));
    assert_eq!(proposal([0, 0, 6, 0], &[9]), form(0));
    assert_eq!(proposal([6, 0, 6, 0], &[1]), form(6));
    assert_eq!(proposal([1, 0, 6, 0], &[4]), DecodeError::Count { block, count: 4, allowed: 3 });
    assert_eq!(proposal([1, 0, 6, 0], &[2, 4, 4]), DecodeError::Index { block, index: 4, len: 9 });
    assert_eq!(proposal([5, 1, 6, 0], &[2, 3]), DecodeError::Length { block, words: 3, allowed: 2 });
    let aligned = |header, words: &[u32]| lie(Content::Aligned, header, words);
    assert_eq!(aligned([1, 0, 0, 0], &[2, 2, 5, one, one]), form(1));
    assert_eq!(aligned([7, 0, 6, 0], &[2, one, one]), coding(6));
    assert_eq!(aligned([7, 0, 0, 0], &[1, one]), DecodeError::Count { block, count: 1, allowed: 2 });
    assert_eq!(aligned([7, 0, 0, 0], &[3, one, one]), DecodeError::Count { block, count: 3, allowed: 2 });
    let infinite = f32::INFINITY.to_bits();
    let value = DecodeError::Value { block, value: "inf".into() };
    assert_eq!(aligned([7, 0, 0, 0], &[2, 0, infinite]), value);
    // And a bag is neither.
    assert_eq!(lie(Content::Bag, [7, 0, 0, 0], &[2, one, one]), form(7));
    assert_eq!(lie(Content::Bag, [1, 0, 6, 0], &[1, 4]), coding(6));
}

/// What proposing saves: an aligned bag takes what its values take, and a proposal what its indices take.
#[test]
fn indices_travel_once() {
    let indices: Arc<[u32]> = (0..1000u32).map(|i| 37 * i + i % 5).collect();
    let values: Vec<f32> = indices.iter().map(|&i| (i as f32).sin() + 2.0).collect();
    let (len, rounded) = (40_000, Rounded::EXACT);
    let bytes = |body: Body| encode(&[body]).concat().len();
    let entries = Entries { indices: indices.to_vec(), values: values.clone() };
    let both = bytes(Body::Sparse { entries, len, rounded });
    let alone = bytes(Body::Proposal { indices: indices.clone(), len });
    let aligned = bytes(Body::Aligned { indices, values, len, rounded });
    assert_eq!(aligned, 8 + 4 * 1000);
    assert_eq!(alone - 8 + aligned, both);
}

/// A peer needs credit for whole blocks only where they may be dense.
#[test]
fn few_entries_take_few_bytes() {
    let most = |len, bound, content| Expected { len, bound, content }.most_bytes::<f32>();
    assert_eq!(most(1_000_000, 10, Content::Bag), 12 + 4 * (10 + 10 + 3));
    assert_eq!(most(1000, 500, Content::Bag), 12 + 8 * 500);
    assert_eq!(most(1000, 501, Content::Bag), 12 + 4 * 1000);
    assert_eq!(most(1_000_000, 10, Content::Proposal), 12 + 4 * 10);
    assert_eq!(most(1000, 300, Content::Aligned), 12 + 4 * 300);
    // Half as wide values turn dense with a third of them.
    let most = |bound| Expected::bag(999, bound).most_bytes::<half::bf16>();
    assert_eq!((most(333), most(334)), (12 + 4 * (333 + 167), 12 + 4 * 500));
}
