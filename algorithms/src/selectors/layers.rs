//! The largest entries of each layer: k·len/n of them, rounded, and at least one, so that no small layer is left out (as
//! Strom: Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, 2015, and Lin et al.: Deep Gradient
//! Compression, ICLR 2018, select layer by layer).
//!
//! Exact in every layer; the count is fixed and differs from k by the rounding.

use std::ops::Range;

use crate::bag::Entries;
use crate::{Element, select};

/// The share that `len` of n entries have in k, rounded, at least one if there are any, and at most all.
pub(super) fn share(len: usize, k: usize, n: usize) -> usize {
    if k == 0 || len == 0 {
        return 0;
    }
    // In whole numbers, halves up: 2·k·len fits into 128 bits.
    let (k, n) = (k as u128, n as u128);
    let share = (2 * k * len as u128 + n) / (2 * n);
    (share as usize).clamp(1, len)
}

/// How many entries are chosen in all.
pub(super) fn count(ranges: impl Iterator<Item = Range<usize>>, k: usize, n: usize) -> usize {
    ranges.map(|range| share(range.len(), k, n)).sum()
}

/// The share of every range, indexed in the whole.
pub(super) fn choose<T: Element>(
    values: &[T],
    ranges: impl Iterator<Item = Range<usize>>,
    k: usize,
) -> Entries<T> {
    let mut chosen = Entries::default();
    for range in ranges {
        let top = select::top_k_dense(&values[range.clone()], share(range.len(), k, values.len()));
        chosen.indices.extend(top.indices.iter().map(|&i| range.start as u32 + i));
        chosen.values.extend(top.values);
    }
    chosen
}
