//! Bags as bytes.
//!
//! A slot travels as a stream of little-endian 32-bit words: for each of its blocks `form` and `count`,
//! then for each block its body. Form 0 is COO: `count` indices, then `count` values. Form 1 is dense: `count`
//! values, one for each entry of the block. The stream is cut into payloads of at most [`PIECE`] bytes
//! at word boundaries, so that the far side adds while the rest is under way.
//!
//! The [`Decoder`] takes any bytes at all: it never panics, and allocates no more than the entries that the
//! schedule declared for each block.

use bytes::{Buf, Bytes};

use super::{Dense, Entries, Rounded, first_non_finite, floats};

/// The largest payload that [`encode`] makes, in bytes.
pub const PIECE: usize = 256 << 10;

/// Dense bodies of at least so many values travel in payloads of their own, lent to the network instead of copied.
const LEND: usize = 4 << 10;

const SPARSE: u32 = 0;
const DENSE: u32 = 1;

/// What is sent of one block.
#[derive(Clone, Debug)]
pub enum Body {
    /// Indices and values.
    Sparse(Entries, Rounded),
    /// All values of the block.
    Dense(Dense, Rounded),
}

/// The payloads that carry the bodies of a slot, in order.
pub fn encode(bodies: &[Body]) -> Vec<Bytes> {
    let mut stream = Stream::default();
    for body in bodies {
        let (form, count) = match body {
            Body::Sparse(entries, _) => (SPARSE, entries.len()),
            Body::Dense(values, _) => (DENSE, values.len()),
        };
        stream.write(&form.to_le_bytes());
        stream.write(&(count as u32).to_le_bytes());
    }
    for body in bodies {
        match body {
            Body::Sparse(entries, _) => {
                stream.write_words(entries.indices.iter().map(|i| i.to_le_bytes()));
                stream.write_words(entries.values.iter().map(|v| v.to_le_bytes()));
            }
            Body::Dense(values, _) if values.len() >= LEND => {
                stream.flush();
                stream.payloads.extend(values.pieces().iter().flat_map(pieces));
            }
            Body::Dense(values, _) => {
                for piece in values.pieces() {
                    stream.write_words(piece.chunks_exact(4).map(|w| [w[0], w[1], w[2], w[3]]));
                }
            }
        }
    }
    stream.flush();
    stream.payloads
}

/// Payloads that together are these bytes, lent.
pub(crate) fn pieces(bytes: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    (0..bytes.len()).step_by(PIECE).map(|from| bytes.slice(from..(from + PIECE).min(bytes.len())))
}

/// The payload that announces one dense block, for a sender that has not all of its values yet; None for a block so
/// short that [`encode`] would not send its values apart.
pub(crate) fn announce_dense(len: usize) -> Option<Bytes> {
    let words = [DENSE.to_le_bytes(), (len as u32).to_le_bytes()];
    (len >= LEND).then(|| Bytes::from(words.concat()))
}

#[derive(Default)]
struct Stream {
    payloads: Vec<Bytes>,
    open: Vec<u8>,
}

impl Stream {
    fn write(&mut self, word: &[u8; 4]) {
        if self.open.len() == PIECE {
            self.flush();
        }
        self.open.extend_from_slice(word);
    }

    fn write_words(&mut self, mut words: impl ExactSizeIterator<Item = [u8; 4]>) {
        while words.len() > 0 {
            if self.open.len() == PIECE {
                self.flush();
            }
            let room = (PIECE - self.open.len()) / 4;
            self.open.reserve(4 * room.min(words.len()));
            self.open.extend(words.by_ref().take(room).flatten());
        }
    }

    fn flush(&mut self) {
        if !self.open.is_empty() {
            self.payloads.push(std::mem::take(&mut self.open).into());
        }
    }
}

/// What a schedule declares of one block that is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Entries in the block.
    pub len: u32,
    /// Non-zero entries that the sender may have, at most.
    pub bound: u32,
}

/// A part of a slot, as the decoder hands it on.
#[derive(Debug, PartialEq)]
pub enum Part {
    /// All entries of a block.
    Sparse(Entries, Rounded),
    /// Consecutive values of a dense block.
    Dense {
        /// The index of the first of them.
        first: usize,
        /// Little-endian values.
        values: Bytes,
        /// How they were rounded.
        rounded: Rounded,
    },
}

/// Bytes that are not the slot that the schedule declared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A message without the notes that the schedule declares.
    #[error("a message of {found} bytes; expected notes of {expected} bytes before its bags")]
    Notes {
        /// Bytes of notes.
        expected: usize,
        /// Bytes that came.
        found: usize,
    },
    /// A payload ends in the middle of a word.
    #[error("a payload has {0} bytes; expected a multiple of 4")]
    Torn(usize),
    /// Neither COO nor dense.
    #[error("block {block} of the slot has the unknown form {form}; expected 0 (COO) or 1 (dense)")]
    Form {
        /// Position in the slot.
        block: usize,
        /// Form found.
        form: u32,
    },
    /// More entries than declared, or a dense block of another length.
    #[error("block {block} of the slot announces {count} entries; the schedule allows {allowed}")]
    Count {
        /// Position in the slot.
        block: usize,
        /// Entries announced.
        count: u32,
        /// Entries allowed.
        allowed: u32,
    },
    /// Indices that do not ascend, or lie outside.
    #[error(
        "index {index} of block {block} of the slot is out of order or not below the block's length {len}"
    )]
    Index {
        /// Position in the slot.
        block: usize,
        /// Index found.
        index: u32,
        /// The block's length.
        len: u32,
    },
    /// A value that no bag may hold.
    #[error(
        "block {block} of the slot holds the value {value}; expected finite values, and no zeros among sparse ones"
    )]
    Value {
        /// Position in the slot.
        block: usize,
        /// The value, as text.
        value: String,
    },
    /// The slot is complete and more came.
    #[error("{0} bytes follow after the end of the slot")]
    Trailing(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Form,
    Count(u32),
    Body,
}

/// Puts a slot together from payloads, a part at a time.
#[derive(Debug)]
pub struct Decoder {
    expected: Vec<Expected>,
    announced: Vec<(u32, u32)>,
    state: State,
    /// The block whose body is being read, and how many words of it have been.
    block: usize,
    words: usize,
    partial: Entries,
}

impl Decoder {
    /// Expects these blocks.
    pub fn new(expected: Vec<Expected>) -> Self {
        let state = if expected.is_empty() { State::Body } else { State::Form };
        Self {
            announced: Vec::with_capacity(expected.len()),
            expected,
            state,
            block: 0,
            words: 0,
            partial: Entries::default(),
        }
    }

    /// Whether the whole slot has been read.
    pub fn is_complete(&self) -> bool {
        self.state == State::Body && self.block == self.expected.len()
    }

    /// Reads one payload and hands on what it completes, as (position of the block in the slot, part).
    ///
    /// # Errors
    /// Bytes that are no slot as declared; the decoder is of no use afterwards.
    pub fn feed(&mut self, payload: Bytes, mut part: impl FnMut(usize, Part)) -> Result<(), DecodeError> {
        if !payload.len().is_multiple_of(4) {
            return Err(DecodeError::Torn(payload.len()));
        }
        let mut rest = payload;
        while let (State::Form | State::Count(_), Some(word)) = (self.state, rest.first_chunk::<4>()) {
            self.announce(u32::from_le_bytes(*word))?;
            rest.advance(4);
        }
        if self.state == State::Body {
            self.pass_empty_bodies(&mut part);
            while !rest.is_empty() && self.block < self.expected.len() {
                let (form, count) = self.announced[self.block];
                let body = if form == DENSE { count as usize } else { 2 * count as usize };
                let take = (body - self.words).min(rest.len() / 4);
                let words = rest.split_to(4 * take);
                if form == DENSE {
                    self.dense(words, &mut part)?
                } else {
                    self.sparse(&words, count as usize)?
                }
                self.words += take;
                if self.words == body {
                    if form == SPARSE {
                        part(self.block, Part::Sparse(std::mem::take(&mut self.partial), Rounded));
                    }
                    self.block += 1;
                    self.words = 0;
                    self.pass_empty_bodies(&mut part);
                }
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(rest.len())) }
    }

    fn announce(&mut self, word: u32) -> Result<(), DecodeError> {
        let block = self.announced.len();
        match self.state {
            State::Form if word > DENSE => return Err(DecodeError::Form { block, form: word }),
            State::Form => self.state = State::Count(word),
            State::Count(form) => {
                let Expected { len, bound } = self.expected[block];
                let fits = if form == DENSE { word == len } else { word <= bound.min(len) };
                if !fits {
                    let allowed = if form == DENSE { len } else { bound.min(len) };
                    return Err(DecodeError::Count { block, count: word, allowed });
                }
                self.announced.push((form, word));
                self.state =
                    if self.announced.len() == self.expected.len() { State::Body } else { State::Form };
            }
            State::Body => {}
        }
        Ok(())
    }

    fn pass_empty_bodies(&mut self, part: &mut impl FnMut(usize, Part)) {
        while self.words == 0 && self.announced.get(self.block).is_some_and(|&(_, count)| count == 0) {
            match self.announced[self.block].0 {
                SPARSE => part(self.block, Part::Sparse(Entries::default(), Rounded)),
                _ => part(self.block, Part::Dense { first: 0, values: Bytes::new(), rounded: Rounded }),
            }
            self.block += 1;
        }
    }

    fn dense(&mut self, values: Bytes, part: &mut impl FnMut(usize, Part)) -> Result<(), DecodeError> {
        if let Some(position) = first_non_finite(&values) {
            let value = floats(&values).nth(position).unwrap_or(f32::NAN);
            return Err(DecodeError::Value { block: self.block, value: value.to_string() });
        }
        part(self.block, Part::Dense { first: self.words, values, rounded: Rounded });
        Ok(())
    }

    fn sparse(&mut self, words: &[u8], count: usize) -> Result<(), DecodeError> {
        let (block, len) = (self.block, self.expected[self.block].len);
        if self.words == 0 {
            self.partial = Entries::with_capacity(count);
        }
        let indices = count.saturating_sub(self.words).min(words.len() / 4);
        let (indices, values) = words.split_at(4 * indices);
        for word in indices.chunks_exact(4) {
            let index = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            if index >= len || self.partial.indices.last().is_some_and(|&last| last >= index) {
                return Err(DecodeError::Index { block, index, len });
            }
            self.partial.indices.push(index);
        }
        for value in floats(values) {
            if !value.is_finite() || value == 0.0 {
                return Err(DecodeError::Value { block, value: value.to_string() });
            }
            self.partial.values.push(value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Bag;
    use super::*;
    use proptest::prelude::*;

    fn decode(expected: Vec<Expected>, payloads: &[Bytes]) -> Result<Vec<Vec<f32>>, DecodeError> {
        let mut blocks: Vec<Vec<f32>> = expected.iter().map(|e| vec![0.0; e.len as usize]).collect();
        let mut decoder = Decoder::new(expected);
        for payload in payloads {
            decoder.feed(payload.clone(), |block, part| match part {
                Part::Sparse(entries, _) => entries.iter().for_each(|(i, v)| blocks[block][i as usize] = v),
                Part::Dense { first, values, .. } => {
                    floats(&values).enumerate().for_each(|(i, v)| blocks[block][first + i] = v);
                }
            })?;
        }
        assert!(decoder.is_complete());
        Ok(blocks)
    }

    fn block() -> impl Strategy<Value = (Vec<f32>, bool)> {
        let value = prop_oneof![Just(0.0f32), -1.0f32..1.0];
        (
            prop_oneof![
                proptest::collection::vec(value.clone(), 0..40),
                proptest::collection::vec(value, 5000..6000)
            ],
            any::<bool>(),
        )
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(blocks in proptest::collection::vec(block(), 0..5), cut in 1usize..50) {
            let expected = blocks.iter().map(|(b, _)| Expected { len: b.len() as u32, bound: b.len() as u32 }).collect::<Vec<_>>();
            let bodies: Vec<Body> = blocks.iter().map(|(values, dense)| {
                if *dense { Body::Dense(values.clone().into(), Rounded) } else { Body::Sparse(Entries::from_dense(values), Rounded) }
            }).collect();
            let wanted: Vec<Vec<f32>> = blocks.into_iter().map(|(b, _)| b).collect();
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
            let mut decoder = Decoder::new(lens.iter().map(|&(len, bound)| Expected { len, bound }).collect());
            for payload in bytes.chunks(cut) {
                let mut broken = false;
                let read = decoder.feed(Bytes::copy_from_slice(payload), |block, part| if let Part::Sparse(entries, _) = part {
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
        let payloads = encode(&[Body::Dense(Dense::lent(values.clone(), 0..PIECE), Rounded)]);
        assert_eq!(payloads.len(), 1 + 4);
        assert_eq!(payloads[1].as_ptr(), values.as_ptr().cast());
        assert_eq!(Arc::strong_count(&values), 2);
    }

    #[test]
    fn lies_are_named() {
        let expect = |len, bound| vec![Expected { len, bound }];
        let words =
            |words: &[u32]| Bytes::from(words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>());
        let lie = |expected, w: &[u32]| decode(expected, &[words(w)]).unwrap_err();
        assert_eq!(lie(expect(9, 3), &[7, 0]), DecodeError::Form { block: 0, form: 7 });
        assert_eq!(lie(expect(9, 3), &[0, 4]), DecodeError::Count { block: 0, count: 4, allowed: 3 });
        assert_eq!(lie(expect(9, 3), &[1, 8]), DecodeError::Count { block: 0, count: 8, allowed: 9 });
        assert_eq!(lie(expect(9, 3), &[0, 2, 4, 4]), DecodeError::Index { block: 0, index: 4, len: 9 });
        assert_eq!(lie(expect(9, 3), &[0, 1, 9]), DecodeError::Index { block: 0, index: 9, len: 9 });
        assert_eq!(lie(expect(9, 3), &[0, 1, 8, 0]), DecodeError::Value { block: 0, value: "0".into() });
        assert_eq!(lie(expect(9, 3), &[0, 0, 1]), DecodeError::Trailing(4));
        assert_eq!(
            lie(expect(1, 1), &[1, 1, f32::NAN.to_bits()]),
            DecodeError::Value { block: 0, value: "NaN".into() }
        );
        let torn = Decoder::new(expect(1, 1)).feed(Bytes::from_static(&[1, 2, 3]), |_, _| {});
        assert_eq!(torn, Err(DecodeError::Torn(3)));
        assert_eq!(Bag::<f32>::empty().nonzeros(), 0);
    }
}
