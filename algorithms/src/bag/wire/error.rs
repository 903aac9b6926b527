//! What can be wrong with bytes.

/// Bytes that are not the slot that the schedule declared.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
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
    /// A form that there is not, or a parameter that it cannot have.
    #[error("block {block} of the slot has the unknown form {form} with parameter {parameter}")]
    Form {
        /// Position in the slot.
        block: usize,
        /// Form found.
        form: u8,
        /// Its parameter.
        parameter: u8,
    },
    /// A coding that there is not, or a width of buckets that it cannot have.
    #[error("block {block} of the slot has the unknown coding {coding} with buckets of 2^{shift} positions")]
    Coding {
        /// Position in the slot.
        block: usize,
        /// Number of the coding.
        coding: u8,
        /// Binary logarithm of the width of a bucket.
        shift: u8,
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
    /// A body longer than this many entries need.
    #[error("the body of block {block} of the slot has {words} words; its entries take at most {allowed}")]
    Length {
        /// Position in the slot.
        block: usize,
        /// Words announced.
        words: u64,
        /// Words that the entries take in the simplest form.
        allowed: u64,
    },
    /// Indices that do not ascend, or lie outside.
    #[error(
        "index {index} of block {block} of the slot is out of order or not below the block's length {len}"
    )]
    Index {
        /// Position in the slot.
        block: usize,
        /// Index found.
        index: u64,
        /// The block's length.
        len: u32,
    },
    /// A value that no bag may hold.
    #[error(
        "block {block} of the slot holds the value {value}; expected finite values, and zeros without a sign where only entries are encoded"
    )]
    Value {
        /// Position in the slot.
        block: usize,
        /// The value, as text.
        value: String,
    },
    /// A bucket whose scale is not the largest magnitude in it.
    #[error("block {block} of the slot has a bucket of scale {scale}, which is not its largest magnitude")]
    Scale {
        /// Position in the slot.
        block: usize,
        /// The scale, as text.
        scale: String,
    },
    /// A body that is longer or shorter than its entries.
    #[error("the body of block {block} of the slot does not end where its {count} entries do")]
    End {
        /// Position in the slot.
        block: usize,
        /// Entries announced.
        count: u32,
    },
    /// All values of a block, of which not as many are entries as were announced.
    #[error(
        "block {block} of the slot announces {count} entries, and {found} of its values are others than −0"
    )]
    Entries {
        /// Position in the slot.
        block: usize,
        /// Entries announced.
        count: u32,
        /// Values that are not −0.
        found: usize,
    },
    /// Bits that belong to no entry and are not zero.
    #[error("the body of block {block} of the slot is not padded with zeros")]
    Padding {
        /// Position in the slot.
        block: usize,
    },
    /// The slot is complete and more came.
    #[error("{0} bytes follow after the end of the slot")]
    Trailing(usize),
}

crate::sentence::debug_as_sentence!(DecodeError);

/// What is wrong with a body, wherever it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wrong {
    Index(u64),
    Value(f64),
    Scale(f32),
    End,
    Entries(usize),
    Padding,
}

impl Wrong {
    /// The error of a body at a position in the slot.
    pub(super) fn at(self, block: usize, count: u32, len: u32) -> DecodeError {
        match self {
            Wrong::Index(index) => DecodeError::Index { block, index, len },
            Wrong::Value(value) => DecodeError::Value { block, value: value.to_string() },
            Wrong::Scale(scale) => DecodeError::Scale { block, scale: scale.to_string() },
            Wrong::End => DecodeError::End { block, count },
            Wrong::Entries(found) => DecodeError::Entries { block, count, found },
            Wrong::Padding => DecodeError::Padding { block },
        }
    }
}
