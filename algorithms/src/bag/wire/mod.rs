//! Bags as bytes.
//!
//! A slot travels as a stream of little-endian 32-bit words: a header for each of its blocks, and then for each block its
//! body. The body of a dense block is all of its values. The body of a sparse one is its indices in the form that is
//! smallest for them, and its values; of a proposal its indices alone, and of a bag that is aligned to a proposal its
//! values alone. Among all values of a block −0 stands where there is no entry. All bodies are padded with zero bits to whole words. The stream is cut into
//! payloads of at most [`PIECE`] bytes at word boundaries, so that the far side works while the rest is under way.
//!
//! The [`Decoder`] takes any bytes at all: it never panics, and allocates no more than what the schedule declared for
//! each block allows.

mod decode;
mod encode;
mod error;
mod header;
mod indices;
mod rice;
mod values;

#[cfg(test)]
mod tests;

pub use decode::{Decoder, Part};
pub use encode::{Body, Encoded, encode, passed_on};
pub(crate) use encode::{announce_dense, encode_keeping, pieces};
pub use error::DecodeError;
use header::{Form, Header};
pub use rice::{RiceBag, RiceIndices};

use super::Bag;
use crate::Element;

/// The largest payload that [`encode()`] makes, in bytes.
pub const PIECE: usize = 64 << 10;

/// Into how many payloads a dense block is cut, unless they would be longer than [`PIECE`] or shorter than 16 KiB.
pub const PIECES: usize = 8;

/// The shortest payload that a dense block is cut into, in bytes.
const SHORT: usize = 16 << 10;

/// What a schedule declares of one block that is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Entries in the block.
    pub len: u32,
    /// Entries that the sender may have, at most, or indices that it may propose.
    pub bound: u32,
    /// What is encoded of them.
    pub content: Content,
}

/// What is encoded of the entries of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Indices and values, or all values.
    Bag,
    /// Indices alone.
    Proposal,
    /// Values alone, at indices that the receiver has.
    Aligned,
}

impl Expected {
    /// A bag of at most `bound` entries of a block of `len`.
    pub fn bag(len: u32, bound: u32) -> Self {
        Self { len, bound, content: Content::Bag }
    }

    /// Whether its sender may hold it dense: a bag that may have all entries, or so many that it turns dense.
    pub(super) fn may_be_dense<T: Element>(self) -> bool {
        self.bound >= self.len || Bag::<T>::is_dense_with(self.bound as usize, self.len as usize)
    }
}

/// Bytes in words, rounded up.
fn words(bytes: u64) -> u64 {
    bytes.div_ceil(4)
}
