use std::sync::Arc;

use super::super::{Coding, Dense, Entries, Rounded, floats};
use super::*;
use bytes::Bytes;
use proptest::prelude::*;

fn decode(expected: Vec<Expected>, payloads: &[Bytes]) -> Result<Vec<(Vec<f32>, Rounded)>, DecodeError> {
    let mut blocks: Vec<(Vec<f32>, Rounded)> =
        expected.iter().map(|e| (vec![0.0; e.len as usize], Rounded::EXACT)).collect();
    let mut decoder = Decoder::<f32>::new(expected);
    for payload in payloads {
        decoder.feed(payload.clone(), |block, part| match part {
            Part::Sparse { entries, rounded } => {
                blocks[block].1 = rounded;
                entries.iter().for_each(|(i, v)| blocks[block].0[i as usize] = v)
            }
            Part::Dense { first, values, rounded } => {
                blocks[block].1 = rounded;
                floats(&values).enumerate().for_each(|(i, v)| blocks[block].0[first + i] = v);
            }
        })?;
    }
    assert!(decoder.is_complete());
    Ok(blocks)
}

fn block() -> impl Strategy<Value = (Vec<f32>, bool, Coding, u64)> {
    let value = prop_oneof![Just(0.0f32), -1.0f32..1.0];
    let values = prop_oneof![
        proptest::collection::vec(value.clone(), 0..40),
        proptest::collection::vec(value, 5000..6000)
    ];
    (values, any::<bool>(), proptest::sample::select(&Coding::ALL), any::<u64>())
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(blocks in proptest::collection::vec(block(), 0..5), cut in 1usize..50) {
        let expected: Vec<_> = blocks.iter().map(|(b, ..)| Expected { len: b.len() as u32, bound: b.len() as u32 }).collect();
        let mut wanted = Vec::new();
        let bodies: Vec<Body> = blocks.into_iter().map(|(mut values, dense, coding, seed)| {
            if dense {
                let mut errors = vec![0.0; values.len()];
                let rounded = coding.round_dense(&mut values, &mut errors, seed);
                wanted.push((values.clone(), rounded));
                Body::Dense { values: values.into(), rounded }
            } else {
                let (rounded, kept, _) = coding.round(&Entries::from_dense(&values), values.len(), seed);
                wanted.push((kept.to_dense(values.len()), rounded));
                Body::Sparse { entries: kept, len: values.len(), rounded }
            }
        }).collect();
        let payloads = encode(&bodies);
        prop_assert!(payloads.iter().all(|p| p.len() <= PIECE && !p.is_empty()));
        prop_assert_eq!(&decode(expected.clone(), &payloads).unwrap(), &wanted);
        // Wherever the stream is cut, the same slot comes out.
        let stream: Vec<u8> = payloads.iter().flatten().copied().collect();
        let cuts: Vec<Bytes> = stream.chunks(4 * cut).map(Bytes::copy_from_slice).collect();
        prop_assert_eq!(&decode(expected, &cuts).unwrap(), &wanted);
    }

    #[test]
    fn any_bytes_are_survived(
        bytes in proptest::collection::vec(prop_oneof![3 => Just(0u8), 1 => Just(1u8), 1 => any::<u8>()], 0..200),
        lens in proptest::collection::vec((0u32..20, 0u32..20), 0..4),
        cut in 1usize..60,
    ) {
        let mut decoder = Decoder::<f32>::new(lens.iter().map(|&(len, bound)| Expected { len, bound }).collect());
        for payload in bytes.chunks(cut) {
            let mut broken = false;
            let read = decoder.feed(Bytes::copy_from_slice(payload), |block, part| if let Part::Sparse { entries, .. } = part {
                broken |= entries.len() > lens[block].1 as usize || entries.len() > lens[block].0 as usize;
            });
            prop_assert!(!broken);
            if read.is_err() { break; }
        }
    }
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
