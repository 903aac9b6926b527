//! What the fuzz targets do with the bytes that they are given.
//!
//! Whatever the bytes say: nothing panics, what is handed on keeps the promises of a bag, and it can be passed on.

use std::sync::Arc;

pub mod campaign;
mod mutate;

use bytes::Bytes;
use gleaner_algorithms::bag::wire::{Body, Content, Decoder, Expected, PIECE, Part, encode};
use gleaner_algorithms::bag::{Coding, Dense, Entries, Rounded};
use gleaner_algorithms::element::{self, Element};
use half::{bf16, f16};

/// All targets.
pub const TARGETS: &[campaign::Target] = &[
    ("decoder", stream),
    ("round_trip", round_trip),
    ("dense", |data| body(Form::Dense, data)),
    ("raw", |data| body(Form::Raw, data)),
    ("packed", |data| body(Form::Packed, data)),
    ("bitmap", |data| body(Form::Bitmap, data)),
    ("elias_fano", |data| body(Form::EliasFano, data)),
    ("rice", |data| body(Form::Rice, data)),
    ("full", |data| body(Form::Full, data)),
    ("aligned", |data| body(Form::Aligned, data)),
    ("wire", gleaner_transport::tcp::fuzzing::decode),
    ("handshake", gleaner_transport::tcp::fuzzing::handshake),
    ("runtime", gleaner_runtime::fuzzing::decode),
    ("residual_file", gleaner_runtime::fuzzing::residual_file),
];

/// The forms of bodies by their numbers on the wire; see `docs/src/architecture/wire.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Dense = 0,
    Raw = 1,
    Packed = 2,
    Bitmap = 3,
    EliasFano = 4,
    Rice = 5,
    Full = 6,
    Aligned = 7,
}

/// The first `N` bytes; zeros where there are too few.
fn take<const N: usize>(data: &mut &[u8]) -> [u8; N] {
    let (here, rest) = data.split_at(N.min(data.len()));
    *data = rest;
    let mut taken = [0; N];
    taken[..here.len()].copy_from_slice(here);
    taken
}

/// A slot of up to three blocks, as a peer may send it: the type of its values, the number of blocks and where to cut, then
/// for each block a length, a bound and its content, then the stream.
pub fn stream(mut data: &[u8]) {
    let [kind] = take(&mut data);
    match kind % 4 {
        0 => stream_of::<f32>(data),
        1 => stream_of::<f64>(data),
        2 => stream_of::<bf16>(data),
        _ => stream_of::<f16>(data),
    }
}

fn stream_of<T: Element>(mut data: &[u8]) {
    let [blocks, cut] = take(&mut data);
    let expected = (0..blocks % 4)
        .map(|i| {
            let [len, bound] = [take(&mut data), take(&mut data)].map(u16::from_le_bytes);
            // The content of block i stands in the number of blocks, behind the lowest two bits.
            let content = match blocks >> (2 + 2 * i) & 3 {
                1 => Content::Proposal,
                2 => Content::Aligned,
                _ => Content::Bag,
            };
            Expected { len: len.into(), bound: bound.into(), content }
        })
        .collect();
    read::<T>(expected, data, cut);
}

/// One block whose header fits, so that most bytes reach the form's own code: the type of its values, what the header says,
/// and then the body.
pub fn body(form: Form, mut data: &[u8]) {
    let [kind] = take(&mut data);
    match kind % 4 {
        0 => body_of::<f32>(form, data),
        1 => body_of::<f64>(form, data),
        2 => body_of::<bf16>(form, data),
        _ => body_of::<f16>(form, data),
    }
}

fn body_of<T: Element>(form: Form, mut data: &[u8]) {
    let [parameter, coding, shift, cut] = take(&mut data);
    let (len, count) = (u32::from_le_bytes(take(&mut data)), u16::from_le_bytes(take(&mut data)).into());
    let len = if form == Form::Dense { count } else { len.max(count) };
    let coding = coding_of::<T>(coding);
    let quantised = matches!(coding, Coding::Qsgd2 | Coding::Qsgd4 | Coding::Qsgd8);
    let shift = if quantised { 9 + shift % 23 } else { 0 };
    let number = Coding::ALL.iter().position(|c| *c == coding).unwrap_or(0) as u8;
    let body = &data[..data.len() / T::WIDTH.min(4) * T::WIDTH.min(4)];
    let mut stream = vec![form as u8, parameter, number, shift];
    stream.extend(count.to_le_bytes());
    let content = if form == Form::Aligned { Content::Aligned } else { Content::Bag };
    // Where the length of a body is not implied, the header says it.
    if count > 0 && (form == Form::Rice || quantised && !matches!(form, Form::Dense | Form::Full)) {
        stream.extend((body.len() as u32 / 4).to_le_bytes());
    }
    stream.extend(body);
    read::<T>(vec![Expected { len, bound: count, content }], &stream, cut);
}

/// Values of 32 bits alone are encoded in other codings than exact.
fn coding_of<T: Element>(number: u8) -> Coding {
    if T::NAME == f32::NAME { Coding::ALL[usize::from(number) % Coding::ALL.len()] } else { Coding::Exact }
}

/// Reads a stream cut into payloads of whole words or whole values, checks the result, and passes it on if it is whole.
fn read<T: Element>(expected: Vec<Expected>, stream: &[u8], cut: u8) {
    let mut bodies: Vec<Option<Body<T>>> = vec![None; expected.len()];
    let sets: Vec<_> = expected.iter().map(set).collect();
    // Of every other stream the bags that a device can read are decoded by themselves.
    let from = if cut % 2 == 1 { 0 } else { usize::MAX };
    let mut decoder = Decoder::<T>::new(expected.clone()).with_sets(sets.clone()).with_encoded_from(from);
    let mut malformed = false;
    for payload in stream.chunks(T::WIDTH.min(4) * (1 + usize::from(cut))) {
        let fed = decoder.feed(Bytes::copy_from_slice(payload), |block, part| {
            let Expected { len, bound, .. } = expected[block];
            match part {
                Part::Sparse { entries, rounded, .. } => {
                    check(&entries, len, bound);
                    assert!(bodies[block].is_none());
                    bodies[block] = Some(Body::Sparse { entries, len: len as usize, rounded });
                }
                Part::Proposal { indices, .. } => {
                    assert!(indices.len() <= bound as usize && indices.is_sorted_by(|a, b| a < b));
                    assert!(indices.last().is_none_or(|&last| last < len) && bodies[block].is_none());
                    bodies[block] = Some(Body::Proposal { indices: indices.into(), len: len as usize });
                }
                Part::Aligned { values, rounded, .. } => {
                    let indices = sets[block].clone().expect("an aligned block has a set");
                    assert!(values.len() == indices.len() && bodies[block].is_none());
                    assert!(values.iter().all(|v| v.is_finite()));
                    bodies[block] = Some(Body::Aligned { indices, values, len: len as usize, rounded });
                }
                Part::Encoded { encoded, rounded, .. } => match encoded.entries(block, false) {
                    Ok(entries) => {
                        check(&entries, len, bound);
                        assert!(bodies[block].is_none());
                        bodies[block] = Some(Body::Sparse { entries, len: len as usize, rounded });
                    }
                    Err(_) => malformed = true,
                },
                Part::Dense { first, values: piece, rounded, .. } => {
                    assert!(piece.len().is_multiple_of(T::WIDTH), "no value is torn");
                    assert!(element::values::<T>(&piece).all(T::is_finite));
                    let body = bodies[block].get_or_insert(Body::Dense { values: Dense::default(), rounded });
                    let Body::Dense { values, .. } = body else { panic!("a block of two forms") };
                    assert_eq!(values.len(), first);
                    values.push(piece);
                }
            }
        });
        if malformed || fed.is_err() {
            return;
        }
    }
    if decoder.is_complete() {
        let bodies: Vec<Body<T>> = bodies.into_iter().map(|body| body.expect("complete")).collect();
        same_again(&bodies);
    }
}

/// The indices that an aligned block is read with: as many as its bound, two in three, where it is that long.
fn set(expected: &Expected) -> Option<Arc<[u32]>> {
    let count = expected.bound.min(expected.len / 3 * 2);
    let indices = (0..count).map(|i| i / 2 * 3 + i % 2);
    (expected.content == Content::Aligned).then(|| indices.collect())
}

fn check<T: Element>(entries: &Entries<T>, len: u32, bound: u32) {
    assert!(entries.len() <= bound as usize && entries.indices.len() == entries.values.len());
    assert!(entries.indices.is_sorted_by(|a, b| a < b));
    assert!(entries.indices.last().is_none_or(|&last| last < len));
    assert!(entries.values.iter().all(|v| v.is_finite() && v.bits() != (-T::ZERO).bits()));
}

/// Encodes bodies, decodes that, and compares every bit.
fn same_again<T: Element>(bodies: &[Body<T>]) {
    let expected = bodies.iter().map(|body| match body {
        Body::Sparse { entries, len, .. } => Expected::bag(*len as u32, entries.len() as u32),
        Body::Dense { values, .. } => Expected::bag(values.len() as u32, values.len() as u32),
        Body::Proposal { indices, len } => {
            Expected { len: *len as u32, bound: indices.len() as u32, content: Content::Proposal }
        }
        Body::Aligned { indices, len, .. } => {
            Expected { len: *len as u32, bound: indices.len() as u32, content: Content::Aligned }
        }
        Body::Encoded(_) => panic!("what comes is not kept encoded here"),
    });
    let sets = bodies.iter().map(|body| match body {
        Body::Aligned { indices, .. } => Some(indices.clone()),
        _ => None,
    });
    let payloads = encode(bodies);
    assert!(payloads.iter().all(|payload| payload.len() <= PIECE));
    let mut decoder = Decoder::<T>::new(expected.collect()).with_sets(sets.collect());
    let mut values: Vec<u64> = Vec::new();
    let mut wanted: Vec<u64> = Vec::new();
    for payload in payloads {
        let fed = decoder.feed(payload, |block, part| match (part, &bodies[block]) {
            (Part::Sparse { entries, rounded, .. }, Body::Sparse { entries: before, rounded: tag, .. }) => {
                assert_eq!((&entries.indices, rounded), (&before.indices, *tag));
                values.extend(entries.values.iter().map(|v| v.bits()));
                wanted.extend(before.values.iter().map(|v| v.bits()));
            }
            (
                Part::Dense { first, values: piece, rounded, .. },
                Body::Dense { values: before, rounded: tag },
            ) => {
                assert_eq!(rounded, *tag);
                values.extend(element::values::<T>(&piece).map(T::bits));
                let here = first..first + piece.len() / T::WIDTH;
                wanted.extend(before.stretches(here).flat_map(element::values::<T>).map(T::bits));
            }
            (Part::Proposal { indices, .. }, Body::Proposal { indices: before, .. }) => {
                assert_eq!(indices[..], before[..]);
            }
            (
                Part::Aligned { values: after, rounded, .. },
                Body::Aligned { values: before, rounded: tag, .. },
            ) => {
                assert_eq!(rounded, *tag);
                values.extend(after.iter().map(|v| v.bits()));
                wanted.extend(before.iter().map(|v| v.bits()));
            }
            (part, body) => panic!("{body:?} became {part:?}"),
        });
        assert_eq!(fed, Ok(()));
    }
    assert!(decoder.is_complete());
    assert_eq!(values, wanted);
}

/// Entries of any kind, there and back: the type of their values, a coding, what to make of them, a seed, a length beyond the
/// last entry, and then for each entry a gap and a value. Values of 32 bits are rounded to the coding.
pub fn round_trip(mut data: &[u8]) {
    let [kind] = take(&mut data);
    match kind % 4 {
        0 => round_trip_of_floats(data),
        1 => round_trip_of::<f64>(data),
        2 => round_trip_of::<bf16>(data),
        _ => round_trip_of::<f16>(data),
    }
}

/// What the first bytes of a round trip say.
struct Trip<T: Element> {
    coding: u8,
    dense: bool,
    seed: u64,
    entries: Entries<T>,
    len: usize,
}

fn trip<T: Element>(mut data: &[u8]) -> Trip<T> {
    let [coding, dense, wide, behind] = take(&mut data);
    let seed = u64::from_le_bytes(take(&mut data));
    let (mut entries, mut next) = (Entries::default(), 0u64);
    while !data.is_empty() {
        let gap = u64::from(u16::from_le_bytes(take(&mut data))) << (wide % 17);
        let mut value = u64::from(u32::from_le_bytes(take(&mut data)));
        // A double has twice as many bits.
        if T::WIDTH == 8 {
            value = value << 32 | value;
        }
        let value = T::from_bits(value);
        if next + gap >= u64::from(u32::MAX) {
            break;
        }
        if value.is_finite() && value.bits() != (-T::ZERO).bits() {
            entries.push((next + gap) as u32, value);
        }
        next += gap + 1;
    }
    let len = next as usize + usize::from(behind);
    Trip { coding, dense: dense % 2 == 1 && len <= 1 << 16, seed, entries, len }
}

fn round_trip_of<T: Element>(data: &[u8]) {
    let Trip { dense, entries, len, .. } = trip::<T>(data);
    if dense {
        let values = entries.to_dense_with(len, -T::ZERO).into();
        same_again(&[Body::Dense { values, rounded: Rounded::EXACT }]);
    }
    same_again(&[Body::Sparse { entries, len, rounded: Rounded::EXACT }]);
}

fn round_trip_of_floats(data: &[u8]) {
    let Trip { coding, dense, seed, entries, len } = trip::<f32>(data);
    let coding = coding_of::<f32>(coding);
    if dense {
        let mut values = entries.to_dense_with(len, -0.0);
        let rounded = coding.round_dense(&mut values, &mut vec![0.0; len], seed);
        same_again(&[Body::Dense { values: values.into(), rounded }]);
    }
    let indices: Arc<[u32]> = entries.indices.clone().into();
    same_again::<f32>(&[Body::Proposal { indices: indices.clone(), len }]);
    let mut values = entries.values.clone();
    let rounded = coding.round_at(&indices, &mut values, &mut vec![0.0; indices.len()], len, seed);
    same_again(&[Body::Aligned { indices, values, len, rounded }]);
    let (rounded, kept, errors) = coding.round(&entries, len, seed);
    check(&kept, len as u32, entries.len() as u32);
    check(&errors, len as u32, entries.len() as u32);
    same_again(&[Body::Sparse { entries: kept, len, rounded }]);
}
