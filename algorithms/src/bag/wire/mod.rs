//! Bags as bytes.
//!
//! A slot travels as a stream of little-endian 32-bit words: a header for each of its blocks, and then for each block its
//! body. The body of a dense block is all of its values. The body of a sparse one is its indices in the form that is
//! smallest for them, and its values. All bodies are padded with zero bits to whole words. The stream is cut into
//! payloads of at most [`PIECE`] bytes at word boundaries, so that the far side works while the rest is under way.
//!
//! The [`Decoder`] takes any bytes at all: it never panics, and allocates no more than what the schedule declared for
//! each block allows.

mod decode;
mod encode;
mod error;
mod header;
mod indices;
mod values;

#[cfg(test)]
mod tests;

pub use decode::{Decoder, Part};
pub use encode::{Body, encode};
pub(crate) use encode::{announce_dense, pieces};
pub use error::DecodeError;
use header::{Form, Header};

/// The largest payload that [`encode()`] makes, in bytes.
pub const PIECE: usize = 256 << 10;

/// What a schedule declares of one block that is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Entries in the block.
    pub len: u32,
    /// Non-zero entries that the sender may have, at most.
    pub bound: u32,
}

/// Bytes in words, rounded up.
fn words(bytes: u64) -> u64 {
    bytes.div_ceil(4)
}
