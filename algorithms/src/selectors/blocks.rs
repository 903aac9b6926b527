//! The largest entries of each of this many blocks of equal lengths, whatever layers they belong to: k/B of each, rounded,
//! and at least one. A layer-wise selection for gradients whose layers are not known.
//!
//! Exact in every block; the count is fixed and differs from k by the rounding.

use std::ops::Range;

/// The blocks: their lengths differ by at most one, the longer ones first.
pub(super) fn ranges(n: usize, blocks: u32) -> impl Iterator<Item = Range<usize>> {
    let blocks = blocks.max(1) as usize;
    let (each, longer) = (n / blocks, n % blocks);
    let start = move |block: usize| block * each + block.min(longer);
    (0..blocks.min(n)).map(move |block| start(block)..start(block + 1))
}
