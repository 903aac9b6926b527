//! Indices that a device has encoded where they were selected.

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

impl Encoded {
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
