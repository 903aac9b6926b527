//! What a device encodes and decodes: indices where they were selected, and bags that came.

use super::super::{Entries, Rounded, is_entry};
use super::encode::{Encoded, values_words};
use super::indices::{self, Survey};
use super::{Form, Header, values};
use crate::Element;

/// Ascending indices in Rice's form, with what decides whether that is the smallest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RiceIndices {
    /// All gaps, bit by bit.
    pub widest: u32,
    /// The lowest parameter that was tried.
    pub lowest: u32,
    /// For it and those that follow, the sum of the gaps' higher parts.
    pub highs: [u32; RiceIndices::TRIED],
    /// The indices with the best of these parameters, and maybe more behind them. Values are written behind the indices.
    pub bytes: Vec<u8>,
}

impl RiceIndices {
    /// How many parameters are tried, from max(0, m − 3) on, m being the least with (last index + 1 − count) / 2^m ≤ count, at most 31.
    pub const TRIED: usize = indices::TRIED;

    /// The words that so many indices below `len` take at most where Rice's form is the smallest: no more than Elias–Fano's, or than raw ones.
    pub fn most_words(count: usize, len: usize) -> usize {
        let (count, len) = (count as u64, len as u64);
        let parameter = indices::elias_fano(count, len);
        indices::implied_words(Form::EliasFano, parameter, count, len).map_or(count, |words| words.min(count))
            as usize
    }
}

/// A bag whose indices are in Rice's form. Nothing but its header was checked.
#[derive(Clone, Copy, Debug)]
pub struct RiceBag<'a> {
    /// How many low bits of each gap lie in a field.
    pub parameter: u8,
    /// How many entries, at least one.
    pub count: usize,
    /// How many entries the block has; all indices are to be below.
    pub len: usize,
    /// How the values are written. Exact ones are as wide as those of the device.
    pub rounded: Rounded,
    /// The indices, and from a whole word on the values, padded with zeros to whole words. In QSGD's codings a scale for each bucket that
    /// has entries, and then a code for each entry.
    pub body: &'a [u8],
}

impl Encoded {
    /// What a device reads, if it is such a bag.
    pub fn rice(&self) -> Option<RiceBag<'_>> {
        let Header { form, parameter, rounded, count, .. } = self.header;
        let (count, len, body) = (count as usize, self.len, &self.body[..]);
        rounded.filter(|_| form == Form::Rice).map(|rounded| RiceBag { parameter, count, len, rounded, body })
    }

    /// How entries of a block of `len` travel, whose indices are encoded already: what [`encode`](super::encode()) makes of them, but
    /// None where another form, or a parameter that was not tried, may take less.
    pub fn of_rice<T: Element>(
        entries: &Entries<T>,
        len: usize,
        rounded: Rounded,
        given: RiceIndices,
    ) -> Option<Self> {
        let (count, block) = (entries.len() as u64, len as u64);
        let RiceIndices { widest, lowest, highs, mut bytes } = given;
        let rice = Survey { widest, lowest, highs }.rice(count)?;
        // A device writes nothing where it has less room than the indices take.
        let is_whole = bytes.len() as u64 >= 4 * rice.words;
        if count == 0 || !is_whole || indices::smallest(count, block, widest, rice) != rice {
            return None;
        }
        let words = rice.words + values_words::<T>(rounded, &entries.indices);
        let is_full_smaller = values::dense_words::<T>(rounded, block) < words;
        if is_full_smaller && entries.values.iter().copied().all(is_entry) {
            return None;
        }
        bytes.truncate(4 * rice.words as usize);
        values::write_sparse(rounded, &entries.indices, &entries.values, &mut bytes);
        let (parameter, count) = (rice.parameter, count as u32);
        let header = Header { form: Form::Rice, parameter, rounded: Some(rounded), count, words };
        Some(Self { header, len, body: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::super::super::Coding;
    use super::super::{Body, DecodeError, Decoder, Expected, Part, encode};
    use super::*;

    /// What comes of payloads: entries, decoded at once or, from so many on, later; or the first error.
    fn read(expected: Expected, payloads: &[Bytes], later: usize) -> Result<Vec<(u32, u32)>, DecodeError> {
        let mut decoder = Decoder::<f32>::new(vec![expected]).with_encoded_from(later);
        let mut came = Ok(Entries::default());
        for payload in payloads {
            let fed = decoder.feed(payload.clone(), |block, part| match part {
                Part::Encoded { encoded, count, rounded } => {
                    assert!(count >= later && count <= expected.bound as usize);
                    assert_eq!(encoded.rice().map(|bag| (bag.count, bag.rounded)), Some((count, rounded)));
                    came = encoded.entries(block, false);
                }
                Part::Sparse { entries, .. } => came = Ok(entries),
                _ => {}
            });
            came.as_ref().map_err(Clone::clone)?;
            fed?;
        }
        came.map(|entries| entries.iter().map(|(index, value)| (index, value.to_bits())).collect())
    }

    proptest! {
        /// Bags that are decoded later are those that are decoded at once, malformed ones included.
        #[test]
        fn later_is_as_at_once(
            gaps in proptest::collection::vec(0u32..90, 20..200), coding in 0usize..6,
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut next = 0;
            let entries: Entries = gaps.iter().map(|gap| { next += gap + 1; (next - 1, next as f32) }).collect();
            let len = 2 * next as usize;
            let (rounded, entries, _) = Coding::ALL[coding].round(&entries, len, 1);
            let expected = Expected::bag(len as u32, entries.len() as u32);
            let mut bytes = encode(&[Body::Sparse { entries, len, rounded }]).concat();
            for (place, byte) in changes {
                let at = place.index(bytes.len());
                bytes[at] = byte;
            }
            let payloads: Vec<Bytes> = bytes.chunks(64).map(Bytes::copy_from_slice).collect();
            let at_once = read(expected, &payloads, usize::MAX);
            prop_assert_eq!(read(expected, &payloads, 0), at_once.clone());
            prop_assert_eq!(read(expected, &payloads, 100), at_once);
        }
    }
}
