//! What stands before the bodies: for each block its form, its coding, and how many entries it has.

use super::super::{Coding, Rounded};
use super::{Content, DecodeError, Expected, indices, values};
use crate::Element;

/// What the body of a block looks like. Of sparse forms of equal size, the lower number is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// All values of a block that the sender holds dense, piece by piece.
    Dense = 0,
    /// Indices of 32 bits, and values.
    Raw = 1,
    /// Gaps in fields as wide as the largest needs, and values.
    Packed = 2,
    /// A bit for each position, and values.
    Bitmap = 3,
    /// Elias–Fano's indices, and values.
    EliasFano = 4,
    /// Rice's gaps, and values.
    Rice = 5,
    /// All values of a block that the sender holds sparse.
    Full = 6,
    /// Values at indices that the receiver has.
    Aligned = 7,
}

impl Form {
    const ALL: [Form; 8] = [
        Form::Dense,
        Form::Raw,
        Form::Packed,
        Form::Bitmap,
        Form::EliasFano,
        Form::Rice,
        Form::Full,
        Form::Aligned,
    ];

    /// Whether this form carries such a content.
    fn carries(self, content: Content) -> bool {
        match content {
            Content::Bag => self != Form::Aligned,
            Content::Proposal => !matches!(self, Form::Dense | Form::Full | Form::Aligned),
            Content::Aligned => self == Form::Aligned,
        }
    }
}

/// What is said of a block before any body comes: 8 bytes, or 12 where the body's length does not follow from them.
///
/// | byte | what |
/// |---|---|
/// | 0 | the form |
/// | 1 | the form's parameter, 0 if it has none |
/// | 2 | the number of the coding; 6 if no values follow the indices |
/// | 3 | the binary logarithm of the width of a bucket, 0 if the coding has none |
/// | 4 to 7 | how many entries |
/// | 8 to 11 | where needed: the length of the body in words |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) form: Form,
    pub(super) parameter: u8,
    /// What the values were rounded to; None if there are none.
    pub(super) rounded: Option<Rounded>,
    pub(super) count: u32,
    /// The length of the body.
    pub(super) words: u64,
}

impl Header {
    /// The bytes of a header without the body's length.
    pub(super) const BYTES: usize = 8;

    /// What stands in place of a coding where no values follow the indices.
    const NO_VALUES: [u8; 2] = [6, 0];

    /// The header of a dense body.
    pub(super) fn dense<T: Element>(len: usize, rounded: Rounded) -> Self {
        let words = values::dense_words::<T>(rounded, len as u64);
        Self { form: Form::Dense, parameter: 0, rounded: Some(rounded), count: len as u32, words }
    }

    /// Appends the header of a block of `len` entries.
    pub(super) fn write<T: Element>(&self, len: u64, out: &mut Vec<u8>) {
        let [coding, shift] = self.rounded.map_or(Self::NO_VALUES, Rounded::to_bytes);
        out.extend_from_slice(&[self.form as u8, self.parameter, coding, shift]);
        out.extend_from_slice(&self.count.to_le_bytes());
        if self.implied_words::<T>(len).is_none() {
            out.extend_from_slice(&(self.words as u32).to_le_bytes());
        }
    }

    /// Reads a header of block number `block`. The words of the body are 0 if they stand in the next four bytes.
    pub(super) fn read<T: Element>(
        bytes: [u8; Self::BYTES],
        block: usize,
        expected: Expected,
    ) -> Result<Self, DecodeError> {
        let [form, parameter, coding, shift, count @ ..] = bytes;
        let count = u32::from_le_bytes(count);
        let Expected { len, bound, content } = expected;
        let unknown = || DecodeError::Form { block, form, parameter };
        let form = *Form::ALL.iter().find(|f| **f as u8 == form).ok_or_else(unknown)?;
        // Nothing at all is said in the simplest form.
        let empty = count == 0 && !matches!(form, Form::Dense | Form::Raw | Form::Aligned);
        if empty || !form.carries(content) || !indices::has_parameter(form, parameter) {
            return Err(unknown());
        }
        let coding_of_values = match content {
            Content::Proposal => ([coding, shift] == Self::NO_VALUES).then_some(None),
            Content::Bag | Content::Aligned => Rounded::from_bytes([coding, shift]).map(Some),
        };
        let rounded = coding_of_values
            .filter(|rounded| rounded.is_none_or(|r| takes::<T>(r.coding())))
            .ok_or(DecodeError::Coding { block, coding, shift })?;
        let dense = form == Form::Dense && expected.may_be_dense::<T>();
        let allowed = if dense { len } else { bound.min(len) };
        if count > allowed || (form == Form::Dense && count != len) {
            return Err(DecodeError::Count { block, count, allowed });
        }
        let mut header = Self { form, parameter, rounded, count, words: 0 };
        if let Some(words) = header.implied_words::<T>(u64::from(len)) {
            header.set_words::<T>(words, block, len)?;
        }
        Ok(header)
    }

    /// Notes how many words the body has, if that is not more than the simplest form would take.
    pub(super) fn set_words<T: Element>(
        &mut self,
        words: u64,
        block: usize,
        len: u32,
    ) -> Result<(), DecodeError> {
        let allowed = self.most_words::<T>(u64::from(len));
        if words > allowed {
            return Err(DecodeError::Length { block, words, allowed });
        }
        self.words = words;
        Ok(())
    }

    /// The words of the body, where they follow from the rest.
    pub(super) fn implied_words<T: Element>(&self, len: u64) -> Option<u64> {
        let count = u64::from(self.count);
        match (self.form, self.rounded) {
            (Form::Dense | Form::Full, rounded) => {
                Some(values::dense_words::<T>(rounded.unwrap_or_default(), len))
            }
            _ if count == 0 => Some(0),
            // How many buckets have entries is known only with the indices.
            (_, Some(rounded)) if rounded.coding().has_buckets() => None,
            (form, rounded) => {
                let indices = indices::implied_words(form, self.parameter, count, len)?;
                Some(indices + rounded.map_or(0, |r| values::sparse_words::<T>(r, count, 0)))
            }
        }
    }

    /// The words of raw indices and values: nothing larger is ever sent, and all values only where they are smaller.
    fn most_words<T: Element>(&self, len: u64) -> u64 {
        let count = u64::from(self.count);
        let sparse = |rounded| {
            let buckets = count.min(values::buckets(rounded, len));
            values::sparse_words::<T>(rounded, count, buckets)
        };
        match (self.form, self.rounded) {
            (_, None) => count,
            (Form::Dense, Some(rounded)) => values::dense_words::<T>(rounded, len),
            (Form::Aligned, Some(rounded)) => sparse(rounded),
            (Form::Full, Some(rounded)) => (count + sparse(rounded)).saturating_sub(1),
            (_, Some(rounded)) => count + sparse(rounded),
        }
    }
}

impl Content {
    /// Bytes for each entry that a block has, at most, beside [`Expected::MOST_BESIDE`].
    pub fn most_bytes_each<T: Element>(self) -> u64 {
        match self {
            Content::Bag | Content::Aligned => T::WIDTH as u64,
            Content::Proposal => 4,
        }
    }
}

impl Expected {
    /// Bytes that a block takes at most beside those for each of its entries: its header, and a word that is not filled.
    pub const MOST_BESIDE: u64 = 16;

    /// The most bytes that it takes on the wire with values of this type: a header, and a body in whatever coding. Where it
    /// may be dense nothing is longer than all of its values, and otherwise nothing longer than raw indices and values.
    pub fn most_bytes<T: Element>(self) -> u64 {
        let form = match self.content {
            Content::Bag if self.may_be_dense::<T>() => Form::Dense,
            Content::Bag | Content::Proposal => Form::Raw,
            Content::Aligned => Form::Aligned,
        };
        let words = |rounded| {
            let count = self.bound.min(self.len);
            Header { form, parameter: 0, rounded, count, words: 0 }.most_words::<T>(self.len.into())
        };
        let most = match self.content {
            Content::Proposal => words(None),
            Content::Bag | Content::Aligned => {
                let codings = Coding::ALL.into_iter().filter(|&coding| takes::<T>(coding));
                codings.map(|coding| words(Some(Rounded::narrowest(coding)))).max().unwrap_or(0)
            }
        };
        12 + 4 * most
    }
}

/// Whether values of this type are encoded in a coding: only floats of 32 bits are ever rounded.
fn takes<T: Element>(coding: Coding) -> bool {
    coding == Coding::Exact || T::NAME == f32::NAME
}
