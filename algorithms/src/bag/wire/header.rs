//! What stands before the bodies: for each block its form, its coding, and how many entries it has.

use super::super::{Coding, Rounded};
use super::{DecodeError, Expected, indices, values};
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
}

impl Form {
    const ALL: [Form; 7] =
        [Form::Dense, Form::Raw, Form::Packed, Form::Bitmap, Form::EliasFano, Form::Rice, Form::Full];
}

/// What is said of a block before any body comes: 8 bytes, or 12 where the body's length does not follow from them.
///
/// | byte | what |
/// |---|---|
/// | 0 | the form |
/// | 1 | the form's parameter, 0 if it has none |
/// | 2 | the number of the coding |
/// | 3 | the binary logarithm of the width of a bucket, 0 if the coding has none |
/// | 4 to 7 | how many entries |
/// | 8 to 11 | where needed: the length of the body in words |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) form: Form,
    pub(super) parameter: u8,
    pub(super) rounded: Rounded,
    pub(super) count: u32,
    /// The length of the body.
    pub(super) words: u64,
}

impl Header {
    /// The bytes of a header without the body's length.
    pub(super) const BYTES: usize = 8;

    /// The header of a dense body.
    pub(super) fn dense<T: Element>(len: usize, rounded: Rounded) -> Self {
        let words = values::dense_words::<T>(rounded, len as u64);
        Self { form: Form::Dense, parameter: 0, rounded, count: len as u32, words }
    }

    /// Appends the header of a block of `len` entries.
    pub(super) fn write<T: Element>(&self, len: u64, out: &mut Vec<u8>) {
        let [coding, shift] = self.rounded.to_bytes();
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
        let Expected { len, bound } = expected;
        let unknown = || DecodeError::Form { block, form, parameter };
        let form = *Form::ALL.iter().find(|f| **f as u8 == form).ok_or_else(unknown)?;
        // Nothing at all is said in the simplest form.
        let empty = count == 0 && !matches!(form, Form::Dense | Form::Raw);
        if empty || !indices::has_parameter(form, parameter) {
            return Err(unknown());
        }
        let rounded =
            Rounded::from_bytes([coding, shift]).ok_or(DecodeError::Coding { block, coding, shift })?;
        // Only floats of 32 bits are ever rounded.
        if rounded.coding() != Coding::Exact && T::NAME != f32::NAME {
            return Err(DecodeError::Coding { block, coding, shift });
        }
        let allowed = if form == Form::Dense { len } else { bound.min(len) };
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
        match self.form {
            Form::Dense | Form::Full => Some(values::dense_words::<T>(self.rounded, len)),
            _ if count == 0 => Some(0),
            // How many buckets have entries is known only with the indices.
            _ if self.rounded.coding().has_buckets() => None,
            form => {
                let indices = indices::implied_words(form, self.parameter, count, len)?;
                Some(indices + values::sparse_words::<T>(self.rounded, count, 0))
            }
        }
    }

    /// The words of raw indices and values: nothing larger is ever sent.
    fn most_words<T: Element>(&self, len: u64) -> u64 {
        let count = u64::from(self.count);
        match self.form {
            Form::Dense => values::dense_words::<T>(self.rounded, len),
            _ => {
                let buckets = count.min(values::buckets(self.rounded, len));
                count + values::sparse_words::<T>(self.rounded, count, buckets)
            }
        }
    }
}
